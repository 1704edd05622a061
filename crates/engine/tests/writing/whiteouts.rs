//! Renames that leave a whiteout: its owner, refusals, and what a cut leaves; the model has the rest.

use lanefs_engine::{Error, FileType, Ino, InodeFs, RenameFlag, XattrFlag};

use crate::image::{NEW, finish, make, record, sweep};

const OWNER: (u32, u32) = (1000, 1001);

/// What an inode's name stands for: nothing, a whiteout, or another file of this size.
#[derive(PartialEq, Eq, Debug)]
enum Shown {
    Nothing,
    Whiteout,
    Other(u64),
}

fn shown(fs: &InodeFs, path: &str) -> Shown {
    let Ok(ino) = fs.resolve(path.as_bytes(), false) else {
        return Shown::Nothing;
    };
    let metadata = fs.metadata(ino).unwrap();
    match metadata.file_type {
        FileType::CharDevice => {
            assert_eq!((metadata.rdev, metadata.mode & 0o7777), ((0, 0), 0));
            assert_eq!((metadata.nlink, metadata.size), (1, 0));
            Shown::Whiteout
        }
        FileType::Directory => Shown::Other(0),
        _ => Shown::Other(metadata.size),
    }
}

/// `d/file` of 100 bytes; `d/other` of 5000, which has a second name and a block of attributes; and the empty
/// directories `d/empty` and `e`.
fn populated(options: &[&str]) -> Option<Vec<u8>> {
    let image = make(options, 8 << 20)?;
    Some(finish(&image, |fs| {
        let d = fs.mkdir(Ino::ROOT, b"d", NEW).unwrap();
        for (name, len) in [(&b"file"[..], 100), (b"other", 5000)] {
            let ino = fs.create(d, name, NEW).unwrap();
            fs.write(ino, 0, &vec![7; len]).unwrap();
        }
        let other = fs.lookup(d, b"other").unwrap();
        let value = [b'v'; 700];
        fs.set_xattr(other, b"user.v", &value, XattrFlag::Any)
            .unwrap();
        fs.link(other, Ino::ROOT, b"second").unwrap();
        fs.mkdir(d, b"empty", NEW).unwrap();
        fs.mkdir(Ino::ROOT, b"e", NEW).unwrap();
        fs.close().unwrap();
    }))
}

fn rename(fs: &InodeFs, from: (Ino, &str), to: (Ino, &str), flag: RenameFlag) -> Result<(), Error> {
    let (old, new) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
    fs.rename_with_whiteout(old, new, flag, OWNER)
}

#[test]
fn a_whiteout_belongs_to_the_caller_and_what_is_refused_changes_nothing() {
    let Some(image) = populated(&["-b", "1024"]) else {
        return;
    };
    finish(&image, |fs| {
        let find = |path: &str| fs.resolve(path.as_bytes(), false).unwrap();
        let (d, e) = (find("d"), find("e"));
        let free = || fs.statfs().unwrap().free_files;
        let before = free();
        let refused = |from: &str, to: &str, flag| rename(&fs, (d, from), (d, to), flag);
        let exchanged = refused("file", "other", RenameFlag::Exchange);
        assert!(matches!(exchanged, Err(Error::InvalidArgument)));
        let taken = refused("file", "other", RenameFlag::NoReplace);
        assert!(matches!(taken, Err(Error::Exists)));
        let absent = refused("absent", "other", RenameFlag::Replace);
        assert!(matches!(absent, Err(Error::NotFound)));
        let onto_directory = refused("file", "empty", RenameFlag::Replace);
        assert!(matches!(onto_directory, Err(Error::IsDirectory)));
        // Two names of one inode stay as they are, and no whiteout is made.
        rename(
            &fs,
            (d, "other"),
            (Ino::ROOT, "second"),
            RenameFlag::Replace,
        )
        .unwrap();
        assert_eq!(shown(&fs, "d/other"), Shown::Other(5000));
        assert_eq!(free(), before);

        rename(&fs, (d, "file"), (e, "new"), RenameFlag::NoReplace).unwrap();
        assert_eq!(shown(&fs, "d/file"), Shown::Whiteout);
        assert_eq!(shown(&fs, "e/new"), Shown::Other(100));
        let whiteout = fs.metadata(find("d/file")).unwrap();
        assert_eq!((whiteout.uid, whiteout.gid), OWNER);
        assert_eq!(free(), before - 1);
        // Over the whiteout, which goes; a directory, whose parents count it.
        rename(&fs, (e, "new"), (d, "file"), RenameFlag::Replace).unwrap();
        assert_eq!(shown(&fs, "d/file"), Shown::Other(100));
        rename(&fs, (d, "empty"), (e, "moved"), RenameFlag::Replace).unwrap();
        let links = |ino| fs.metadata(ino).unwrap().nlink;
        assert_eq!((links(d), links(e)), (2, 3));
        assert_eq!(shown(&fs, "d/empty"), Shown::Whiteout);
        fs.close().unwrap();
    });
}

/// A default ACL of a directory for 100 users: as an access ACL it does not fit an inode of 256 bytes.
fn long_default_acl() -> Vec<u8> {
    let entry = |tag: u16, id: u32| [&tag.to_le_bytes()[..], &[7, 0], &id.to_le_bytes()].concat();
    let mut acl = 2_u32.to_le_bytes().to_vec();
    acl.extend(entry(0x01, u32::MAX));
    (2000..2100).for_each(|uid| acl.extend(entry(0x02, uid)));
    for tag in [0x04, 0x10, 0x20] {
        acl.extend(entry(tag, u32::MAX));
    }
    acl
}

#[test]
fn a_whiteout_takes_an_acl_in_a_block_while_what_is_replaced_gives_its_own_back() {
    let Some(image) = populated(&["-b", "1024"]) else {
        return;
    };
    finish(&image, |fs| {
        let find = |path: &str| fs.resolve(path.as_bytes(), false).unwrap();
        let d = find("d");
        let acl = long_default_acl();
        fs.set_xattr(d, b"system.posix_acl_default", &acl, XattrFlag::Any)
            .unwrap();
        fs.unlink(Ino::ROOT, b"second").unwrap();
        rename(&fs, (d, "file"), (d, "other"), RenameFlag::Replace).unwrap();
        assert_eq!(shown(&fs, "d/file"), Shown::Whiteout);
        assert_eq!(shown(&fs, "d/other"), Shown::Other(100));
        let acl = fs.xattr(find("d/file"), b"system.posix_acl_access");
        assert_eq!(acl.unwrap().len(), long_default_acl().len());
        fs.close().unwrap();
    });
}

#[test]
fn without_a_free_inode_a_rename_with_whiteout_changes_nothing() {
    let Some(image) = populated(&["-b", "1024", "-N", "16"]) else {
        return;
    };
    finish(&image, |fs| {
        let d = fs.resolve(b"d", true).unwrap();
        let mut number = 0;
        while fs.create(d, format!("n{number}").as_bytes(), NEW).is_ok() {
            number += 1;
        }
        let refused = rename(&fs, (d, "file"), (d, "other"), RenameFlag::Replace);
        assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
        assert_eq!(shown(&fs, "d/file"), Shown::Other(100));
        assert_eq!(shown(&fs, "d/other"), Shown::Other(5000));
        fs.close().unwrap();
    });
}

#[test]
fn a_cut_leaves_both_names_as_they_were_or_the_new_one_and_a_whiteout() {
    for options in [
        &["-b", "1024"][..],
        &["-b", "4096", "-O", "^metadata_csum,^64bit,^orphan_file"],
        &["-b", "1024", "-O", "fast_commit"],
    ] {
        let Some(image) = populated(options) else {
            return;
        };
        let cuts = record(&image, |device, fs| {
            let find = |path: &str| fs.resolve(path.as_bytes(), false).unwrap();
            let (d, e) = (find("d"), find("e"));
            rename(&fs, (d, "file"), (d, "other"), RenameFlag::Replace).unwrap();
            // What a fast commit would tell of it must not be half of it.
            fs.fsync(find("d/other")).unwrap();
            device.mark(1);
            rename(&fs, (d, "empty"), (e, "moved"), RenameFlag::Replace).unwrap();
            fs.fsync(e).unwrap();
            device.mark(2);
            fs.close().unwrap();
        });
        let mut seen = [0; 3];
        sweep(cuts, 3, |cut, promised, fs| {
            let found = ["d/file", "d/other", "d/empty", "e/moved"].map(|path| shown(fs, path));
            use Shown::{Nothing, Other, Whiteout};
            let states = [
                [Other(100), Other(5000), Other(0), Nothing],
                [Whiteout, Other(100), Other(0), Nothing],
                [Whiteout, Other(100), Whiteout, Other(0)],
            ];
            let done = states.iter().position(|state| *state == found);
            let done = done.unwrap_or_else(|| panic!("{options:?} {cut}: {found:?}"));
            assert!(done as u64 >= promised.unwrap_or(0), "{options:?} {cut}");
            seen[done] += 1;
            assert_eq!(shown(fs, "second"), Other(5000));
        });
        assert!(seen.iter().all(|count| *count > 0), "{options:?} {seen:?}");
    }
}
