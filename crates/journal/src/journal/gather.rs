//! Sharing a job: one thread leads a commit, or a flush of data, for all threads that asked before it began.
//!
//! Without a further rule, the threads that share jobs would split into two halves that take turns: while one half is
//! served, the other asks, and is then served alone. So a leader waits a moment for the threads that shared the last
//! job ([`company::patience`]). A leader that is alone does not wait, nor does one that recently waited in vain
//! ([`Doubt`]).
//!
//! Under [`Rank::JournalLeader`], which is released while the leader waits. Nothing here is on disk.
//!
//! [`Rank::JournalLeader`]: sync::Rank::JournalLeader

use sync::clock::{self, Duration, Instant};
use sync::company::{self, Doubt};
use sync::{Condvar, MutexGuard};

use super::{Journal, Leaders};

/// Those who ask for one kind of job. Changed under the leaders' lock.
#[derive(Default)]
pub(crate) struct Company {
    /// The leader of the next one waits for others to come.
    is_gathering: bool,
    /// How many threads wait for the next one to begin, its leader among them.
    asking: u64,
    /// How many may come: the threads that the last one released, and those that asked during it.
    expected: u64,
    /// How long the last one took.
    took: Duration,
    doubt: Doubt,
}

/// One that is under way.
pub(crate) struct Served {
    count: u64,
    since: Instant,
}

impl Company {
    /// One more asks; `gathered` is what the leader waits by.
    pub(crate) fn ask(&mut self, gathered: &Condvar) {
        self.asking += 1;
        if self.is_gathering && self.is_complete() {
            gathered.notify_all();
        }
    }

    /// Someone is here who can't wait: the next one begins.
    pub(crate) fn hurry(&mut self, gathered: &Condvar) {
        self.expected = 0;
        if self.is_gathering {
            gathered.notify_all();
        }
    }

    fn is_complete(&self) -> bool {
        self.asking >= self.expected
    }

    pub(crate) fn is_gathering(&self) -> bool {
        self.is_gathering
    }

    /// Forgets the threads that asked, because the job is done already or can't be done.
    pub(crate) fn give_up(&mut self) {
        self.asking = 0;
    }

    /// The job begins, for all threads that asked.
    pub(crate) fn begin(&mut self) -> Served {
        Served {
            count: std::mem::take(&mut self.asking),
            since: clock::now(),
        }
    }

    /// It is done.
    pub(crate) fn end(&mut self, served: &Served) {
        self.took = clock::now() - served.since;
        self.expected = served.count + self.asking;
    }
}

impl Journal {
    /// Gives those a moment to come who are expected. A freeze may come meanwhile, where jobs of this kind don't keep
    /// it waiting.
    pub(crate) fn gather(
        &self,
        leaders: &mut MutexGuard<'_, Leaders>,
        gathered: &Condvar,
        of: fn(&mut Leaders) -> &mut Company,
    ) {
        let Some(patience) = company::patience(of(leaders).took) else {
            return;
        };
        if of(leaders).is_complete() || !of(leaders).doubt.waits() {
            return;
        }
        let (begin, there) = (clock::now(), of(leaders).asking);
        of(leaders).is_gathering = true;
        while !of(leaders).is_complete() && leaders.frozen.is_none() {
            let left = patience.saturating_sub(clock::now() - begin);
            if left.is_zero() {
                break;
            }
            gathered.wait_for(leaders, left);
        }
        let company = of(leaders);
        company.is_gathering = false;
        company.doubt.came(company.asking > there);
    }
}
