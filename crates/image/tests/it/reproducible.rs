//! The same input gives the same bytes.

use std::fs;
use std::path::Path;

use lanefs_image::{BuildOptions, Extra, Size};
use sha2::{Digest, Sha256};
use testkit::{Manifest, e2fsck, run};

use crate::tree::{build_image, make_tree};

fn digest(path: &Path) -> Vec<u8> {
    Sha256::digest(fs::read(path).unwrap()).to_vec()
}

/// Copies a tree in another order of names, with all attributes.
fn copy_shuffled(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    let mut names: Vec<_> = fs::read_dir(from)
        .unwrap()
        .map(|name| name.unwrap().path())
        .collect();
    names.sort();
    names.reverse();
    let mut arguments = vec!["-a".to_string()];
    arguments.extend(names.iter().map(|path| path.to_str().unwrap().to_string()));
    arguments.push(to.to_str().unwrap().into());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    run("cp", &arguments);
    run(
        "touch",
        &["-r", from.to_str().unwrap(), to.to_str().unwrap()],
    );
}

#[test]
fn threads_place_and_order_of_creation_do_not_show() {
    let scratch = tempfile::tempdir().unwrap();
    let (first, second) = (scratch.path().join("first"), scratch.path().join("second"));
    fs::create_dir(&first).unwrap();
    make_tree(&first, false);
    copy_shuffled(&first, &second);
    let same = Manifest::of(&first)
        .unwrap()
        .differences(&Manifest::of(&second).unwrap());
    assert!(same.is_empty(), "the copy differs: {same}");
    for newest_time in [None, Some(1_600_000_000)] {
        let mut digests = Vec::new();
        for (source, threads) in [(&first, 1), (&second, 2), (&first, 100_000), (&second, 7)] {
            let output = scratch.path().join(format!("{threads}.img"));
            let options = BuildOptions {
                reproducible: true,
                newest_time,
                threads,
                size: Size::Auto(Extra::Percent(5)),
                ..BuildOptions::from_directory(source)
            };
            build_image(&options, &output);
            e2fsck(&output);
            digests.push(digest(&output));
        }
        assert!(
            digests.windows(2).all(|pair| pair[0] == pair[1]),
            "{digests:02x?}"
        );
    }
}

#[test]
fn holes_within_a_block_of_the_image_do_not_show() {
    const BLOCK: usize = 65_536;
    let scratch = tempfile::tempdir().unwrap();
    let mut digests = Vec::new();
    // As a file system tells that has small blocks, and one that has large ones.
    for written in [4096, BLOCK] {
        let source = scratch.path().join(format!("source-{written}"));
        fs::create_dir(&source).unwrap();
        let mut bytes = vec![0; written];
        bytes[..4096].fill(b'x');
        let path = source.join("sparse");
        fs::write(&path, bytes).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(4 * BLOCK as u64).unwrap();
        let output = scratch.path().join(format!("{written}.img"));
        let mut options = BuildOptions {
            reproducible: true,
            newest_time: Some(1_000_000_000),
            ..BuildOptions::from_directory(&source)
        };
        options.mkfs.block_size = ondisk::BlockSize::from_bytes(BLOCK as u64);
        build_image(&options, &output);
        digests.push(digest(&output));
    }
    assert!(digests[0] == digests[1], "{digests:02x?}");
}

#[test]
fn without_being_asked_each_image_has_its_own_identity() {
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("x"), b"y").unwrap();
    let options = BuildOptions::from_directory(&source);
    let one = build_image(&options, &scratch.path().join("1.img"));
    let two = build_image(&options, &scratch.path().join("2.img"));
    assert_ne!(one.file_system.uuid, two.file_system.uuid);
}

#[test]
fn later_times_are_moved_to_the_newest_allowed() {
    use std::os::unix::fs::MetadataExt;
    let scratch = tempfile::tempdir().unwrap();
    let (source, output) = (
        scratch.path().join("source"),
        scratch.path().join("clamped.img"),
    );
    fs::create_dir(&source).unwrap();
    for (name, time) in [("old", "@1000000000.5"), ("new", "@1700000000")] {
        let path = source.join(name);
        fs::write(&path, b"").unwrap();
        run("touch", &["-d", time, path.to_str().unwrap()]);
    }
    let options = BuildOptions {
        newest_time: Some(1_600_000_000),
        ..BuildOptions::from_directory(&source)
    };
    build_image(&options, &output);
    e2fsck(&output);
    if !testkit::is_root() {
        return testkit::skip("mounting needs root");
    }
    let mounted = testkit::KernelMount::read_only(&output).unwrap();
    let time = |name: &str| {
        let metadata = fs::metadata(mounted.path().join(name)).unwrap();
        (metadata.mtime(), metadata.mtime_nsec(), metadata.ctime())
    };
    assert_eq!(time("old"), (1_000_000_000, 500_000_000, 1_000_000_000));
    assert_eq!(time("new"), (1_600_000_000, 0, 1_600_000_000));
}
