//! Cuts and schedules around an orphan file that is full or nearly so. Slots are taken away in memory, as by steps that
//! are prepared and not applied yet, so that the file need not be filled first, and nothing of them may ever be found.
//!
//! Judged by e2fsck, which may replay the journal and finish orphans, but must find nothing else to do: an inode with
//! no name and no entry would be one; and by what a mount finds.

use device::BlockDevice;
use simulate::{CowDevice, Cut, Cuts, Recorder};
use sync::schedule::{self, SchedulePlan};
use sync::{Arc, Mutex, Rank};

use super::*;
use crate::core::Error;
use crate::names::NewInode;

const NEW: NewInode = NewInode {
    mode: 0o600,
    umask: 0,
    uid: 0,
    gid: 0,
    held: false,
};

const FORMS: [&str; 4] = [
    "-b 1024 -O orphan_file",
    "-b 1024 -O orphan_file,^metadata_csum",
    "-b 4096 -O orphan_file",
    "-b 4096 -O orphan_file,^metadata_csum",
];

/// Blocks of the large file, every second one of which is data.
const PIECES: u64 = 1400;

fn clock() -> Timestamp {
    Timestamp {
        seconds: 1_700_000_000,
        nanoseconds: 5,
    }
}

fn open(device: &Arc<impl BlockDevice + 'static>) -> InodeFs {
    let shared = Arc::clone(device) as Arc<dyn BlockDevice>;
    InodeFs::open_for_writing(shared, &MountOptions::default(), clock).unwrap()
}

/// A fresh image with a file of 8 KiB and, if asked for, one of many extents.
fn image(options: &str, has_large: bool) -> Option<Vec<u8>> {
    if !testkit::have("mke2fs") || !testkit::have("e2fsck") {
        testkit::skip("needs mke2fs and e2fsck");
        return None;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(12 << 20).unwrap();
    let path = file.path().to_str().unwrap();
    let mut arguments = vec!["-t", "ext4", "-N", "256"];
    arguments.extend(options.split(' '));
    arguments.push(path);
    testkit::mke2fs(&arguments);
    let bytes = std::fs::read(path).unwrap();
    let device = Arc::new(CowDevice::new(bytes.into()));
    let fs = open(&device);
    let small = fs.create(Ino::ROOT, b"open", NEW).unwrap();
    fs.write(small, 0, &[1; 8192]).unwrap();
    if has_large {
        let block = fs.geometry().block_size().bytes();
        let large = fs.create(Ino::ROOT, b"large", NEW).unwrap();
        for piece in 0..PIECES {
            let at = piece * 2 * block as u64;
            fs.write(large, at, &vec![2; block]).unwrap();
        }
    }
    fs.close().unwrap();
    Some(device.bytes())
}

fn e2fsck(state: &CowDevice, options: &str, cut: Cut) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), state.bytes()).unwrap();
    let output = testkit::e2fsck_with(&[options], file.path());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code().unwrap() <= 1, "{cut}: {text}");
    text
}

/// e2fsck has the journal to replay, except a transaction that was being written, and orphans to finish, and nothing
/// else: slots of orphans that it finished it calls "not clean".
fn judge_as_it_is(state: &CowDevice, cut: Cut) -> usize {
    let text = e2fsck(state, "-fp", cut);
    let count = text.matches("orphaned inode").count();
    assert!(
        count > 0 || !text.contains("is not clean."),
        "{cut}: {text}"
    );
    let allowed = [
        "recovering journal",
        "was corrupt, replay was aborted",
        "orphaned inode",
        "orphan_present is set but orphan file is clean",
        "is not clean.",
        "CLEARED.",
        " files (",
    ];
    for line in text.lines() {
        let is_allowed = allowed.iter().any(|allowed| line.contains(allowed));
        assert!(is_allowed, "{cut}: {text}");
    }
    count
}

/// Opens what a cut left and closes it, which leaves nothing to find; names are looked at in between.
fn recover(state: CowDevice, cut: Cut, look: impl FnOnce(&InodeFs)) {
    let device = Arc::new(state);
    let fs = open(&device);
    look(&fs);
    fs.close().unwrap();
    let text = e2fsck(&device, "-fn", cut);
    assert!(!text.contains("count wrong"), "{cut}: {text}");
    let superblock = *InodeFs::open(device, &MountOptions::default())
        .unwrap()
        .superblock();
    assert!(superblock.last_orphan().is_none(), "{cut}");
    assert!(!superblock.features().has(ondisk::Feature::ORPHAN_PRESENT));
}

/// One step after the other with at most `left` free slots, each durable before the next.
fn steps(device: &Recorder, fs: &InodeFs, left: usize) {
    let open = fs.lookup(Ino::ROOT, b"open").unwrap();
    let large = fs.lookup(Ino::ROOT, b"large").unwrap();
    fs.hold(open).unwrap();
    let mut mark = 0;
    let mut sync = || {
        fs.sync().unwrap();
        mark += 1;
        device.mark(mark);
    };
    sync();
    let claims = fs.mounted.orphans().occupy(left);
    let unnamed = fs.create_unnamed(Ino::ROOT, NEW).unwrap();
    fs.write(unnamed, 0, &[3; 3000]).unwrap();
    sync();
    fs.unlink(Ino::ROOT, b"open").unwrap();
    sync();
    fs.truncate(large, 5).unwrap();
    sync();
    fs.link(unnamed, Ino::ROOT, b"linked").unwrap();
    sync();
    fs.release(open).unwrap();
    sync();
    // The orphan file has slots again.
    drop(claims);
    fs.release(unnamed).unwrap();
    fs.create_unnamed(Ino::ROOT, NEW).unwrap();
    sync();
}

/// What there may be of names and sizes, by what was durable for sure.
fn look_at_steps(fs: &InodeFs, mark: u64, cut: Cut) {
    let size = |name: &[u8]| match fs.lookup(Ino::ROOT, name) {
        Ok(ino) => Some(fs.metadata(ino).unwrap().size),
        Err(Error::NotFound) => None,
        Err(error) => panic!("{cut}: {error}"),
    };
    let (open, large, linked) = (size(b"open"), size(b"large"), size(b"linked"));
    assert!(mark != 1 || (open, linked) == (Some(8192), None), "{cut}");
    assert!(mark < 3 || open.is_none(), "{cut}");
    assert!(mark < 4 || large == Some(5), "{cut}");
    assert!(mark > 3 || linked.is_none(), "{cut}");
    assert!(mark < 5 || linked == Some(3000), "{cut}");
    let named = [open, large, linked].iter().flatten().count() as u64;
    let stat = fs.statfs().unwrap();
    // Ten that are reserved, lost+found and the orphan file.
    assert_eq!(stat.files - stat.free_files, 12 + named, "{cut}");
}

#[test]
fn every_step_of_an_orphan_survives_a_cut_when_there_are_slots_and_when_there_are_none() {
    for options in FORMS {
        let Some(image) = image(options, true) else {
            return;
        };
        let mut finished = 0;
        // Two slots: the last step takes the list.
        for left in [usize::MAX, 2, 0] {
            let device = Arc::new(Recorder::new(&image));
            let fs = open(&device);
            steps(&device, &fs, left);
            drop(fs);
            let mut cuts = device.cuts();
            let points: Vec<usize> = cuts
                .points()
                .filter(|event| cuts.mark_before(*event).is_some())
                .collect();
            for event in points {
                let cut = Cut {
                    event,
                    seed: event as u64 % 3,
                };
                let mark = cuts.mark_before(event).unwrap();
                finished += judge_as_it_is(&cuts.state(cut), cut);
                recover(cuts.state(cut), cut, |fs| look_at_steps(fs, mark, cut));
            }
        }
        assert!(finished > 10, "{options}: {finished}");
    }
}

/// What a thread does in a schedule: orphans made in both ways, named, released, cut; changes of form; syncs.
fn scheduled_work(fs: &InodeFs, thread: usize, seed: u64) {
    let forms = ["lockless", "locked", "list"];
    for round in 0..3 {
        let turn = seed as usize / 3 + round + thread;
        if turn.is_multiple_of(4) {
            fs.choose(&format!("orphan={}", forms[turn / 4 % 3]))
                .unwrap();
        }
        let name = format!("n{thread}-{round}").into_bytes();
        let unnamed = fs.create_unnamed(Ino::ROOT, NEW).unwrap();
        fs.write(unnamed, 0, &[5; 2000]).unwrap();
        if turn.is_multiple_of(3) {
            fs.sync().unwrap();
        }
        if turn.is_multiple_of(2) {
            fs.link(unnamed, Ino::ROOT, &name).unwrap();
            // The name goes while it is held, so it is an orphan once more.
            fs.unlink(Ino::ROOT, &name).unwrap();
        }
        if !turn.is_multiple_of(5) {
            fs.release(unnamed).unwrap();
        }
    }
}

fn run_schedule(image: &[u8], seed: u64) -> (Cuts, u64) {
    let device = Arc::new(Recorder::new(image));
    let fallbacks = Mutex::new(Rank::Leaf, 0);
    let points = 3_000_000;
    let run = schedule::run(SchedulePlan { seed, points }, || {
        let fs = open(&device);
        let claims = fs.mounted.orphans().occupy(seed as usize % 3);
        device.mark(1);
        sync::thread::workers(3, |thread| scheduled_work(&fs, thread, seed));
        fs.sync().unwrap();
        drop(claims);
        let counters = fs.counters();
        let found = counters
            .iter()
            .find(|(name, _)| *name == "orphan.list_fallbacks");
        *fallbacks.lock() = found.unwrap().1;
    });
    run.unwrap();
    (device.cuts(), fallbacks.into_inner())
}

fn schedules(seeds: std::ops::Range<u64>) {
    let Some(image) = image(FORMS[0], false) else {
        return;
    };
    let (mut finished, mut fallbacks) = (0, 0);
    for seed in seeds {
        let (mut cuts, fell_back) = run_schedule(&image, seed);
        fallbacks += fell_back;
        let points: Vec<usize> = cuts
            .points()
            .filter(|event| cuts.mark_before(*event).is_some())
            .collect();
        let last = points.len() - 1;
        for event in [points[last * (1 + seed as usize % 3) / 4], points[last]] {
            let cut = Cut { event, seed };
            finished += judge_as_it_is(&cuts.state(cut), cut);
            recover(cuts.state(cut), cut, |fs| {
                let stat = fs.statfs().unwrap();
                let named = fs.read_dir(Ino::ROOT).unwrap().count() as u64;
                // Entries of the root: its two, lost+found, and files.
                assert_eq!(stat.files - stat.free_files, 12 + named - 3, "{cut}");
            });
        }
    }
    assert!(finished > 10 && fallbacks > 10, "{finished} {fallbacks}");
}

#[test]
fn threads_that_make_and_end_orphans_leave_each_epoch_whole_however_they_are_scheduled() {
    schedules(0..16);
}

/// `cargo test -p lanefs-engine --lib -- --ignored more_schedules`
#[test]
#[ignore = "two minutes: cargo xtask suites schedules"]
fn more_schedules_of_threads_that_make_and_end_orphans() {
    schedules(16..600);
}
