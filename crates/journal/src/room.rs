//! Promises log space to steps. If too little is free, a thread makes room: it commits the running epoch, writes
//! committed images home, and draws leases back, until the promise can be made.
//!
//! One thread at a time makes room, its leader under [`Rank::JournalLeader`]. Other threads that find none queue behind
//! it and hold nothing of the journal. Meanwhile no other thread is promised room from the shared count. So the leader
//! waits only for promises that were made before, and these end by themselves, because a thread that has a promise
//! waits for no other. So every promise that fits a transaction is made, however small the log and however many the
//! threads.
//!
//! [`Rank::JournalLeader`]: sync::Rank::JournalLeader

use jbd2::cost;
use sync::clock::Duration;

use crate::abort::JournalError;
use crate::client::Client;
use crate::handle::Handle;
use crate::journal::{Journal, Lead, LedJob};
use crate::options::CommitCause;

/// How long a thread that makes room waits for open handles before it looks again.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// Log space promised to a handle that has not begun. Dropping it gives the promise back.
pub struct Credits<'a> {
    journal: &'a Journal,
    blocks: u32,
    revokes: u32,
}

impl Drop for Credits<'_> {
    fn drop(&mut self) {
        self.journal
            .space
            .give_back(cost(self.blocks, self.revokes));
    }
}

/// The room is no longer pressed, however the making of it ended.
struct Pressed<'a>(&'a Journal);

impl Drop for Pressed<'_> {
    fn drop(&mut self) {
        self.0.space.press(false);
    }
}

impl Journal {
    /// Whether a commit is due, because the running epoch is half as large as a transaction may be.
    pub fn is_commit_due(&self) -> bool {
        self.space.is_commit_due()
    }

    /// Whether a checkpoint is due: half of the staged memory or of the log is in use.
    pub fn is_checkpoint_due(&self) -> bool {
        self.table.image_bytes() * 2 > self.options.staged_bytes
            || (self.log.is_some()
                && self.space.free() < i64::from(self.space.transaction_most()) * 2)
    }

    /// Promises log space for a step that changes at most `blocks` blocks and revokes at most `revokes`. May commit
    /// and checkpoint to make room, so it is called while preparing, without an open handle.
    ///
    /// # Errors
    /// When the step is larger than a transaction, or the journal is or becomes aborted.
    pub fn reserve(
        &self,
        client: &dyn Client,
        blocks: u32,
        revokes: u32,
    ) -> Result<Credits<'_>, JournalError> {
        let wanted = cost(blocks, revokes);
        let most = self.space.transaction_most();
        if wanted > most {
            return Err(JournalError::TooLarge { wanted, most });
        }
        self.abort.check()?;
        self.keep_up(client)?;
        if !self.space.take(wanted, &self.statistics) {
            self.make_room(client, wanted)?;
        }
        Ok(Credits {
            journal: self,
            blocks,
            revokes,
        })
    }

    /// As [`Journal::reserve`], if the log has room now: `None` where a commit or a checkpoint must make some first.
    ///
    /// # Errors
    /// When the journal is aborted.
    pub fn reserve_at_once(
        &self,
        blocks: u32,
        revokes: u32,
    ) -> Result<Option<Credits<'_>>, JournalError> {
        self.abort.check()?;
        let is_due = !self.is_held() && (self.is_commit_due() || self.is_checkpoint_due());
        let is_crowded = self.table.image_bytes() > self.options.staged_bytes;
        let wanted = cost(blocks, revokes);
        // A step that is too large for a transaction finds no room either.
        let has_room = !is_due && !is_crowded && wanted <= self.space.transaction_most();
        let is_promised = has_room && self.space.take(wanted, &self.statistics);
        Ok(is_promised.then(|| Credits {
            journal: self,
            blocks,
            revokes,
        }))
    }

    /// Bytes of images that are committed and not yet home: at most [`crate::Options::staged_bytes`] and what the
    /// transactions under way add to that, each a quarter of it at most.
    pub fn staged_bytes(&self) -> u64 {
        self.table.image_bytes()
    }

    /// Begins a handle in the running epoch. Waits only while an epoch drains.
    ///
    /// # Panics
    /// When this thread has a handle open.
    #[track_caller]
    pub fn begin<'a>(&'a self, credits: Credits<'a>) -> Handle<'a> {
        let presence = self.epochs.enter(&self.statistics);
        let (blocks, revokes) = (credits.blocks, credits.revokes);
        std::mem::forget(credits);
        Handle::new(self, presence, blocks, revokes)
    }

    /// Starts what is due: by the attendant if one runs, else here, unless another thread does it already. Waits while
    /// more memory is staged than may be.
    fn keep_up(&self, client: &dyn Client) -> Result<(), JournalError> {
        if self.table.image_bytes() > self.options.staged_bytes {
            self.statistics.room_waits.add(1);
            self.checkpoint()?;
        }
        if self.is_held() || !self.is_commit_due() && !self.is_checkpoint_due() {
            return Ok(());
        }
        if self.attendant.call(&self.leaders) {
            return Ok(());
        }
        if self.is_checkpoint_due() && !self.leaders.lock().is_checkpointing {
            self.checkpoint()?;
        }
        if self.is_commit_due() && !self.is_committing() {
            self.commit_now(client, self.current_epoch(), CommitCause::Full)?;
        }
        Ok(())
    }

    fn make_room(&self, client: &dyn Client, wanted: u32) -> Result<(), JournalError> {
        self.statistics.room_waits.add(1);
        let mut leaders = self.leaders.lock();
        while leaders.is_making_room {
            self.changed.wait(&mut leaders);
        }
        leaders.is_making_room = true;
        drop(leaders);
        let _lead = Lead::of(self, LedJob::Room);
        self.space.press(true);
        let _pressed = Pressed(self);
        loop {
            self.abort.check()?;
            if self.space.take_pressed(wanted, &self.statistics) {
                return Ok(());
            }
            if self.is_held() {
                return Err(JournalError::Held);
            }
            let running = self.current_epoch();
            if self.space.is_used(running) || self.is_commit_due() {
                self.commit_now(client, running, CommitCause::Room)?;
            }
            if self.space.take_pressed(wanted, &self.statistics) {
                return Ok(());
            }
            if !self.table.is_empty() {
                self.checkpoint()?;
                continue;
            }
            let mut leaders = self.leaders.lock();
            self.changed.wait_for(&mut leaders, LOOK_AGAIN);
        }
    }
}
