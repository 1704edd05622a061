//! lost+found has the blocks that mke2fs gives it, and is a directory like any other in all else.

use std::fs;
use std::path::Path;

use lanefs_image::{BuildOptions, Size};
use mkfs::Options;
use ondisk::{BlockSize, Flags};

use crate::tree::build_image;

/// What debugfs shows of a path, by the word in front of it.
fn shown(image: &Path, path: &str, word: &str) -> String {
    let said = testkit::debugfs(&["-R", &format!("stat {path}"), image.to_str().unwrap()]).stdout;
    let said = String::from_utf8_lossy(&said).into_owned();
    let rest = said.split(word).nth(1).unwrap_or_else(|| panic!("{said}"));
    rest.split_whitespace().next().unwrap().to_string()
}

fn hexadecimal(text: &str) -> u32 {
    u32::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
}

fn is_indexed(image: &Path) -> bool {
    Flags(hexadecimal(&shown(image, "/lost+found", "Flags: "))).contains(Flags::INDEX)
}

/// Builds the source in blocks of every size, with features that change directories.
fn for_all_formats(source: &Path, judge: impl Fn(&Path, BlockSize, &str)) {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("image");
    for block in [1024, 2048, 4096, 8192, 16_384, 32_768, 65_536] {
        for features in [
            "",
            "^dir_index",
            "^metadata_csum",
            "^extent,^64bit",
            "^dir_nlink",
            "inline_data",
            "bigalloc",
            "casefold",
        ] {
            for size in [Size::Auto(lanefs_image::Extra::None), Size::Fixed(64 << 20)] {
                let options = BuildOptions {
                    mkfs: Options {
                        features: features.into(),
                        block_size: BlockSize::from_bytes(block),
                        ..Options::default()
                    },
                    size,
                    ..BuildOptions::from_directory(source)
                };
                build_image(&options, &output);
                testkit::e2fsck(&output);
                assert_eq!(shown(&output, "/lost+found", "Inode: "), "11");
                judge(&output, options.mkfs.block_size.unwrap(), features);
            }
        }
    }
}

/// What mke2fs gives it.
fn usual_bytes(block: BlockSize) -> u64 {
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let block = block.bytes().to_string();
    testkit::mke2fs(&["-q", "-b", &block, image.to_str().unwrap()]);
    shown(&image, "/lost+found", "Size: ").parse().unwrap()
}

#[test]
fn a_lost_found_that_no_source_has_is_as_mke2fs_makes_it() {
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("source");
    fs::create_dir_all(source.join("zero/one")).unwrap();
    fs::write(source.join("aaa"), b"a").unwrap();
    for_all_formats(&source, |image, block, features| {
        let of = |word| shown(image, "/lost+found", word);
        assert_eq!(of("Size: "), usual_bytes(block).to_string(), "{features}");
        assert_eq!(of("Mode:  "), "0700");
        assert_eq!((of("User:"), of("Group:")), ("0".into(), "0".into()));
        assert_eq!(of("Links: "), "2");
        assert_eq!(shown(image, "/", "Links: "), "4");
        assert!(!is_indexed(image), "{features}");
    });
}

#[test]
fn the_lost_found_of_a_source_has_at_least_the_blocks_that_mke2fs_makes() {
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("source");
    fs::create_dir_all(source.join("lost+found")).unwrap();
    let size = |image: &Path| {
        shown(image, "/lost+found", "Size: ")
            .parse::<u64>()
            .unwrap()
    };
    for_all_formats(&source, |image, block, features| {
        assert_eq!(size(image), usual_bytes(block), "{features}");
    });
    fs::write(source.join("lost+found/one"), b"1").unwrap();
    for_all_formats(&source, |image, block, features| {
        assert_eq!(size(image), usual_bytes(block), "{features}");
        let said = testkit::debugfs(&["-R", "cat /lost+found/one", image.to_str().unwrap()]);
        assert_eq!(said.stdout, b"1");
    });
    // Of names that need more than a block, a directory has what it needs.
    for number in 0..500 {
        let name = format!("lost+found/{number:0100}");
        fs::write(source.join(name), b"").unwrap();
    }
    for_all_formats(&source, |image, block, features| {
        let fits = block == BlockSize::K64;
        assert!(size(image) > 500 * 108, "{features}");
        assert_eq!(is_indexed(image), features != "^dir_index" && !fits);
    });
}

#[test]
fn a_lost_found_that_no_source_has_is_not_counted_and_has_the_time_of_the_image() {
    let scratch = tempfile::tempdir().unwrap();
    let (source, output) = (scratch.path().join("source"), scratch.path().join("image"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), b"x").unwrap();
    for path in [source.join("file"), source.clone()] {
        testkit::run("touch", &["-d", "@1234567890.5", path.to_str().unwrap()]);
    }
    let time = || hexadecimal(&shown(&output, "/lost+found", "mtime: ")[..10]);
    let mut options = BuildOptions::from_directory(&source);
    assert_eq!(build_image(&options, &output).inodes, 2);
    assert!(time() > 1_600_000_000, "now");
    options.reproducible = true;
    build_image(&options, &output);
    assert_eq!(time(), 1_234_567_890, "the newest of the sources");
    options.newest_time = Some(1_000_000_000);
    build_image(&options, &output);
    assert_eq!(time(), 1_000_000_000);
    options.mkfs.time = Some(900_000_000);
    build_image(&options, &output);
    assert_eq!(time(), 900_000_000);
    options.mkfs.lost_found = false;
    assert_eq!(build_image(&options, &output).inodes, 2);
    options.mkfs.lost_found = true;
    fs::create_dir(source.join("lost+found")).unwrap();
    assert_eq!(build_image(&options, &output).inodes, 3);
}
