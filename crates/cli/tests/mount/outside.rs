//! Test suites of other projects, run on a mount: pjdfstest (POSIX semantics, compared with the kernel's ext4) and fsx
//! (data).
//!
//! They are programs from the package registry: `cargo install pjdfstest@0.2.2 fsx@0.3.2`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use testkit::KernelMount;

use crate::served::{Served, can_mount, image};

const SIZE: u64 = 512 << 20;

/// Users and groups are Debian's; the time between two stamps is that of the coarser clock of the two file systems.
const POSIX: &str = "\
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
[settings]
naptime = 0.02
[dummy_auth]
entries = [[\"nobody\", \"nogroup\"], [\"games\", \"games\"]]
";

/// Where the two may differ, and why.
const DIFFERENCES: &[(&str, &str)] = &[(
    "link::link_count_max",
    "the C library knows how many links a file may have by the type of the file system, and says 127 for FUSE",
)];

/// Every operation of fsx that Linux has, memory maps among them.
const DATA: &str = "\
flen = 262144
[opsize]
max = 65536
[weights]
close_open = 1
read = 10
write = 10
mapread = 5
mapwrite = 5
truncate = 2
fsync = 1
fdatasync = 1
invalidate = 1
posix_fallocate = 2
punch_hole = 3
sendfile = 2
copy_file_range = 2
posix_fadvise = 1
";
const DATA_SEEDS: u64 = 20;
const DATA_OPERATIONS: &str = "5000";

/// Whether an outside program is there; says how to get it.
fn have(program: &str) -> bool {
    if testkit::have(program) {
        return true;
    }
    testkit::skip(&format!("needs {program}: cargo install {program}"));
    false
}

/// What pjdfstest says of each of its tests.
fn posix(place: &Path, other: &Path, folder: &Path) -> BTreeMap<String, String> {
    let configuration = folder.join("pjdfstest.toml");
    std::fs::write(&configuration, POSIX).unwrap();
    let output = Command::new("pjdfstest")
        .arg("-c")
        .arg(&configuration)
        .arg("-p")
        .arg(place)
        .arg("-s")
        .arg(other)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter(|line| line.contains("::"));
    let results = lines.filter_map(|line| {
        let (name, result) = line.split_once(char::is_whitespace)?;
        let result = result.trim();
        // Between them stand traces of tests that failed.
        let is_result = ["ok", "skipped", "FAILED"].contains(&result);
        is_result.then(|| (name.to_owned(), result.to_owned()))
    });
    let results: BTreeMap<String, String> = results.collect();
    assert!(
        results.len() > 300,
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    results
}

#[test]
#[ignore = "needs pjdfstest: cargo xtask suites posix"]
fn posix_semantics_are_those_of_the_kernels_ext4() {
    if !can_mount() || !have("pjdfstest") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let other = image(folder.path(), "other.img", 64 << 20, &[]);
    let other = KernelMount::with(&other, "loop").unwrap();
    let kernel_image = image(folder.path(), "kernel.img", SIZE, &[]);
    let kernel = KernelMount::with(&kernel_image, "loop").unwrap();
    let theirs = posix(&kernel.path(), &other.path(), folder.path());
    drop(kernel);

    let image = image(folder.path(), "a.img", SIZE, &[]);
    let served = Served::start(&image, "allow_other");
    let ours = posix(served.path(), &other.path(), folder.path());
    served.unmount();
    testkit::e2fsck(&image);

    let count = |results: &BTreeMap<String, String>, word: &str| {
        results
            .values()
            .filter(|result| result.as_str() == word)
            .count()
    };
    for (who, results) in [("the kernel's ext4", &theirs), ("lanefs", &ours)] {
        println!(
            "{who}: {} tests, {} ok, {} skipped",
            results.len(),
            count(results, "ok"),
            count(results, "skipped")
        );
    }
    let mut unexplained = 0;
    for (name, result) in &ours {
        let other = theirs.get(name).map_or("absent", String::as_str);
        if other == result {
            continue;
        }
        let reason = DIFFERENCES.iter().find(|(known, _)| known == name);
        let reason = reason.map_or("NOT EXPLAINED", |(_, reason)| *reason);
        println!("{name}: lanefs {result}, the kernel's ext4 {other}: {reason}");
        unexplained += usize::from(reason == "NOT EXPLAINED");
    }
    assert_eq!((unexplained, ours.len()), (0, theirs.len()));
}

#[test]
#[ignore = "needs fsx: cargo xtask suites fsx"]
fn data_is_what_was_written_through_every_way_to_write() {
    if !can_mount() || !have("fsx") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let configuration = folder.path().join("fsx.toml");
    std::fs::write(&configuration, DATA).unwrap();
    for block_size in ["1024", "4096"] {
        let image = image(folder.path(), "a.img", SIZE, &["-b", block_size]);
        let served = Served::start(&image, "");
        for seed in 0..DATA_SEEDS {
            let output = Command::new("fsx")
                .args(["-q", "-N", DATA_OPERATIONS, "-S", &seed.to_string(), "-f"])
                .arg(&configuration)
                .arg("-P")
                .arg(folder.path())
                .arg(served.path().join(format!("file{seed}")))
                .output()
                .unwrap();
            assert!(
                output.status.success(),
                "seed {seed}: {}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        served.unmount();
        testkit::e2fsck(&image);
        println!(
            "{DATA_SEEDS} seeds of {DATA_OPERATIONS} operations with blocks of {block_size} bytes"
        );
    }
}
