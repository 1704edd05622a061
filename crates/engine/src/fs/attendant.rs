//! The thread that commits what nobody syncs: started only where [`crate::OpenOptions::commit_interval`] asks for it,
//! and joined before the file system is closed or dropped. It holds the inodes, and no lock of theirs.

use device::DeviceError;
use sync::Arc;
use sync::clock::Duration;
use sync::thread::{Builder, JoinHandle};

use crate::core::Error;
use crate::token::LiveFs;

/// The thread; dropping this ends it, after what it is doing.
pub(super) struct Attendant {
    live: Arc<LiveFs>,
    thread: Option<JoinHandle<()>>,
}

impl Attendant {
    /// Starts it.
    ///
    /// # Errors
    /// `Io` when the system gives no thread.
    pub(super) fn start(live: &Arc<LiveFs>, interval: Duration) -> Result<Attendant, Error> {
        let lent = Arc::clone(live);
        let work = move || {
            lent.writing().journal.attend(&*lent, interval);
        };
        let thread = Builder::new().name("lanefs-commit".to_owned()).spawn(work);
        let thread = thread.map_err(|source| {
            Error::Io(DeviceError::Io {
                operation: "starting a thread for commits",
                offset: 0,
                len: 0,
                source,
            })
        })?;
        Ok(Attendant {
            live: Arc::clone(live),
            thread: Some(thread),
        })
    }
}

impl Drop for Attendant {
    fn drop(&mut self) {
        let journal = &self.live.writing().journal;
        // While the file system is frozen, the thread may wait for its thaw.
        journal.thaw();
        journal.dismiss();
        if let Some(thread) = self.thread.take() {
            // A panic of it was reported, and has aborted the journal.
            let _ = thread.join();
        }
    }
}
