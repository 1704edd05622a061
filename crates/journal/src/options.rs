//! What a journal's user chooses, and what it counts.

use sync::Counter;

/// How a journal is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bytes of committed images kept in memory for the checkpoint; above half of it a checkpoint is due.
    pub staged_bytes: u64,
    /// Write the commit record together with the log blocks and flush once, where no new data were mapped. The
    /// journal's superblock must have the feature.
    pub async_commit: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            staged_bytes: 64 << 20,
            async_commit: false,
        }
    }
}

/// Counts since the journal was opened.
#[derive(Debug, Default)]
pub struct Statistics {
    /// Transactions committed.
    pub commits: Counter,
    /// Metadata blocks written to the log.
    pub logged_blocks: Counter,
    /// Revokes written to the log.
    pub revokes: Counter,
    /// Blocks written home by checkpoints.
    pub checkpointed_blocks: Counter,
    /// Flushes asked of the devices.
    pub flushes: Counter,
    /// Times that `begin` waited for an epoch to drain.
    pub begin_waits: Counter,
    /// Times that an epoch was sealed while no handle was open, so that nobody had to wait.
    pub seals_when_idle: Counter,
    /// Times that leases were taken back because the log was nearly full.
    pub lease_recalls: Counter,
}
