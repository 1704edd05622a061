//! The log against a model of what replays it: Linux's way and e2fsck's way, once and twice, after each log commit.

use std::collections::{BTreeMap, BTreeSet};

use ondisk::fast_commit::{FcRecord, Scan, ScanStep, records};
use ondisk::inode::Inode;
use ondisk::{FsBlock, LBlock};
use proptest::prelude::*;
use sync::schedule::{self, SchedulePlan};
use sync::thread::workers;

use super::*;
use crate::fsync::log::closure;
use crate::inode::{EpochChanges, NamePlace};

const BLOCK: usize = 4096;

/// Where a test's log is written, and what its data are written to.
pub(super) trait FakeDevice {
    fn write(&self, first: u32, blocks: &[u8]) -> Result<(), String>;
    fn flush(&self) -> Result<(), String>;
}

/// Leads on a fake device, if the caller is to lead.
pub(super) fn lead(lead: Option<LogLead<'_>>, device: &dyn FakeDevice) -> Result<(), Unlogged> {
    let Some(mut lead) = lead else {
        return Ok(());
    };
    while let Some(step) = lead.step()? {
        let done = match step.io() {
            StepIo::Flush => device.flush(),
            StepIo::Write { first, blocks } => device.write(*first, blocks),
        };
        lead.ended(step, done)?;
    }
    Ok(())
}

/// Returns when a batch is on the fake device.
pub(super) fn sync(
    log: &FsyncLog,
    batch: Batch,
    device: &dyn FakeDevice,
    statistics: &LogStatistics,
) -> Result<(), Unlogged> {
    lead(log.sync(batch, statistics)?, device)
}

/// An area in memory.
struct Memory {
    blocks: Mutex<Vec<u8>>,
}

impl Memory {
    fn new() -> Memory {
        Memory {
            blocks: Mutex::new(Rank::Leaf, Vec::new()),
        }
    }

    /// What is there; every block of it must belong to a complete fast commit.
    fn bytes(&self) -> Vec<u8> {
        let bytes = self.blocks.lock().clone();
        let mut scan = Scan::new(Tid(7), 256);
        for block in bytes.chunks(BLOCK) {
            assert_eq!(scan.block(block), ScanStep::Continue);
        }
        assert_eq!(scan.found().blocks as usize * BLOCK, bytes.len());
        bytes
    }
}

impl FakeDevice for Memory {
    fn write(&self, first: u32, blocks: &[u8]) -> Result<(), String> {
        let mut bytes = self.blocks.lock();
        assert_eq!(bytes.len(), first as usize * BLOCK);
        bytes.extend_from_slice(blocks);
        Ok(())
    }

    fn flush(&self) -> Result<(), String> {
        Ok(())
    }
}

/// The parts of a disk that the log changes: names, and the link count of each inode in use.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Disk {
    names: BTreeMap<NamePlace, Ino>,
    links: BTreeMap<Ino, u16>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum By {
    Linux,
    E2fsck,
}

impl Disk {
    fn replay(&mut self, area: &[u8], by: By) {
        for block in area.chunks(BLOCK) {
            for record in records(block, 256) {
                self.replay_record(&record.unwrap(), by);
            }
        }
    }

    fn replay_record(&mut self, record: &FcRecord<'_>, by: By) {
        match record {
            FcRecord::Inode { ino, raw } => {
                let links = Inode::parse(raw).unwrap().links_count();
                assert!(
                    links > 0,
                    "{ino:?} is logged without links: Linux's mount fails"
                );
                self.links.insert(*ino, links);
            }
            FcRecord::Unlink(named) => {
                let place = (named.parent, named.name.into());
                if by == By::E2fsck {
                    let removed = self.names.remove(&place);
                    assert!(removed.is_some(), "e2fsck aborts: no {place:?}");
                    return;
                }
                // Linux: of the inode that the record names, whatever the name stands for; nothing if it is gone.
                let Some(links) = self.links.get_mut(&named.ino) else {
                    return;
                };
                let Some(target) = self.names.get(&place) else {
                    return;
                };
                *links -= 1;
                if *target == named.ino {
                    self.names.remove(&place);
                }
                if self.links[&named.ino] == 0 {
                    self.links.remove(&named.ino);
                }
            }
            FcRecord::Creat(named) | FcRecord::Link(named) => {
                let place = (named.parent, named.name.into());
                assert!(
                    self.links.contains_key(&named.ino),
                    "{record:?} before its inode"
                );
                if self.names.contains_key(&place) && by == By::Linux {
                    // The old target stays.
                    return;
                }
                self.names.insert(place, named.ino);
                if by == By::Linux {
                    *self.links.get_mut(&named.ino).unwrap() += 1;
                }
            }
            _ => {}
        }
    }

    /// What e2fsck's next pass does: inodes without names go.
    fn settled(mut self) -> Disk {
        let named: BTreeSet<Ino> = self.names.values().copied().collect();
        self.links.retain(|ino, _| named.contains(ino));
        self
    }

    /// Each inode's link count is the number of its names.
    fn assert_agrees(&self, what: &str) {
        let mut links = BTreeMap::new();
        for ino in self.names.values() {
            *links.entry(*ino).or_insert(0_u16) += 1;
        }
        assert_eq!(links, self.links, "{what}");
    }
}

/// A file system that changes in one transaction, and what it remembers of the changes.
struct Live {
    base: Disk,
    now: Disk,
    /// What the engine remembers.
    changes: EpochChanges,
    known: BTreeSet<Ino>,
    /// Names as the log has them.
    logged: BTreeMap<NamePlace, Option<Ino>>,
    next: u32,
}

fn place(name: u8) -> NamePlace {
    (Ino(2), vec![b'a' + name].into())
}

impl Live {
    /// With files of the first names.
    fn new(files: u8) -> Live {
        let mut base = Disk::default();
        for name in 0..files {
            let ino = Ino(12 + u32::from(name));
            base.names.insert(place(name), ino);
            base.links.insert(ino, 1);
        }
        Live {
            now: base.clone(),
            base,
            changes: EpochChanges::new(),
            known: BTreeSet::new(),
            logged: BTreeMap::new(),
            next: 100,
        }
    }

    fn set(&mut self, name: u8, ino: Option<Ino>) {
        let place = place(name);
        let old = match ino {
            Some(ino) => self.now.names.insert(place.clone(), ino),
            None => self.now.names.remove(&place),
        };
        self.changes.note_name(place, old, ino);
        if let Some(ino) = ino {
            *self.now.links.entry(ino).or_insert(0) += 1;
        }
        if let Some(old) = old {
            let links = self.now.links.get_mut(&old).unwrap();
            *links -= 1;
            if *links == 0 {
                self.now.links.remove(&old);
            }
        }
    }

    fn at(&self, name: u8) -> Option<Ino> {
        self.now.names.get(&place(name)).copied()
    }

    fn create(&mut self, name: u8) {
        if self.at(name).is_none() {
            self.set(name, Some(Ino(self.next)));
            self.next += 1;
        }
    }

    fn link(&mut self, from: u8, to: u8) {
        if self.at(to).is_none() && self.at(from).is_some() {
            self.set(to, self.at(from));
        }
    }

    fn rename(&mut self, from: u8, to: u8) {
        let Some(ino) = self.at(from).filter(|ino| self.at(to) != Some(*ino)) else {
            return;
        };
        self.set(to, Some(ino));
        self.set(from, None);
    }

    fn closure(&mut self, ino: Ino) -> Closure {
        let members = closure::close(&self.changes, [ino], []).unwrap();
        let is_alive = |ino: &&Ino| self.now.links.contains_key(ino);
        let inodes = members.inodes.iter().filter(is_alive).map(|ino| {
            let mut inode = Inode::zeroed();
            inode.set_links_count(self.now.links[ino]);
            let mut fields = vec![0; 160];
            inode.write_to(&mut fields);
            InodeState {
                ino: *ino,
                fields: fields.into(),
                is_new: !self.base.links.contains_key(ino),
                is_known: self.known.contains(ino),
                ranges: Vec::new(),
                shows_data: false,
            }
        });
        let inodes: Vec<_> = inodes.collect();
        self.known.extend(inodes.iter().map(|inode| inode.ino));
        let names = members.names.iter().map(|place| NameState {
            parent: place.0,
            name: place.1.clone(),
            base: self.base.names.get(place).copied(),
            now: self.now.names.get(place).copied(),
        });
        let names: Vec<NameState> = names.collect();
        for ino in &members.inodes {
            self.changes.set_names_in_log(*ino);
        }
        for (place, name) in members.names.iter().zip(&names) {
            self.changes.set_name_in_log(place, name.now, Batch(1));
        }
        Closure { names, inodes }
    }
}

/// Logs what an fsync of a name's file needs, and looks at what each replays.
fn fsync(live: &mut Live, log: &FsyncLog, area: &Memory, name: u8) {
    let statistics = LogStatistics::default();
    let Some(ino) = live.at(name) else { return };
    let closure = live.closure(ino);
    for named in &closure.names {
        let place = (named.parent, named.name.clone());
        live.logged.insert(place, named.now);
    }
    let batch = log.add(&closure, &statistics).unwrap();
    sync(log, batch, area, &statistics).unwrap();
    assert_eq!(statistics.surprises.sum(), 0);
    let bytes = area.bytes();
    for by in [By::Linux, By::E2fsck] {
        let mut disk = live.base.clone();
        disk.replay(&bytes, by);
        let once = disk.clone().settled();
        once.assert_agrees(&format!("{by:?}"));
        for (place, logged) in &live.logged {
            let found = once.names.get(place).copied();
            assert_eq!(found, *logged, "{by:?}: {place:?}");
        }
    }
    // The last log commit again, and all of them, as after a cut during a replay; only Linux goes on from where it was.
    let mut disk = live.base.clone();
    disk.replay(&bytes, By::Linux);
    for again in [last_commit(&bytes), &bytes] {
        let once = disk.clone();
        disk.replay(again, By::Linux);
        assert_eq!(disk.clone().settled(), once.settled());
    }
}

/// The blocks behind the last TAIL but one.
fn last_commit(bytes: &[u8]) -> &[u8] {
    let ends: Vec<usize> = (bytes.chunks(BLOCK).enumerate())
        .filter(|(_, block)| {
            let last = records(block, 256).last();
            matches!(last, Some(Ok(FcRecord::Tail { .. })))
        })
        .map(|(place, _)| (place + 1) * BLOCK)
        .collect();
    let start = ends.iter().rev().nth(1).copied().unwrap_or(0);
    &bytes[start..]
}

fn log(update: LogUpdate, area_blocks: u32) -> FsyncLog {
    FsyncLog::new(Tid(7), BLOCK, area_blocks, update)
}

/// What happens, and the changes.
type Case = (&'static str, fn(&mut Live));

#[test]
fn each_trouble_case_is_replayed_right_by_linux_and_by_e2fsck() {
    let cases: [Case; 7] = [
        ("renamed over", |live| live.rename(1, 0)),
        ("removed and made again", |live| {
            live.set(0, None);
            live.create(0);
        }),
        ("linked, removed and made again", |live| {
            live.link(0, 3);
            live.set(0, None);
            live.create(0);
        }),
        ("renamed and back", |live| {
            live.rename(0, 3);
            live.rename(3, 0);
        }),
        ("swapped by way of a third name", |live| {
            live.rename(0, 3);
            live.rename(1, 0);
            live.rename(3, 1);
        }),
        ("made and renamed over", |live| {
            live.create(3);
            live.rename(3, 0);
        }),
        ("two names that change places with a new file", |live| {
            live.link(1, 3);
            live.rename(1, 0);
            live.create(1);
        }),
    ];
    for (_, change) in cases {
        for update in [LogUpdate::InPlace, LogUpdate::Insert] {
            let (mut live, log, area) = (Live::new(2), log(update, 64), Memory::new());
            change(&mut live);
            fsync(&mut live, &log, &area, 0);
            // And again, after the same once more.
            change(&mut live);
            fsync(&mut live, &log, &area, 0);
            fsync(&mut live, &log, &area, 1);
        }
    }
}

proptest! {
    #[test]
    fn whatever_changes_each_replay_shows_what_was_fsynced(
        steps in prop::collection::vec((0_u8..6, 0_u8..5, 0_u8..5), 1..40)
    ) {
        let (mut live, log, area) = (Live::new(3), log(LogUpdate::InPlace, 256), Memory::new());
        for (what, one, two) in steps {
            match what {
                0 => live.create(one),
                1 => live.link(one, two),
                2 => live.rename(one, two),
                3 if live.at(one).is_some() => live.set(one, None),
                3 => {}
                _ => fsync(&mut live, &log, &area, one),
            }
        }
    }
}

/// An inode with one range, to tell which of its states was logged.
fn state(ino: u32, step: u32, is_known: bool) -> InodeState {
    let mut inode = Inode::zeroed();
    inode.set_links_count(1);
    inode.set_size(step.into());
    let mut fields = vec![0; 160];
    inode.write_to(&mut fields);
    InodeState {
        ino: Ino(ino),
        fields: fields.into(),
        is_new: false,
        is_known,
        ranges: vec![Range {
            first: LBlock(step),
            len: 1,
            at: Some((FsBlock(u64::from(ino * 1000 + step)), false)),
        }],
        shows_data: false,
    }
}

#[test]
fn after_the_first_fsync_nothing_locks_a_parent_and_most_log_commits_are_one_block() {
    let (log, area, statistics) = (
        log(LogUpdate::InPlace, 4096),
        Memory::new(),
        LogStatistics::default(),
    );
    let fsync = |ino, step, is_known| {
        let closure = Closure {
            inodes: vec![state(ino, step, is_known)],
            names: Vec::new(),
        };
        let batch = log.add(&closure, &statistics).unwrap();
        sync(&log, batch, &area, &statistics).unwrap();
    };
    (12..1012).for_each(|ino| fsync(ino, 0, false));
    let locked = log.counters().parent_write_locks.sum();
    assert!(locked >= 1000 && log.counters().leaf_splits.sum() > 10);
    let before = (locked, log.counters().leaf_splits.sum());
    (1..3).for_each(|step| (12..1012).for_each(|ino| fsync(ino, step, true)));
    let counters = log.counters();
    assert_eq!(
        (
            counters.parent_write_locks.sum(),
            counters.leaf_splits.sum()
        ),
        before
    );
    assert_eq!(statistics.one_block.sum(), statistics.log_commits.sum());
    assert_eq!(statistics.surprises.sum(), 0);
    // What is known and not there is logged all the same, and counted.
    fsync(5000, 1, true);
    assert_eq!(statistics.surprises.sum(), 1);
}

#[test]
fn a_full_area_and_a_closed_log_ask_for_a_full_commit() {
    let (log, area, statistics) = (
        log(LogUpdate::InPlace, 2),
        Memory::new(),
        LogStatistics::default(),
    );
    let add = |step| {
        let closure = Closure {
            inodes: vec![state(12, step, step > 0)],
            names: Vec::new(),
        };
        log.add(&closure, &statistics)
    };
    let first = add(0).unwrap();
    sync(&log, first, &area, &statistics).unwrap();
    sync(&log, first, &area, &statistics).unwrap();
    assert_eq!(statistics.already_logged.sum(), 1);
    let second = add(1).unwrap();
    sync(&log, second, &area, &statistics).unwrap();
    let third = add(2).unwrap();
    assert_eq!(sync(&log, third, &area, &statistics), Err(Unlogged::Full));
    let fourth = add(3).unwrap();
    assert_eq!(
        sync(&log, fourth, &area, &statistics),
        Err(Unlogged::Closed)
    );
    assert!(log.close().is_touched);
    // What was promised stays promised.
    sync(&log, second, &area, &statistics).unwrap();
    assert_eq!(area.bytes().len(), 2 * BLOCK);
}

/// An area that can't be written, though something may be there.
struct Broken;

impl FakeDevice for Broken {
    fn write(&self, _: u32, _: &[u8]) -> Result<(), String> {
        Err("broken".into())
    }

    fn flush(&self) -> Result<(), String> {
        Err("broken".into())
    }
}

#[test]
fn an_area_that_was_written_in_vain_is_wiped_all_the_same() {
    let (log, statistics) = (log(LogUpdate::InPlace, 8), LogStatistics::default());
    let closure = Closure {
        inodes: vec![state(12, 0, false)],
        names: Vec::new(),
    };
    let batch = log.add(&closure, &statistics).unwrap();
    let failed = Err(Unlogged::Failed("broken".into()));
    assert_eq!(sync(&log, batch, &Broken, &statistics), failed);
    assert!(log.close().is_touched);
}

#[test]
fn threads_that_fsync_at_once_find_their_closures_whole_in_the_area() {
    for seed in 0..150 {
        let work = || {
            let (log, area) = (log(LogUpdate::InPlace, 256), Memory::new());
            let statistics = LogStatistics::default();
            workers(3, |thread| {
                let own = 12 + thread as u32;
                for step in 0..3 {
                    // Two inodes that must never be seen apart.
                    let pair = [own, own + 100].map(|ino| state(ino, step, step > 0));
                    let closure = Closure {
                        inodes: pair.into(),
                        names: Vec::new(),
                    };
                    let batch = log.add(&closure, &statistics).unwrap();
                    sync(&log, batch, &area, &statistics).unwrap();
                    let seen = sizes(&area.bytes());
                    assert_eq!(seen.get(&Ino(own)), Some(&u64::from(step)));
                }
            });
            assert_eq!(statistics.surprises.sum(), 0);
            assert!(log.close().is_touched);
        };
        let plan = SchedulePlan {
            seed,
            points: 1_000_000,
        };
        schedule::run(plan, work).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

/// What the log says of each inode's size; after each fast commit pairs agree.
fn sizes(bytes: &[u8]) -> BTreeMap<Ino, u64> {
    let mut sizes = BTreeMap::new();
    for block in bytes.chunks(BLOCK) {
        for record in records(block, 256) {
            match record.unwrap() {
                FcRecord::Inode { ino, raw } => {
                    let size = Inode::parse(raw).unwrap().size(false);
                    sizes.insert(ino, size);
                }
                FcRecord::Tail { .. } => {
                    for (ino, size) in sizes.range(..Ino(100)) {
                        assert_eq!(sizes.get(&Ino(ino.0 + 100)), Some(size));
                    }
                }
                _ => {}
            }
        }
    }
    sizes
}
