//! File systems made without `ext_attr`: the first attribute brings the feature in its own transaction, as in Linux.

use std::path::Path;

use lanefs_engine::{Error, FileType, Ino, InodeFs, NewContent, XattrFlag};
use ondisk::Feature;

use crate::acls::{ACCESS, DEFAULT, named};
use crate::files::with_files;
use crate::image::{NEW, finish, record, sweep};
use crate::xattrs::judged_by_kernel;

const PROFILES: [&[&str]; 3] = [
    &["-b", "1024", "-O", "^ext_attr"],
    &["-b", "4096", "-I", "128", "-O", "^ext_attr,^metadata_csum"],
    // No journal.
    &["-t", "ext2", "-b", "1024", "-O", "^ext_attr"],
];
const FILES: [&str; 2] = ["one", "two"];

fn is_on(fs: &InodeFs) -> bool {
    fs.superblock().features().has(Feature::EXT_ATTR)
}

fn of(fs: &InodeFs, name: &str) -> Ino {
    fs.resolve(name.as_bytes(), true).unwrap()
}

/// Whether the image's superblock has the feature, as e2fsprogs tells it.
fn has_feature(image: &[u8]) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, image);
    let told = testkit::dumpe2fs(&["-h", path.to_str().unwrap()]);
    String::from_utf8_lossy(&told.stdout).contains(" ext_attr ")
}

/// What the kernel makes of an image in which it does the same.
fn changed_by_kernel(image: &[u8], change: impl FnOnce(&Path)) -> Option<Vec<u8>> {
    if !testkit::is_root() {
        testkit::skip("mounting needs root");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, image);
    change(&testkit::KernelMount::with(&path, "rw").unwrap().path());
    Some(testkit::read_image(&path))
}

#[test]
fn the_first_attribute_brings_its_feature_as_in_linux() {
    for options in PROFILES {
        let Some(image) = with_files(options, 8 << 20, &FILES) else {
            return;
        };
        assert!(!has_feature(&image));
        let after = finish(&image, |fs| {
            let any = XattrFlag::Any;
            fs.set_xattr(of(&fs, "one"), b"user.a", b"1", any).unwrap();
            fs.set_xattr(of(&fs, "two"), ACCESS, &named(6, 7), any)
                .unwrap();
            fs.close().unwrap();
        });
        assert!(has_feature(&after), "{options:?}");
        let one = [(b"user.a".to_vec(), b"1".to_vec())];
        let two = [(ACCESS.to_vec(), named(6, 7))];
        let expected = [("one", one.into()), ("two", two.into())];
        judged_by_kernel(&after, &expected.into());
        let by_kernel = changed_by_kernel(&image, |root| {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(root.join("one"), "user.a", b"1", flags).unwrap();
        });
        if let Some(by_kernel) = by_kernel {
            assert!(has_feature(&by_kernel), "{options:?}");
        }
    }
}

#[test]
fn what_sets_no_attribute_leaves_the_feature_off() {
    let Some(image) = with_files(PROFILES[0], 8 << 20, &FILES) else {
        return;
    };
    let after = finish(&image, |fs| {
        let one = of(&fs, "one");
        assert!(fs.remove_xattr(one, b"user.a").is_err());
        assert!(
            fs.set_xattr(one, b"user.a", b"1", XattrFlag::Replace)
                .is_err()
        );
        fs.create(Ino::ROOT, b"new", NEW).unwrap();
        fs.close().unwrap();
    });
    assert!(!has_feature(&after));
}

#[test]
fn a_cut_leaves_no_attribute_without_the_feature() {
    for options in &PROFILES[..2] {
        let Some(image) = with_files(options, 8 << 20, &FILES) else {
            return;
        };
        let cuts = record(&image, |device, fs| {
            fs.fsync(of(&fs, "one")).unwrap();
            device.mark(1);
            sync::thread::scope(|scope| {
                for (name, len) in FILES.into_iter().zip([3, 700]) {
                    let fs = &fs;
                    scope.spawn(move || {
                        let (ino, value) = (of(fs, name), vec![7; len]);
                        fs.set_xattr(ino, b"user.a", &value, XattrFlag::Any)
                            .unwrap();
                        fs.fsync(ino).unwrap();
                    });
                }
            });
            device.mark(2);
            // What is made in it has attributes from the start.
            fs.set_xattr(Ino::ROOT, DEFAULT, &named(6, 7), XattrFlag::Any)
                .unwrap();
            fs.create(Ino::ROOT, b"new", NEW).unwrap();
            fs.close().unwrap();
        });
        let mut is_seen = [false; 2];
        sweep(cuts, 2, |cut, mark, fs| {
            let has = |name| !fs.xattrs(of(fs, name)).unwrap().is_empty();
            let has_any = FILES.into_iter().any(has);
            assert_eq!(has_any, is_on(fs), "{cut}");
            assert!(has_any || mark < Some(2), "{cut}");
            is_seen[usize::from(has_any)] = true;
        });
        assert_eq!(is_seen, [true; 2]);
    }
}

/// After any cut the file is there with its label, or is not there.
#[test]
fn a_new_file_is_never_without_the_attributes_it_is_made_with() {
    const LABEL: (&[u8], &[u8]) = (b"security.selinux", b"system_u:object_r:etc_t:s0");
    let contents = [
        NewContent::Empty,
        NewContent::Directory,
        NewContent::Symlink(b"target"),
    ];
    for profile in PROFILES.into_iter().take(2) {
        let Some(image) = with_files(profile, 8 << 20, &[]) else {
            return;
        };
        let cuts = record(&image, |recorder, fs| {
            for (name, content) in contents.into_iter().enumerate() {
                let name = [b'a' + name as u8];
                fs.make(Ino::ROOT, Some(&name), NEW, content, &[LABEL])
                    .unwrap();
                let unnamed = fs
                    .make(Ino::ROOT, None, NEW, NewContent::Empty, &[LABEL])
                    .unwrap();
                fs.link(unnamed, Ino::ROOT, &[name[0], b'2']).unwrap();
                fs.forget(unnamed, 1).unwrap();
                fs.sync().unwrap();
                recorder.mark(name[0].into());
            }
            fs.close().unwrap();
        });
        sweep(cuts, 1, |cut, mark, fs| {
            for name in [&b"a"[..], b"b", b"c", b"a2", b"b2", b"c2"] {
                match fs.lookup(Ino::ROOT, name) {
                    Ok(ino) => assert_eq!(fs.xattr(ino, LABEL.0).unwrap(), LABEL.1, "{cut}"),
                    Err(_) => assert!(mark.is_none_or(|mark| mark < name[0].into()), "{cut}"),
                }
            }
        });
    }
}

/// Only files and directories have attributes of users, also when they are made with them.
#[test]
fn a_new_symbolic_link_can_not_be_made_with_an_attribute_of_users() {
    const USER: (&[u8], &[u8]) = (b"user.a", b"value");
    let Some(image) = with_files(PROFILES[0], 8 << 20, &[]) else {
        return;
    };
    record(&image, |_, fs| {
        let make = |name: &[u8], content| fs.make(Ino::ROOT, Some(name), NEW, content, &[USER]);
        for content in [
            NewContent::Symlink(b"target"),
            NewContent::Special(FileType::Fifo),
        ] {
            let refused = make(b"x", content).unwrap_err();
            assert!(matches!(refused, Error::NotPermitted), "{refused}");
            assert!(fs.lookup(Ino::ROOT, b"x").is_err());
        }
        for (name, content) in [
            (&b"f"[..], NewContent::Empty),
            (b"d", NewContent::Directory),
        ] {
            let ino = make(name, content).unwrap();
            assert_eq!(fs.xattr(ino, USER.0).unwrap(), USER.1);
            fs.forget(ino, 1).unwrap();
        }
        fs.close().unwrap();
    });
}
