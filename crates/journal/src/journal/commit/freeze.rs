//! Closing and freezing the journal: commits after which no handle runs, and which wait for no delay. [`super`]
//! describes the locks, and what a crash leaves.

use crate::abort::JournalError;
use crate::client::Client;
use crate::epoch::Epoch;
use crate::journal::Journal;
use crate::journal::fast::FastArea;
use crate::options::CommitCause;

impl Journal {
    /// Commits, checkpoints and leaves an empty log, for a clean unmount. No handle begins meanwhile.
    ///
    /// # Errors
    /// As [`Journal::commit`] and [`Journal::checkpoint`].
    pub fn close(&self, client: &dyn Client) -> Result<(), JournalError> {
        self.thaw();
        self.commit_now(client, self.current_epoch(), CommitCause::Quiesce)?;
        self.checkpoint()?;
        self.say_empty(true)
    }

    /// See [`jbd2::Log::mark_empty`].
    fn say_empty(&self, for_good: bool) -> Result<(), JournalError> {
        self.fast.iter().for_each(FastArea::ended);
        let said = (self.log.as_ref())
            .map(|log| log.lock().mark_empty(for_good, self.statistics.of_log()));
        said.unwrap_or(Ok(())).map_err(|error| self.fail(error))
    }

    /// Commits and writes everything home, data included, and lets no handle begin until [`Journal::thaw`]. Handles
    /// that are asked for meanwhile wait, with what their thread has locked; a sync finds nothing to do. Frozen twice
    /// counts as frozen once.
    ///
    /// # Errors
    /// As [`Journal::commit`] and [`Journal::checkpoint`]; then nothing is frozen.
    pub fn freeze(&self, client: &dyn Client) -> Result<(), JournalError> {
        if self.is_held() {
            return Err(JournalError::Held);
        }
        let cause = CommitCause::Quiesce;
        let Some(mut lead) =
            self.lead_commit(cause, Epoch(u64::MAX), |leaders| leaders.frozen.is_some())?
        else {
            return Ok(());
        };
        let sealed = self.seal();
        lead.closed = Some(sealed.epoch);
        if !self.write_epoch(client, &sealed, cause)? {
            // Nothing but data written over others may have changed.
            self.statistics.flushes.add(1);
            self.home.flush().map_err(|error| self.fail(error.into()))?;
            self.abort.check()?;
        }
        lead.end(sealed.epoch, true);
        self.checkpoint()?;
        self.say_empty(false)?;
        lead.closed = None;
        let mut leaders = self.leaders.lock();
        while leaders.flushes.is_under_way() {
            self.changed.wait(&mut leaders);
        }
        if let Err(error) = self.abort.check() {
            drop(leaders);
            lead.closed = Some(sealed.epoch);
            return Err(error);
        }
        leaders.frozen = Some(sealed.epoch);
        Ok(())
    }

    /// Lets handles begin again; does nothing if they may.
    pub fn thaw(&self) {
        let mut leaders = self.leaders.lock();
        if let Some(sealed) = leaders.frozen.take() {
            // Before the next commit can seal.
            self.epochs.open(sealed);
            leaders.is_committing = false;
            self.changed.notify_all();
        }
    }
}
