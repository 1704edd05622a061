//! What a journal's user chooses, and what it counts.

use jbd2::{LogCounters, LogOptions};
use sync::{Counter, Histogram};

/// How a journal is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bytes of committed images kept in memory for the checkpoint: above half of it a checkpoint starts, above it
    /// [`crate::Journal::reserve`] waits for one. A transaction gets at most a quarter of it.
    pub staged_bytes: u64,
    /// Write the commit record together with the log blocks and flush once, in transactions that map no new data and
    /// revoke nothing. This needs checksums over whole transactions, and turns them on if the journal has no checksums.
    /// If it has those of version 2 or 3, the option has no effect (two flushes): with these, recovery detects damage,
    /// but can't tell it from the end of the log.
    pub async_commit: bool,
    /// Whether data that a transaction maps become durable before it does (`data=ordered`). Otherwise
    /// (`data=writeback`) a crash may show old contents of blocks in new files, and transactions that map data may be
    /// committed with one flush.
    pub is_ordered: bool,
    /// Whether the file system has checksums of metadata. The log then gets checksums of version 3, if it has none.
    pub has_checksums: bool,
    /// Whether the file system may have more than 2^32 blocks. The log's block numbers then have 64 bits.
    pub is_64bit: bool,
    /// Keep an area for fast commits at the log's end, if the journal has one: see [`crate::Journal::fast_tid`].
    /// Otherwise the area's blocks are used as a part of the log.
    pub fast_commits: bool,
}

impl Options {
    /// The options that concern the log.
    pub(crate) fn of_log(&self) -> LogOptions {
        LogOptions {
            async_commit: self.async_commit,
            has_checksums: self.has_checksums,
            is_64bit: self.is_64bit,
            fast_commits: self.fast_commits,
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            staged_bytes: 64 << 20,
            async_commit: false,
            is_ordered: true,
            has_checksums: false,
            is_64bit: false,
            fast_commits: false,
        }
    }
}

/// Why an epoch is committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommitCause {
    /// A caller waits for its durability.
    Sync,
    /// The attendant's interval has passed.
    Interval,
    /// The epoch is nearly as large as a transaction may be.
    Full,
    /// An operation needs room in the log.
    Room,
    /// The journal is frozen, held or closed.
    Quiesce,
}

impl CommitCause {
    /// All causes, in the order of their numbers.
    pub const ALL: [CommitCause; 5] = [
        CommitCause::Sync,
        CommitCause::Interval,
        CommitCause::Full,
        CommitCause::Room,
        CommitCause::Quiesce,
    ];
}

/// Counts since the journal was opened.
#[derive(Debug, Default)]
pub struct JournalStatistics {
    /// Transactions committed.
    pub commits: Counter,
    /// Epochs written, by [`CommitCause`].
    pub causes: [Counter; CommitCause::ALL.len()],
    /// Transactions committed with one flush.
    pub async_commits: Counter,
    /// Calls of [`crate::Journal::commit`] that had to wait for something to become durable. Divided by
    /// [`JournalStatistics::commits`], this is the number of calls that shared a commit.
    pub syncs: Counter,
    /// Metadata blocks written to the log.
    pub logged_blocks: Counter,
    /// Revokes written to the log.
    pub revokes: Counter,
    /// Blocks written home by checkpoints, or by commits of a file system without a log.
    pub checkpointed_blocks: Counter,
    /// Flushes asked of the devices.
    pub flushes: Counter,
    /// Times that `begin` waited for an epoch to drain.
    pub begin_waits: Counter,
    /// Times that an epoch was sealed while no handle was open, so that no thread had to wait.
    pub seals_when_idle: Counter,
    /// Times that leases were taken back because the log was nearly full.
    pub lease_recalls: Counter,
    /// Times that `reserve` found no room and waited for a commit or a checkpoint.
    pub room_waits: Counter,
    /// Times that a commit had to write home all that was committed, because the log does not wrap and had to begin
    /// again.
    pub log_turns: Counter,
    /// For each commit, how long no handle could begin: from the closing of its epoch to the opening of the next one.
    pub seal_pauses: Histogram,
}

impl JournalStatistics {
    /// The counters that the log adds to.
    pub(crate) fn of_log(&self) -> LogCounters<'_> {
        LogCounters {
            flushes: &self.flushes,
            async_commits: &self.async_commits,
        }
    }
}
