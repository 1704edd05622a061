//! Flushes of data that need no commit, shared by all threads that ask for one at the same time.
//!
//! One thread leads a flush, the others wait for one that began after they asked; a leader gives the threads that
//! shared the last one a moment to come ([`super::gather`]).
//!
//! Locks: [`Rank::JournalLeader`] for looks, never across a flush. A crash leaves of the data what the device had made
//! durable; nothing here is on disk.
//!
//! [`Rank::JournalLeader`]: sync::Rank::JournalLeader

use super::gather::{Company, Served};
use super::{Journal, Lead, LedJob};
use crate::abort::JournalError;
use crate::epoch::Epoch;

/// Flushes of data: what the threads that ask for one share. Changed under the leaders' lock.
#[derive(Default)]
pub(crate) struct Flushes {
    begun: u64,
    ended: u64,
    company: Company,
}

impl Flushes {
    pub(crate) fn is_under_way(&self) -> bool {
        self.begun != self.ended
    }

    /// Its lead was given up.
    pub(crate) fn end(&mut self) {
        self.ended += 1;
    }
}

impl Journal {
    /// Makes data durable that were written to the file system's device before this call: for a caller that needs no
    /// commit. Callers share: one flushes, the rest wait for a flush that began after they asked. While the journal is
    /// frozen all is durable already, because no thread may write.
    ///
    /// # Errors
    /// If the journal is aborted, or the flush fails, which aborts it: what was lost is not known.
    pub fn flush_data(&self) -> Result<(), JournalError> {
        let mut leaders = self.leaders.lock();
        // One that is under way may have begun before the data were written.
        let needed = leaders.flushes.begun + 1;
        leaders.flushes.company.ask(&self.flush_gathered);
        loop {
            self.abort.check()?;
            let flushes = &leaders.flushes;
            if flushes.ended >= needed {
                return Ok(());
            }
            if leaders.frozen.is_some() {
                leaders.flushes.company.give_up();
                return Ok(());
            }
            if !flushes.is_under_way() && !flushes.company.is_gathering() {
                break;
            }
            self.changed.wait(&mut leaders);
        }
        self.gather(&mut leaders, &self.flush_gathered, |leaders| {
            &mut leaders.flushes.company
        });
        let checked = self.abort.check();
        if checked.is_err() || leaders.frozen.is_some() {
            leaders.flushes.company.give_up();
            // Threads that came meanwhile get the same error.
            self.changed.notify_all();
            return checked;
        }
        leaders.flushes.begun += 1;
        let served = leaders.flushes.company.begin();
        drop(leaders);
        let lead = Lead::of(self, LedJob::Flush);
        self.lead_flush(lead, &served)
    }

    /// Flushes the home device for the threads of `served`, and wakes them.
    fn lead_flush(&self, mut lead: Lead<'_>, served: &Served) -> Result<(), JournalError> {
        // The running epoch is not covered: more of its blocks may be written later.
        let before = Epoch(self.current_epoch().0 - 1);
        self.statistics.flushes.add(1);
        self.home.flush().map_err(|error| self.fail(error.into()))?;
        // If a concurrent flush failed, it may have lost writes that this flush was to make durable.
        self.abort.check()?;
        lead.flushed = Some(before);
        let mut leaders = self.leaders.lock();
        leaders.flushes.company.end(served);
        Ok(())
    }
}
