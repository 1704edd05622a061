//! Corruption that is met while the file system is written to: on record in the superblock, as Linux keeps it, and what
//! follows from it (`errors=`).
//!
//! An error goes on the epoch's list under a handle, and the committer puts it into the superblock's image: count,
//! first and last. So the record is journaled like any other change. What a crash leaves: the record as of the last
//! commit.

use core::str::FromStr;

use journal::{Epoch, EpochLists, Folded, Handle, JournalError};
use ondisk::superblock::state;
use ondisk::{Corrupt, Superblock, Timestamp};
use sync::{Arc, Hint, OnceLock, Statistic};

use super::change_superblock;
use crate::core::Error;

/// What to do when the image turns out to be corrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnError {
    /// Put it on record and go on.
    Continue,
    /// Put it on record and change nothing more.
    ReadOnly,
    /// Put it on record and abort the journal: what Linux panics for.
    Abort,
}

impl FromStr for OnError {
    type Err = Error;

    /// As mount's `errors=`: `continue`, `remount-ro`, `panic`.
    fn from_str(word: &str) -> Result<OnError, Error> {
        match word {
            "continue" => Ok(OnError::Continue),
            "remount-ro" => Ok(OnError::ReadOnly),
            "panic" => Ok(OnError::Abort),
            _ => Err(Error::InvalidArgument),
        }
    }
}

impl OnError {
    /// The superblock's setting; Linux's default if it has none.
    pub(crate) fn of(superblock: &Superblock) -> OnError {
        match superblock.errors() {
            2 => OnError::ReadOnly,
            3 => OnError::Abort,
            _ => OnError::Continue,
        }
    }
}

/// An error for the record.
pub(crate) struct ErrorRecord {
    corrupt: Corrupt,
    /// Seconds since 1970.
    time: u64,
}

/// Why and when a file system stopped accepting changes.
#[derive(Clone, Debug)]
pub struct Stopped {
    /// The first cause, as one sentence.
    pub cause: Arc<str>,
    /// When it was met, by the host's clock.
    pub since: Timestamp,
}

impl From<&journal::Aborted> for Stopped {
    fn from(aborted: &journal::Aborted) -> Stopped {
        Stopped {
            cause: Arc::clone(&aborted.cause),
            since: at(aborted.at),
        }
    }
}

/// A time of the host's clock.
fn at((seconds, nanoseconds): (i64, u32)) -> Timestamp {
    Timestamp {
        seconds,
        nanoseconds,
    }
}

/// What is called when corruption stops all changes.
type StopHook = dyn Fn(&Stopped) + Send + Sync;

/// What was met so far.
pub(crate) struct Errors {
    /// [const after mount]
    policy: OnError,
    new: EpochLists<ErrorRecord>,
    /// Errors met since the mount. [atomic: Relaxed, a statistic]
    met: Statistic<u32>,
    /// Nothing is changed any more. [set once]
    is_read_only: Hint<bool>,
    /// Why nothing is changed any more, and since when. [set once]
    stopped: OnceLock<Stopped>,
    /// Called with that. [set once]
    hook: OnceLock<Box<StopHook>>,
}

/// The finder: where Linux writes a function's name.
const FINDER: &[u8] = b"lanefs";
/// Linux's number for a broken structure.
const CODE_CORRUPT: u8 = 5;

impl Errors {
    pub(crate) fn new(policy: OnError) -> Errors {
        Errors {
            policy,
            new: EpochLists::new(),
            met: Statistic::new(0),
            is_read_only: Hint::new(false),
            stopped: OnceLock::new(),
            hook: OnceLock::new(),
        }
    }

    /// What to do about errors.
    pub(crate) fn policy(&self) -> OnError {
        self.policy
    }

    /// Counts an error.
    pub(crate) fn meet(&self) {
        self.met.add(1);
    }

    /// Errors met since the mount.
    pub(crate) fn met(&self) -> u32 {
        self.met.get()
    }

    /// Puts an error on record in the handle's epoch. Uses one of the handle's blocks.
    pub(crate) fn record(&self, handle: &Handle<'_>, corrupt: Corrupt, time: u64) {
        handle.use_block();
        self.new.push(handle, ErrorRecord { corrupt, time });
    }

    /// Nothing is changed any more, for this cause.
    pub(crate) fn set_read_only(&self, cause: Corrupt) {
        // A thread that does not see it yet came first.
        self.is_read_only.set(true);
        let stopped = Stopped {
            cause: cause.to_string().into(),
            since: at(sync::clock::wall()),
        };
        if self.stopped.set(stopped).is_ok()
            && let (Some(stopped), Some(hook)) = (self.stopped.get(), self.hook.get())
        {
            hook(stopped);
        }
    }

    /// Why corruption stopped all changes.
    pub(crate) fn stopped(&self) -> Option<&Stopped> {
        self.stopped.get()
    }

    /// Has that reported, also where it happened already.
    pub(crate) fn on_stop(&self, hook: Box<StopHook>) {
        let hook = self.hook.get_or_init(|| hook);
        if let Some(stopped) = self.stopped.get() {
            hook(stopped);
        }
    }

    /// Whether nothing is changed any more.
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only.get()
    }

    /// Folds a sealed epoch's errors into the superblock's image.
    pub(crate) fn fold(
        &self,
        geometry: &ondisk::Geometry,
        sealed: Epoch,
        folded: &mut Folded<'_>,
    ) -> Result<(), JournalError> {
        let new = self.new.take(sealed);
        if new.is_empty() {
            return Ok(());
        }
        change_superblock(geometry, folded, |sb| {
            for error in &new {
                put(sb, error);
            }
        })
    }
}

fn put(sb: &mut Superblock, error: &ErrorRecord) {
    let (ino, block) = (error.corrupt.inode(), error.corrupt.block_number());
    let ino = ino.map_or(0, |ino| ino.0);
    let block = block.map_or(0, |block| block.0);
    let line = error.corrupt.site() as u32;
    sb.set_state(sb.state() | state::ERROR);
    if sb.error_count() == 0 {
        sb.set_first_error_time(error.time);
        sb.set_first_error_ino(ino);
        sb.set_first_error_block(block);
        sb.set_first_error_line(line);
        sb.set_first_error_function(FINDER);
        sb.set_first_error_code(CODE_CORRUPT);
    }
    sb.set_last_error_time(error.time);
    sb.set_last_error_ino(ino);
    sb.set_last_error_block(block);
    sb.set_last_error_line(line);
    sb.set_last_error_function(FINDER);
    sb.set_last_error_code(CODE_CORRUPT);
    sb.set_error_count(sb.error_count().saturating_add(1));
}
