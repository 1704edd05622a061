//! Requests to the device that take longer than what other threads do meanwhile, commits and checkpoints included: what
//! was read of a group is old then, or half of it is, and must not count as broken; nothing of the group is lost.

use device::{BlockDevice, DeviceError};
use lanefs_engine::{Allocate, Ino, InodeFs, MountOptions, NewInode};
use model::Random;
use ondisk::group_desc::flags;
use ondisk::{Geometry, Group, GroupDesc};
use simulate::CowDevice;
use sync::clock::Duration;
use sync::schedule::{self, SchedulePlan};
use sync::thread::workers;
use sync::{Arc, Condvar, Mutex, Rank};

use crate::files::judge_image;
use crate::image::{clock, make};

const NEW: NewInode = NewInode {
    mode: 0o600,
    umask: 0,
    uid: 0,
    gid: 0,
    held: false,
};

/// Which request waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Read,
    Write,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Expected(Way, u64),
    Waits,
    Over,
}

/// A device on which one request waits until it is released.
struct Gate {
    below: CowDevice,
    stage: Mutex<Stage>,
    changed: Condvar,
}

impl Gate {
    fn new(image: &[u8]) -> Arc<Gate> {
        Arc::new(Gate {
            below: CowDevice::new(image.into()),
            stage: Mutex::new(Rank::Leaf, Stage::Over),
            changed: Condvar::new(),
        })
    }

    fn open(self: &Arc<Gate>) -> InodeFs {
        let options = MountOptions {
            reaper_thread: false,
            ..MountOptions::default()
        };
        let shared = Arc::clone(self) as Arc<dyn BlockDevice>;
        InodeFs::open_for_writing(shared, &options, clock).unwrap()
    }

    fn set(&self, stage: Stage) {
        *self.stage.lock() = stage;
        self.changed.notify_all();
    }

    /// The next such request that begins there waits.
    fn expect(&self, way: Way, offset: u64) {
        self.set(Stage::Expected(way, offset));
    }

    fn wait_until_it_waits(&self) {
        let mut stage = self.stage.lock();
        while *stage != Stage::Waits {
            self.changed.wait(&mut stage);
        }
    }

    fn pass(&self, way: Way, offset: u64) {
        let mut stage = self.stage.lock();
        if *stage == Stage::Expected(way, offset) {
            *stage = Stage::Waits;
            self.changed.notify_all();
            while *stage == Stage::Waits {
                self.changed.wait(&mut stage);
            }
        }
    }
}

/// Lets the request go that waits.
struct LetGo<'a>(&'a Gate);

impl Drop for LetGo<'_> {
    fn drop(&mut self) {
        self.0.set(Stage::Over);
    }
}

impl BlockDevice for Gate {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.pass(Way::Read, offset);
        self.below.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.pass(Way::Write, offset);
        self.below.write_at(offset, bytes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.below.flush()
    }

    fn discard(&self, range: std::ops::Range<u64>) -> Result<(), DeviceError> {
        self.below.discard(range)
    }
}

/// A group's descriptor in an image in blocks of 1 KiB.
fn descriptor(image: &[u8], geometry: &Geometry, group: Group) -> GroupDesc {
    let (block, byte) = geometry.desc_place(group);
    let at = block.0 as usize * 1024 + byte;
    GroupDesc::load(&image[at..at + geometry.desc_size()])
}

/// Runs `slow`, whose read at `offset` waits while `other` does its work, and all of that goes home.
fn held_up(
    device: &Gate,
    fs: &InodeFs,
    offset: u64,
    slow: impl Fn() + Sync,
    other: impl Fn() + Sync,
) {
    device.expect(Way::Read, offset);
    workers(2, |thread| {
        if thread == 0 {
            return slow();
        }
        device.wait_until_it_waits();
        // Whatever becomes of this thread.
        let _then = LetGo(device);
        other();
        fs.sync().unwrap();
        fs.checkpoint().unwrap();
    });
}

#[test]
fn who_reads_a_bitmap_of_inodes_too_slowly_takes_the_one_that_another_read() {
    let Some(image) = make(&["-b", "1024", "-N", "256"], 6 << 20) else {
        return;
    };
    let device = Gate::new(&image);
    let fs = device.open();
    let bitmap = descriptor(&image, fs.geometry(), Group(0)).inode_bitmap();
    let before = fs.statfs().unwrap().free_files;
    let made = Mutex::new(Rank::Leaf, Vec::new());
    // Without a name, so that none of the two waits for the other's.
    let create = || {
        let ino = fs.create_unnamed(Ino::ROOT, NEW).unwrap();
        made.lock().push(ino);
    };
    held_up(&device, &fs, bitmap.0 * 1024, create, create);
    assert_eq!(fs.statfs().unwrap().free_files, before - 2);
    (2..before).for_each(|_| create());
    let left = fs.statfs().unwrap().free_files;
    assert_eq!((left, fs.recorded_errors()), (0, 0));
    for ino in made.into_inner() {
        fs.release(ino).unwrap();
    }
    fs.close().unwrap();
    judge_image(&device.below);
}

#[test]
fn who_reads_a_bitmap_of_blocks_too_slowly_takes_the_one_that_another_read() {
    let Some(image) = make(&["-b", "1024", "-N", "64"], 6 << 20) else {
        return;
    };
    let device = Gate::new(&image);
    let fs = device.open();
    let bitmap = descriptor(&image, fs.geometry(), Group(0)).block_bitmap();
    let files = [b"one", b"two"].map(|name| fs.create(Ino::ROOT, name, NEW).unwrap());
    let before = fs.statfs().unwrap().free;
    let reserve = |file: Ino| fs.allocate(file, Allocate::Grow, 0, 20 << 10).unwrap();
    let (slow, other) = (|| reserve(files[0]), || reserve(files[1]));
    held_up(&device, &fs, bitmap.0 * 1024, slow, other);
    assert_eq!(fs.statfs().unwrap().free, before - 40);
    assert_eq!(fs.recorded_errors(), 0);
    fs.close().unwrap();
    judge_image(&device.below);
}

/// Without a journal a commit writes descriptors first, and bitmaps after them. That of a group that was never used is
/// written with the first inode in it, although no thread has read it.
#[test]
fn who_reads_a_group_whose_first_bitmap_is_being_written_gets_its_blocks() {
    let options = ["-b", "1024", "-g", "1024", "-N", "64", "-m", "0", "-O"];
    let options = [&options[..], &["^has_journal,^flex_bg,^resize_inode"]].concat();
    let Some(image) = make(&options, 4 << 20) else {
        return;
    };
    let device = Gate::new(&image);
    let fs = device.open();
    let desc = |group| descriptor(&image, fs.geometry(), group);
    let is_first = |group: &Group| desc(*group).has(flags::BLOCK_UNINIT);
    let group = fs.geometry().all_groups().find(is_first).unwrap();
    let file = fs.create(Ino::ROOT, b"file", NEW).unwrap();
    let available = fs.statfs().unwrap().available;
    // Until one is in that group; none has blocks.
    let of = |ino| fs.geometry().group_of_ino(ino).unwrap().0;
    let made = (0..).find(|number: &u32| {
        let name = format!("file{number}");
        of(fs.create(Ino::ROOT, name.as_bytes(), NEW).unwrap()) == group
    });
    assert!(made.is_some());
    device.expect(Way::Write, desc(group).block_bitmap().0 * 1024);
    workers(2, |thread| {
        if thread == 0 {
            return fs.sync().unwrap();
        }
        device.wait_until_it_waits();
        let _then = LetGo(&device);
        let most = (available - 100) << 10;
        fs.allocate(file, Allocate::Grow, 0, most).unwrap();
    });
    assert_eq!(fs.recorded_errors(), 0);
    fs.close().unwrap();
    judge_image(&device.below);
}

/// How long a slow request takes at most by the schedule's clock: others make files, commit and checkpoint meanwhile.
const LONG: u64 = 1000;

/// How many files each thread makes.
const FILES: u64 = 6;

/// A device of which some requests are slow.
struct SlowAtTimes {
    below: CowDevice,
    random: Mutex<Random>,
}

impl SlowAtTimes {
    fn pass(&self, of: u64) {
        let mut random = self.random.lock();
        let time = if random.one_in(of) {
            random.below(LONG)
        } else {
            return;
        };
        drop(random);
        sync::thread::sleep(Duration::from_millis(time));
    }
}

impl BlockDevice for SlowAtTimes {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.pass(4);
        self.below.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.pass(32);
        self.below.write_at(offset, bytes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.below.flush()
    }

    fn discard(&self, range: std::ops::Range<u64>) -> Result<(), DeviceError> {
        self.below.discard(range)
    }
}

/// What threads make, sync and write home each, while all of them read the same groups for the first time, or again:
/// the blocks of one group only stay in memory.
fn make_at_once(device: &Arc<SlowAtTimes>) {
    let options = MountOptions {
        reaper_thread: false,
        group_bytes: 100,
        ..MountOptions::default()
    };
    let shared = Arc::clone(device) as Arc<dyn BlockDevice>;
    let fs = InodeFs::open_for_writing(shared, &options, clock).unwrap();
    let before = fs.statfs().unwrap();
    workers(3, |thread| {
        for number in 0..FILES {
            let name = format!("file{thread}-{number}");
            let file = fs.create(Ino::ROOT, name.as_bytes(), NEW).unwrap();
            if thread == 0 {
                fs.allocate(file, Allocate::Grow, 0, 200 << 10).unwrap();
            }
            fs.sync().unwrap();
            fs.checkpoint().unwrap();
        }
    });
    let after = fs.statfs().unwrap();
    assert_eq!(after.free_files, before.free_files - 3 * FILES);
    assert_eq!(fs.recorded_errors(), 0);
    fs.close().unwrap();
}

/// As many schedules as `LANEFS_SCHEDULES` says, from the number on that `LANEFS_FIRST` says.
fn under_schedules(features: &str) {
    let options = ["-b", "1024", "-g", "256", "-N", "192", "-O", features];
    let Some(image) = make(&options, 6 << 20) else {
        return;
    };
    let first = testkit::number_in("LANEFS_FIRST", 0);
    let seeds = testkit::number_in("LANEFS_SCHEDULES", 30);
    for seed in first..first + seeds {
        let device = Arc::new(SlowAtTimes {
            below: CowDevice::new(image.as_slice().into()),
            random: Mutex::new(Rank::Leaf, Random::new(seed)),
        });
        let plan = SchedulePlan {
            seed,
            points: 3_000_000,
        };
        let run = schedule::run(plan, || make_at_once(&device));
        run.unwrap_or_else(|cause| panic!("seed {seed}: {cause}"));
        if seed % 20 == 0 {
            judge_image(&device.below);
        }
    }
}

#[test]
fn under_schedules_groups_that_all_read_at_once_lose_nothing() {
    under_schedules("^flex_bg,^resize_inode");
}

#[test]
fn under_schedules_groups_that_all_read_at_once_lose_nothing_without_a_journal() {
    under_schedules("^flex_bg,^resize_inode,^has_journal");
}
