//! Making file systems on files: what is refused, what is left when it fails, journals of their own, offsets. The
//! judges are e2fsck and the kernel.

use std::fs::{self, File};
use std::path::Path;

use lanefs::make::{MakeError, make, rehearse};
use lanefs::mkfs::{Compat, Options};
use testkit::{e2fsck, have, is_root, run, skip};

fn options(letters: &[(char, &str)]) -> Options {
    let mut options = Options::default();
    for (letter, value) in letters {
        options.set(*letter, value).unwrap();
    }
    options
}

fn fixed() -> Options {
    Options {
        uuid: Some([7; 16]),
        hash_seed: Some([8; 16]),
        time: Some(1_700_000_000),
        ..Options::default()
    }
}

const MIB: u64 = 1 << 20;

#[test]
fn a_new_file_is_made_and_an_existing_one_keeps_its_size() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    assert!(matches!(
        make(&image, None, &Options::default(), false),
        Err(MakeError::NoSize)
    ));
    make(&image, Some(64 * MIB), &Options::default(), false).unwrap();
    assert_eq!(fs::metadata(&image).unwrap().len(), 64 * MIB);
    e2fsck(&image);
    make(&image, None, &options(&[('t', "ext2")]), true).unwrap();
    assert_eq!(fs::metadata(&image).unwrap().len(), 64 * MIB);
    e2fsck(&image);
    make(&image, Some(8 * MIB), &Options::default(), true).unwrap();
    assert_eq!(fs::metadata(&image).unwrap().len(), 8 * MIB);
    e2fsck(&image);
}

#[test]
fn what_is_there_is_named_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    make(&image, Some(8 * MIB), &fixed(), false).unwrap();
    let before = testkit::read_image(&image);
    let error = make(&image, None, &Options::default(), false).unwrap_err();
    assert!(error.to_string().contains("ext2/3/4"), "{error}");
    assert!(testkit::read_image(&image) == before);

    let archive = directory.path().join("archive");
    fs::write(&archive, [&b"\x1f\x8b\x08"[..], &[1; 200_000]].concat()).unwrap();
    let error = make(&archive, None, &Options::default(), false).unwrap_err();
    assert!(error.to_string().contains("gzip"), "{error}");

    let disk = directory.path().join("disk");
    let mut table = vec![0; 1 << 20];
    table[446..462].copy_from_slice(&[0, 0, 2, 0, 0x83, 0, 0, 0, 1, 0, 0, 0, 100, 0, 0, 0]);
    table[510..512].copy_from_slice(&[0x55, 0xAA]);
    fs::write(&disk, &table).unwrap();
    let error = make(&disk, None, &Options::default(), false).unwrap_err();
    assert!(error.to_string().contains("partition"), "{error}");
    make(&disk, None, &Options::default(), true).unwrap();
    e2fsck(&disk);
}

#[test]
fn impossible_options_touch_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    for letters in [
        ('O', "needs_recovery"),
        ('b', "65536"),
        ('J', "size=1000000"),
        ('G', "3"),
        ('I', "100"),
        ('m', "99"),
        ('O', "quota"),
    ] {
        let result = make(&image, Some(100 * 1024), &options(&[letters]), false);
        assert!(result.is_err(), "{letters:?}");
        assert!(!image.exists(), "{letters:?}");
    }
    fs::write(&image, b"precious").unwrap();
    assert!(make(&image, Some(MIB), &options(&[('O', "nonsense")]), true).is_err());
    assert_eq!(testkit::read_image(&image), b"precious");
}

#[test]
fn a_full_disk_is_an_error_and_leaves_no_half_file() {
    if !is_root() {
        return skip("mounting a small tmpfs needs root");
    }
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    run("mount", &["-t", "tmpfs", "-o", "size=64k", "tmpfs", place]);
    let image = directory.path().join("image");
    let result = make(&image, Some(1 << 30), &Options::default(), false);
    let left = image.exists();
    run("umount", &[place]);
    let error = result.unwrap_err().to_string();
    assert!(error.contains("write"), "{error}");
    assert!(!left);
}

#[test]
fn bytes_on_a_file_that_is_not_zero_are_cleared() {
    let directory = tempfile::tempdir().unwrap();
    for letters in [
        &[('E', "nodiscard")][..],
        &[('E', "nodiscard,lazy_itable_init=0")],
        &[('E', "nodiscard"), ('t', "ext3")],
        &[('E', "nodiscard"), ('t', "ext2")],
        &[('E', "nodiscard"), ('O', "bigalloc,mmp,inline_data")],
    ] {
        let image = directory.path().join("image");
        fs::write(&image, vec![0xFF; 48 << 20]).unwrap();
        make(&image, None, &options(letters), true).unwrap();
        e2fsck(&image);
        if is_root() {
            let mounted = testkit::KernelMount::with(&image, "loop").unwrap();
            for file in 0..500 {
                fs::write(mounted.path().join(file.to_string()), b"content").unwrap();
            }
            drop(mounted);
            e2fsck(&image);
        }
    }
}

#[test]
fn a_file_system_at_an_offset_leaves_the_rest_alone() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    fs::write(&image, vec![0xAB; 33 << 20]).unwrap();
    make(&image, None, &options(&[('E', "offset=1M")]), false).unwrap();
    let bytes = testkit::read_image(&image);
    assert_eq!(bytes.len(), 33 << 20);
    assert!(bytes[..1 << 20].iter().all(|byte| *byte == 0xAB));
    let inside = directory.path().join("inside");
    fs::write(&inside, &bytes[1 << 20..]).unwrap();
    e2fsck(&inside);
}

#[test]
fn the_same_options_give_the_same_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| directory.path().join(name));
    for image in [&one, &other] {
        make(image, Some(40 * MIB), &fixed(), false).unwrap();
    }
    assert!(fs::read(&one).unwrap() == fs::read(&other).unwrap());
    let mut changed = fixed();
    changed.uuid = Some([9; 16]);
    make(&other, None, &changed, true).unwrap();
    assert!(fs::read(&one).unwrap() != fs::read(&other).unwrap());
}

#[test]
fn a_rehearsal_says_what_would_be_made() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let rehearsed = rehearse(600 * MIB, &fixed()).unwrap();
    let made = make(&image, Some(600 * MIB), &fixed(), false).unwrap();
    assert_eq!(rehearsed, made);
}

fn has_feature(image: &Path, feature: &str) -> bool {
    let output = testkit::dumpe2fs(&["-h", image.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text
        .lines()
        .find(|line| line.starts_with("Filesystem features:"));
    line.unwrap().split_whitespace().any(|word| word == feature)
}

#[test]
fn compatible_images_lack_what_older_programs_refuse() {
    if !have("dumpe2fs") {
        return skip("dumpe2fs is missing");
    }
    let directory = tempfile::tempdir().unwrap();
    for (name, compat) in Compat::ALL {
        let image = directory.path().join(name);
        let options = Options {
            compat: Some(*compat),
            ..Options::default()
        };
        make(&image, Some(100 * MIB), &options, false).unwrap();
        e2fsck(&image);
        for feature in ["metadata_csum_seed", "orphan_file"] {
            assert!(!has_feature(&image, feature), "{name}: {feature}");
        }
        assert!(has_feature(&image, "metadata_csum"));
    }
}

#[test]
fn a_journal_on_a_device_of_its_own_has_one_user() {
    let directory = tempfile::tempdir().unwrap();
    let [journal, image, second] =
        ["journal", "image", "second"].map(|name| directory.path().join(name));
    let journal_options = options(&[('O', "journal_dev"), ('b', "4096")]);
    make(&journal, Some(16 * MIB), &journal_options, false).unwrap();
    let device = format!("device={}", journal.display());
    let options = options(&[('J', &device)]);
    make(&image, Some(100 * MIB), &options, false).unwrap();
    let judge = || {
        let options = ["-fn", "-j", journal.to_str().unwrap()];
        let output = testkit::e2fsck_with(&options, &image);
        assert!(output.status.success(), "{output:?}");
    };
    judge();
    let error = make(&second, Some(100 * MIB), &options, false).unwrap_err();
    assert!(error.to_string().contains("already"), "{error}");
    assert!(!second.exists());
    if !is_root() {
        return skip("mounting needs root");
    }
    let device = testkit::LoopDevice::over(&journal, &[]).unwrap();
    let options = format!("loop,journal_path={}", device.name());
    let mounted = testkit::KernelMount::with(&image, &options);
    let written = mounted.map(|mounted| File::create(mounted.path().join("file")).is_ok());
    drop(device);
    assert!(written.unwrap());
    judge();
}

#[test]
fn what_is_mounted_stays() {
    if !is_root() {
        return skip("mounting needs root");
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    make(&image, Some(16 * MIB), &Options::default(), false).unwrap();
    let mounted = testkit::KernelMount::with(&image, "loop").unwrap();
    let error = make(&image, None, &Options::default(), true).unwrap_err();
    assert!(matches!(error, MakeError::InUse(_)), "{error}");
    drop(mounted);
    e2fsck(&image);
}
