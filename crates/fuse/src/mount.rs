//! A mounted image: from an open file system to a directory of the host, and back to a closed one.
//!
//! Threads: with io_uring one worker for each CPU, else [`Options::threads`] workers, each with its own channel to the
//! kernel if the system allows that. Further threads wait for the disk, so that workers need not. All end before the
//! file system is closed and [`Mounted::serve`] returns.
//!
//! What a crash leaves: the file system as it was at some moment, with every synced change. The changes after that
//! moment are lost: those of [`lanefs::MountOptions::commit_interval`] at most.

use std::path::Path;

use lanefs::{FileDevice, Fs, Stopped};
use sync::clock::Duration;
use sync::{Arc, thread};

use crate::abi::init;
use crate::bdi;
use crate::callers;
use crate::classic::{self, FuseDevice};
use crate::connect::{self, Access, Connection, Fuseblk, MountError, Synced, Unmounter};
use crate::idle::Idle;
use crate::operations::BoxedFs;
use crate::readers::Readers;
use crate::serve::Wanted;
use crate::session::{ServeError, Session};
use crate::tuning::Reports;
use crate::uring::{self, QueueGate, QueueSizes, RefusedQueue};
use crate::volume::{Agreed, MountedImage};
use crate::waiters::Waiters;

/// How to mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the host's list of mounts shows as the source: the image's path.
    pub source: String,
    /// What is allowed to which users.
    pub access: Access,
    /// Threads that answer requests, at least one. When half of several are in an fsync, more threads are started for
    /// further fsyncs. With io_uring each CPU has one thread instead.
    pub threads: usize,
    /// Whether requests are taken over io_uring.
    pub io_uring: IoUring,
    /// Whether a thread looks for the next request for a moment before it sleeps. Ignored with io_uring.
    pub poll: Polling,
    /// Whether the kernel is to have a block device for the mount.
    pub block_device: Fuseblk,
    /// The open image, if it is written to: a block device is then itself the mount's source. Its claim passes to the
    /// mount.
    pub image: Option<Arc<FileDevice>>,
    /// Where sync(1) does not reach the mount, commit when nothing has changed for a moment.
    pub idle_commits: bool,
    /// How long an unmount that waits for the image to be closed may take.
    pub destroy_timeout: Duration,
    /// Have the kernel open and close files without asking: two messages fewer for each, but what the flags of an open
    /// file decide is not known then. Ignored with `writeback_cache`.
    pub no_open: bool,
    /// Have the kernel keep what programs write, and write it later: then only fsync makes it durable. Ignored if the
    /// mount is read-only.
    pub writeback_cache: bool,
    /// What the mount reports of its other options, by name: see `lanefs tune`.
    pub shown: Vec<(&'static str, String)>,
}

impl Options {
    fn keeps_writes(&self) -> bool {
        self.writeback_cache && !self.access.read_only
    }
}

/// Whether requests are taken over io_uring (Linux 6.14) instead of `/dev/fuse`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IoUring {
    /// If the kernel supports it.
    Auto,
    /// Yes; without the kernel's support the mount is refused.
    On,
    /// No.
    #[default]
    Off,
}

/// Whether a thread that answered a request looks for the next one for a while (*polls*) before it sleeps.
///
/// A thread polls only while one client sends many requests, each of which would otherwise wake the thread. Polling
/// takes at most 2 us of processor time more for each request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Polling {
    /// For up to 50 us, unless the process may use only one core, or has a CPU quota of fewer cores than it may run on.
    #[default]
    Auto,
    /// Never.
    Off,
    /// For up to this time.
    Most(Duration),
}

/// Why sync(1) promises nothing with the writeback cache. It does reach a mount that has a block device, but Linux does
/// not wait there until it has written what it keeps of FUSE's files (commit 76f9377cd2ab).
const KEPT: &str =
    "writeback_cache is on, and sync(1) does not wait for what the kernel keeps of files";
/// Why a kernel with io_uring gives a FUSE server no queues.
const NOT_OFFERED: &str = "the kernel does not offer it";
/// The longest poll of [`Polling::Auto`].
const POLL_MOST: Duration = Duration::from_micros(50);

impl Polling {
    /// The longest poll; zero for none.
    fn window(self) -> Duration {
        match self {
            Polling::Off => Duration::ZERO,
            Polling::Most(time) => time,
            Polling::Auto => {
                // `available_parallelism` respects the CPU quota of the control group, `sched_getaffinity` does not.
                let usable = thread::available_parallelism();
                let cores = rustix::thread::sched_getaffinity(None);
                let cores = cores.map_or(0, |cores| cores.count() as usize);
                if usable > 1 && usable >= cores {
                    POLL_MOST
                } else {
                    Duration::ZERO
                }
            }
        }
    }
}

/// The fewest threads by default, also on fewer cores: a read that is not in the host's memory waits for the disk in
/// its thread. On two cores, 8 clients that read pages from the disk get 14,000 reads a second with 4 threads, 7,000
/// with 2. With requests that do not wait, the further threads cost nothing that could be measured: while one client is
/// active, one thread reads (see `readers`).
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
            io_uring: IoUring::default(),
            poll: Polling::default(),
            block_device: Fuseblk::default(),
            image: None,
            idle_commits: true,
            destroy_timeout: DESTROY_TIMEOUT,
            no_open: false,
            writeback_cache: false,
            shown: Vec::new(),
        }
    }
}

/// An image at a directory, ready to be served.
pub struct Mounted {
    session: Arc<Session>,
    transport: Transport,
    unmounter: Unmounter,
    synced: Synced,
    /// The transport and its threads, in words.
    served_by: [(&'static str, String); 3],
    /// Why requests don't come over io_uring, if they should where possible.
    no_ring: Option<String>,
}

/// Where the kernel's requests come from.
enum Transport {
    /// `/dev/fuse`: a channel for each worker, and the readers that they share.
    Classic(Vec<Arc<FuseDevice>>, Arc<Readers>),
    /// io_uring.
    Rings(Queues),
}

/// The queues of a mount, registered with the kernel. Their threads wait for the order to serve; dropping this without
/// the order ends them.
struct Queues(Arc<QueueGate>);

impl Queues {
    fn start(
        session: &Arc<Session>,
        device: &Arc<FuseDevice>,
        sizes: QueueSizes,
    ) -> Result<Queues, RefusedQueue> {
        let queues = Queues(Arc::new(QueueGate::new()));
        for number in 0..sizes.queues {
            let (device, gate) = (Arc::clone(device), Arc::clone(&queues.0));
            session.start(number, move |session| {
                uring::work(session, number, &device, sizes, &gate)
            })?;
        }
        queues.0.await_ready(sizes.queues)?;
        Ok(queues)
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        self.0.order(false);
    }
}

/// The queues that a mount should have; or why it has none, if it should ask for them.
type WantedQueues = Result<QueueSizes, Option<String>>;

/// The number and size of the queues that this mount should have.
///
/// # Errors
/// `NoRing` if io_uring was required and the system has none.
fn wanted_sizes(wanted: IoUring) -> Result<WantedQueues, MountError> {
    if wanted == IoUring::Off {
        return Ok(Err(None));
    }
    let cpus = uring::is_there().and_then(|()| uring::possible_cpus());
    let sizes = cpus.map_err(|error| error.to_string()).and_then(|cpus| {
        QueueSizes::new(cpus).ok_or_else(|| format!("{cpus} CPUs would take too much memory"))
    });
    match (sizes, wanted) {
        (Err(why), IoUring::On) => Err(MountError::NoRing(why)),
        (sizes, _) => Ok(sizes.map_err(Some)),
    }
}

/// A mounted directory whose connection has been negotiated (INIT), but which nothing serves yet.
pub(crate) struct Linked {
    device: Arc<FuseDevice>,
    unmounter: Unmounter,
    synced: Synced,
    /// The flags that the kernel offered.
    offered: u64,
    /// Whether the kernel was asked to let users be mapped.
    may_map: bool,
    /// The queues to be registered, if requests come over io_uring.
    sizes: WantedQueues,
}

impl Linked {
    /// Mounts, and negotiates with the kernel.
    pub(crate) fn new(directory: &Path, options: &Options) -> Result<Linked, MountError> {
        let sizes = wanted_sizes(options.io_uring)?;
        let connection = connect::connect(
            &options.source,
            directory,
            &options.access,
            options.block_device,
            options.image.as_deref(),
        )?;
        Linked::agree(connection, sizes, options)
    }

    /// Negotiates with the kernel.
    fn agree(
        connection: Connection,
        sizes: WantedQueues,
        options: &Options,
    ) -> Result<Linked, MountError> {
        let Connection {
            device,
            unmounter,
            synced,
        } = connection;
        let device = Arc::new(FuseDevice::new(device));
        let wanted = Wanted {
            // With `default_permissions` the kernel checks ACLs, and leaves the umask to them. Without it the kernel
            // ends a connection that allows users to be mapped.
            checks: options.access.default_permissions,
            // Requests then do not have the caller's user, so `/proc` must.
            maps_ids: options.access.default_permissions && callers::knows_processes(),
            writeback: options.keeps_writes(),
            // At most 256 KiB.
            ring_io: sizes.as_ref().ok().map(|sizes| sizes.payload as u32),
        };
        let offered = device.shake_hands(wanted);
        let is_offered = matches!(offered, Ok(offered) if offered & init::OVER_IO_URING != 0);
        let offered = match offered {
            Ok(_) if !is_offered && options.io_uring == IoUring::On => {
                Err(MountError::NoRing(NOT_OFFERED.into()))
            }
            offered => offered.map_err(MountError::Connection),
        };
        let offered = match offered {
            Ok(offered) => offered,
            Err(error) => {
                // While the connection is open, an unmount would wait for this server.
                drop(device);
                let _ = unmounter.detach();
                return Err(error);
            }
        };
        if let Some(number) = unmounter.connection() {
            bdi::widen(number);
        }
        Ok(Linked {
            device,
            unmounter,
            synced,
            offered,
            may_map: wanted.maps_ids,
            sizes: match sizes {
                Ok(_) if !is_offered => Err(Some(NOT_OFFERED.into())),
                sizes => sizes,
            },
        })
    }

    /// What was negotiated, as far as operations depend on it.
    pub(crate) fn agreed(&self, options: &Options) -> Agreed {
        let is_offered = |flag| self.offered & flag != 0;
        Agreed {
            takes_privileges: is_offered(init::HANDLE_KILLPRIV_V2),
            // With the writeback cache it matters when files are closed.
            no_open: options.no_open
                && !options.keeps_writes()
                && is_offered(init::NO_OPEN_SUPPORT),
            no_open_dir: is_offered(init::NO_OPENDIR_SUPPORT),
            maps_ids: self.may_map && is_offered(init::ALLOW_IDMAP),
            checks_acls: options.access.default_permissions
                && is_offered(init::POSIX_ACL)
                && is_offered(init::SETXATTR_EXT),
            writeback: options.keeps_writes() && is_offered(init::WRITEBACK_CACHE),
        }
    }

    /// Starts the threads that serve the directory.
    pub(crate) fn mounted(
        self,
        mut image: BoxedFs,
        options: &Options,
        idle: Option<Arc<Idle>>,
    ) -> Result<Mounted, MountError> {
        let session = |image, workers, waiters| {
            let idle = idle.clone();
            Arc::new(Session::new(
                image,
                workers,
                waiters,
                options.destroy_timeout,
                idle,
            ))
        };
        let mut no_ring = self.sizes.as_ref().err().cloned().flatten();
        if let Ok(sizes) = self.sizes {
            let waiters = Waiters::for_queues(sizes.entries());
            let session = session(image, sizes.queues, waiters);
            let refused = match Queues::start(&session, &self.device, sizes) {
                Ok(queues) => {
                    return Ok(Mounted {
                        session,
                        transport: Transport::Rings(queues),
                        unmounter: self.unmounter,
                        synced: self.synced,
                        served_by: described("io_uring".into(), sizes.queues, Duration::ZERO),
                        no_ring: None,
                    });
                }
                Err(refused) => refused,
            };
            image = match session.dissolve() {
                Some(image) if !refused.is_final && options.io_uring == IoUring::Auto => {
                    no_ring = Some(refused.error.to_string());
                    image
                }
                image => {
                    // The first error is reported, not one of closing the image.
                    let _ = image.map(|image| image.close_image());
                    drop((session, self.device));
                    let _ = self.unmounter.detach();
                    return Err(MountError::NoRing(refused.error.to_string()));
                }
            };
        }
        let workers = options.threads.max(1);
        let channels = FuseDevice::channels(self.device, workers, connect::open_device);
        // Polling changes whether reads of a channel wait, so no two workers may share one.
        let are_own = channels[1..]
            .iter()
            .all(|one| !Arc::ptr_eq(one, &channels[0]));
        let window = if are_own {
            options.poll.window()
        } else {
            Duration::ZERO
        };
        let readers = Readers::new(window, Arc::clone(image.messages()));
        let transport = match &no_ring {
            Some(why) => format!("{} (no io_uring: {why})", connect::DEVICE),
            None => connect::DEVICE.to_owned(),
        };
        Ok(Mounted {
            session: session(image, workers, Waiters::new(workers)),
            transport: Transport::Classic(channels, Arc::new(readers)),
            unmounter: self.unmounter,
            synced: self.synced,
            served_by: described(transport, workers, window),
            no_ring,
        })
    }
}

/// The transport and its threads, as a mount reports them.
fn described(transport: String, workers: usize, window: Duration) -> [(&'static str, String); 3] {
    let poll = if window.is_zero() {
        "off".to_owned()
    } else {
        format!("up to {} us", window.as_micros())
    };
    [
        ("transport", transport),
        ("threads", workers.to_string()),
        ("poll", poll),
    ]
}

/// Puts a file system at a directory. When this returns the kernel knows it, and waits for [`Mounted::serve`].
///
/// # Errors
/// `MountError` says what the system refused; the file system is closed then.
pub fn mount(fs: Fs, directory: &Path, options: &Options) -> Result<Mounted, MountError> {
    let mut linked = match Linked::new(directory, options) {
        Ok(linked) => linked,
        Err(error) => {
            // The reason of the failure matters; an image that can't be closed is replayed when it is opened next.
            let _ = fs.close();
            return Err(error);
        }
    };
    let is_writable = !options.access.read_only;
    let is_idle_committed = is_writable && options.idle_commits && linked.synced != Synced::All;
    let idle = is_idle_committed.then(|| Arc::new(Idle::new()));
    let agreed = linked.agreed(options);
    if agreed.writeback {
        linked.synced = Synced::FsyncOnly(KEPT.into());
    }
    let synced = linked.synced.clone();
    let reports = Reports::from(synced);
    let shown = Arc::clone(&reports.options);
    let volume = MountedImage::new(fs, is_writable, reports, idle.clone(), agreed);
    let device = Arc::clone(&linked.device);
    volume
        .stale()
        .tell_by(move |ino, old| device.invalidate(ino, &old));
    let mounted = linked.mounted(Box::new(volume), options, idle)?;
    let idle_commit = ("idle_commit", "100 ms after the last change".to_owned());
    let idle_commit = is_idle_committed.then_some(&idle_commit);
    let lines = mounted
        .served_by
        .iter()
        .chain(&options.shown)
        .chain(idle_commit);
    let lines = lines.map(|(name, value)| format!("{name}={value}\n"));
    // Nothing else sets it.
    let _ = shown.set(lines.collect());
    Ok(mounted)
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

    /// Why requests come over `/dev/fuse`, if [`IoUring::Auto`] was asked for and io_uring can't be used.
    #[must_use]
    pub fn why_no_ring(&self) -> Option<&str> {
        self.no_ring.as_deref()
    }

    /// Takes a mount that was never served away from its directory; the image stays as it is.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn abandon(self) -> Result<(), MountError> {
        let Mounted {
            session,
            transport,
            unmounter,
            ..
        } = self;
        // An unmount waits for the server as long as that has a connection.
        drop(transport);
        if let Some(image) = session.dissolve() {
            image.abandon();
        }
        drop(session);
        unmounter.detach()
    }

    /// Has it reported when the mount stops accepting changes, by the thread that meets the cause: the hook takes no
    /// lock and waits for nothing. It may be called more than once.
    pub fn on_stop(&self, hook: impl Fn(&Stopped) + Send + Sync + 'static) {
        self.session.on_stop(hook);
    }

    /// Answers the kernel until the directory is unmounted; then deletes what has no names any more and closes the file
    /// system.
    ///
    /// # Errors
    /// When the connection broke, a request panicked, or closing failed: then the image's journal is replayed when it
    /// is opened next. After `NotClosed` the process must end: threads of it may still wait for the image's device.
    pub fn serve(self) -> Result<(), ServeError> {
        let Mounted {
            session, transport, ..
        } = self;
        let (channels, readers) = match transport {
            Transport::Classic(channels, readers) => (channels, readers),
            Transport::Rings(queues) => {
                queues.0.order(true);
                session.commit_when_idle();
                return session.end();
            }
        };
        let mut refused = None;
        let mut started = 0;
        for (number, channel) in channels.into_iter().enumerate() {
            let readers = Arc::clone(&readers);
            let worker = session.start(number, move |session| {
                classic::work(session, number, &channel, &readers)
            });
            match worker {
                Ok(()) => started += 1,
                Err(error) => refused = Some(error),
            }
        }
        // One worker is enough to serve, as with `threads=1`.
        let refused = refused.filter(|_| started == 0);
        session.commit_when_idle();
        let ended = session.end();
        refused.map_or(ended, |error| Err(ServeError::Connection(error)))
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FlockOperation, flock};

    use super::*;
    use crate::null::{Null, NullTree};

    /// The kernel's parameter that turns FUSE over io_uring on.
    const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

    fn set(value: &str) {
        std::fs::write(PARAMETER, value).unwrap();
    }

    /// Mounts while the kernel offers io_uring, and withdraws the offer before the server answers INIT: then the kernel
    /// refuses the queues.
    fn refused(directory: &Path, io_uring: IoUring) -> Result<Mounted, MountError> {
        let options = Options {
            io_uring,
            block_device: Fuseblk::Never,
            ..Options::default()
        };
        set("Y");
        let sizes = wanted_sizes(io_uring).unwrap();
        let access = &options.access;
        let connection = connect::connect("null", directory, access, options.block_device, None);
        set("N");
        let linked = Linked::agree(connection.unwrap(), sizes, &options).unwrap();
        assert!(linked.sizes.is_ok());
        let tree = NullTree {
            directories: 3,
            ..NullTree::default()
        };
        linked.mounted(Box::new(Null::planted(tree).unwrap()), &options, None)
    }

    #[test]
    fn if_the_kernel_refuses_the_queues_that_it_offered_dev_fuse_is_read() {
        let Ok(before) = std::fs::read_to_string(PARAMETER) else {
            return testkit::skip("needs FUSE over io_uring (Linux 6.14)");
        };
        if !testkit::is_root() || uring::is_there().is_err() || connect::open_device().is_err() {
            return testkit::skip("mounting with io_uring needs root, /dev/fuse and io_uring");
        }
        // Other tests set it, too.
        let held = std::fs::File::open(PARAMETER).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = directory.path();
        let automatic = refused(path, IoUring::Auto);
        let wanted = refused(other.path(), IoUring::On);
        set(before.trim());
        drop(held);
        let Err(MountError::NoRing(why)) = wanted else {
            panic!("mounted with io_uring=on");
        };
        assert!(why.contains("not supported"), "{why}");
        let mounted = automatic.unwrap();
        assert!(matches!(mounted.transport, Transport::Classic(..)));
        let unmounter = mounted.unmounter();
        let server = thread::spawn(move || mounted.serve());
        assert_eq!(std::fs::read_dir(path).unwrap().count(), 3);
        std::fs::write(path.join("d1/f"), vec![7; 3 << 20]).unwrap();
        assert_eq!(std::fs::read(path.join("d1/f")).unwrap().len(), 3 << 20);
        unmounter.unmount().unwrap();
        server.join().unwrap().unwrap();
    }
}
