//! Why a journal accepts no more changes. The first cause is kept for good.

pub use jbd2::JournalError;
use sync::{Arc, OnceLock};

/// Why and when a journal was aborted.
#[derive(Clone, Debug)]
pub struct Aborted {
    /// The first cause.
    pub cause: Arc<str>,
    /// When the error was met, by the host's clock: seconds and nanoseconds since 1970.
    pub at: (i64, u32),
}

/// A function that is called with the first cause.
type Hook = dyn Fn(&Aborted) + Send + Sync;

/// Set once, at the first failure.
#[derive(Default)]
pub(crate) struct Abort {
    /// [set once]
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

    /// Calls `hook` with the first cause: when the journal is aborted, or now if it already is. If another thread
    /// aborts the journal at this moment, `hook` may be called twice.
    pub(crate) fn on_abort(&self, hook: Box<Hook>) {
        let hook = self.hook.get_or_init(|| hook);
        if let Some(first) = self.first.get() {
            hook(first);
        }
    }

    /// Aborts the journal, unless it is already aborted. Returns the error number to be written to the journal's
    /// superblock.
    pub(crate) fn because(&self, error: &JournalError) -> Option<u32> {
        let cause = match error {
            JournalError::Aborted(cause) => Arc::clone(cause),
            other => other.to_string().into(),
        };
        // An earlier cause stays on record; the caller of this function still returns its own error.
        let at = sync::clock::wall();
        let is_first = self.first.set(Aborted { cause, at }).is_ok();
        if is_first && let (Some(first), Some(hook)) = (self.first.get(), self.hook.get()) {
            hook(first);
        }
        error.on_record().filter(|_| is_first)
    }
}
