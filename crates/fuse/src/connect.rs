//! Connecting to the kernel: /dev/fuse and mount(2) for root, fusermount3 for everybody else; and unmounting.
//!
//! Root mounts an image as `fuseblk`, a block device as itself and a file by an [`Anchor`], so that sync(1) reaches the
//! server and umount(8) waits for it; where that is not possible, and for other users, the mount is one without a block
//! device ([`Synced`]).
//!
//! After a crash of the process the directory stays mounted and answers "not connected" until it is unmounted.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lanefs::FileDevice;
use rustix::io::{Errno, FdFlags};
use rustix::ioctl::{Getter, Opcode, opcode};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::thread::UnshareFlags;
use sync::{Arc, thread};

use crate::anchor::Anchor;
use crate::control::{CONNECTIONS, Control};
use crate::mounts;

pub(crate) const DEVICE: &str = "/dev/fuse";
/// The target of a descriptor's link in /proc that belongs to an io_uring ring.
const RING: &str = "anon_inode:[io_uring]";
const PROGRAM: &str = "fusermount3";
/// Where fusermount3 finds the number of the socket over which it sends the open device.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Why an image could not be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The host has no FUSE.
    #[error("{DEVICE} is missing: the kernel has no FUSE, or its module is not loaded")]
    NoFuse,
    /// The mount point is not a directory.
    #[error("{0} is not a directory")]
    NotDirectory(PathBuf),
    /// A mount is at the directory already, and its server has ended.
    #[error("a mount whose server has ended is still at {0}")]
    Dead(PathBuf),
    /// A mount with a block device was asked for, and this prevents it.
    #[error("mounting as fuseblk: {0}")]
    NoBlockDevice(String),
    /// FUSE over io_uring was asked for; this is why it is not available.
    #[error("mounting with io_uring: {0}")]
    NoRing(String),
    /// The helper for users who may not mount is not installed.
    #[error("only root may mount here, and {PROGRAM} is not installed")]
    NoHelper,
    /// The helper refused, and why.
    #[error("{PROGRAM}: {0}")]
    Helper(String),
    /// The system refused.
    #[error("{operation} {path}: {source}")]
    System {
        /// `mounting on`, `opening`, ...
        operation: &'static str,
        /// Which path.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The mount is in use.
    #[error("{0} is in use")]
    Busy(PathBuf),
    /// The kernel did not agree on the protocol, or the connection broke.
    #[error("the connection to the kernel failed: {0}")]
    Connection(io::Error),
}

impl MountError {
    fn system(operation: &'static str, path: &Path, source: impl Into<io::Error>) -> MountError {
        MountError::System {
            operation,
            path: path.to_path_buf(),
            source: source.into(),
        }
    }
}

/// What the kernel allows at the mount, and to which users.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Users other than the one who mounts.
    pub allow_other: bool,
    /// The kernel checks permissions by owner, group and mode.
    pub default_permissions: bool,
    /// Nothing can be changed.
    pub read_only: bool,
    /// Device files are only files.
    pub no_devices: bool,
    /// Set-user-ID and set-group-ID are without effect.
    pub no_suid: bool,
    /// No file can be executed.
    pub no_exec: bool,
    /// Times of access are not kept.
    pub no_atime: bool,
    /// Those of directories are not.
    pub no_directory_atime: bool,
    /// The list of mounts shows that all changes are synchronous (which [`lanefs::MountOptions::synchronous`] makes
    /// them), and the kernel asks for an fsync after each write.
    pub synchronous: bool,
    /// The list of mounts shows that changes of names are.
    pub synchronous_names: bool,
}

/// Whether the kernel is to have a block device for the mount: only then sync(1) reaches the server, and umount(8)
/// waits until the image is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fuseblk {
    /// Where that is possible.
    #[default]
    Auto,
    /// Else the mount is refused.
    Always,
    /// No.
    Never,
}

/// What makes changes durable on a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Synced {
    /// fsync(2), and all of it by sync(1), syncfs(2) and umount(8).
    All,
    /// Only fsync(2), and umount(8) does not wait: the kernel has no block device for the mount, and why.
    FsyncOnly(String),
}

/// A connection to the kernel, mounted.
pub(crate) struct Connection {
    pub(crate) device: OwnedFd,
    pub(crate) unmounter: Unmounter,
    pub(crate) synced: Synced,
}

/// Mounts on a directory; `source` is the image's path, which the list of mounts shows, or leads to. `image` is the
/// open image, if the server writes to it.
pub(crate) fn connect(
    source: &str,
    directory: &Path,
    access: &Access,
    block: Fuseblk,
    image: Option<&FileDevice>,
) -> Result<Connection, MountError> {
    let failed = |error: io::Error| match Errno::from_io_error(&error) {
        Some(Errno::NOTCONN) => MountError::Dead(directory.to_path_buf()),
        _ => MountError::system("mounting on", directory, error),
    };
    let directory = &directory.canonicalize().map_err(failed)?;
    if mounts::mounted_at(directory).is_some() {
        // The kernel keeps attributes of a mount whose server has ended, but asks the server for this.
        rustix::fs::statfs(directory).map_err(|error| failed(error.into()))?;
    }
    if !directory.metadata().map_err(failed)?.is_dir() {
        return Err(MountError::NotDirectory(directory.clone()));
    }
    let itself = image.filter(|image| !image.is_regular());
    let (device, synced) = match with_block_device(source, directory, access, block, itself)? {
        Ok(device) => (device, Synced::All),
        Err(why) if block == Fuseblk::Always => return Err(MountError::NoBlockDevice(why)),
        Err(why) => {
            let device = match direct(source, directory, access)? {
                Some(device) => device,
                None => by_program(source, directory, access)?,
            };
            (device, Synced::FsyncOnly(why))
        }
    };
    let unmounter = Unmounter::with_control(directory);
    Ok(Connection {
        device,
        unmounter,
        synced,
    })
}

/// Mounts as root, with a block device; otherwise returns why not. `itself` is the image if it is a block device.
///
/// # Errors
/// If another program claimed the image before the kernel did so for the mount: it must not be written to.
fn with_block_device(
    source: &str,
    directory: &Path,
    access: &Access,
    block: Fuseblk,
    itself: Option<&FileDevice>,
) -> Result<Result<OwnedFd, String>, MountError> {
    if block == Fuseblk::Never {
        return Ok(Err("mounted with nofuseblk".into()));
    }
    if !rustix::process::geteuid().is_root() {
        return Ok(Err("only root can mount as fuseblk".into()));
    }
    if let Some(itself) = itself
        && let Some(device) = with_itself(source, directory, access, itself)?
    {
        return Ok(Ok(device));
    }
    Ok(with_anchor(source, directory, access))
}

/// Mounts a block device as the source of its own mount; `None` if the kernel refuses that, for example because a
/// program has the device open for writing and the kernel was built without `CONFIG_BLK_DEV_WRITE_MOUNTED`.
///
/// # Errors
/// If another program claimed the device in between.
fn with_itself(
    source: &str,
    directory: &Path,
    access: &Access,
    itself: &FileDevice,
) -> Result<Option<OwnedFd>, MountError> {
    let path = Path::new(source);
    let (Ok(device), Some(size)) = (open_device(), block_size(path)) else {
        return Ok(None);
    };
    // The kernel claims the device for the mount, which it can't do while this process has it claimed. The lock stays,
    // and nothing is written before the mount exists.
    itself.give_up_claim();
    let kind = mounts::BLOCK_TYPE;
    let more = format!(",blksize={size}");
    match mount_with(&device, path, directory, kind, access, &more) {
        Ok(()) => Ok(Some(device)),
        Err(_) => {
            let claimed = itself.claim_again();
            claimed.map_err(|error| MountError::system("claiming", path, error))?;
            Ok(None)
        }
    }
}

/// The size of the blocks in which the kernel caches a block device. With another size the mount would empty the cache.
fn block_size(device: &Path) -> Option<usize> {
    // BLKBSZGET
    const BLOCK_SIZE: Opcode = opcode::read::<usize>(0x12, 112);
    let device = File::open(device).ok()?;
    #[allow(unsafe_code)]
    // SAFETY: a block device writes an int through the pointer, which is that of one; other files refuse the operation.
    let size = unsafe { rustix::ioctl::ioctl(&device, Getter::<BLOCK_SIZE, u32>::new()) };
    size.ok().map(|size| size as usize)
}

/// Mounts with an anchor; otherwise returns why not.
fn with_anchor(image: &str, directory: &Path, access: &Access) -> Result<OwnedFd, String> {
    let device = open_device().map_err(|error| format!("opening {DEVICE}: {error}"))?;
    let anchor = Anchor::new(Path::new(image), access.read_only);
    let anchor = anchor.map_err(|error| format!("no loop device for the image: {error}"))?;
    let source = anchor.path();
    mount_device(&device, source, directory, mounts::BLOCK_TYPE, access)
        .map_err(|error| format!("mounting {}: {error}", source.display()))?;
    Ok(device)
}

/// Opens a channel that belongs to no connection yet.
pub(crate) fn open_device() -> io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open(DEVICE);
    device.map(OwnedFd::from)
}

/// Mounts by mount(2); `None` if this user may not.
fn direct(source: &str, directory: &Path, access: &Access) -> Result<Option<OwnedFd>, MountError> {
    let device = match open_device() {
        Ok(device) => device,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(MountError::NoFuse),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
        Err(error) => return Err(MountError::system("opening", Path::new(DEVICE), error)),
    };
    match mount_device(&device, Path::new(source), directory, mounts::TYPE, access) {
        Ok(()) => Ok(Some(device)),
        Err(Errno::PERM) => Ok(None),
        Err(error) => Err(MountError::system("mounting on", directory, error)),
    }
}

/// mount(2) of an open device.
fn mount_device(
    device: &OwnedFd,
    source: &Path,
    directory: &Path,
    kind: &str,
    access: &Access,
) -> Result<(), Errno> {
    mount_with(device, source, directory, kind, access, "")
}

/// mount(2) of an open device with more options, each after a comma.
fn mount_with(
    device: &OwnedFd,
    source: &Path,
    directory: &Path,
    kind: &str,
    access: &Access,
    more: &str,
) -> Result<(), Errno> {
    let mut options = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    for (is_set, option) in [
        (access.allow_other, ",allow_other"),
        (access.default_permissions, ",default_permissions"),
    ] {
        if is_set {
            options += option;
        }
    }
    options += more;
    let mut flags = MountFlags::empty();
    for (is_set, flag) in [
        (access.read_only, MountFlags::RDONLY),
        (access.no_devices, MountFlags::NODEV),
        (access.no_suid, MountFlags::NOSUID),
        (access.no_exec, MountFlags::NOEXEC),
        (access.no_atime, MountFlags::NOATIME),
        (access.no_directory_atime, MountFlags::NODIRATIME),
        (access.synchronous, MountFlags::SYNCHRONOUS),
        (access.synchronous_names, MountFlags::DIRSYNC),
    ] {
        flags.set(flag, is_set);
    }
    let options = std::ffi::CString::new(options).unwrap_or_default();
    rustix::mount::mount(source, directory, kind, flags, options.as_c_str())
}

/// Why fusermount3 was not started. Where it is nowhere, the error is that of a folder of `PATH` that the user may not
/// enter, if there is one.
fn not_started(error: io::Error) -> MountError {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|folder| folder.join(PROGRAM).exists());
    match error.kind() {
        io::ErrorKind::NotFound => MountError::NoHelper,
        io::ErrorKind::PermissionDenied if !is_there => MountError::NoHelper,
        _ => MountError::system("starting", Path::new(PROGRAM), error),
    }
}

/// Mounts by fusermount3, which sends the open device over a socket.
fn by_program(source: &str, directory: &Path, access: &Access) -> Result<OwnedFd, MountError> {
    let failed = |error: io::Error| MountError::system("mounting on", directory, error);
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).map_err(|error| failed(error.into()))?;
    let mut options = format!("subtype=lanefs,fsname={}", escaped(source));
    for (is_set, option) in [
        (access.allow_other, ",allow_other"),
        (access.default_permissions, ",default_permissions"),
        (access.read_only, ",ro"),
        (access.no_exec, ",noexec"),
        (access.no_atime, ",noatime"),
        (access.synchronous, ",sync"),
        (access.synchronous_names, ",dirsync"),
    ] {
        if is_set {
            options += option;
        }
    }
    let child = Command::new(PROGRAM)
        .args(["-o", &options, "--"])
        .arg(directory)
        .env(SOCKET_VARIABLE, theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(not_started)?;
    drop(theirs);
    let device = receive(&ours);
    let output = child.wait_with_output().map_err(failed)?;
    match device {
        Ok(Some(device)) => Ok(device),
        _ => Err(MountError::Helper(said(&output.stderr))),
    }
}

/// A name in fusermount3's list of options.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace(',', "\\,")
}

/// What a helper said, without its own name before it.
fn said(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let text = text.trim();
    let text = text.strip_prefix(PROGRAM).unwrap_or(text);
    text.trim_start_matches([':', ' ']).to_owned()
}

/// Waits for the device; `None` if the other end closed without sending one.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            socket.as_fd(),
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    let sent = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut devices) => devices.next(),
        _ => None,
    });
    Ok(sent)
}

/// Calls umount2(2) where this process's connections to the kernel are not open: see [`apart`].
fn unmount_apart(directory: &Path, flags: UnmountFlags) -> Result<(), Errno> {
    if has_rings()
        && let Some(unmounted) = unmount_by_program(directory, flags)
    {
        return unmounted;
    }
    let directory = directory.to_path_buf();
    apart(move || rustix::mount::unmount(&directory, flags))
}

/// Calls syncfs(2) on the file system at a directory, where this process's connections to the kernel are not open: see
/// [`apart`]. Its result is not needed: a failed write is reported to the program that syncs the file.
fn sync_apart(directory: &Path) {
    if has_rings() {
        let mut command = Command::new("sync");
        let command = command.arg("--file-system").arg("--").arg(directory);
        let _ = command.stdin(Stdio::null()).output();
        return;
    }
    let directory = directory.to_path_buf();
    let _ = apart(move || {
        let opened = std::fs::File::open(&directory);
        rustix::fs::syncfs(opened.map_err(|error| errno_of(&error))?)
    });
}

/// Does `work` in a thread without this process's connections to the kernel.
///
/// An unmount and a sync wait for the server, even when it is killed. A server whose own thread waits so would keep its
/// connection open, and never end. A thread without the connections avoids that: when the server is killed, its other
/// threads end, which closes the connection and ends the wait. With io_uring this is not enough, because the ring is
/// mapped into the memory that all threads share, and holds the connection until the last thread ends. Then another
/// process makes the call.
fn apart(work: impl FnOnce() -> Result<(), Errno> + Send + 'static) -> Result<(), Errno> {
    let work = move || {
        // If this fails, the call still works; only a server that is killed during the call would not end.
        let _ = drop_connections();
        work()
    };
    let unmounter = thread::Builder::new().name("lanefs-unmount".into());
    let unmounter = unmounter.spawn(work).map_err(|_| Errno::AGAIN)?;
    unmounter.join().map_err(|_| Errno::IO)?
}

fn is_link_to(file: &std::fs::DirEntry, name: &str) -> bool {
    std::fs::read_link(file.path()).is_ok_and(|path| path == Path::new(name))
}

/// Whether this process has an io_uring ring.
fn has_rings() -> bool {
    let open = std::fs::read_dir("/proc/self/fd");
    open.is_ok_and(|mut open| open.any(|file| file.is_ok_and(|file| is_link_to(&file, RING))))
}

/// Unmounts by running umount(8); `None` if that can't be started.
fn unmount_by_program(directory: &Path, flags: UnmountFlags) -> Option<Result<(), Errno>> {
    let mut command = Command::new("umount");
    command.arg("--internal-only");
    for (flag, option) in [
        (UnmountFlags::FORCE, "--force"),
        (UnmountFlags::DETACH, "--lazy"),
    ] {
        if flags.contains(flag) {
            command.arg(option);
        }
    }
    let output = command
        .arg("--")
        .arg(directory)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .ok()?;
    if output.status.success() {
        return Some(Ok(()));
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let known = [
        ("busy", Errno::BUSY),
        ("not mounted", Errno::INVAL),
        ("superuser", Errno::PERM),
        ("not permitted", Errno::PERM),
    ];
    let found = known.iter().find(|(words, _)| text.contains(words));
    Some(Err(found.map_or(Errno::IO, |(_, errno)| *errno)))
}

/// Gives the calling thread a table of open files of its own, without any /dev/fuse.
fn drop_connections() -> Result<(), Errno> {
    const TABLE: &str = "/proc/thread-self/fd";
    #[allow(unsafe_code)]
    // SAFETY: the table is copied, so that all descriptors stay valid; what other threads open and close from now on
    // is not used by this one, which uses only what it opens itself, and ends.
    unsafe {
        rustix::thread::unshare_unsafe(UnshareFlags::FILES)?;
    }
    let open = std::fs::read_dir(TABLE).map_err(|error| errno_of(&error))?;
    let numbers = open.flatten().filter_map(|file| {
        let is_connection = is_link_to(&file, DEVICE);
        let number = file.file_name().to_str()?.parse().ok()?;
        is_connection.then_some(number)
    });
    let numbers: Vec<RawFd> = numbers.collect();
    for number in numbers {
        #[allow(unsafe_code)]
        // SAFETY: the owner of the descriptor is another thread, whose table still has it.
        unsafe {
            rustix::io::close(number);
        }
    }
    Ok(())
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Unmounts a directory, from any thread, at any time.
#[derive(Clone, Debug)]
pub struct Unmounter {
    directory: PathBuf,
    /// The kernel's number of the connection.
    connection: Option<u32>,
    /// Ends the connection, and distinguishes it from a later one that has got its number. Only for a mount of this
    /// process.
    control: Option<Arc<Control>>,
}

impl Unmounter {
    /// For a directory that is mounted.
    #[must_use]
    pub fn new(directory: &Path) -> Unmounter {
        Unmounter {
            directory: directory.to_path_buf(),
            connection: mounts::mounted_at(directory).map(|mount| mount.connection),
            control: None,
        }
    }

    /// An unmounter that can also end the connection, for a directory that this process has just mounted.
    fn with_control(directory: &Path) -> Unmounter {
        let unmounter = Unmounter::new(directory);
        let control = unmounter.connection.and_then(Control::open);
        Unmounter {
            control: control.map(Arc::new),
            ..unmounter
        }
    }

    /// Unmounts. The mount's server then ends.
    ///
    /// # Errors
    /// `Busy` while files on it are open; when this user may not, or nothing is mounted.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.run(UnmountFlags::NOFOLLOW, &["-u"])
    }

    /// Takes the mount away from the directory; it ends with its last open file.
    ///
    /// # Errors
    /// Those of [`Unmounter::unmount`], except `Busy`.
    pub fn detach(&self) -> Result<(), MountError> {
        let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
        self.run(flags, &["-u", "-z"])
    }

    /// The kernel's number of the connection, if the host lists the mount.
    pub(crate) fn connection(&self) -> Option<u32> {
        self.connection
    }

    /// Whether the mount is still at its directory. After `umount -l` it is not, while files on it are open; another
    /// may be there then.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        let now = mounts::mounted_at(&self.directory).map(|mount| mount.connection);
        // Another mount may have got the number, if our connection is gone.
        let control = self.control.as_ref();
        now.is_some() && now == self.connection && control.is_none_or(|ours| ours.is_there())
    }

    /// Makes the kernel write to the server what programs stored through mappings of files and have not synced. Waits
    /// until the server has answered.
    pub fn write_back(&self) {
        sync_apart(&self.directory);
    }

    /// Takes the mount away and ends the connection: requests under way and all later ones fail. Also where the mount
    /// is no longer at its directory, but files on it are open, or another mount namespace has it.
    ///
    /// # Errors
    /// When the system gives no way to.
    pub fn abort(&self) -> Result<(), MountError> {
        if self.is_mounted() {
            let flags = UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH;
            match unmount_apart(&self.directory, flags) {
                Err(Errno::PERM) => self.detach()?,
                Err(error) => {
                    return Err(MountError::system("unmounting", &self.directory, error));
                }
                Ok(()) => return Ok(()),
            }
        }
        let ended = match &self.control {
            Some(control) => control.abort(),
            // The mount was over before its connection was known.
            None if self.connection.is_none() => Ok(()),
            // Its files could not be opened, and its number alone may be another mount's by now.
            None => Err(Errno::NOENT),
        };
        let failed =
            |error| MountError::system("ending the connection in", Path::new(CONNECTIONS), error);
        ended.map_err(failed)
    }

    fn run(&self, flags: UnmountFlags, options: &[&str]) -> Result<(), MountError> {
        match unmount_apart(&self.directory, flags) {
            Ok(()) => Ok(()),
            Err(Errno::BUSY) => Err(MountError::Busy(self.directory.clone())),
            Err(Errno::PERM) => self.by_program(options),
            Err(error) => Err(MountError::system("unmounting", &self.directory, error)),
        }
    }

    fn by_program(&self, options: &[&str]) -> Result<(), MountError> {
        let output = Command::new(PROGRAM)
            .args(options)
            .arg("--")
            .arg(&self.directory)
            .stdin(Stdio::null())
            .output()
            .map_err(not_started)?;
        let text = said(&output.stderr);
        match output.status.success() {
            true => Ok(()),
            false if text.contains("busy") => Err(MountError::Busy(self.directory.clone())),
            false => Err(MountError::Helper(text)),
        }
    }
}
