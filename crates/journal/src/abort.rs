//! Why a journal refuses to go on. The first cause is kept for good.

use device::DeviceError;
use ondisk::Corrupt;
use sync::{Arc, OnceLock};

/// An error of the journal.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The device failed; the journal is aborted if it was open.
    #[error("the journal's device failed: {0}")]
    Device(Arc<DeviceError>),
    /// The journal on disk is not one that can be written to.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The journal's superblock is of the first format, which has no features.
    #[error("the journal is of jbd's first format, which nothing has made for twenty years")]
    OldFormat,
    /// The log holds transactions that must be replayed before anything is written.
    #[error("the journal has not been replayed")]
    NotReplayed,
    /// The journal was aborted before; this is why.
    #[error("the journal was aborted: {0}")]
    Aborted(Arc<str>),
    /// One step wants more of the log than a transaction may have.
    #[error("a step wants {wanted} blocks of the log; a transaction has {most}")]
    TooLarge {
        /// Blocks that the step may change, with what they need around them.
        wanted: u32,
        /// Blocks of the largest transaction.
        most: u32,
    },
    /// A commit was needed while commits are held back.
    #[error("it does not fit one transaction, or needs space that it frees itself")]
    Held,
    /// The journal has no room for an area for fast commits beside the log.
    #[error(
        "the journal has {blocks} blocks; with an area for fast commits it needs {needed} (tune2fs makes a longer one)"
    )]
    TooShort {
        /// Blocks that it has.
        blocks: u32,
        /// Blocks that it should have at least.
        needed: u32,
    },
    /// What needs a log was asked of a file system without a journal.
    #[error("the file system has no journal")]
    NoLog,
}

impl From<DeviceError> for JournalError {
    fn from(error: DeviceError) -> JournalError {
        JournalError::Device(Arc::new(error))
    }
}

impl JournalError {
    /// What the journal's superblock says of an abort for this, as Linux's error numbers: `EIO`, `EFSCORRUPTED`.
    /// `None` where the fault is not the image's or the device's.
    fn on_record(&self) -> Option<u32> {
        match self {
            JournalError::Device(_) | JournalError::Aborted(_) => Some(5),
            JournalError::Corrupt(_) => Some(117),
            _ => None,
        }
    }
}

/// Why and when a journal was aborted.
#[derive(Clone, Debug)]
pub struct Aborted {
    /// The first cause.
    pub cause: Arc<str>,
    /// When it was met, by the host's clock: seconds and nanoseconds since 1970.
    pub at: (i64, u32),
}

/// What is called with the first cause.
type Hook = dyn Fn(&Aborted) + Send + Sync;

/// Set once, at the first failure.
#[derive(Default)]
pub(crate) struct Abort {
    first: OnceLock<Aborted>,
    /// Called once, by the thread that aborts. [set once]
    hook: OnceLock<Box<Hook>>,
}

impl Abort {
    /// Fails if the journal is aborted.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), JournalError> {
        match self.first.get() {
            Some(first) => Err(JournalError::Aborted(Arc::clone(&first.cause))),
            None => Ok(()),
        }
    }

    pub(crate) fn first(&self) -> Option<&Aborted> {
        self.first.get()
    }

    /// Has an abort reported; also one that happened already. An abort at this moment may be reported twice.
    pub(crate) fn on_abort(&self, hook: Box<Hook>) {
        let hook = self.hook.get_or_init(|| hook);
        if let Some(first) = self.first.get() {
            hook(first);
        }
    }

    /// Aborts, unless that happened before; gives the number that the journal's superblock is to say then.
    pub(crate) fn because(&self, error: &JournalError) -> Option<u32> {
        let cause = match error {
            JournalError::Aborted(cause) => Arc::clone(cause),
            other => other.to_string().into(),
        };
        // An earlier cause stays; the caller that met this error still gets it.
        let at = sync::clock::wall();
        let is_first = self.first.set(Aborted { cause, at }).is_ok();
        if is_first && let (Some(first), Some(hook)) = (self.first.get(), self.hook.get()) {
            hook(first);
        }
        error.on_record().filter(|_| is_first)
    }
}
