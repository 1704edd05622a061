//! What a replay found and did.

use std::fmt;

use ondisk::Tid;
use ondisk::fast_commit::FcScan;

/// What state the journal was in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum JournalState {
    /// The file system has no journal.
    #[default]
    None,
    /// There was nothing to replay.
    Clean,
    /// It holds transactions, but by the superblock no recovery is needed: they are ignored, as by the kernel.
    Ignored,
    /// It was replayed.
    Replayed,
}

/// What a replay found and did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplayReport {
    /// What state the journal was in.
    pub journal: JournalState,
    /// Whether it is on a device of its own.
    pub is_external: bool,
    /// Whether the journal's inode was unusable and its copy in the superblock took its place.
    pub used_backup_map: bool,
    /// Transactions replayed.
    pub transactions: u32,
    /// The transaction after the last replayed one.
    pub end: Tid,
    /// Blocks that have a newer copy in the journal.
    pub blocks: u64,
    /// Copies read, of which the last for each block counts.
    pub copies: u64,
    /// Copies passed over because a later transaction had revoked them.
    pub revoked: u64,
    /// A committed transaction with a wrong checksum: it and all later ones are not replayed. The kernel refuses to
    /// mount after such a replay, and e2fsck runs a full check.
    pub bad_transaction: Option<Tid>,
    /// The error (errno) with which the journal was aborted before.
    pub aborted_with: Option<u32>,
    /// Changes in the fast-commit area that are newer than what was replayed and not shown: 0 once they are replayed.
    pub fast_commits_pending: u32,
    /// What the scan of the fast-commit area found.
    pub fast_commits: FcScan,
}

impl ReplayReport {
    /// Whether the journal holds, or may hold, changes that are not shown. A first fast commit that can't be read may
    /// be damaged or may never have been whole: the two look alike. One that follows whole ones never was whole.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.fast_commits_pending > 0
            || self.fast_commits.damage.is_some()
            || self.bad_transaction.is_some()
    }
}

impl fmt::Display for ReplayReport {
    /// One line for each thing worth reporting; nothing for a journal without content.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.journal {
            JournalState::None | JournalState::Clean => {}
            JournalState::Ignored => f.write_str(
                "the journal holds transactions, but the superblock needs no recovery: passed over\n",
            )?,
            JournalState::Replayed => writeln!(
                f,
                "journal replayed in memory: {} transactions, {} blocks, {} revoked copies",
                self.transactions, self.blocks, self.revoked
            )?,
        }
        if self.used_backup_map {
            f.write_str("the journal's inode is damaged: its copy in the superblock was used\n")?;
        }
        if let Some(tid) = self.bad_transaction {
            let text = "has a wrong checksum: it and all later ones are not shown; run e2fsck";
            writeln!(f, "transaction {tid} {text}")?;
        }
        if let Some(errno) = self.aborted_with {
            writeln!(f, "the journal was aborted with error {errno}; run e2fsck")?;
        }
        if self.fast_commits_pending > 0 {
            let count = self.fast_commits_pending;
            writeln!(f, "{count} later changes (fast commits) not shown")?;
        }
        let replayed = self.fast_commits.changes - self.fast_commits_pending;
        if replayed > 0 {
            let commits = self.fast_commits.commits;
            writeln!(f, "{commits} fast commits replayed: {replayed} records")?;
        }
        if let Some(damage) = self.fast_commits.damage {
            let text = "the fast-commit area can't be read, and later changes in it are not shown";
            writeln!(f, "{text}: {damage}")?;
        }
        Ok(())
    }
}
