//! Repeated changes while threads read without a pause: the kernel must not keep an answer that the server gave before
//! a change and that arrives after it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};

use rustix::fs::{FallocateFlags, XattrFlags, copy_file_range, fallocate, removexattr, setxattr};

use crate::changes::{FILE_BYTES, Place};
use crate::hand::Hand;
use crate::served::{Served, can_mount, image};
use crate::truth::{READERS, Watched, beside_readers};

/// Changes of each kind, unless `LANEFS_STORM` says another number.
const CHANGES: u64 = 60;

/// One change of a series; each leaves the tree so that the next can follow.
type Storm = (&'static str, fn(&Place<'_>, u64) -> io::Result<()>);

fn writable(at: &Place<'_>) -> io::Result<File> {
    File::options().write(true).open(at.file())
}

const STORMS: &[Storm] = &[
    ("create and unlink", |at, round| match round % 2 {
        0 => File::create_new(at.at("a/new")).map(drop),
        _ => fs::remove_file(at.at("a/new")),
    }),
    ("mkdir and rmdir", |at, round| match round % 2 {
        0 => fs::create_dir(at.at("a/new")),
        _ => fs::remove_dir(at.at("a/new")),
    }),
    ("link and unlink", |at, round| match round % 2 {
        0 => fs::hard_link(at.file(), at.at("b/new")),
        _ => fs::remove_file(at.at("b/new")),
    }),
    ("rename away and back", |at, round| match round % 2 {
        0 => fs::rename(at.at("b/name"), at.at("a/name")),
        _ => fs::rename(at.at("a/name"), at.at("b/name")),
    }),
    ("rename of a directory", |at, round| match round % 2 {
        0 => fs::rename(at.at("a/dir"), at.at("b/dir")),
        _ => fs::rename(at.at("b/dir"), at.at("a/dir")),
    }),
    ("chmod", |at, round| {
        let mode = 0o600 + u32::try_from(round % 8).unwrap();
        fs::set_permissions(at.file(), fs::Permissions::from_mode(mode))
    }),
    ("an attribute set and removed", |at, round| {
        match round % 2 {
            0 => Ok(setxattr(
                at.file(),
                "user.a",
                &[7; 900],
                XattrFlags::empty(),
            )?),
            _ => Ok(removexattr(at.file(), "user.a")?),
        }
    }),
    ("write", |at, round| {
        writable(at)?.write_all_at(&[round as u8; 9000], 5000 + round * 100)
    }),
    ("O_TRUNC and write", |at, round| {
        fs::write(at.file(), vec![round as u8; 5000 + round as usize * 100])
    }),
    ("truncate", |at, round| {
        let len = [5000, FILE_BYTES as u64 + round][round as usize % 2];
        writable(at)?.set_len(len)
    }),
    ("write and punch", |at, round| match round % 2 {
        0 => writable(at)?.write_all_at(&[round as u8; 30_000], 3000),
        _ => {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            Ok(fallocate(writable(at)?, mode, 4000, 25_000)?)
        }
    }),
    ("write and zero", |at, round| match round % 2 {
        0 => writable(at)?.write_all_at(&[round as u8; 30_000], 3000),
        _ => Ok(fallocate(
            writable(at)?,
            FallocateFlags::ZERO_RANGE,
            4000,
            25_000,
        )?),
    }),
    ("copy_file_range", |at, round| {
        File::options()
            .write(true)
            .open(at.other())?
            .write_all_at(&[round as u8; 12_000], 0)?;
        let mut offset = 3000 + round;
        let (from, to) = (File::open(at.other())?, writable(at)?);
        copy_file_range(from, None, to, Some(&mut offset), 12_000)?;
        Ok(())
    }),
    ("O_DIRECT", |at, round| {
        let (path, byte) = (at.file(), round % 256);
        let offset = round % 8 * 4096;
        at.hand
            .run("direct", &[&path.display(), &offset, &16_384, &byte])
    }),
    ("io_submit", |at, round| {
        let (path, byte) = (at.file(), round % 256);
        let offset = round % 8 * 4096;
        at.hand
            .run("submit", &[&path.display(), &offset, &16_384, &byte])
    }),
    ("mmap and msync", |at, round| {
        let (path, byte) = (at.file(), round % 256);
        let offset = round % 8 * 3000;
        at.hand
            .run("map", &[&path.display(), &offset, &9000, &byte, &"msync"])
    }),
];

fn storm((name, change): Storm, place: &Place<'_>, changes: u64) {
    place.make().unwrap();
    let watched = Watched::start(place, name);
    beside_readers(&place.root, READERS, || {
        for round in 0..changes {
            let after = format!("{name}, {round}");
            change(place, round).unwrap_or_else(|error| panic!("{after}: {error}"));
            watched.look(&after);
            watched.look_at_directories(place, &after);
        }
    });
}

#[test]
fn no_answer_from_before_a_change_is_kept_after_it() {
    if !can_mount() || !Hand::is_there() {
        return;
    }
    let changes = std::env::var("LANEFS_STORM").map_or(CHANGES, |number| number.parse().unwrap());
    for options in ["", "default_permissions"] {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path(), "a.img", 64 << 20, &["-b", "4096"]);
        let served = Served::start(&image, options);
        let hand = Hand::start();
        for (number, kind) in STORMS.iter().enumerate() {
            let place = Place {
                root: served.path().join(format!("storm{number}")),
                hand: &hand,
            };
            storm(*kind, &place, changes);
        }
        drop(hand);
        served.unmount();
        testkit::e2fsck(&image);
    }
}
