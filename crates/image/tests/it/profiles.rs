//! One tree in file systems of many profiles.

use lanefs_image::{BuildOptions, Extra, Size};
use mkfs::{FsType, Options};
use ondisk::BlockSize;

use crate::tree::{build_image, judge, make_tree};

fn size(bytes: u64) -> Option<BlockSize> {
    BlockSize::from_bytes(bytes)
}

fn with(features: &str, block: u64) -> Options {
    Options {
        features: features.into(),
        block_size: size(block),
        ..Options::default()
    }
}

/// Builds the tree under `options` and has it judged.
fn check(name: &str, options: Options) {
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    make_tree(&source, options.inode_size == Some(128));
    let kernel = options.block_size.is_none_or(|size| size <= BlockSize::K4);
    for (which, extra) in [("tight", Extra::None), ("wide", Extra::Bytes(300 << 20))] {
        let output = scratch.path().join(format!("{name}-{which}.img"));
        let build = BuildOptions {
            mkfs: options.clone(),
            size: Size::Auto(extra),
            threads: 3,
            ..BuildOptions::from_directory(&source)
        };
        build_image(&build, &output);
        judge(&source, &output, kernel);
    }
}

#[test]
fn the_default_profile() {
    check("default", Options::default());
}

#[test]
fn every_block_size() {
    for block in [1024, 2048, 8192, 65536] {
        check(&format!("b{block}"), with("", block));
    }
}

#[test]
fn the_smallest_image_has_its_journal_in_every_block_size() {
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    for block in [1024, 4096, 16_384, 65_536] {
        let output = scratch.path().join(format!("{block}.img"));
        let build = BuildOptions {
            mkfs: with("", block),
            ..BuildOptions::from_directory(&source)
        };
        build_image(&build, &output);
        testkit::e2fsck(&output);
        let said = testkit::dumpe2fs(&["-h", output.to_str().unwrap()]).stdout;
        let said = String::from_utf8(said).unwrap();
        assert!(said.contains("has_journal"), "blocks of {block}: {said}");
    }
}

#[test]
fn maps_of_pointers_instead_of_extents() {
    for (fs_type, block) in [
        (FsType::Ext2, 1024),
        (FsType::Ext3, 4096),
        (FsType::Ext3, 1024),
    ] {
        check(
            "pointers",
            Options {
                fs_type,
                ..with("", block)
            },
        );
    }
    check("no-extent", with("^extent,^64bit", 4096));
}

#[test]
fn features_that_can_be_absent() {
    for features in [
        "^has_journal",
        "^metadata_csum",
        "^64bit",
        "^flex_bg",
        "^resize_inode",
        "^dir_index",
        "^orphan_file",
        "^huge_file",
        "^metadata_csum,uninit_bg",
    ] {
        check(features, with(features, 4096));
    }
}

#[test]
fn features_that_can_be_present() {
    for features in [
        "large_dir",
        "ea_inode",
        "sparse_super2",
        "meta_bg,^resize_inode",
        "bigalloc",
    ] {
        check(features, with(features, 4096));
    }
    check("bigalloc-1k", with("bigalloc", 1024));
}

#[test]
fn other_sizes_of_inodes() {
    for inode_size in [128, 512, 1024] {
        check(
            "inodes",
            Options {
                inode_size: Some(inode_size),
                ..with("", 4096)
            },
        );
    }
}

#[test]
fn without_lost_found() {
    check(
        "bare",
        Options {
            lost_found: false,
            ..Options::default()
        },
    );
}

/// A device that held something else before.
#[test]
fn a_block_device_is_written_in_place_whatever_it_held() {
    if !testkit::is_root() || !testkit::have("losetup") {
        return testkit::skip("a loop device needs root");
    }
    let scratch = tempfile::tempdir().unwrap();
    let (source, file) = (scratch.path().join("source"), scratch.path().join("device"));
    std::fs::create_dir(&source).unwrap();
    make_tree(&source, false);
    std::fs::write(&file, crate::tree::noise(100 << 20, 9)).unwrap();
    let device = testkit::LoopDevice::over(&file, &[]).unwrap();
    {
        for (features, lazy) in [("", true), ("", false), ("^metadata_csum", true)] {
            let options = Options {
                lazy_itable_init: lazy,
                ..with(features, 4096)
            };
            let options = BuildOptions {
                mkfs: options,
                size: Size::Auto(Extra::Percent(50)),
                ..BuildOptions::from_directory(&source)
            };
            build_image(&options, device.path());
            judge(&source, device.path(), false);
        }
    }
}
