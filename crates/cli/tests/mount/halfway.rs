//! Requests that fail, some after they changed a part: the kernel keeps no pages or attributes from before.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, copy_file_range, fallocate};

use crate::changes::Place;
use crate::hand::Hand;
use crate::served::{Served, can_mount, image};
use crate::truth::{READERS, Watched, beside_readers};

/// More than the disk of the test.
const MUCH: u64 = 64 << 20;
/// Where no file of ext4 reaches.
const FAR: u64 = 1 << 50;

type Try = (&'static str, fn(&Place<'_>) -> io::Result<()>);

fn writable(at: &Place<'_>) -> io::Result<File> {
    File::options().write(true).open(at.file())
}

fn allocated(at: &Place<'_>, mode: FallocateFlags, offset: u64, len: u64) -> io::Result<()> {
    Ok(fallocate(writable(at)?, mode, offset, len)?)
}

fn copied(at: &Place<'_>, mut offset: u64) -> io::Result<()> {
    let (from, to) = (File::open(at.other())?, writable(at)?);
    match copy_file_range(from, None, to, Some(&mut offset), 20_000)? {
        20_000 => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// What lacks space: an error, or a part of it done.
const WITHOUT_SPACE: &[Try] = &[
    ("fallocate", |at| {
        allocated(at, FallocateFlags::empty(), 20_000, MUCH)
    }),
    ("fallocate, keeping the size", |at| {
        allocated(at, FallocateFlags::KEEP_SIZE, 20_000, MUCH)
    }),
    ("zeros", |at| {
        allocated(at, FallocateFlags::ZERO_RANGE, 5000, MUCH)
    }),
    ("write", |at| {
        writable(at)?.write_all_at(&vec![1; 2 << 20], 30_000)
    }),
    ("copy_file_range", |at| copied(at, 10 << 20)),
    ("O_DIRECT", |at| {
        let path = at.file();
        let arguments: [&dyn std::fmt::Display; 4] = [&path.display(), &8192, &(2 << 20), &1];
        at.hand.run("direct", &arguments)
    }),
    ("append", |at| {
        let mut file = File::options().append(true).open(at.file())?;
        file.write_all(&vec![1; 2 << 20])
    }),
];

/// What no file has room for.
const TOO_FAR: &[Try] = &[
    ("truncate", |at| writable(at)?.set_len(FAR)),
    ("write", |at| writable(at)?.write_all_at(&[1; 5000], FAR)),
    ("copy_file_range", |at| copied(at, FAR)),
    ("fallocate", |at| {
        allocated(at, FallocateFlags::empty(), FAR, 5000)
    }),
    ("zeros", |at| {
        allocated(at, FallocateFlags::ZERO_RANGE, FAR, 5000)
    }),
];

fn try_all(place: &Place<'_>, tries: &[Try]) {
    let watched = Watched::start(place, "the beginning");
    beside_readers(&place.root, READERS, || {
        for (name, attempt) in tries {
            let error = attempt(place).err();
            assert!(error.is_some(), "{name} goes well");
            watched.look(name);
        }
    });
    tries.iter().for_each(|(name, _)| watched.look(name));
}

/// Writes until nothing is free.
fn fill(served: &Served) {
    let mut file = File::create(served.path().join("large")).unwrap();
    for len in [1 << 20, 4096] {
        while file.write_all(&vec![7; len]).is_ok() {}
    }
    file.sync_all().unwrap();
}

#[test]
fn a_request_that_fails_leaves_no_old_pages_and_attributes() {
    if !can_mount() || !Hand::is_there() {
        return;
    }
    let hand = Hand::start();
    for options in [&["-b", "1024"][..], &["-b", "4096"]] {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path(), "a.img", 16 << 20, options);
        for threads in ["threads=1", "threads=4"] {
            let served = Served::start(&image, threads);
            let at = |name: &str| Place {
                root: served.path().join(name),
                hand: &hand,
            };
            at("far").make().unwrap();
            try_all(&at("far"), TOO_FAR);
            at("full").make().unwrap();
            fill(&served);
            try_all(&at("full"), WITHOUT_SPACE);
            for name in ["far", "full", "large"] {
                let path = served.path().join(name);
                if path.is_dir() {
                    fs::remove_dir_all(path).unwrap()
                } else {
                    fs::remove_file(path).unwrap()
                }
            }
            served.unmount();
            testkit::e2fsck(&image);
        }
    }
}

/// The kernel writes the pages in one request, and does not look at how many bytes of it were written.
#[test]
fn msync_reports_pages_for_which_there_was_no_room() {
    if !can_mount() || !Hand::is_there() {
        return;
    }
    let (folder, hand) = (tempfile::tempdir().unwrap(), Hand::start());
    let image = image(folder.path(), "a.img", 16 << 20, &["-b", "4096"]);
    let served = Served::start(&image, "");
    let path = served.path().join("mapped");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    fill(&served);
    let mut options = File::options();
    let large = options
        .write(true)
        .open(served.path().join("large"))
        .unwrap();
    let shorter = large.metadata().unwrap().len() - (400 << 10);
    large.set_len(shorter).unwrap();
    large.sync_all().unwrap();
    let arguments: [&dyn std::fmt::Display; 5] = [&path.display(), &0, &(1 << 20), &7, &"msync"];
    let error = hand.run("map", &arguments).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(28));
    drop(large);
    served.unmount();
    testkit::e2fsck(&image);
}
