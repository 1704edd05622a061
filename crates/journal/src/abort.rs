//! Why a journal refuses to go on. The first cause is kept for good.

pub use jbd2::JournalError;
use sync::{Arc, OnceLock};

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

    /// Has an abort reported to `hook`, also one that happened already. An abort at this moment may be reported twice.
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
