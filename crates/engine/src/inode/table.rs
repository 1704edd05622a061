//! Which inodes are in memory: one table of counted entries, in either of two forms that may be changed for one another
//! at any time ([`SwitchedTable`]).
//!
//! `inode_lookup=rcu`: an inode is found without a lock and without writing a line that others read, except its own
//! count. It is added, removed and, after a hand's mark, counted under the lock of its bucket alone
//! ([`sync::Rank::IcacheBucket`]).
//!
//! `inode_lookup=locked`, the plain form: the same buckets under one lock ([`sync::Rank::IcacheTable`]), as in Linux
//! before lookups under RCU. A lookup has no guard, and what leaves the table is freed at once.
//!
//! An inode is in memory once. It is loaded with nothing locked and added after a second look; the second of two
//! threads takes the instance of the first. No thread waits for another's load: the table's block is read once, by the
//! cache of blocks, and the rest is a copy of 256 bytes. If another instance changed and left meanwhile, the bucket's
//! count of removals has changed: what was loaded is refused and loaded again.
//!
//! An inode that is being made is found without a record; one that is being deleted, still with its record. Both are
//! locked by the thread that does that. A thread that must know how it ends waits for that lock, with nothing or a
//! directory's lock held; a lookup by name does not find such an inode, because it has no name.
//!
//! An inode that no thread uses leaves when too many are in memory: hands go round parts of the table, each locked only
//! by the thread that moves it, and a thread that loads an inode moves them. A held inode may leave like any other
//! while it has names; its number of holders stays in [`Absent`] and is taken over when it is loaded again. Memory: the
//! table's domain drops an inode after every reader that may see it ([`sync::rcu`]), or the last `Arc` does.
//! Interleavings: those of [`sync::rcu`], and `under_schedules_no_inode_is_there_twice_or_leads_to_another`. What a
//! crash leaves: nothing of this.

use ondisk::Ino;
use sync::rcu::{Hand, Keyed, SwitchedTable};
use sync::{Arc, CachePadded, Counter, Hint, Lanes, Mutex, OwnThread, Rank};

use super::LiveInode;
use super::absent::Absent;
use crate::core::variants::InodeLookup;

/// Parts of the table that a hand goes round: at most this number of threads can drop inodes at once.
const HANDS: usize = 16;
/// Buckets that the table of a volume that is written to begins with.
const BUCKETS: usize = 1024;
/// A thread looks whether too many are in memory once in this number of inodes that it added.
const ADDED_MOST: u64 = 256;

/// How a look at the inode of a number went.
pub(crate) enum LookOutcome {
    /// It is not in memory.
    Absent,
    /// It is, and the test refused it.
    Refused,
    /// It is, and was counted.
    Found(Arc<LiveInode>),
}

/// What a trim did.
#[derive(Clone, Copy, Default)]
struct Trimmed {
    /// Inodes that went.
    gone: usize,
    /// Whether it did not look at all inodes, because of readers that were in the table since before, or of other
    /// trims.
    is_part: bool,
}

/// An inode that was loaded is not as it is now.
pub(crate) struct Stale;

/// The inodes in memory; see the module.
pub(crate) struct InodesInMemory {
    /// [icache bucket, or icache table in the plain form; read: rcu]
    table: SwitchedTable<LiveInode>,
    absent: Absent,
    /// [icache hand]
    hands: Box<[CachePadded<Mutex<Hand>>]>,
    /// What each thread counts.
    lanes: Lanes<Lane>,
    /// How many are kept. [const]
    most: u64,
    /// Written by trims only, and read by all threads that add.
    next_trim: CachePadded<NextTrim>,
    /// Inodes that another thread had added in between.
    lost: Counter,
    /// Inodes whose loading had to be repeated, because another instance left the table meanwhile.
    stale: Counter,
    /// Inodes that left memory.
    gone: Counter,
    /// Looks that waited for an inode to be made or deleted.
    waits: Counter,
}

/// When too many are looked for again.
struct NextTrim {
    /// How many inodes may be in memory before. [atomic: Relaxed, hint]
    at: Hint<u64>,
    /// Whether many inodes stayed at the last trim because their changes were not durable, so that a commit helps.
    /// [atomic: Relaxed, hint]
    commit_helps: Hint<bool>,
}

/// What a thread counts for itself. If two share it for a moment, a count may be lost.
#[derive(Default)]
struct Lane {
    /// [this thread's; read by the thread that sums up]
    found: OwnThread<u64>,
    /// [this thread's; read by the thread that sums up]
    failed: OwnThread<u64>,
    /// Inodes added since it looked whether there are too many. [this thread's]
    added: OwnThread<u64>,
    /// The hand that it moves next. [this thread's]
    hand: OwnThread<usize>,
}

impl Keyed for LiveInode {
    fn key(&self) -> u64 {
        self.ino().0.into()
    }
}

/// One more, by the only thread that writes it.
fn count(counter: &OwnThread<u64>) {
    let now = counter.get();
    counter.set(now + 1);
}

impl InodesInMemory {
    /// No inodes yet; about `most` are kept beyond those in use or not committed.
    pub(crate) fn new(most: usize, lookup: InodeLookup) -> InodesInMemory {
        let buckets = if most == 0 { HANDS } else { BUCKETS };
        let hand = |part| CachePadded::new(Mutex::new(Rank::IcacheHand, Hand::new(part, HANDS)));
        InodesInMemory {
            table: SwitchedTable::new(
                Rank::IcacheTable,
                Rank::IcacheBucket,
                buckets,
                lookup == InodeLookup::Locked,
            ),
            absent: Absent::new(),
            hands: (0..HANDS).map(hand).collect(),
            lanes: Lanes::new(),
            most: most as u64,
            next_trim: CachePadded::new(NextTrim {
                at: Hint::new(most as u64),
                commit_helps: Hint::new(false),
            }),
            lost: Counter::new(),
            stale: Counter::new(),
            gone: Counter::new(),
            waits: Counter::new(),
        }
    }

    /// Inodes are found in this form from now on. Waits for lookups under way.
    pub(crate) fn choose(&self, lookup: InodeLookup) {
        self.table.choose(lookup == InodeLookup::Locked);
    }

    fn counted(&self, was_found: bool) {
        let lane = self.lanes.mine();
        count(if was_found { &lane.found } else { &lane.failed });
    }

    /// The inode with this number, if it is in memory. Others may be making, changing or deleting it.
    pub(crate) fn find(&self, ino: Ino) -> Option<Arc<LiveInode>> {
        let found = self.table.find(ino.0.into());
        self.counted(found.is_some());
        found
    }

    /// The inode with this number, if it is in memory and the test accepts it. The test waits for nothing, and sees an
    /// inode that others may be making, changing or deleting.
    pub(crate) fn find_by(&self, ino: Ino, test: impl FnOnce(&LiveInode) -> bool) -> LookOutcome {
        let mut refused = false;
        let found = self.table.find_by(ino.0.into(), |inode| {
            let fits = test(inode);
            refused = !fits;
            fits
        });
        let outcome = match found {
            Some(inode) => LookOutcome::Found(inode),
            None if refused => LookOutcome::Refused,
            None => LookOutcome::Absent,
        };
        self.counted(!matches!(outcome, LookOutcome::Absent));
        outcome
    }

    /// Looks at the inode with this number without counting it; `None` if it is not in memory. The look is as the test
    /// of [`InodesInMemory::find_by`].
    pub(crate) fn look<R>(&self, ino: Ino, look: impl FnOnce(&LiveInode) -> R) -> Option<R> {
        let seen = self.table.look(ino.0.into(), look);
        self.counted(seen.is_some());
        seen
    }

    /// To be read before an inode is loaded, for [`InodesInMemory::insert`].
    pub(crate) fn version(&self, ino: Ino) -> u32 {
        self.table.version(ino.0.into())
    }

    /// Inserts an inode, unless another thread was first; returns the instance that is there. `Err` if one left the
    /// same bucket since it was at `version` ([`InodesInMemory::version`]): what was loaded may be older than that
    /// one's changes. Also returns whether it is time to see if too many are in memory.
    pub(crate) fn insert(
        &self,
        inode: Arc<LiveInode>,
        version: Option<u32>,
    ) -> (Result<Arc<LiveInode>, Stale>, bool) {
        let inserted = self.table.locked(inode.ino().0.into(), |bucket| {
            if let Some(there) = bucket.get() {
                self.lost.add(1);
                return Ok(there);
            }
            if version.is_some_and(|version| version != bucket.version()) {
                self.stale.add(1);
                return Err(Stale);
            }
            inode.life.set_holders(self.absent.take(inode.ino()));
            bucket.insert(Arc::clone(&inode));
            Ok(inode)
        });
        let added = &self.lanes.mine().added;
        count(added);
        let is_time = added.get() >= (self.most / 16).clamp(1, ADDED_MOST);
        if is_time {
            added.set(0);
        }
        (inserted, is_time)
    }

    /// Releases a held inode that is not in memory, `times` times; false if it is in memory. A held inode that is not
    /// in memory has names.
    pub(crate) fn release_absent(&self, ino: Ino, times: u32) -> bool {
        // Under the bucket's lock it is in memory or among the absent.
        self.table.locked(ino.0.into(), |bucket| {
            bucket.get().is_none() && self.absent.release(ino, times)
        })
    }

    /// How many should go; none unless there are too many.
    pub(crate) fn excess(&self) -> Option<usize> {
        let len = self.table.len();
        if len <= self.next_trim.at.get() {
            return None;
        }
        let kept = self.most / 16 * 15;
        // At most the number that fits memory.
        Some(len.saturating_sub(kept) as usize)
    }

    /// What many inodes stayed for at the last trim is committed: the next one does not wait until there are more.
    pub(crate) fn committed(&self) {
        if self.next_trim.commit_helps.get() {
            self.next_trim.commit_helps.set(false);
            self.next_trim.at.set(self.most);
        }
    }

    /// Evicts about `want` inodes that are not in use and for which `may_go` is true. True if far too many are still
    /// there, because readers or other trims kept it from continuing: a thread that adds more must let them run. If few
    /// can leave, the next trim waits until a quarter more are in memory, or for a commit.
    pub(crate) fn trim(&self, want: usize, may_go: &dyn Fn(&LiveInode) -> bool) -> bool {
        let mut refused = 0_u64;
        let mut may_go = |inode: &LiveInode| {
            let may_go = may_go(inode);
            refused += u64::from(!may_go);
            may_go && self.absent.keep(inode)
        };
        let Trimmed { gone, is_part } = self.sweep(want, &mut may_go);
        self.gone.add(gone as u64);
        let len = self.table.len();
        self.next_trim.commit_helps.set(refused > self.most / 8);
        // A sweep that could not look at all inodes does not know how few can leave.
        let trim_at = if len > self.most && !is_part {
            len / 4 * 5
        } else {
            self.most
        };
        self.next_trim.at.set_if_new(trim_at);
        is_part && len > self.most / 4 * 5
    }

    /// Moves the hands until about `want` inodes are gone.
    fn sweep(&self, want: usize, may_go: &mut dyn FnMut(&LiveInode) -> bool) -> Trimmed {
        let hands = &self.hands;
        let first = self.first_hand();
        let mut trimmed = Trimmed::default();
        for hand in (first..first + hands.len()).map(|hand| &hands[hand % hands.len()]) {
            let Some(mut hand) = hand.try_lock() else {
                // Another moves this one.
                trimmed.is_part = true;
                continue;
            };
            let swept = (self.table).sweep(&mut hand, want - trimmed.gone, may_go);
            trimmed.gone += swept.gone;
            // What keeps one hand waiting does so with all.
            trimmed.is_part |= swept.is_blocked;
            if trimmed.gone >= want || swept.is_blocked {
                break;
            }
        }
        trimmed
    }

    /// A look at an inode waited for the thread that made or deleted it.
    pub(crate) fn waited(&self) {
        self.waits.add(1);
    }

    /// The hand that the calling thread moves first this time.
    fn first_hand(&self) -> usize {
        let hand = &self.lanes.mine().hand;
        let now = hand.get();
        hand.set(now.wrapping_add(1));
        // Threads begin at different ones.
        now.wrapping_add(sync::thread_index()) % self.hands.len()
    }

    /// The numbers of the inodes in memory, ascending.
    pub(crate) fn numbers(&self) -> Vec<Ino> {
        let mut numbers = Vec::new();
        self.table.for_each(|inode| numbers.push(inode.ino()));
        numbers.sort_unstable();
        numbers
    }

    /// What was counted, by name.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let sum = |of: fn(&Lane) -> &OwnThread<u64>| {
            let each = self.lanes.iter().map(|lane| of(lane).get());
            each.fold(0, u64::wrapping_add)
        };
        let table = self.table.statistics();
        vec![
            ("icache.finds", sum(|lane| &lane.found)),
            ("icache.failed_finds", sum(|lane| &lane.failed)),
            ("icache.inodes", table.entries),
            ("icache.buckets", table.buckets),
            ("icache.longest_chain", table.longest),
            ("icache.grown", table.grown),
            ("icache.inserts_lost", self.lost.sum()),
            ("icache.stale_loads", self.stale.sum()),
            ("icache.evictions", self.gone.sum()),
            ("icache.waits", self.waits.sum()),
        ]
    }
}
