//! Folding agrees with e2fsprogs, whose Unicode tables are the kernel's, for a sweep over all code points.

use std::fmt::Write as _;

use lanefs_ondisk::casefold::FoldedName;
use lanefs_ondisk::dirhash::HashVersion;

/// Names of one character between letters, and of a letter, three characters and a letter.
fn names() -> Vec<String> {
    let all = (0x80..0x11_0000).filter_map(char::from_u32);
    let mut names: Vec<String> = all
        .filter(|it| u32::from(*it) < 0x3000 || u32::from(*it) % 9 == 0)
        .filter(|it| !it.is_whitespace() && !it.is_control())
        .map(|it| format!("Q{it}q"))
        .collect();
    let mut state = 1_u32;
    let mut next = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    for _ in 0..20_000 {
        let mut name = String::from("Q");
        for _ in 0..3 {
            // Combining marks stand thick from U+0300 on.
            let code = if next(2) == 0 {
                0x300 + next(0x70)
            } else {
                0xC0 + next(0x2F00)
            };
            name.extend(char::from_u32(code).filter(|it| !it.is_whitespace()));
        }
        names.push(name + "Q");
    }
    names
}

#[test]
fn every_swept_name_hashes_as_debugfs_folds_it() {
    if !testkit::have("debugfs") {
        return testkit::skip("no debugfs");
    }
    let names = names();
    let mut script = String::new();
    for name in &names {
        writeln!(script, "dx_hash -c -e utf8 -h half_md4 {name}").expect("a string takes all");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("script");
    std::fs::write(&path, script).expect("the script is written");
    let output = testkit::debugfs(&["-f".as_ref(), path.as_os_str()]);
    let output = String::from_utf8_lossy(&output.stdout);
    let hashes: Vec<u32> = output
        .lines()
        .filter(|line| line.starts_with("Hash of "))
        .filter_map(|line| line.rsplit_once(" is 0x"))
        .filter_map(|(_, hash)| u32::from_str_radix(hash.split(' ').next()?, 16).ok())
        .collect();
    assert_eq!(hashes.len(), names.len());
    for (name, expected) in names.iter().zip(hashes) {
        let found = FoldedName::new(name.as_bytes()).hash(HashVersion::HalfMd4, &[0; 4]);
        assert_eq!(found.map(|hash| hash.major), Some(expected), "{name:?}");
    }
}
