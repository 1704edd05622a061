//! `cargo xtask instructions`: how many instructions each operation of the engine takes, counted by callgrind, against
//! the counts kept in `results/instructions.md`.
//!
//! A time depends on what else a machine does; a count of instructions does not, so a change of 2 % is a change of the
//! code. The counts do depend on the compiler, on valgrind, on the C library and on the processor's features. The
//! baseline names all four, and counts made with others are shown, not judged.

mod baseline;
pub mod callgrind;

use std::path::Path;

use baseline::{Baseline, InstructionCounts};

const FOLDER: &str = "results";
const FILE: &str = "results/instructions.md";

const USAGE: &str = "\
usage: cargo xtask instructions            counts, and fails where a count is more than 2 % above the baseline
       cargo xtask instructions --update   counts, and writes the counts to results/instructions.md";

/// Counts, and compares or writes the baseline; the result is a note, which begins with `skipped: ` where nothing was
/// judged.
pub fn run(root: &Path, words: &[&str]) -> Result<String, String> {
    let is_update = match words {
        [] => false,
        ["--update"] => true,
        _ => return Err(USAGE.to_owned()),
    };
    let Some(valgrind) = callgrind::version() else {
        return Ok("skipped: instructions are not counted: valgrind is not installed".to_owned());
    };
    let path = root.join(FILE);
    let tools = callgrind::tools(root, &valgrind)?;
    let counts = callgrind::count(root)?;
    if is_update {
        let baseline = Baseline {
            commit: callgrind::commit(root)?,
            tools,
            counts,
        };
        std::fs::create_dir_all(root.join(FOLDER))
            .and_then(|()| std::fs::write(&path, baseline.to_string()))
            .map_err(|error| format!("writing {FILE} failed: {error}"))?;
        return Ok(format!("{FILE} is written"));
    }
    let text = std::fs::read_to_string(&path).map_err(|error| {
        format!("reading {FILE} failed: {error}; `cargo xtask instructions --update` writes it")
    })?;
    let baseline = Baseline::parse(&text).map_err(|error| format!("{FILE}: {error}"))?;
    judge(&baseline, &tools, &counts)
}

/// Prints the counts beside the baseline's, and fails where one is too high.
fn judge(
    baseline: &Baseline,
    tools: &[String],
    counts: &InstructionCounts,
) -> Result<String, String> {
    print!("{}", baseline.compared(counts));
    let others = baseline.other_tools(tools);
    if !others.is_empty() {
        return Ok(format!(
            "skipped: instructions are counted but not judged: the baseline was made with {}",
            others.join(" and ")
        ));
    }
    let refused = baseline.refused(counts);
    if refused.is_empty() {
        let count = counts.len();
        return Ok(format!(
            "{count} operations, at most 2 % above the baseline of {}",
            baseline.commit
        ));
    }
    Err(format!(
        "{}\nif that is the price of a change that is worth it, say so in a commit of its own that `cargo xtask \
         instructions --update` makes",
        refused.join("\n")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A baseline of the kept counts, each multiplied.
    fn scaled(baseline: &Baseline, factor: f64) -> Baseline {
        let scale = |(name, count): (&String, &f64)| (name.clone(), count * factor);
        Baseline {
            counts: baseline.counts.iter().map(scale).collect(),
            tools: baseline.tools.clone(),
            commit: baseline.commit.clone(),
        }
    }

    fn kept() -> Baseline {
        let text = std::fs::read_to_string(crate::root().join(FILE)).unwrap();
        Baseline::parse(&text).unwrap()
    }

    #[test]
    fn counts_three_percent_above_the_baseline_are_refused_and_one_percent_above_are_not() {
        let kept = kept();
        let lower = scaled(&kept, 0.97);
        let error = judge(&lower, &kept.tools, &kept.counts).unwrap_err();
        for name in kept.counts.keys() {
            assert!(error.contains(&format!("{name}:")), "{name} in: {error}");
        }
        let little = scaled(&kept, 0.99);
        let note = judge(&little, &kept.tools, &kept.counts).unwrap();
        assert!(!note.starts_with("skipped: "), "{note}");
    }

    #[test]
    fn one_count_above_its_baseline_is_refused_alone() {
        let kept = kept();
        let mut counts = kept.counts.clone();
        *counts.get_mut("unlink").unwrap() *= 1.021;
        let error = judge(&kept, &kept.tools, &counts).unwrap_err();
        assert!(
            error.starts_with("unlink: ") && error.contains("2.1 %"),
            "{error}"
        );
        assert!(!error.contains("create: "), "{error}");
    }

    #[test]
    fn an_operation_that_is_new_or_gone_is_refused_until_the_baseline_has_it() {
        let kept = kept();
        let mut counts = kept.counts.clone();
        counts.insert("teleport".to_owned(), 1.0);
        assert!(
            judge(&kept, &kept.tools, &counts)
                .unwrap_err()
                .contains("teleport: ")
        );
        let mut counts = kept.counts.clone();
        counts.remove("read");
        assert!(
            judge(&kept, &kept.tools, &counts)
                .unwrap_err()
                .contains("read: ")
        );
    }

    #[test]
    fn counts_of_another_compiler_are_shown_and_not_judged() {
        let kept = kept();
        let lower = scaled(&kept, 0.5);
        let mut tools = kept.tools.clone();
        "rustc 1.0.0 (a59de37e9 2015-05-13)".clone_into(&mut tools[0]);
        let note = judge(&lower, &tools, &kept.counts).unwrap();
        assert!(
            note.starts_with("skipped: ") && note.contains(&kept.tools[0]),
            "{note}"
        );
    }
}
