//! How large an image is whose size is not given, and how many inodes it has for its free blocks.

use std::fs;
use std::path::Path;
use std::process::Command;

use lanefs_image::{BuildError, BuildOptions, BuildReport, Extra, Size};
use mkfs::{FsType, Options};
use ondisk::{BlockSize, Feature};

use crate::tree::{build_image, noise, try_build};

/// A tree of many small files, or of one large one.
fn options(scratch: &Path, files: usize, bytes: usize) -> BuildOptions {
    let source = scratch.join("source");
    fs::create_dir(&source).unwrap();
    for number in 0..files {
        fs::write(source.join(number.to_string()), noise(bytes, number as u64)).unwrap();
    }
    BuildOptions::from_directory(source)
}

fn free_bytes(report: &BuildReport) -> u64 {
    report.file_system.free_blocks * u64::from(report.file_system.block_size)
}

#[test]
fn auto_leaves_room_and_min_does_not() {
    for (files, bytes, least) in [
        (1, 10, 3 << 20),
        (300, 3000, 3 << 20),
        (1, 40 << 20, 4 << 20),
        (1, 90 << 20, 4 << 20),
    ] {
        for block in [1024, 4096, 16_384] {
            let scratch = tempfile::tempdir().unwrap();
            let output = scratch.path().join("image");
            let mut options = options(scratch.path(), files, bytes);
            options.mkfs.block_size = BlockSize::from_bytes(block);
            let auto = build_image(&options, &output);
            testkit::e2fsck(&output);
            let free = free_bytes(&auto);
            assert!(
                free >= least.max(auto.image_bytes / 20),
                "{bytes} {block}: {free}"
            );
            options.size = Size::Auto(Extra::None);
            let min = build_image(&options, &output);
            testkit::e2fsck(&output);
            options.size = Size::Auto(Extra::Bytes(0));
            assert_eq!(build_image(&options, &output).image_bytes, min.image_bytes);
            assert!(min.image_bytes <= auto.image_bytes);
        }
    }
}

/// What everybody may use, as the kernel says; what it keeps for itself and what only root may use is left out.
fn available(image: &Path) -> u64 {
    let mounted = testkit::KernelMount::read_only(image).unwrap();
    let output = Command::new("stat")
        .args(["-f", "-c", "%a %S"])
        .arg(mounted.path())
        .output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    text.split_whitespace()
        .map(|word| word.parse::<u64>().unwrap())
        .product()
}

#[test]
fn the_kernel_shows_the_room_of_an_image_of_no_given_size() {
    if !testkit::is_root() {
        return testkit::skip("the kernel mounts images for root only");
    }
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("image");
    for (number, (files, bytes, least)) in [
        (0, 0, 3 << 20),
        (2000, 100, 3 << 20),
        (1, 20 << 20, 4 << 20),
        (3, 50 << 20, 4 << 20),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = scratch.path().join(number.to_string());
        fs::create_dir(&folder).unwrap();
        let mut options = options(&folder, files, bytes);
        for letters in [
            "",
            "O ^has_journal",
            "O bigalloc",
            "O ^flex_bg b 1024",
            "O meta_bg",
            "N 30000",
            "i 2048",
            "i 1048576",
            "m 0",
            "m 20",
            "b 1024",
            "b 2048",
            "t ext2",
            "O ^resize_inode,mmp I 512",
        ] {
            options.mkfs = Options::default();
            for pair in letters.split_whitespace().collect::<Vec<_>>().chunks(2) {
                options
                    .mkfs
                    .set(pair[0].chars().next().unwrap(), pair[1])
                    .unwrap();
            }
            let report = build_image(&options, &output);
            testkit::e2fsck(&output);
            let (available, wanted) = (available(&output), least.max(report.image_bytes / 20));
            assert!(
                available >= wanted,
                "{files} of {bytes}, {letters}: {available} of {wanted}"
            );
            assert!(free_bytes(&report) >= available, "{letters}");
        }
    }
}

#[test]
fn free_inodes_are_in_proportion_to_free_space() {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("image");
    let mut options = options(scratch.path(), 15_000, 0);
    for (size, ratio) in [
        (Size::Auto(Extra::Usable), None),
        (Size::Auto(Extra::Bytes(100 << 20)), None),
        (Size::Auto(Extra::Percent(700)), None),
        (Size::Fixed(150 << 20), None),
        (Size::Fixed(150 << 20), Some(4096)),
    ] {
        options.size = size;
        options.mkfs.inode_ratio = ratio;
        let report = build_image(&options, &output);
        testkit::e2fsck(&output);
        let inodes = u64::from(report.file_system.free_inodes);
        // The inodes of the layout itself, and what the journal grows by, are a little of that.
        let wanted = free_bytes(&report) / ratio.unwrap_or(16_384) * 9 / 10;
        assert!(inodes >= wanted, "{size:?}: {inodes} of {wanted}");
    }
}

#[test]
fn the_reserved_inodes_may_span_groups() {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("image");
    let mut options = options(scratch.path(), 3, 10);
    for (block, group, lost_found) in [(4096, 256, true), (1024, 256, true), (1024, 256, false)] {
        options.mkfs.block_size = BlockSize::from_bytes(block);
        options.mkfs.blocks_per_group = Some(group);
        options.mkfs.lost_found = lost_found;
        options.mkfs.inode_ratio = Some(1 << 20);
        options.mkfs.features = "^resize_inode,^has_journal".into();
        build_image(&options, &output);
        testkit::e2fsck(&output);
    }
}

#[test]
fn a_number_of_inodes_makes_an_image_larger_and_stays() {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("image");
    let mut options = options(scratch.path(), 10, 10);
    for (block, inodes) in [(1024, 150_000), (4096, 400_000)] {
        options.mkfs.block_size = BlockSize::from_bytes(block);
        options.mkfs.inodes = Some(inodes);
        let report = build_image(&options, &output);
        testkit::e2fsck(&output);
        assert!(u64::from(report.file_system.inodes) >= inodes);
    }
}

#[test]
fn a_journal_that_was_asked_for_is_there_or_refused_by_name() {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("image");
    let mut options = options(scratch.path(), 1, 10);
    for (fs_type, features, word) in [
        (FsType::Ext3, "", "-t ext3"),
        (FsType::Ext4, "has_journal", "has_journal"),
        (FsType::Ext2, "fast_commit,has_journal", "has_journal"),
        (FsType::Ext4, "orphan_file", "orphan_file"),
    ] {
        options.mkfs = Options {
            fs_type,
            features: features.into(),
            ..Options::default()
        };
        options.size = Size::Fixed(4 << 20);
        let error = try_build(&options, &output).unwrap_err();
        assert!(matches!(error, BuildError::Mkfs(_)) && error.to_string().contains(word));
        assert!(!output.exists());
        options.size = Size::Auto(Extra::None);
        let report = build_image(&options, &output);
        assert!(report.file_system.features.has(Feature::HAS_JOURNAL));
        fs::remove_file(&output).unwrap();
    }
    options.mkfs = Options::default();
    options.size = Size::Fixed(4 << 20);
    let report = build_image(&options, &output);
    assert!(!report.file_system.features.has(Feature::HAS_JOURNAL));
}

#[test]
fn the_owner_of_the_root_is_the_one_asked_for() {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("image");
    let mut options = options(scratch.path(), 1, 10);
    options.mkfs.root_owner = Some((1234, 5678));
    build_image(&options, &output);
    testkit::e2fsck(&output);
    let found = testkit::debugfs(&["-R", "stat /", output.to_str().unwrap()]);
    let text = String::from_utf8(found.stdout).unwrap();
    assert!(
        text.contains("User:  1234") && text.contains("Group:  5678"),
        "{text}"
    );
}
