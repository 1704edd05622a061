//! A mounted image: from an open file system to a directory of the host, and back to a closed one.
//!
//! Threads: as many as [`Options::threads`] says, each with its own channel where the system allows it, and those that
//! wait for the disk in their place. All end before the file system is closed and [`Mounted::serve`] returns. A crash
//! leaves what a crash of the file system leaves: everything up to some moment, nothing synced lost; how much was not
//! synced is up to [`lanefs::MountOptions::commit_interval`].

use std::io;
use std::path::Path;

use lanefs::{Fs, Stopped};
use sync::{Arc, thread};

use crate::connect::{self, Access, MountError, Unmounter};
use crate::protocol::Protocol;
use crate::protocol::convert::node;
use crate::volume::Volume;
use crate::waiters::Waiters;

/// How to mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the host's list of mounts shows as the source: the image's path.
    pub source: String,
    /// What is allowed to whom.
    pub access: Access,
    /// Threads that answer requests, at least one. When half of several are in an fsync, more threads are started for
    /// what else is to be synced.
    pub threads: usize,
}

/// The fewest threads by default: while some wait for the disk, others answer.
const THREADS_MIN: usize = 4;
/// The most threads by default.
const THREADS_MAX: usize = 16;

impl Default for Options {
    fn default() -> Options {
        Options {
            source: "lanefs".into(),
            access: Access::default(),
            threads: thread::available_parallelism().clamp(THREADS_MIN, THREADS_MAX),
        }
    }
}

/// An image at a directory, ready to be served.
pub struct Mounted {
    session: fuser::Session<Protocol<Volume>>,
    volume: Arc<Volume>,
    waiters: Arc<Waiters>,
    unmounter: Unmounter,
}

/// Puts a file system at a directory. When this returns the kernel knows it, and waits for [`Mounted::serve`].
///
/// # Errors
/// `MountError` says what the system refused; the file system is closed then.
pub fn mount(fs: Fs, directory: &Path, options: &Options) -> Result<Mounted, MountError> {
    let is_writable = !options.access.read_only;
    let connection = match connect::connect(&options.source, directory, &options.access) {
        Ok(connection) => connection,
        Err(error) => {
            // What matters is why it failed; an image that can't be closed is replayed when it is opened next.
            let _ = fs.close();
            return Err(error);
        }
    };
    let volume = Arc::new(Volume::new(fs, is_writable));
    let mut config = fuser::Config::default();
    let threads = options.threads.max(1);
    config.n_threads = Some(threads);
    config.clone_fd = connect::can_clone();
    // Whom the kernel lets through is let in.
    let everyone = fuser::SessionACL::All;
    let waiters = Arc::new(Waiters::new(threads));
    let with_acls = options.access.default_permissions;
    let protocol = Protocol::new(Arc::clone(&volume), Arc::clone(&waiters), with_acls);
    let unmounter = connection.unmounter;
    match fuser::Session::from_fd(protocol, connection.device, everyone, config) {
        Ok(session) => {
            let notifier = session.notifier();
            volume.tell_of_stale(move |ino| {
                // Only attributes, so that nothing waits; an inode that the kernel does not know is not stale.
                let _ = notifier.inval_inode(node(ino), -1, 0);
            });
            Ok(Mounted {
                session,
                volume,
                waiters,
                unmounter,
            })
        }
        Err(error) => {
            // As above; the session and its share of the volume are gone.
            let _ = unmounter.detach();
            let _ = Arc::into_inner(volume).map(|volume| volume.into_fs().close());
            Err(MountError::Connection(error))
        }
    }
}

impl Mounted {
    /// What unmounts it, also while it is served.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Has it reported when the mount stops accepting changes, by the thread that meets the cause: the hook takes no
    /// lock and waits for nothing. It may be called more than once.
    pub fn on_stop(&self, hook: impl Fn(&Stopped) + Send + Sync + 'static) {
        self.volume.on_stop(hook);
    }

    /// Answers the kernel until the directory is unmounted; then deletes what has no names any more and closes the file
    /// system.
    ///
    /// # Errors
    /// When the connection broke, a request panicked, or closing failed: then the image's journal is replayed when it
    /// is opened next.
    pub fn serve(self) -> Result<(), ServeError> {
        let Mounted {
            session,
            volume,
            waiters,
            ..
        } = self;
        let served = session.run().or_else(ended);
        // Also when the connection was cut while they waited.
        let has_panicked = waiters.end();
        // All threads that had it have ended.
        let volume = Arc::into_inner(volume).ok_or(ServeError::StillUsed)?;
        let fs = volume.into_fs();
        let closed = fs.close();
        served.map_err(ServeError::Connection)?;
        closed?;
        match has_panicked {
            true => Err(ServeError::Panicked),
            false => Ok(()),
        }
    }
}

/// What serving came to: a connection that is ended while a request is being read says that to who reads, and to others
/// that there is none any more.
fn ended(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::ConnectionAborted => Ok(()),
        _ => Err(error),
    }
}

/// Why serving a mount did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The connection to the kernel broke; the image was closed.
    #[error("the connection to the kernel failed: {0}")]
    Connection(io::Error),
    /// The image could not be closed.
    #[error("closing the image failed: {0}")]
    Close(#[from] lanefs::Error),
    /// A thread that was to wait for the disk panicked; the image was closed.
    #[error("a request that waited for the disk ended in a panic")]
    Panicked,
    /// A thread did not end.
    #[error("a request is still under way, so the image was not closed")]
    StillUsed,
}
