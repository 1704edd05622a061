//! A build that fails says why and leaves nothing behind.

use std::fs;
use std::path::Path;

use lanefs_image::{BuildError, BuildOptions, Phase, Progress, Silent, Size, build};
use mkfs::Options;
use sync::atomic::{AtomicBool, Ordering};

use crate::tree::{build_image, noise, try_build};

/// The names in a directory.
fn names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = names
        .map(|name| name.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn source_of(scratch: &Path, bytes: usize) -> BuildOptions {
    let source = scratch.join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), noise(bytes, 1)).unwrap();
    BuildOptions::from_directory(source)
}

#[test]
fn a_size_too_small_names_the_size_that_does() {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("small.img");
    let options = source_of(scratch.path(), 5 << 20);
    let small = BuildOptions {
        size: Size::Fixed(4 << 20),
        ..options.clone()
    };
    let BuildError::TooSmall { given, needed } = try_build(&small, &output).unwrap_err() else {
        panic!("another error");
    };
    assert_eq!(given, 4 << 20);
    assert_eq!(names(scratch.path()), ["source"]);
    let enough = BuildOptions {
        size: Size::Fixed(needed),
        ..options.clone()
    };
    let report = build_image(&enough, &output);
    assert_eq!(report.image_bytes, needed);
    testkit::e2fsck(&output);
}

#[test]
fn too_few_inodes_are_named() {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("inodes.img");
    let options = source_of(scratch.path(), 10);
    for number in 0..100 {
        fs::write(scratch.path().join(format!("source/{number}")), b"").unwrap();
    }
    let options = BuildOptions {
        mkfs: Options {
            inodes: Some(32),
            ..Options::default()
        },
        size: Size::Fixed(16 << 20),
        ..options
    };
    let error = try_build(&options, &output).unwrap_err();
    assert!(
        matches!(error, BuildError::TooFewInodes { needed: 113, .. }),
        "{error:?}"
    );
}

#[test]
fn what_was_there_before_stays_when_a_build_fails_and_goes_when_it_succeeds() {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("there.img");
    fs::write(&output, b"before").unwrap();
    let options = source_of(scratch.path(), 1 << 20);
    let small = BuildOptions {
        size: Size::Fixed(1 << 20),
        ..options.clone()
    };
    assert!(try_build(&small, &output).is_err());
    assert_eq!(fs::read(&output).unwrap(), b"before");
    build_image(&options, &output);
    assert_eq!(names(scratch.path()), ["source", "there.img"]);
    testkit::e2fsck(&output);
}

/// Does something when the copy begins.
struct AtCopy<F: Fn() + Sync>(F);

impl<F: Fn() + Sync> Progress for AtCopy<F> {
    fn phase(&self, phase: Phase) {
        if matches!(phase, Phase::Copy { .. }) {
            (self.0)();
        }
    }
    fn advance(&self, _bytes: u64) {}
}

#[test]
fn an_interrupted_build_leaves_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("interrupted.img");
    let options = source_of(scratch.path(), 1 << 20);
    let cancel = AtomicBool::new(false);
    // Relaxed: read by the threads that this call starts later.
    let progress = AtCopy(|| cancel.store(true, Ordering::Relaxed));
    let error = build(&options, &output, &progress, &cancel).unwrap_err();
    assert!(matches!(error, BuildError::Interrupted), "{error:?}");
    assert_eq!(names(scratch.path()), ["source"]);
}

#[test]
fn a_file_that_changes_its_size_meanwhile_is_named() {
    for size in [100, 2 << 20] {
        let scratch = tempfile::tempdir().unwrap();
        let output = scratch.path().join("changed.img");
        let options = source_of(scratch.path(), 1 << 20);
        let file = scratch.path().join("source/file");
        let change = || fs::write(&file, noise(size, 3)).unwrap();
        let cancel = AtomicBool::new(false);
        let error = build(&options, &output, &AtCopy(change), &cancel)
            .unwrap_err()
            .to_string();
        assert!(error.contains("source/file"), "{error}");
        assert_eq!(names(scratch.path()), ["source"]);
    }
}

#[test]
fn a_file_that_vanishes_meanwhile_is_named() {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("vanished.img");
    let options = source_of(scratch.path(), 1 << 20);
    let file = scratch.path().join("source/file");
    let progress = AtCopy(|| fs::remove_file(&file).unwrap());
    let error = build(&options, &output, &progress, &AtomicBool::new(false)).unwrap_err();
    assert!(error.to_string().contains("source/file"), "{error}");
    assert_eq!(names(scratch.path()), ["source"]);
}

#[test]
fn a_full_disk_is_an_error_and_leaves_nothing() {
    if !testkit::is_root() {
        return testkit::skip("a small file system needs root");
    }
    let scratch = tempfile::tempdir().unwrap();
    let options = source_of(scratch.path(), 8 << 20);
    let full = scratch.path().join("full");
    fs::create_dir(&full).unwrap();
    let Ok(disk) = testkit::SmallDisk::mount(&full, "4m") else {
        return testkit::skip("tmpfs can't be mounted");
    };
    let result = try_build(&options, &full.join("x.img"));
    let left = names(&full);
    drop(disk);
    let error = result.unwrap_err().to_string();
    assert!(error.contains("No space left"), "{error}");
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_directory_is_no_output() {
    let scratch = tempfile::tempdir().unwrap();
    let options = source_of(scratch.path(), 10);
    let error = build(&options, scratch.path(), &Silent, &AtomicBool::new(false)).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("neither a file nor a block device"),
        "{error}"
    );
}

#[test]
fn what_the_file_system_cannot_hold_is_said_before_anything_is_written() {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("never.img");
    let options = source_of(scratch.path(), 10);
    let source = scratch.path().join("source");
    let refused = |options: &BuildOptions| {
        let never = AtCopy(|| panic!("the copy begins"));
        let error = build(options, &output, &never, &AtomicBool::new(false)).unwrap_err();
        error.to_string()
    };
    fs::write(source.join("lost+found"), b"").unwrap();
    let expected = "/lost+found: it is not a directory; leave it out, or use --no-lost-found";
    assert_eq!(refused(&options), expected);
}

#[test]
fn an_image_grows_for_the_journal_that_was_asked_for() {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("journal.img");
    let mut options = source_of(scratch.path(), 10);
    options.mkfs.features = "has_journal".into();
    assert_eq!(build_image(&options, &output).image_bytes, 8 << 20);
    testkit::e2fsck(&output);
    options.mkfs.journal.size_mib = Some(48);
    assert_eq!(build_image(&options, &output).image_bytes, 96 << 20);
    testkit::e2fsck(&output);
    options.size = Size::Fixed(50 << 20);
    let error = try_build(&options, &output).unwrap_err();
    assert!(matches!(error, BuildError::TooSmall { needed, .. } if needed == 96 << 20));
}
