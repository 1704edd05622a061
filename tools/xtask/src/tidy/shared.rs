//! What tests share has one owner, `testkit`: the programs that make, change and judge images, loop devices, and the
//! generator of random numbers.

use super::Violation;
use super::source::RustFile;

/// Programs that only `testkit` starts in tests.
const PROGRAMS: [&str; 8] = [
    "e2fsck",
    "mke2fs",
    "mkfs.ext4",
    "debugfs",
    "dumpe2fs",
    "tune2fs",
    "losetup",
    "dd",
];

/// How a program is started.
const STARTS: [&str; 2] = ["Command::new(", "run("];

/// Constants of well-known generators: SplitMix64, xorshift64* and Knuth's.
const CONSTANTS: [&str; 5] = [
    "9e3779b97f4a7c15",
    "bf58476d1ce4e5b9",
    "94d049bb133111eb",
    "2545f4914f6cdd1d",
    "6364136223846793005",
];

/// Tools that test, although their code is not in folders of tests.
const TESTERS: [&str; 2] = ["simulate", "corpus"];

/// Checks the tests of a file.
pub fn check(source: &RustFile, violations: &mut Vec<Violation>) {
    let name = source.crate_name().unwrap_or_default();
    if matches!(name, "testkit" | "model" | "xtask") {
        return;
    }
    let is_tester = TESTERS.contains(&name);
    let mut report = |line: usize, message: String| {
        violations.push(Violation {
            path: source.path.clone(),
            line,
            rule: "testkit",
            message,
        });
    };
    for (index, line) in source.lines.iter().enumerate() {
        if !line.test && !is_tester {
            continue;
        }
        if let Some(program) = started(source, index) {
            let message = format!("a test starts `{program}` by itself: `testkit` does that");
            report(index + 1, message);
        }
        let digits = line.code.replace('_', "").to_lowercase();
        let is_xorshift = digits.contains("^=") && digits.contains("<< 13");
        if is_xorshift || CONSTANTS.iter().any(|constant| digits.contains(constant)) {
            let message = "a generator of random numbers: take `testkit::Random`".to_owned();
            report(index + 1, message);
        }
    }
}

/// The program that a line starts, whose name may be on the next line.
fn started(source: &RustFile, index: usize) -> Option<&'static str> {
    let line = source.lines[index].text.trim();
    let next = source
        .lines
        .get(index + 1)
        .map_or("", |line| line.text.trim());
    PROGRAMS.into_iter().find(|program| {
        let quoted = format!("\"{program}\"");
        STARTS.iter().any(|start| {
            let is_here = line.contains(&format!("{start}{quoted}"));
            is_here || line.ends_with(start) && next.starts_with(&quoted)
        })
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn count(path: &str, text: &str) -> usize {
        let mut violations = Vec::new();
        check(&RustFile::new(Path::new(path), text), &mut violations);
        violations.len()
    }

    #[test]
    fn a_program_that_a_test_starts_by_itself_is_caught() {
        let test = "crates/x/tests/a.rs";
        assert_eq!(count(test, "fn a() { Command::new(\"e2fsck\"); }\n"), 1);
        assert_eq!(
            count(
                test,
                "fn a() {\n    run(\n        \"losetup\",\n    );\n}\n"
            ),
            1
        );
        assert_eq!(count(test, "fn a() { testkit::have(\"e2fsck\"); }\n"), 0);
        assert_eq!(count(test, "fn a() { Command::new(\"tar\"); }\n"), 0);
        assert_eq!(
            count("crates/x/src/a.rs", "fn a() { Command::new(\"dd\"); }\n"),
            0
        );
        assert_eq!(
            count(
                "tools/simulate/src/a.rs",
                "fn a() { Command::new(\"dd\"); }\n"
            ),
            1
        );
    }

    #[test]
    fn a_generator_of_its_own_in_a_test_is_caught() {
        let test = "crates/x/tests/a.rs";
        assert_eq!(count(test, "fn a() { b ^= b << 13; }\n"), 1);
        assert_eq!(count(test, "const A: u64 = 0x9E37_79B9_7F4A_7C15;\n"), 1);
        assert_eq!(count(test, "fn a() { b ^= c; }\n"), 0);
        assert_eq!(
            count(
                "crates/x/src/a.rs",
                "const A: u64 = 0x9E37_79B9_7F4A_7C15;\n"
            ),
            0
        );
    }
}
