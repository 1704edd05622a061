//! One pair of operations: a fresh file system in memory, two threads that take turns, and what they shared.
//!
//! The workers' turn is a word under a lock of this file ([`Rank::Job`]); nothing else is held while they wait.

use device::{BlockDevice, MemoryDevice};
use engine::{InodeFs, MountOptions, Timestamp};
use lanefs_sharing::{PlantedSharing, WatchedOperation, WatchedWorker};
use sync::{Arc, Condvar, Mutex, Rank};

use crate::known::{self, KNOWN};
use crate::watch::record::{self, ROUNDS, Rounds, ThreadRecord};
use crate::watch::report::{self, REFILLS_MOST, SharedLine};
use crate::watch::symbols::Symbols;

/// Bytes of the file system.
const SIZE: u64 = 4 << 30;
/// MiB of its journal: so large that nothing is committed while the workers are watched.
const JOURNAL_MIB: u64 = 512;
/// Rounds before anything is watched: leases are filled, tables have grown.
const WARM_UP: usize = 64;

/// How pairs are run and shown.
#[derive(Clone)]
pub struct PairSettings {
    /// Bytes of a cache line.
    pub line: usize,
    /// Forms of mechanisms other than the defaults.
    pub variants: Vec<String>,
    /// Whether the workers' directories lie in one, so that their inodes come from one group.
    pub siblings: bool,
    /// A mistake that is made beside each operation.
    pub canary: Option<PlantedSharing>,
    /// Whether all pairs are run.
    pub is_whole: bool,
    /// Whether the report is in JSON.
    pub json: bool,
    /// Whether lines that are written rarely are shown.
    pub shows_refills: bool,
    /// Places shown of each line.
    pub places: usize,
}

impl Default for PairSettings {
    fn default() -> PairSettings {
        PairSettings {
            line: record::LINE,
            variants: Vec::new(),
            siblings: false,
            canary: None,
            is_whole: false,
            json: false,
            shows_refills: false,
            places: 6,
        }
    }
}

/// A shared line, and whether it is known to be.
pub struct JudgedLine {
    /// The line.
    pub shared: SharedLine,
    /// The entry of the list that excuses it.
    pub known: Option<usize>,
}

/// What was found about a pair.
pub struct Pair {
    /// What each of the two workers did.
    pub operations: [WatchedOperation; 2],
    /// The lines that both touched and one wrote.
    pub lines: Vec<JudgedLine>,
    /// For each worker, rounds in which a line that is rarely shared and not known went to it.
    pub refills: [u32; 2],
    /// Lines that each worker touched.
    pub touched: [usize; 2],
}

fn clock() -> Timestamp {
    Timestamp {
        seconds: 1_700_000_000,
        nanoseconds: 5,
    }
}

/// Whose turn it is: rounds of worker 0 are even, those of worker 1 odd.
struct Turn {
    /// \[job\]
    next: Mutex<usize>,
    changed: Condvar,
}

impl Turn {
    fn take<R>(&self, number: usize, work: impl FnOnce() -> R) -> R {
        let mut next = self.next.lock();
        while *next < number {
            self.changed.wait(&mut next);
        }
        drop(next);
        // Given on also when the work panics, so that the other ends, too.
        let _passed = Passed(self, number);
        work()
    }
}

struct Passed<'a>(&'a Turn, usize);

impl Drop for Passed<'_> {
    fn drop(&mut self) {
        *self.0.next.lock() = self.1 + 1;
        self.0.changed.notify_all();
    }
}

impl Pair {
    /// Runs a pair.
    pub fn run(operations: [WatchedOperation; 2], settings: &PairSettings) -> Result<Pair, String> {
        let fs = fresh(settings)?;
        let commits = || {
            fs.journal_statistics()
                .map_or(0, |count| count.commits.sum())
        };
        let turn = Turn {
            next: Mutex::new(Rank::Job, 0),
            changed: Condvar::new(),
        };
        let records = Mutex::new(Rank::Job, [None, None]);
        let before = Mutex::new(Rank::Job, 0);
        sync::thread::scope(|scope| {
            for (worker, operation) in operations.into_iter().enumerate() {
                let (fs, turn, records, before) = (&fs, &turn, &records, &before);
                scope.spawn(move || {
                    let sync = || {
                        if worker == 0 {
                            let _ = fs.sync();
                            *before.lock() = commits();
                        }
                    };
                    let work = || one_worker(fs, operation, worker, turn, settings, sync);
                    let record = record::with_own_memory(work);
                    records.lock()[worker] = Some(record);
                });
            }
        });
        if commits() != before.into_inner() {
            return Err("a transaction was committed while the workers were watched".into());
        }
        let [one, other] = records.into_inner();
        let record = |record: Option<Result<ThreadRecord, engine::Error>>| match record {
            Some(Ok(record)) => Ok(record),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("a worker said nothing".to_owned()),
        };
        let records = [record(one)?, record(other)?];
        let found = report::compare(&records, settings.line, &mut Symbols::default());
        let mut refills = [Rounds::default(); 2];
        let lines = found.lines.into_iter().map(|shared| {
            let known = known::excuse(&shared);
            if shared.is_rare() && known.is_none() {
                refills[0].join(&shared.fetched[0]);
                refills[1].join(&shared.fetched[1]);
            }
            JudgedLine { shared, known }
        });
        let lines = lines.collect();
        Ok(Pair {
            operations,
            lines,
            refills: refills.map(|rounds| rounds.count()),
            touched: found.touched,
        })
    }

    /// Entries of the list of known lines that were needed.
    pub fn excused(&self) -> impl Iterator<Item = usize> {
        self.lines.iter().filter_map(|line| line.known)
    }

    /// Lines that an entry of the list excuses, and how often they went to each worker, all together.
    pub fn excused_by(&self, entry: usize) -> (usize, [u32; 2]) {
        let lines = self.lines.iter().filter(|line| line.known == Some(entry));
        lines.fold((0, [0, 0]), |(count, [one, other]), line| {
            let [to_one, to_other] = line.shared.fetches();
            (count + 1, [one + to_one, other + to_other])
        })
    }

    /// Entries whose lines went over more often than they may together.
    pub fn excused_too_often(&self) -> impl Iterator<Item = usize> {
        (0..KNOWN.len()).filter(|entry| {
            let (_, often) = self.excused_by(*entry);
            let mut often = often.iter().zip(self.operations);
            often.any(|(times, operation)| *times > KNOWN[*entry].together * operation.steps())
        })
    }

    /// The lines that are shared in more rounds than leases are refilled, and not known to be.
    pub fn failures(&self) -> impl Iterator<Item = &SharedLine> {
        let unknown = |line: &&JudgedLine| !line.shared.is_rare() && line.known.is_none();
        self.lines.iter().filter(unknown).map(|line| &line.shared)
    }

    /// Whether the lines that are written rarely are written too often together.
    pub fn refills_too_often(&self) -> bool {
        let mut refills = self.refills.iter().zip(self.operations);
        refills.any(|(rounds, operation)| *rounds > REFILLS_MOST * operation.steps())
    }

    /// Whether nothing is shared that must not be.
    pub fn is_clean(&self) -> bool {
        let is_bounded = self.excused_too_often().next().is_none();
        self.failures().next().is_none() && !self.refills_too_often() && is_bounded
    }
}

fn one_worker(
    fs: &InodeFs,
    operation: WatchedOperation,
    number: usize,
    turn: &Turn,
    settings: &PairSettings,
    before: impl FnOnce(),
) -> Result<ThreadRecord, engine::Error> {
    let all = WARM_UP + ROUNDS;
    let worker = turn.take(number, || {
        WatchedWorker::new(fs, operation, number, all, settings.siblings)
    });
    turn.take(2 + number, before);
    let mut worker = worker?;
    for round in 0..all {
        turn.take(2 * (2 + round) + number, || {
            match round.checked_sub(WARM_UP) {
                None => worker.step(round, all),
                Some(watched) => record::watch(watched, || {
                    if let Some(canary) = settings.canary {
                        canary.sing(number);
                    }
                    worker.step(round, all)
                }),
            }
        })?;
    }
    Ok(record::take())
}

fn fresh(settings: &PairSettings) -> Result<InodeFs, String> {
    let device = MemoryDevice::new(SIZE);
    let mut options = mkfs::Options {
        device_is_zero: true,
        uuid: Some([7; 16]),
        hash_seed: Some([7; 16]),
        time: Some(clock().seconds),
        ..mkfs::Options::default()
    };
    options.journal.size_mib = Some(JOURNAL_MIB);
    let layout = mkfs::Layout::plan(SIZE, &options).map_err(|error| error.to_string())?;
    mkfs::format(&device, &layout).map_err(|error| error.to_string())?;
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let mut options = MountOptions {
        staged_bytes: 4 * (JOURNAL_MIB << 20),
        ..MountOptions::default()
    };
    for choice in &settings.variants {
        options
            .variants
            .set(choice)
            .map_err(|error| error.to_string())?;
    }
    InodeFs::open_for_writing(device, &options, clock).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::record::Rounds;

    /// A pair with `lines` lines that an entry excuses, each moved once to worker 1.
    fn pair(entry: usize, lines: u32) -> Pair {
        let line = |number| {
            let mut fetched = [Rounds::default(); 2];
            fetched[1].add(number as usize);
            let shared = SharedLine {
                address: 64 * number as usize,
                written: [Rounds::default(); 2],
                fetched,
                is_false: false,
                uses: Vec::new(),
            };
            JudgedLine {
                shared,
                known: Some(entry),
            }
        };
        Pair {
            operations: [WatchedOperation::Stat; 2],
            lines: (0..lines).map(line).collect(),
            refills: [0; 2],
            touched: [0; 2],
        }
    }

    #[test]
    fn lines_that_are_excused_one_by_one_fail_together() {
        for (entry, known) in KNOWN.iter().enumerate() {
            let most = known.together * WatchedOperation::Stat.steps();
            let within = pair(entry, most);
            assert_eq!(within.excused_by(entry), (most as usize, [0, most]));
            assert!(within.is_clean());
            let beyond = pair(entry, most + 1);
            assert_eq!(beyond.excused_too_often().collect::<Vec<_>>(), [entry]);
            assert!(!beyond.is_clean() && beyond.failures().next().is_none());
        }
    }
}
