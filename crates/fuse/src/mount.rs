//! A mounted image: from an open file system to a directory of the host, and back to a closed one.
//!
//! Threads: [`Options::threads`] workers, each with its own channel to the kernel where the system allows it, and
//! threads that wait for the disk in their place. All end before the file system is closed and [`Mounted::serve`]
//! returns. A crash leaves what a crash of the file system leaves: everything up to some moment, nothing synced lost;
//! how much was not synced is up to [`lanefs::MountOptions::commit_interval`].

use std::io;
use std::path::Path;

use lanefs::{Fs, Stopped};
use sync::clock::Duration;
use sync::{Arc, thread};

use crate::abi::init;
use crate::classic::{self, Device};
use crate::connect::{self, Access, BlockDevice, Connection, MountError, Synced, Unmounter};
use crate::idle::Idle;
use crate::session::{Image, Session};
use crate::volume::{Agreed, Volume};

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
    /// Whether the kernel is to have a block device for the mount.
    pub block_device: BlockDevice,
    /// Where sync(1) does not reach the mount, commit when nothing has changed for a moment.
    pub idle_commits: bool,
    /// How long an unmount that waits for the image to be closed may take.
    pub destroy_timeout: Duration,
    /// Have the kernel open and close files without asking: two messages fewer for each, but what the flags of an open
    /// file decide is not known then.
    pub no_open: bool,
}

/// The fewest threads by default: while some wait for the disk, others answer.
const THREADS_MIN: usize = 4;
/// The most threads by default.
const THREADS_MAX: usize = 16;
/// How long an unmount waits for the image to be closed, by default.
const DESTROY_TIMEOUT: Duration = Duration::from_secs(30);

impl Default for Options {
    fn default() -> Options {
        Options {
            source: "lanefs".into(),
            access: Access::default(),
            threads: thread::available_parallelism().clamp(THREADS_MIN, THREADS_MAX),
            block_device: BlockDevice::default(),
            idle_commits: true,
            destroy_timeout: DESTROY_TIMEOUT,
            no_open: false,
        }
    }
}

/// An image at a directory, ready to be served.
pub struct Mounted {
    session: Arc<dyn Serves>,
    /// One a worker.
    channels: Vec<Arc<Device>>,
    unmounter: Unmounter,
    synced: Synced,
}

/// A session, whatever it serves.
trait Serves: Send + Sync {
    fn on_stop(&self, hook: Box<dyn Fn(&Stopped) + Send + Sync>);
    fn start(self: Arc<Self>, number: usize, channel: Arc<Device>) -> io::Result<()>;
    fn commit_when_idle(self: Arc<Self>);
    fn end(&self) -> Result<(), ServeError>;
}

impl<I: Image> Serves for Session<I> {
    fn on_stop(&self, hook: Box<dyn Fn(&Stopped) + Send + Sync>) {
        Session::on_stop(self, hook);
    }

    fn start(self: Arc<Self>, number: usize, channel: Arc<Device>) -> io::Result<()> {
        Session::start(&self, number, move |session| {
            classic::work(session, number, &channel)
        })
    }

    fn commit_when_idle(self: Arc<Self>) {
        Session::commit_when_idle(&self);
    }

    fn end(&self) -> Result<(), ServeError> {
        Session::end(self)
    }
}

/// A directory that has a connection to the kernel, on which both have agreed, and nothing yet that serves it.
pub(crate) struct Linked {
    channels: Vec<Arc<Device>>,
    unmounter: Unmounter,
    synced: Synced,
    /// What the kernel offered.
    offered: u64,
}

impl Linked {
    /// Mounts, and agrees with the kernel.
    pub(crate) fn new(directory: &Path, options: &Options) -> Result<Linked, MountError> {
        let Connection {
            device,
            unmounter,
            synced,
        } = connect::connect(
            &options.source,
            directory,
            &options.access,
            options.block_device,
        )?;
        let device = Device::new(device);
        // The kernel asks ACLs, and leaves the umask to them, where it is to hold users to their permissions.
        let offered = match device.shake_hands(options.access.default_permissions) {
            Ok(offered) => offered,
            Err(error) => {
                // An unmount waits for the server as long as that has a connection.
                drop(device);
                let _ = unmounter.detach();
                return Err(MountError::Connection(error));
            }
        };
        let channels = device.channels(options.threads.max(1), connect::open_device);
        Ok(Linked {
            channels,
            unmounter,
            synced,
            offered,
        })
    }

    /// What was agreed on, as far as operations depend on it.
    pub(crate) fn agreed(&self, options: &Options) -> Agreed {
        let is_offered = |flag| self.offered & flag != 0;
        Agreed {
            takes_privileges: is_offered(init::HANDLE_KILLPRIV_V2),
            no_open: options.no_open && is_offered(init::NO_OPEN_SUPPORT),
            no_open_dir: is_offered(init::NO_OPENDIR_SUPPORT),
        }
    }

    /// The directory with what serves it.
    pub(crate) fn mounted(
        self,
        image: impl Image,
        options: &Options,
        idle: Option<Arc<Idle>>,
    ) -> Mounted {
        let workers = self.channels.len();
        Mounted {
            session: Arc::new(Session::new(image, workers, options.destroy_timeout, idle)),
            channels: self.channels,
            unmounter: self.unmounter,
            synced: self.synced,
        }
    }
}

/// Puts a file system at a directory. When this returns the kernel knows it, and waits for [`Mounted::serve`].
///
/// # Errors
/// `MountError` says what the system refused; the file system is closed then.
pub fn mount(fs: Fs, directory: &Path, options: &Options) -> Result<Mounted, MountError> {
    let linked = match Linked::new(directory, options) {
        Ok(linked) => linked,
        Err(error) => {
            // What matters is why it failed; an image that can't be closed is replayed when it is opened next.
            let _ = fs.close();
            return Err(error);
        }
    };
    let is_writable = !options.access.read_only;
    let is_idle_committed = is_writable && options.idle_commits && linked.synced != Synced::All;
    let idle = is_idle_committed.then(|| Arc::new(Idle::new()));
    let (synced, agreed) = (linked.synced.clone(), linked.agreed(options));
    let volume = Volume::new(fs, is_writable, synced, idle.clone(), agreed);
    if let Some(channel) = linked.channels.first() {
        let channel = Arc::clone(channel);
        volume
            .stale()
            .tell_by(move |ino, old| channel.invalidate(ino, &old));
    }
    Ok(linked.mounted(volume, options, idle))
}

impl Mounted {
    /// What unmounts it, also while it is served.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// What makes changes durable on it.
    #[must_use]
    pub fn synced(&self) -> &Synced {
        &self.synced
    }

    /// Takes a mount that was never served away from its directory; the image stays as it is.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn abandon(self) -> Result<(), MountError> {
        let Mounted {
            session,
            channels,
            unmounter,
            ..
        } = self;
        // An unmount waits for the server as long as that has a connection.
        drop((session, channels));
        unmounter.detach()
    }

    /// Has it reported when the mount stops accepting changes, by the thread that meets the cause: the hook takes no
    /// lock and waits for nothing. It may be called more than once.
    pub fn on_stop(&self, hook: impl Fn(&Stopped) + Send + Sync + 'static) {
        self.session.on_stop(Box::new(hook));
    }

    /// Answers the kernel until the directory is unmounted; then deletes what has no names any more and closes the file
    /// system.
    ///
    /// # Errors
    /// When the connection broke, a request panicked, or closing failed: then the image's journal is replayed when it
    /// is opened next. After `NotClosed` the process must end: threads of it may still wait for the image's device.
    pub fn serve(self) -> Result<(), ServeError> {
        let Mounted {
            session, channels, ..
        } = self;
        let mut refused = None;
        let mut started = 0;
        for (number, channel) in channels.into_iter().enumerate() {
            match Arc::clone(&session).start(number, channel) {
                Ok(()) => started += 1,
                Err(error) => refused = Some(error),
            }
        }
        // One worker is enough to serve, as with `threads=1`.
        let refused = refused.filter(|_| started == 0);
        Arc::clone(&session).commit_when_idle();
        let ended = session.end();
        refused.map_or(ended, |error| Err(ServeError::Connection(error)))
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
    /// A request panicked; the image was closed.
    #[error("a request ended in a panic")]
    Panicked,
    /// A thread did not end.
    #[error("a request is still under way, so the image was not closed")]
    StillUsed,
    /// The image's device did not answer while an unmount waited.
    #[error("the image's device did not answer within {} s, so the image was not closed", .0.as_secs())]
    NotClosed(Duration),
}
