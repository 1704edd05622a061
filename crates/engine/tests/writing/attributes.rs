//! Permissions, owners and times.

use lanefs_engine::{Allocate, Ino, NewInode, SetAttributes, SetTime, Timestamp, XattrFlag};

use crate::files::opened;
use crate::image::{clock, make, record, sweep};

#[test]
fn a_change_of_attributes_survives_any_cut_whole_or_not_at_all() {
    for options in [
        &["-b", "1024"][..],
        &["-b", "4096"],
        &["-b", "1024", "-O", "^metadata_csum,^64bit"],
    ] {
        let Some(image) = make(options, 8 << 20) else {
            return;
        };
        let cuts = record(&image, |device, fs| {
            for step in 1..=20_u32 {
                let attributes = SetAttributes {
                    mode: Some(0o700 + step as u16),
                    uid: Some(step * 70_000),
                    gid: Some(step),
                    mtime: Some(SetTime::At(Timestamp {
                        seconds: i64::from(step),
                        nanoseconds: step,
                    })),
                    ..SetAttributes::default()
                };
                fs.set_attributes(Ino::ROOT, &attributes).unwrap();
                if step % 3 == 0 {
                    fs.sync().unwrap();
                    device.mark(step.into());
                }
            }
            fs.close().unwrap();
            device.mark(20);
        });
        let states = sweep(cuts, 4, |cut, promised, fs| {
            let metadata = fs.metadata(Ino::ROOT).unwrap();
            let step = metadata.gid;
            assert!(
                u64::from(step) >= promised.unwrap_or(0),
                "{cut}: {step} of {promised:?}"
            );
            if step > 0 {
                let expected = (0o700 + step as u16, step * 70_000, i64::from(step), clock());
                let found = (
                    metadata.mode & 0o7777,
                    metadata.uid,
                    metadata.mtime.seconds,
                    metadata.ctime,
                );
                assert_eq!(found, expected, "{cut}");
            }
        });
        assert!(states > 100);
    }
}

#[test]
fn fallocate_says_that_a_file_was_modified_also_where_it_was_as_wanted() {
    let Some(image) = make(&["-b", "1024"], 8 << 20) else {
        return;
    };
    let (_device, fs) = opened(&image);
    let new = NewInode {
        mode: 0o600,
        umask: 0,
        uid: 0,
        gid: 0,
        held: false,
    };
    let file = fs.create(Ino::ROOT, b"file", new).unwrap();
    fs.write(file, 0, &[7; 10_000]).unwrap();
    let long_ago = SetAttributes {
        mtime: Some(SetTime::At(Timestamp {
            seconds: 1,
            nanoseconds: 0,
        })),
        ..SetAttributes::default()
    };
    // What Linux does, which stamps the file before it looks at its blocks.
    for (how, offset, len) in [
        (Allocate::Grow, 0, 5000),
        (Allocate::Grow, 0, 20_000),
        (Allocate::KeepSize, 0, 5000),
        (Allocate::KeepSize, 30_000, 5000),
        (Allocate::Punch, 100, 50),
        (Allocate::Punch, 1 << 20, 5000),
        (Allocate::Zero, 0, 5000),
        (Allocate::ZeroKeepSize, 1 << 20, 5000),
    ] {
        fs.set_attributes(file, &long_ago).unwrap();
        fs.allocate(file, how, offset, len).unwrap();
        let now = fs.metadata(file).unwrap().mtime;
        assert_eq!(now, clock(), "{how:?} {offset} {len}");
    }
    fs.close().unwrap();
}

#[test]
fn the_time_of_a_change_is_now_unless_it_is_given() {
    let Some(image) = make(&["-b", "1024"], 8 << 20) else {
        return;
    };
    let (_device, fs) = opened(&image);
    let given = Timestamp {
        seconds: 9,
        nanoseconds: 7,
    };
    let acl =
        b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x04\0\x05\0\0\0\x04\0\x04\0\xff\xff\xff\xff\
                \x10\0\x04\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";
    let name = b"system.posix_acl_access";
    for has_acl in [false, true] {
        if has_acl {
            fs.set_xattr(Ino::ROOT, name, acl, XattrFlag::Any).unwrap();
        }
        for ctime in [Some(given), None] {
            let attributes = SetAttributes {
                mode: Some(0o750),
                mtime: Some(SetTime::At(given)),
                ctime,
                ..SetAttributes::default()
            };
            fs.set_attributes(Ino::ROOT, &attributes).unwrap();
            let found = fs.metadata(Ino::ROOT).unwrap();
            assert_eq!(found.mtime, given);
            assert_eq!(found.ctime, ctime.unwrap_or_else(clock), "{has_acl}");
        }
    }
    fs.close().unwrap();
}
