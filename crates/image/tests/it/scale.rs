//! Large directories, many subdirectories, large sparse files.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use lanefs_image::{BuildOptions, Extra, Size};
use mkfs::Options;
use ondisk::BlockSize;
use testkit::{KernelMount, e2fsck, is_root};

use crate::tree::{build_image, judge, noise};

/// How many names a directory has according to the kernel, and its link count.
fn count(image: &Path, directory: &str) -> Option<(usize, u64)> {
    use std::os::unix::fs::MetadataExt;
    if !is_root() {
        testkit::skip("mounting needs root");
        return None;
    }
    let mounted = KernelMount::read_only(image).unwrap();
    let path = mounted.path().join(directory);
    let names = fs::read_dir(&path).unwrap().count();
    Some((names, fs::metadata(&path).unwrap().nlink()))
}

#[test]
fn a_directory_of_a_hundred_thousand_files_is_indexed_and_found_by_name() {
    let scratch = tempfile::tempdir().unwrap();
    let (source, output) = (
        scratch.path().join("source"),
        scratch.path().join("big.img"),
    );
    fs::create_dir(&source).unwrap();
    for number in 0..100_000 {
        File::create(source.join(format!("entry-{number:07}"))).unwrap();
    }
    build_image(&BuildOptions::from_directory(&source), &output);
    e2fsck(&output);
    if !is_root() {
        return testkit::skip("mounting needs root");
    }
    let mounted = KernelMount::read_only(&output).unwrap();
    assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), 100_001);
    for number in (0..100_000).step_by(997) {
        assert!(mounted.path().join(format!("entry-{number:07}")).exists());
    }
}

#[test]
fn seventy_thousand_subdirectories_have_one_link() {
    let scratch = tempfile::tempdir().unwrap();
    let (source, output) = (
        scratch.path().join("source"),
        scratch.path().join("dirs.img"),
    );
    fs::create_dir_all(source.join("many")).unwrap();
    // ext4 on the host may hold no more than 64,998 without an index; archives and overlays can.
    for number in 0..70_000 {
        if fs::create_dir(source.join(format!("many/{number}"))).is_err() {
            return testkit::skip("the host's file system does not hold 70,000 subdirectories");
        }
    }
    build_image(&BuildOptions::from_directory(&source), &output);
    e2fsck(&output);
    if let Some(found) = count(&output, "many") {
        assert_eq!(found, (70_000, 1));
    }
}

#[test]
fn an_index_of_three_levels_brings_its_feature() {
    let scratch = tempfile::tempdir().unwrap();
    let (source, output) = (
        scratch.path().join("source"),
        scratch.path().join("deep.img"),
    );
    fs::create_dir(&source).unwrap();
    for number in 0..60_000 {
        File::create(source.join(format!("{number:0>240}"))).unwrap();
    }
    let options = BuildOptions {
        mkfs: Options {
            block_size: Some(BlockSize::K1),
            ..Options::default()
        },
        ..BuildOptions::from_directory(&source)
    };
    let report = build_image(&options, &output);
    assert!(report.file_system.features.has(ondisk::Feature::LARGE_DIR));
    e2fsck(&output);
    if let Some((names, _)) = count(&output, "") {
        assert_eq!(names, 60_001);
    }
}

#[test]
fn sparse_files_beyond_four_gigabytes_and_two_terabytes_stay_sparse() {
    use std::os::unix::fs::MetadataExt;
    let scratch = tempfile::tempdir().unwrap();
    let (source, output) = (
        scratch.path().join("source"),
        scratch.path().join("sparse.img"),
    );
    fs::create_dir(&source).unwrap();
    for (name, size) in [("five-gigabytes", 5u64 << 30), ("three-terabytes", 3 << 40)] {
        let file = File::create(source.join(name)).unwrap();
        file.set_len(size).unwrap();
        for place in [0, size / 2 + 100, size - 4000] {
            file.write_all_at(&noise(4000, size + place), place)
                .unwrap();
        }
    }
    let report = build_image(&BuildOptions::from_directory(&source), &output);
    assert!(
        report.image_bytes < 20 << 20,
        "{} bytes",
        report.image_bytes
    );
    e2fsck(&output);
    if !is_root() {
        return testkit::skip("mounting needs root");
    }
    let mounted = KernelMount::read_only(&output).unwrap();
    for (name, size) in [("five-gigabytes", 5u64 << 30), ("three-terabytes", 3 << 40)] {
        let file = File::open(mounted.path().join(name)).unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.size(), size);
        assert!(metadata.blocks() < 100);
        for place in [0, size / 2 + 100, size - 4000] {
            let mut bytes = vec![0; 4000];
            file.read_exact_at(&mut bytes, place).unwrap();
            assert!(bytes == noise(4000, size + place), "{name} at {place}");
        }
    }
}

#[test]
fn space_that_was_only_set_aside_is_a_hole() {
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    // Within the file, and beyond its end.
    for (name, len) in [("within", 8 << 20), ("beyond", 4 << 20)] {
        let file = File::create(source.join(name)).unwrap();
        file.set_len(len).unwrap();
        let flags = rustix::fs::FallocateFlags::KEEP_SIZE;
        let from = len - (4 << 20);
        if rustix::fs::fallocate(&file, flags, from, 8 << 20).is_err() {
            return testkit::skip("the file system for temporary files can't set space aside");
        }
        file.write_all_at(b"data", len / 2).unwrap();
    }
    let output = scratch.path().join("set-aside.img");
    let report = build_image(&BuildOptions::from_directory(&source), &output);
    assert!(report.data_bytes <= 2 * 65_536, "{}", report.data_bytes);
    e2fsck(&output);
}

#[test]
fn a_file_of_many_extents_has_a_tree_of_several_levels() {
    let scratch = tempfile::tempdir().unwrap();
    let (source, output) = (
        scratch.path().join("source"),
        scratch.path().join("comb.img"),
    );
    fs::create_dir(&source).unwrap();
    let file = File::create(source.join("comb")).unwrap();
    for tooth in 0..9000u64 {
        file.write_all_at(&tooth.to_le_bytes(), tooth * 8192)
            .unwrap();
    }
    drop(file);
    for (block, features) in [(1024, ""), (4096, ""), (4096, "^extent,^64bit")] {
        let options = BuildOptions {
            mkfs: Options {
                block_size: BlockSize::from_bytes(block),
                features: features.into(),
                ..Options::default()
            },
            ..BuildOptions::from_directory(&source)
        };
        build_image(&options, &output);
        judge(&source, &output, true);
    }
}

#[test]
fn files_that_span_groups_jump_over_their_metadata() {
    let scratch = tempfile::tempdir().unwrap();
    let (source, output) = (
        scratch.path().join("source"),
        scratch.path().join("span.img"),
    );
    fs::create_dir(&source).unwrap();
    for number in 0..3 {
        fs::write(
            source.join(format!("file-{number}")),
            noise(30 << 20, number),
        )
        .unwrap();
    }
    for features in ["", "^flex_bg"] {
        let options = BuildOptions {
            mkfs: Options {
                block_size: Some(BlockSize::K1),
                features: features.into(),
                ..Options::default()
            },
            size: Size::Auto(Extra::Percent(10)),
            ..BuildOptions::from_directory(&source)
        };
        build_image(&options, &output);
        judge(&source, &output, true);
    }
}
