//! Threads take blocks, give them back, apply and free them under schedules, while groups leave memory and forms
//! change: no block has two owners, none is lost, and an allocation is refused only when no block is left.
//!
//! The owner of each block is recorded here in addition to the file system. At the end the file system has the same
//! number of free blocks as at the start, and e2fsck agrees with the image.

use device::BlockDevice;
use model::Random;
use ondisk::FsBlock;
use simulate::CowDevice;
use sync::schedule::{self, SchedulePlan};
use sync::{Arc, Mutex, Rank};

use super::*;
use crate::core::Error;
use crate::core::sb::BlockPurpose;
use crate::space::group::{GroupRun, ScanPurpose};
use crate::space::mballoc::{self, BlockRequest, Reach, TakenBlocks};

fn clock() -> Timestamp {
    Timestamp {
        seconds: 1_700_000_000,
        nanoseconds: 5,
    }
}

/// An image of 24 small groups.
fn image() -> Option<Vec<u8>> {
    if !testkit::have("mke2fs") || !testkit::have("e2fsck") {
        testkit::skip("needs mke2fs and e2fsck");
        return None;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(6 << 20).unwrap();
    let path = file.path().to_str().unwrap();
    let options = "-t ext4 -O ^resize_inode,^meta_bg -b 1024 -g 256 -N 192 -J size=1";
    let arguments: Vec<&str> = options.split(' ').chain([path]).collect();
    testkit::mke2fs(&arguments);
    Some(std::fs::read(path).unwrap())
}

/// Opens with room for one group in memory.
fn open(device: &Arc<CowDevice>) -> InodeFs {
    let options = MountOptions {
        group_bytes: 100,
        ..MountOptions::default()
    };
    let shared = Arc::clone(device) as Arc<dyn BlockDevice>;
    InodeFs::open_for_writing(shared, &options, clock).unwrap()
}

fn counter(fs: &InodeFs, name: &str) -> u64 {
    let found = fs.counters().into_iter().find(|(known, _)| *known == name);
    found.unwrap().1
}

/// Which blocks have an owner.
struct Owners(Mutex<Vec<bool>>);

impl Owners {
    fn new() -> Owners {
        Owners(Mutex::new(Rank::Leaf, vec![false; 6 << 10]))
    }

    fn change(&self, run: GroupRun, is_owned: bool) {
        let mut owned = self.0.lock();
        for block in run.start.0..run.start.0 + u64::from(run.len) {
            let before = std::mem::replace(&mut owned[block as usize], is_owned);
            assert_ne!(before, is_owned, "block {block} has two owners or none");
        }
    }

    fn count(&self) -> u64 {
        self.0.lock().iter().filter(|is_owned| **is_owned).count() as u64
    }
}

/// What one thread does, and the blocks that it has.
struct Worker<'a> {
    fs: &'a InodeFs,
    owners: &'a Owners,
    random: Random,
    taken: Vec<TakenBlocks<'a>>,
    applied: Vec<GroupRun>,
}

impl<'a> Worker<'a> {
    fn new(fs: &'a InodeFs, owners: &'a Owners, seed: u64) -> Worker<'a> {
        Worker {
            fs,
            owners,
            random: Random::new(seed),
            taken: Vec::new(),
            applied: Vec::new(),
        }
    }

    fn take(&mut self, most: u64) -> bool {
        let mounted = &self.fs.mounted;
        let want = 1 + self.random.below(most) as u32;
        let target = BlockRequest {
            goal: FsBlock(1 + self.random.below(6000)),
            reach: Reach::Volume,
            want,
            least: 1 + self.random.below(want.into()) as u32,
            is_near: self.random.below(2) == 0,
            floor: 0,
        };
        match mballoc::take(mounted.volume(), mounted.groups(), &target) {
            Ok(blocks) => {
                assert!(blocks.run().len <= want);
                self.owners.change(blocks.run(), true);
                self.taken.push(blocks);
                true
            }
            Err(Error::NoSpace) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn give_back(&mut self) {
        let Some(mut blocks) = self.taken.pop() else {
            return;
        };
        if blocks.run().len > 1 && self.random.below(2) == 0 {
            let part = blocks.split(1 + self.random.below(u64::from(blocks.run().len) - 1) as u32);
            let (groups, geometry) = (
                self.fs.mounted.groups(),
                self.fs.mounted.volume().geometry(),
            );
            self.taken.push(part.set_aside().take_up(groups, geometry));
        }
        self.owners.change(blocks.run(), false);
        drop(blocks);
    }

    fn apply(&mut self) {
        let Some(blocks) = self.taken.pop() else {
            return;
        };
        let credits = self.fs.mounted.live().unwrap().reserve(8, 0).unwrap();
        let handle = self.fs.mounted.live().unwrap().begin(credits).unwrap();
        self.applied.push(blocks.apply(&handle));
    }

    fn free(&mut self) {
        let Some(run) = self.applied.pop() else {
            return;
        };
        let mounted = self.fs.mounted.live().unwrap();
        let runs = [(run.start, run.len.into())];
        let claim = || mounted.claim_blocks(Ino(12), &runs).unwrap();
        if self.random.below(3) == 0 {
            // The thread changes its mind and gives the blocks back.
            drop(claim());
        }
        let freeing = claim();
        let credits = mounted.reserve(freeing.cost(), 0).unwrap();
        let handle = mounted.begin(credits).unwrap();
        // No thread gets the blocks before the epoch is durable.
        self.owners.change(run, false);
        freeing.apply(&handle);
    }

    fn step(&mut self) {
        match self.random.below(12) {
            0..=3 => {
                self.take(40);
            }
            4 => self.give_back(),
            5..=7 => self.apply(),
            8..=9 => self.free(),
            10 => self.fs.sync().unwrap(),
            _ => {
                let options = ["group_lock=try", "group_lock=wait"];
                let scans = ["mb_optimize_scan=0", "mb_optimize_scan=1"];
                let all = [options, scans].concat();
                let option = all[self.random.below(4) as usize];
                self.fs.choose(option).unwrap();
            }
        }
    }

    /// Gives back all blocks that the thread has.
    fn end(mut self) {
        while !self.taken.is_empty() {
            self.give_back();
        }
        while !self.applied.is_empty() {
            self.free();
        }
    }
}

fn judge(device: &CowDevice) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), device.bytes()).unwrap();
    let output = testkit::e2fsck_with(&["-fn"], file.path());
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(testkit::found_nothing(&output), "{said}");
}

/// Runs one seed. Returns how often a group left memory, and how often a busy group was skipped.
fn run_schedule(image: &[u8], seed: u64) -> (u64, u64) {
    let device = Arc::new(CowDevice::new(image.to_vec().into()));
    let points = 5_000_000;
    let run = schedule::run(SchedulePlan { seed, points }, || {
        let fs = open(&device);
        let free = fs.mounted.groups().blocks.sum();
        let owners = Owners::new();
        sync::thread::workers(3, |thread| {
            let mut worker = Worker::new(&fs, &owners, seed * 3 + thread as u64);
            (0..25).for_each(|_| worker.step());
            worker.end();
        });
        fs.sync().unwrap();
        assert_eq!(
            (fs.mounted.groups().blocks.sum(), owners.count()),
            (free, 0)
        );
        // Now all threads take blocks until none is left, and together they have every block.
        let all = Mutex::new(Rank::Leaf, 0);
        sync::thread::workers(3, |thread| {
            let mut worker = Worker::new(&fs, &owners, seed * 5 + thread as u64);
            while worker.take(300) {}
            *all.lock() += worker.taken.len();
            worker.taken.into_iter().for_each(|blocks| {
                let _kept = blocks.set_aside();
            });
        });
        assert_eq!(
            (owners.count(), fs.mounted.groups().blocks.sum()),
            (free, 0)
        );
        let names = ["mballoc.groups_evicted", "mballoc.lock_skips"];
        names.map(|name| counter(&fs, name))
    });
    let ([evicted, skipped], _) = run.unwrap();
    let fs = open(&device);
    fs.close().unwrap();
    judge(&device);
    (evicted, skipped)
}

fn schedules(seeds: std::ops::Range<u64>) {
    let Some(image) = image() else { return };
    let (mut evicted, mut skipped) = (0, 0);
    for seed in seeds {
        let counts = run_schedule(&image, seed);
        evicted += counts.0;
        skipped += counts.1;
    }
    assert!(evicted > 100 && skipped > 10, "{evicted} {skipped}");
}

#[test]
fn no_block_is_lost_or_given_twice_however_threads_are_scheduled() {
    schedules(0..20);
}

/// `cargo test -p lanefs-engine --lib -- --ignored more_schedules`
#[test]
#[ignore = "minutes: cargo xtask suites schedules"]
fn more_schedules_of_threads_that_take_and_free() {
    schedules(20..1500);
}

/// The order lists and the linear scan skip the same groups, whatever was taken under either form.
#[test]
fn both_ways_to_scan_find_the_same_groups_at_any_time() {
    let Some(image) = image() else { return };
    let device = Arc::new(CowDevice::new(image.into()));
    let fs = open(&device);
    let owners = Owners::new();
    let mut worker = Worker::new(&fs, &owners, 7);
    for round in 0..150 {
        worker.step();
        worker.take(60);
        if round % 3 == 0 {
            worker.give_back();
        }
        let next = |form: &str, range: std::ops::Range<u32>, wanted| {
            fs.choose(&format!("mb_optimize_scan={form}")).unwrap();
            fs.mounted.groups().next_group(range, wanted)
        };
        let orders =
            (0..9).flat_map(|order| [ScanPurpose::Chunk(order), ScanPurpose::Average(order)]);
        let runs = [1, 2, 3, 7, 64, 100].map(ScanPurpose::Run);
        for wanted in orders.chain(runs).chain([ScanPurpose::Any]) {
            let start = worker.random.below(24) as u32;
            let found = next("1", start..24, wanted);
            assert_eq!(found, next("0", start..24, wanted), "{wanted:?}");
        }
    }
    // The search uses every criterion before no block is left.
    while worker.take(60) {}
    let found = fs.counters().into_iter();
    let mut found = found.filter(|(name, _)| name.starts_with("mballoc.found_"));
    assert!(found.all(|(_, count)| count > 0), "{:?}", fs.counters());
    worker.end();
    fs.close().unwrap();
    judge(&device);
}

/// A group that left memory is read again when it is needed, and is as it was when it left.
#[test]
fn groups_leave_memory_and_come_back_as_they_were() {
    let Some(image) = image() else { return };
    let device = Arc::new(CowDevice::new(image.into()));
    let fs = open(&device);
    let owners = Owners::new();
    let mut worker = Worker::new(&fs, &owners, 1);
    let free = fs.mounted.groups().blocks.sum();
    for round in 0..40 {
        (0..4).for_each(|_| {
            worker.take(50);
        });
        while !worker.taken.is_empty() {
            worker.apply();
        }
        if round % 2 == 1 {
            worker.free();
            worker.free();
        }
        fs.sync().unwrap();
        assert!(counter(&fs, "mballoc.groups_in_memory") <= 1);
        let sum = fs.mounted.groups().blocks.sum();
        assert_eq!(sum + owners.count(), free);
    }
    assert!(counter(&fs, "mballoc.groups_evicted") > 50);
    worker.end();
    fs.sync().unwrap();
    assert_eq!(fs.mounted.groups().blocks.sum(), free);
    fs.close().unwrap();
    judge(&device);
}

/// Only kept blocks are left, and two threads want some of them at once: the second thread waits until the first has
/// given everything back.
#[test]
fn two_who_find_no_space_at_once_both_get_what_was_kept() {
    let Some(image) = image() else { return };
    for seed in 0..60 {
        let device = Arc::new(CowDevice::new(image.clone().into()));
        let points = 5_000_000;
        let run = schedule::run(SchedulePlan { seed, points }, || {
            let fs = open(&device);
            let owners = Owners::new();
            let mut worker = Worker::new(&fs, &owners, seed);
            while worker.take(256) {}
            let longest = |blocks: &TakenBlocks<'_>| blocks.run().len;
            worker.taken.sort_by_key(longest);
            let kept = worker.taken.pop().unwrap();
            // Enough for two rows, wherever in the run the first one begins.
            assert!(kept.run().len >= 32);
            let mounted = fs.mounted.live().unwrap();
            let over = mounted.preallocations().keep_near(0, kept.set_aside());
            assert_eq!((over, mounted.groups().blocks.sum()), (None, 0));
            let taken = Mutex::new(Rank::Leaf, Vec::new());
            sync::thread::workers(2, |_| {
                let blocks = mounted.take_blocks(BlockPurpose::Freeing, FsBlock(1), 8);
                taken.lock().push(blocks.unwrap().set_aside());
            });
            for blocks in taken.into_inner() {
                assert_eq!(blocks.run().len, 8);
                drop(mounted.take_up(blocks));
            }
            drop(worker);
        });
        run.unwrap_or_else(|cause| panic!("seed {seed}: {cause}"));
    }
}
