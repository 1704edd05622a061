//! Reads what the mechanisms have counted. Each thread counts on cache lines of its own, and reading stops no thread:
//! a sum has a value that is between those at the start and at the end of reading. Nothing of it is on disk.

use journal::CommitCause;

use crate::fs::InodeFs;

impl InodeFs {
    /// All counters since the file system was opened, by name (`journal.commits`); those of each mechanism begin with
    /// its name, whichever form it has now. May be called from any thread at any time.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let cache = self.cache_statistics();
        let mut counters = vec![("buffer.hits", cache.hits), ("buffer.misses", cache.misses)];
        if let Some(journal) = self.journal_statistics() {
            let (used, all) = self.log_usage();
            let cause = |cause: CommitCause| journal.causes[cause as usize].sum();
            counters.extend([
                ("journal.commits", journal.commits.sum()),
                ("journal.commits_for_sync", cause(CommitCause::Sync)),
                ("journal.commits_at_interval", cause(CommitCause::Interval)),
                ("journal.commits_when_full", cause(CommitCause::Full)),
                ("journal.commits_for_room", cause(CommitCause::Room)),
                ("journal.commits_to_quiesce", cause(CommitCause::Quiesce)),
                ("journal.syncs", journal.syncs.sum()),
                ("journal.logged_blocks", journal.logged_blocks.sum()),
                ("journal.revokes", journal.revokes.sum()),
                (
                    "journal.checkpointed_blocks",
                    journal.checkpointed_blocks.sum(),
                ),
                ("journal.flushes", journal.flushes.sum()),
                ("journal.begin_waits", journal.begin_waits.sum()),
                ("journal.room_waits", journal.room_waits.sum()),
                ("journal.log_blocks_used", used),
                ("journal.log_blocks", all),
                ("journal.log_turns", journal.log_turns.sum()),
                ("journal.lease_recalls", journal.lease_recalls.sum()),
            ]);
        }
        if self.mounted.volume().is_writable() {
            counters.extend(self.mounted.groups().inodes.counters());
            counters.extend(self.mounted.groups().counters());
            counters.extend(self.mounted.inodes().counters());
            counters.extend(self.mounted.ialloc().counters());
        }
        if self.mounted.volume().is_writable() {
            let kept = self.mounted.preallocations();
            counters.extend([
                ("prealloc.hits", kept.hits.sum()),
                ("prealloc.refills", kept.refills.sum()),
                ("prealloc.lane_hits", kept.lane_hits.sum()),
                ("prealloc.lane_refills", kept.lane_refills.sum()),
                ("prealloc.discards", kept.discards.sum()),
                ("prealloc.blocks", kept.blocks()),
            ]);
        }
        counters.extend(self.mounted.orphans().counters());
        if let Ok(live) = self.mounted.live()
            && let Some(fast) = live.fast()
        {
            counters.extend(fast.counters());
        }
        counters
    }
}
