//! Where a file was overwritten last is remembered: whatever is done to the file after that, the next write must go
//! where the bytes are then, or be refused, and never where they were.

use lanefs_engine::{Allocate, Error, Ino, InodeFs, NewInode};
use model::{FileBytes, Random};
use ondisk::Flags;
use sync::thread::workers;

use crate::files::{
    self, Change, change, contents, first_difference, judge, judge_image, opened, with_files,
};
use crate::fsync_log::count;
use crate::image::make;

const NEW: NewInode = NewInode {
    mode: 0o600,
    umask: 0,
    uid: 0,
    gid: 0,
    held: false,
};
const EXT3: &[&str] = &["-b", "1024", "-O", "^extents,^64bit,^metadata_csum"];

/// What may move, take away or turn what was overwritten; the first ones are for files with any map.
fn changes() -> Vec<Change> {
    let change = |how, offset, len| Change::Allocate(how, offset, len);
    vec![
        Change::Truncate(0),
        Change::Truncate(10_000),
        Change::Truncate(60_000),
        change(Allocate::Punch, 8192, 16_384),
        change(Allocate::Punch, 9000, 100),
        change(Allocate::Collapse, 4096, 8192),
        change(Allocate::Insert, 4096, 12_288),
        change(Allocate::Zero, 8192, 8192),
        change(Allocate::ZeroKeepSize, 9000, 3000),
        change(Allocate::KeepSize, 50_000, 30_000),
        change(Allocate::Grow, 50_000, 30_000),
    ]
}

/// Each change between two overwrites of the same places, while another file takes what was freed.
fn overwritten_around_changes(options: &[&str], changes: &[Change]) {
    let Some(image) = with_files(options, 8 << 20, &["one", "two"]) else {
        return;
    };
    let (device, fs) = opened(&image);
    let ino = |name: &str| fs.resolve(name.as_bytes(), true).unwrap();
    let files = [ino("one"), ino("two")];
    let mut expected = [FileBytes::default(), FileBytes::default()];
    let mut random = Random::new(7);
    let places = [0, 4096, 8192, 9000, 12_288, 20_480, 39_000];
    for (number, next) in changes.iter().enumerate() {
        let [one, two] = &mut expected;
        change(&fs, files[0], one, &Change::Write(0, vec![0x11; 40_000]));
        for place in places {
            let mut write = |byte: u8| {
                let write = Change::Write(place, vec![byte; 500]);
                change(&fs, files[0], one, &write);
            };
            write(1 + number as u8);
            write(101 + number as u8);
            change(&fs, files[0], one, next);
            // What was freed becomes available again.
            fs.sync().unwrap();
            let size = two.size();
            let others = Change::Write(size, vec![0xee; 30_000]);
            change(&fs, files[1], two, &others);
            let again = Change::Write(place, vec![201 + number as u8; 500]);
            change(&fs, files[0], one, &again);
            let random = files::random(&mut random, one.size(), 60_000, options.len() == 2);
            change(&fs, files[0], one, &random);
            for (file, content) in [(files[0], &*one), (files[1], &*two)] {
                let difference = first_difference(&contents(&fs, file), &content.bytes());
                assert_eq!(difference, None, "{next:?}, then {random:?}, at {place}");
            }
        }
        change(&fs, files[1], two, &Change::Truncate(0));
    }
    fs.close().unwrap();
    let [one, two] = expected;
    judge(&device, &[("one", one.bytes()), ("two", two.bytes())]);
}

#[test]
fn an_overwrite_goes_where_the_bytes_are_after_any_change() {
    overwritten_around_changes(&["-b", "1024"], &changes());
    overwritten_around_changes(&["-b", "4096"], &changes());
    overwritten_around_changes(EXT3, &changes()[..5]);
}

#[test]
fn an_overwrite_is_refused_as_soon_as_flags_say_so() {
    let Some(image) = make(&["-b", "1024"], 4 << 20) else {
        return;
    };
    let (device, fs) = opened(&image);
    let ino = fs.create(Ino::ROOT, b"file", NEW).unwrap();
    fs.write(ino, 0, &[1; 5000]).unwrap();
    let before = fs.metadata(ino).unwrap().flags;
    let set = |flags| fs.set_flags(ino, flags).unwrap();
    for flag in [Flags::IMMUTABLE, Flags::APPEND] {
        for byte in 2..5 {
            assert_eq!(fs.write(ino, 1000, &[byte; 1000]).unwrap(), 1000);
        }
        set(before.with(flag));
        assert!(matches!(
            fs.write(ino, 1000, &[9; 1000]),
            Err(Error::NotPermitted)
        ));
        set(before);
        assert_eq!(contents(&fs, ino)[1000..2000], [4; 1000]);
    }
    // A number that another file has then leads to that one's blocks.
    fs.write(ino, 1000, &[5; 1000]).unwrap();
    fs.unlink(Ino::ROOT, b"file").unwrap();
    assert!(matches!(
        fs.write(ino, 1000, &[9; 10]),
        Err(Error::NotFound)
    ));
    fs.sync().unwrap();
    for number in 0..20 {
        let name = format!("file {number}").into_bytes();
        let other = fs.create(Ino::ROOT, &name, NEW).unwrap();
        fs.write(other, 1000, &[6; 10]).unwrap();
        let mut expected = vec![0; 1000];
        expected.extend([6; 10]);
        assert_eq!(contents(&fs, other), expected);
    }
    fs.close().unwrap();
    judge_image(&device);
}

/// One thread overwrites a file, one takes its blocks away and makes it anew, one writes another file and finds in it
/// what it wrote.
fn overwritten_while_cut(fs: &InodeFs, rounds: usize) {
    let one = fs.create(Ino::ROOT, b"one", NEW).unwrap();
    let two = fs.create(Ino::ROOT, b"two", NEW).unwrap();
    fs.write(one, 0, &[0xa1; 8000]).unwrap();
    workers(3, |thread| {
        for round in 0..rounds {
            match thread {
                0 => {
                    for _ in 0..3 {
                        assert_eq!(fs.write(one, 2048, &[0xa1; 1500]).unwrap(), 1500);
                    }
                }
                1 => {
                    match round % 3 {
                        0 => fs.truncate(one, 0).unwrap(),
                        1 => fs.allocate(one, Allocate::Punch, 1024, 4096).unwrap(),
                        _ => fs.allocate(one, Allocate::Zero, 1024, 4096).unwrap(),
                    }
                    fs.fsync(one).unwrap();
                    fs.write(one, 0, &[0xa1; 8000]).unwrap();
                }
                _ => {
                    fs.truncate(two, 0).unwrap();
                    fs.write(two, 0, &[0xb2; 6000]).unwrap();
                    fs.fsync(two).unwrap();
                    assert_eq!(contents(fs, two), [0xb2; 6000]);
                }
            }
        }
    });
    let bytes = contents(fs, one);
    assert_eq!(
        bytes.iter().position(|byte| ![0, 0xa1].contains(byte)),
        None
    );
    assert_eq!(contents(fs, two), [0xb2; 6000]);
}

#[test]
fn an_overwrite_beside_one_who_cuts_never_meets_another_files_blocks() {
    let Some(image) = make(&["-b", "1024"], 4 << 20) else {
        return;
    };
    let (device, fs) = opened(&image);
    overwritten_while_cut(&fs, 300);
    fs.close().unwrap();
    judge_image(&device);
}

#[test]
fn under_schedules_an_overwrite_never_meets_another_files_blocks() {
    let Some(image) = make(&["-b", "1024", "-N", "64"], 4 << 20) else {
        return;
    };
    for seed in 0..60 {
        let plan = sync::schedule::SchedulePlan {
            seed,
            points: 3_000_000,
        };
        let work = || {
            let (_device, fs) = opened(&image);
            overwritten_while_cut(&fs, 4);
            fs.close().unwrap();
        };
        sync::schedule::run(plan, work).unwrap_or_else(|cause| panic!("seed {seed}: {cause}"));
    }
}

#[test]
fn who_asks_for_mode_and_group_leaves_writes_in_place_as_they_are() {
    let Some(image) = make(&["-b", "1024"], 8 << 20) else {
        return;
    };
    let (_device, fs) = opened(&image);
    let new = NewInode {
        mode: 0o2664,
        uid: 5,
        gid: 6,
        ..NEW
    };
    let ino = fs.create(Ino::ROOT, b"file", new).unwrap();
    fs.write(ino, 0, &[1; 4096]).unwrap();
    fs.write(ino, 0, &[2; 4096]).unwrap();
    fs.sync().unwrap();
    let commits = count(&fs, "journal.commits");
    assert_eq!(fs.mode_and_group(ino).unwrap(), (0o102_664, 6));
    fs.write(ino, 0, &[3; 4096]).unwrap();
    fs.sync().unwrap();
    assert_eq!(count(&fs, "journal.commits"), commits, "nothing but data");
    // After the times were read, the next write sets them.
    fs.metadata(ino).unwrap();
    fs.write(ino, 0, &[4; 4096]).unwrap();
    fs.sync().unwrap();
    assert_eq!(count(&fs, "journal.commits"), commits + 1);
    fs.close().unwrap();
}
