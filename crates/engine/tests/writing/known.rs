//! What is kept in memory so that it need not be done again: names that were looked up again and again must lead to
//! what has them now, and times that a write left as they were must not be seen to have been left.

use device::BlockDevice;
use lanefs_engine::{
    Error, Ino, InodeFs, MountOptions, NewInode, RenameFlag, SetAttributes, SetTime,
};
use ondisk::Timestamp;
use simulate::CowDevice;
use sync::Arc;
use sync::atomic::{AtomicI64, AtomicU64, Ordering};
use sync::thread::workers;

use crate::files::{contents, judge_image, opened};
use crate::image::make;

const NEW: NewInode = NewInode {
    mode: 0o600,
    umask: 0,
    uid: 0,
    gid: 0,
    held: false,
};
/// Lookups after which names are kept, and some that find them kept.
const LOOKUPS: usize = 20;

/// What a name leads to, looked up so often that it is known.
fn found(fs: &InodeFs, directory: Ino, name: &[u8]) -> Option<Ino> {
    let look = || match fs.lookup(directory, name) {
        Ok(ino) => Some(ino),
        Err(Error::NotFound) => None,
        Err(error) => panic!("{error}"),
    };
    let first = look();
    for _ in 0..LOOKUPS {
        assert_eq!(look(), first);
    }
    first
}

#[test]
fn a_known_name_leads_to_what_has_it_now() {
    let Some(image) = make(&["-b", "1024"], 8 << 20) else {
        return;
    };
    let (device, fs) = opened(&image);
    let directory = fs.mkdir(Ino::ROOT, b"directory", NEW).unwrap();
    let name = |number: usize| format!("a name with number {number}").into_bytes();
    let inos: Vec<Ino> = (0..100)
        .map(|number| fs.create(directory, &name(number), NEW).unwrap())
        .collect();
    for (number, ino) in inos.iter().enumerate() {
        assert_eq!(found(&fs, directory, &name(number)), Some(*ino));
    }
    fs.unlink(directory, &name(0)).unwrap();
    assert_eq!(found(&fs, directory, &name(0)), None);
    let again = fs.create(directory, &name(0), NEW).unwrap();
    assert_eq!(found(&fs, directory, &name(0)), Some(again));
    let rename = |from, to, flag| {
        fs.rename(directory, &name(from), directory, &name(to), flag)
            .unwrap();
    };
    rename(1, 2, RenameFlag::Replace);
    assert_eq!(found(&fs, directory, &name(1)), None);
    assert_eq!(found(&fs, directory, &name(2)), Some(inos[1]));
    rename(3, 4, RenameFlag::Exchange);
    assert_eq!(found(&fs, directory, &name(3)), Some(inos[4]));
    assert_eq!(found(&fs, directory, &name(4)), Some(inos[3]));
    fs.rename(
        directory,
        &name(5),
        Ino::ROOT,
        b"elsewhere",
        RenameFlag::Replace,
    )
    .unwrap();
    assert_eq!(found(&fs, directory, &name(5)), None);
    assert_eq!(found(&fs, Ino::ROOT, b"elsewhere"), Some(inos[5]));
    for (number, ino) in inos.iter().enumerate().skip(6) {
        assert_eq!(found(&fs, directory, &name(number)), Some(*ino));
        fs.unlink(directory, &name(number)).unwrap();
    }
    // A directory that is gone knows no names, nor does one that has its number then.
    for number in [0, 2, 3, 4] {
        fs.unlink(directory, &name(number)).unwrap();
    }
    fs.rmdir(Ino::ROOT, b"directory").unwrap();
    fs.sync().unwrap();
    let others: Vec<Ino> = (0..20)
        .map(|number| fs.mkdir(Ino::ROOT, &name(number), NEW).unwrap())
        .collect();
    for other in others {
        assert_eq!(found(&fs, other, &name(99)), None);
    }
    fs.close().unwrap();
    judge_image(&device);
}

/// One thread moves a name to and fro and says how often it did, before and after; others look it up and compare.
fn moved_and_looked_up(fs: &InodeFs, threads: usize, moves: u64) {
    let directory = fs.mkdir(Ino::ROOT, b"directory", NEW).unwrap();
    let ino = fs.create(directory, b"here", NEW).unwrap();
    let step = AtomicU64::new(0);
    workers(threads + 1, |thread| {
        for number in 0..moves {
            if thread < threads {
                for (name, when) in [(&b"here"[..], 0), (b"there", 2)] {
                    // SeqCst: before the lookup; pairs with the additions below.
                    let before = step.load(Ordering::SeqCst);
                    let found = fs.lookup(directory, name).ok();
                    // SeqCst: after the lookup; pairs with the additions below.
                    let is_still = step.load(Ordering::SeqCst) == before;
                    assert!(found.is_none_or(|found| found == ino));
                    if is_still && before.is_multiple_of(2) {
                        assert_eq!(found.is_some(), before % 4 == when, "{name:?}");
                    }
                }
                continue;
            }
            for _ in 0..LOOKUPS {
                let name: &[u8] = if number % 2 == 0 { b"here" } else { b"there" };
                assert_eq!(fs.lookup(directory, name).unwrap(), ino);
            }
            // SeqCst: before the move; pairs with the loads above.
            step.fetch_add(1, Ordering::SeqCst);
            let (from, to): (&[u8], &[u8]) = match number % 2 {
                0 => (b"here", b"there"),
                _ => (b"there", b"here"),
            };
            fs.rename(directory, from, directory, to, RenameFlag::NoReplace)
                .unwrap();
            // SeqCst: after the move; pairs with the loads above.
            step.fetch_add(1, Ordering::SeqCst);
        }
    });
}

#[test]
fn whoever_looks_a_name_up_while_it_moves_finds_where_it_is() {
    let Some(image) = make(&["-b", "1024"], 8 << 20) else {
        return;
    };
    let (device, fs) = opened(&image);
    moved_and_looked_up(&fs, 2, 2000);
    fs.close().unwrap();
    judge_image(&device);
}

#[test]
fn under_schedules_whoever_looks_a_name_up_finds_where_it_is() {
    let Some(image) = make(&["-b", "1024", "-N", "64"], 4 << 20) else {
        return;
    };
    for seed in 0..30 {
        let plan = sync::schedule::SchedulePlan {
            seed,
            points: 3_000_000,
        };
        let work = || {
            let (_device, fs) = opened(&image);
            moved_and_looked_up(&fs, 2, 4);
            fs.close().unwrap();
        };
        sync::schedule::run(plan, work).unwrap_or_else(|cause| panic!("seed {seed}: {cause}"));
    }
}

/// Nanoseconds of the clock of the test below; nobody else uses it.
static NANOSECONDS: AtomicI64 = AtomicI64::new(0);

fn moving_clock() -> Timestamp {
    // Relaxed: one thread.
    let now = NANOSECONDS.load(Ordering::Relaxed);
    Timestamp {
        seconds: 1_000_000_000 + now / 1_000_000_000,
        nanoseconds: (now % 1_000_000_000) as u32,
    }
}

#[test]
fn whoever_looks_before_and_after_a_write_sees_other_times() {
    let Some(image) = make(&["-b", "1024"], 4 << 20) else {
        return;
    };
    let device = Arc::new(CowDevice::new(image.into()));
    let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let fs = InodeFs::open_for_writing(shared, &MountOptions::default(), moving_clock).unwrap();
    let ino = fs.create(Ino::ROOT, b"file", NEW).unwrap();
    let pass = |nanoseconds: i64| {
        // Relaxed: one thread.
        NANOSECONDS.fetch_add(nanoseconds, Ordering::Relaxed);
    };
    let write = |byte: u8| assert_eq!(fs.write(ino, 0, &[byte; 3000]).unwrap(), 3000);
    let times = || {
        let metadata = fs.metadata(ino).unwrap();
        (metadata.mtime, metadata.ctime, metadata.version)
    };
    write(1);
    let mut last = times();
    for byte in 2..50 {
        // Less than a tick: others did not look, but we did.
        pass(1000);
        write(byte);
        let now = times();
        assert_eq!((now.0, now.1), (moving_clock(), moving_clock()));
        assert!(now.2 != last.2);
        // `InodeFs::inode` shows them as well.
        pass(1000);
        write(byte);
        let shown = fs.inode(ino).unwrap().metadata();
        assert_eq!(shown.mtime, moving_clock());
        // Nobody looks: no more than a tick passes between the last write and the time it has.
        for _ in 0..10 {
            pass(1_000_000);
            write(byte);
        }
        last = times();
        let behind = |time: Timestamp| {
            let now = moving_clock();
            (now.seconds - time.seconds) * 1_000_000_000 + i64::from(now.nanoseconds)
                - i64::from(time.nanoseconds)
        };
        assert!(
            (0..4_000_000).contains(&behind(last.0)),
            "{}",
            behind(last.0)
        );
        // A time that was set by hand is not that of a write.
        write(byte);
        let attributes = SetAttributes {
            mtime: Some(SetTime::At(moving_clock())),
            ..SetAttributes::default()
        };
        pass(1);
        fs.set_attributes(ino, &attributes).unwrap();
        pass(1);
        write(byte);
        assert_eq!(times().0, moving_clock());
    }
    assert_eq!(contents(&fs, ino), [49; 3000]);
    fs.close().unwrap();
    judge_image(&device);
}
