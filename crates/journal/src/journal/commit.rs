//! The commit of an epoch, in numbered steps of the job's leader:
//! 1. seal the running epoch, wait for its handles, open the next;
//! 2. stage the objects, then fold in the client's lists; drop the images of blocks that the epoch freed;
//! 3. write the transaction to the log; if the log has to begin again, first write home all that is committed. CRASH:
//!    from here on a replay finds the transaction;
//! 4. hand its images to the checkpoint, cancel those of freed blocks, give back the space that it did not use;
//! 5. tell the client, then wake the waiting threads.
//!
//! A failure before 5 aborts the journal, and the client is not told: what the epoch freed stays unavailable.
//!
//! In 3, the log is flushed before the commit record. That flush also makes the data durable that the epoch maps
//! (`data=ordered`), because they were written before their map changed. It is left out only with `async_commit`, in a
//! log with checksums of version 1 (see `jbd2::Log`), if nothing is revoked, commits are not held back and, in
//! `data=ordered`, no handle of the epoch called [`crate::Handle::maps_data`].
//!
//! Without a log (`^has_journal`), step 3 is: flush, so that the data that the epoch maps are durable; write its images
//! home; flush. CRASH: some of the images may be home and others not, so the structures may contradict each other until
//! e2fsck repairs them. But what was freed is used again only after 5, so no file ever shows another file's data.

use std::collections::BTreeSet;

use jbd2::Transaction;
use ondisk::FsBlock;
use sync::clock::Instant;
use sync::gauge::{self, Gauge, Under};

use super::{Journal, Lead, Leaders, LedJob};
use crate::abort::JournalError;
use crate::canary::{self, Canary};
use crate::client::Client;
use crate::epoch::Epoch;
use crate::options::CommitCause;
use crate::space::Sealed;

mod freeze;
mod write;

impl Journal {
    /// Makes everything up to `target` durable; returns at once if it is. Callers share: one leads, the rest wait. The
    /// leader waits a moment for the threads that shared the last commit, at most an eighth of its time.
    /// Call it without a handle and without any lock that a handle may be held under.
    ///
    /// # Errors
    /// When the journal is or becomes aborted; what was promised before still holds.
    pub fn commit(&self, client: &dyn Client, target: Epoch) -> Result<(), JournalError> {
        self.refuse_held(target)?;
        self.commit_led(client, target, CommitCause::Sync)
    }

    /// [`Journal::commit`] whose leader waits for no other thread: what is due, or makes room, keeps others waiting.
    pub(crate) fn commit_now(
        &self,
        client: &dyn Client,
        target: Epoch,
        cause: CommitCause,
    ) -> Result<(), JournalError> {
        self.refuse_held(target)?;
        self.commit_any(client, target, cause)
    }

    fn refuse_held(&self, target: Epoch) -> Result<(), JournalError> {
        if self.is_held() && self.committed_epoch() < target {
            Err(JournalError::Held)
        } else {
            Ok(())
        }
    }

    /// [`Journal::commit_now`], also of what is held back.
    pub(crate) fn commit_any(
        &self,
        client: &dyn Client,
        target: Epoch,
        cause: CommitCause,
    ) -> Result<(), JournalError> {
        self.commit_led(client, target, cause)
    }

    fn commit_led(
        &self,
        client: &dyn Client,
        target: Epoch,
        cause: CommitCause,
    ) -> Result<(), JournalError> {
        let lead = self.lead_commit(cause, target, |leaders| leaders.committed >= target)?;
        let Some(mut lead) = lead else {
            return Ok(());
        };
        let sealed = self.seal();
        self.open_next(&sealed);
        lead.end(sealed.epoch, self.write_epoch(client, &sealed, cause)?);
        Ok(())
    }

    /// Whether a thread commits, or the journal is frozen.
    pub(crate) fn is_committing(&self) -> bool {
        self.leaders.lock().is_committing
    }

    /// Waits until `is_done`, when `target` is durable at the latest, and returns `None` then; or until no other thread
    /// commits and no delay is left, for which [`CommitCause::Quiesce`] does not wait, and returns the lead.
    fn lead_commit(
        &self,
        cause: CommitCause,
        target: Epoch,
        is_done: impl Fn(&Leaders) -> bool,
    ) -> Result<Option<Lead<'_>>, JournalError> {
        let mut leaders = self.leaders.lock();
        if is_done(&leaders) {
            return Ok(None);
        }
        self.abort.check()?;
        self.statistics.syncs.add(1);
        // A sync's leader waits for others that may want the commit as well.
        let has_time = cause == CommitCause::Sync;
        if !has_time {
            leaders.commits.hurry(&self.commit_gathered);
        } else if !leaders.is_committing || target > leaders.committing {
            // A thread that wants no more than what is being committed does not count for the next one.
            leaders.commits.ask(&self.commit_gathered);
        }
        loop {
            let delay = match cause {
                _ if leaders.is_committing => None,
                CommitCause::Quiesce => break,
                _ => leaders.delays.left(u64::MAX),
            };
            match delay {
                _ if leaders.is_committing => self.changed.wait(&mut leaders),
                Some(left) => {
                    leaders.delays.waiting += 1;
                    let _is_late = self.changed.wait_for(&mut leaders, left);
                    leaders.delays.waiting -= 1;
                }
                None => break,
            }
            let is_over = is_done(&leaders);
            if is_over || self.abort.check().is_err() {
                // A thread that begins a delay waits until no commit waits, and this one leads none that would wake it.
                self.changed.notify_all();
            }
            if is_over {
                return Ok(None);
            }
            self.abort.check()?;
        }
        leaders.is_committing = true;
        if has_time {
            self.gather(&mut leaders, &self.commit_gathered, |leaders| {
                &mut leaders.commits
            });
        }
        let served = leaders.commits.begin();
        // The leader seals it.
        leaders.committing = self.current_epoch();
        // What ends with the lead is done under the lock.
        drop(leaders);
        let mut lead = Lead::of(self, LedJob::Commit);
        lead.served = Some(served);
        // Much may have failed meanwhile.
        self.abort.check()?;
        Ok(Some(lead))
    }

    /// Step 1, without the opening.
    fn seal(&self) -> SealedEpoch {
        let sealing = gauge::begin(Gauge::Seal);
        let (epoch, closed_at) = self.epochs.seal(&self.statistics);
        SealedEpoch {
            _sealing: sealing,
            epoch,
            closed_at,
            did: self.space.seal(epoch),
        }
    }

    fn open_next(&self, sealed: &SealedEpoch) {
        self.epochs.open(sealed.epoch);
        self.statistics
            .seal_pauses
            .add(sync::clock::now() - sealed.closed_at);
    }

    /// Steps 2 to 5, by the only leader; returns whether that took a flush. A failure aborts.
    fn write_epoch(
        &self,
        client: &dyn Client,
        sealed: &SealedEpoch,
        cause: CommitCause,
    ) -> Result<bool, JournalError> {
        let is_written = self
            .try_write_epoch(client, sealed)
            .map_err(|error| self.fail(error))?;
        self.statistics.causes[cause as usize].add(u64::from(is_written));
        Ok(is_written)
    }

    fn try_write_epoch(
        &self,
        client: &dyn Client,
        sealed: &SealedEpoch,
    ) -> Result<bool, JournalError> {
        // 2.
        let (epoch, promised) = (sealed.epoch, sealed.did.blocks);
        let has_fast_commits = client.end_fast_log(epoch);
        let forgotten: BTreeSet<FsBlock> = self.forgotten.take(epoch).into_iter().collect();
        let mut images = self.stage(client, epoch)?;
        images.retain(|(block, _)| !forgotten.contains(block));
        let revokes: Vec<FsBlock> = forgotten
            .iter()
            .copied()
            .filter(|block| self.table.has_copy(*block))
            .filter(|_| !canary::makes(Canary::RevokeLeftOut))
            .collect();
        if images.is_empty() && revokes.is_empty() {
            self.space.release(promised);
            client.committed(epoch);
            return Ok(false);
        }
        // 3 and 4.
        let Some(log) = &self.log else {
            self.write_without_log(&images)?;
            self.space.release(promised);
            client.committed(epoch);
            return Ok(true);
        };
        self.make_fit(log, images.len(), revokes.len())?;
        let transaction = Transaction {
            images: &images,
            revokes: &revokes,
            is_async: self.options.async_commit
                && !self.is_held()
                && revokes.is_empty()
                && !(self.options.is_ordered && sealed.did.maps_data),
            time: (self.clock)(),
            check: &|| self.abort.check(),
        };
        let logged = images.len() as u64;
        let freed: Vec<FsBlock> = forgotten.into_iter().collect();
        // One hold of the log for the transaction and its entry in the table: a checkpoint in between would find
        // nothing that needs the log, and declare it empty.
        let mut log = log.lock();
        let written = log.write(&transaction, self.statistics.of_log())?;
        self.table
            .committed(written.tid, written.start, written.blocks, images, &freed);
        drop(log);
        if has_fast_commits {
            self.wipe_fast()?;
        }
        self.abort.check()?;
        if let Some(fast) = &self.fast {
            fast.committed(written.tid.next());
        }
        self.table.wait_until_landed(&freed);
        self.statistics.commits.add(1);
        self.statistics.logged_blocks.add(logged);
        self.statistics.revokes.add(revokes.len() as u64);
        let unused = promised.checked_sub(written.blocks.into());
        // A transaction larger than its handles' promises may have overwritten the log's tail.
        assert!(
            unused.is_some(),
            "{} blocks were promised, {} written",
            promised,
            written.blocks
        );
        self.space.release(unused.unwrap_or(0));
        // 5.
        client.committed(epoch);
        Ok(true)
    }
}

/// An epoch that is closed and drained.
struct SealedEpoch {
    epoch: Epoch,
    closed_at: Instant,
    did: Sealed,
    /// Until it is durable.
    _sealing: Under,
}
