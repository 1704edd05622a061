//! Flushes of data that need no commit, shared by all who ask for one at the same time.
//!
//! One leads a flush, the rest wait for one that began after they asked. Whom the last flush let go often comes back at
//! once, and who comes too late waits for a whole flush: so a leader gives them an eighth of a flush's time to come
//! before it begins. Who is alone waits for nobody.
//!
//! Locks: [`Rank::JournalLeader`] for looks, never across a flush. A crash leaves of the data what the device had made
//! durable; nothing here is on disk.
//!
//! [`Rank::JournalLeader`]: sync::Rank::JournalLeader

use sync::MutexGuard;
use sync::clock::{self, Duration};

use crate::abort::JournalError;
use crate::commit::{Job, Journal, Lead, Leaders};
use crate::epoch::Epoch;

/// The part of a flush's time that a leader waits for others, at most so long; and the least that is worth it: below it
/// a switch to another thread takes as long.
const PATIENCE: u32 = 8;
const LONGEST_WAIT: Duration = Duration::from_millis(2);
const SHORTEST_WAIT: Duration = Duration::from_micros(10);

/// Flushes of data: what those who ask for one share. Changed under the leaders' lock.
#[derive(Default)]
pub(crate) struct Flushes {
    begun: u64,
    ended: u64,
    /// The leader of the next one waits for others to come.
    is_gathering: bool,
    /// Who waits for the next one to begin, its leader among them.
    asking: u64,
    /// So many may come: whom the last one let go, and who asked during it.
    expected: u64,
    /// How long the last one took.
    took: Duration,
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
    /// Makes data durable that were written to the file system's device before this call: for who needs no commit.
    /// Callers share: one flushes, the rest wait for a flush that began after they asked. While the journal is frozen
    /// all is durable already, for nobody may write.
    ///
    /// # Errors
    /// When the journal is aborted, or the flush fails, which aborts it: what was lost nobody knows.
    pub fn flush_data(&self) -> Result<(), JournalError> {
        let mut leaders = self.leaders.lock();
        // One that is under way may have begun before the data were written.
        let needed = leaders.flushes.begun + 1;
        leaders.flushes.asking += 1;
        if leaders.flushes.is_gathering && leaders.flushes.asking >= leaders.flushes.expected {
            self.gathered.notify_all();
        }
        loop {
            self.abort.check()?;
            let flushes = &leaders.flushes;
            if flushes.ended >= needed {
                return Ok(());
            }
            if leaders.frozen.is_some() {
                leaders.flushes.asking = 0;
                return Ok(());
            }
            if !flushes.is_under_way() && !flushes.is_gathering {
                break;
            }
            self.changed.wait(&mut leaders);
        }
        self.gather(&mut leaders);
        let checked = self.abort.check();
        if checked.is_err() || leaders.frozen.is_some() {
            leaders.flushes.asking = 0;
            // Who came meanwhile finds out as well.
            self.changed.notify_all();
            return checked;
        }
        leaders.flushes.begun += 1;
        let served = std::mem::take(&mut leaders.flushes.asking);
        drop(leaders);
        let lead = Lead::of(self, Job::Flush);
        self.lead_flush(lead, served)
    }

    /// Gives those a moment to come who are expected.
    fn gather(&self, leaders: &mut MutexGuard<'_, Leaders>) {
        let patience = (leaders.flushes.took / PATIENCE).min(LONGEST_WAIT);
        if patience < SHORTEST_WAIT || leaders.flushes.asking >= leaders.flushes.expected {
            return;
        }
        let begin = clock::now();
        leaders.flushes.is_gathering = true;
        while leaders.flushes.asking < leaders.flushes.expected && leaders.frozen.is_none() {
            let left = patience.saturating_sub(clock::now() - begin);
            if left.is_zero() {
                break;
            }
            self.gathered.wait_for(leaders, left);
        }
        leaders.flushes.is_gathering = false;
    }

    /// The flush, for so many.
    fn lead_flush(&self, mut lead: Lead<'_>, served: u64) -> Result<(), JournalError> {
        // Of the running epoch, a part may come later.
        let before = Epoch(self.current_epoch().0 - 1);
        self.statistics.flushes.add(1);
        let begin = clock::now();
        self.home.flush().map_err(|error| self.fail(error.into()))?;
        lead.flushed = Some(before);
        let mut leaders = self.leaders.lock();
        leaders.flushes.took = clock::now() - begin;
        leaders.flushes.expected = served + leaders.flushes.asking;
        Ok(())
    }
}
