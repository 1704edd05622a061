//! Connecting to the kernel: /dev/fuse and mount(2) for who may, fusermount3 for everybody else; and unmounting.
//!
//! After a crash of the process the directory stays mounted and answers "not connected" until it is unmounted.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::{Errno, FdFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::mounts;

const DEVICE: &str = "/dev/fuse";
const PROGRAM: &str = "fusermount3";
/// Where fusermount3 finds the number of the socket over which it sends the open device.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";
/// Where connections can be ended, each by its number.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Why an image could not be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The host has no FUSE.
    #[error("{DEVICE} is missing: the kernel has no FUSE, or its module is not loaded")]
    NoFuse,
    /// The place is no directory.
    #[error("{0} is not a directory")]
    NotDirectory(PathBuf),
    /// There is no helper for users who may not mount.
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

/// What the kernel allows at the mount, to whom.
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
}

/// A connection to the kernel, mounted.
pub(crate) struct Connection {
    pub(crate) device: OwnedFd,
    pub(crate) unmounter: Unmounter,
}

/// Mounts on a directory; `source` is what the list of mounts shows.
pub(crate) fn connect(
    source: &str,
    directory: &Path,
    access: &Access,
) -> Result<Connection, MountError> {
    let directory = directory
        .canonicalize()
        .map_err(|error| MountError::system("mounting on", directory, error))?;
    if !directory.is_dir() {
        return Err(MountError::NotDirectory(directory));
    }
    let device = match direct(source, &directory, access)? {
        Some(device) => device,
        None => by_program(source, &directory, access)?,
    };
    let unmounter = Unmounter::new(&directory);
    Ok(Connection { device, unmounter })
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
    let mut flags = MountFlags::empty();
    for (is_set, flag) in [
        (access.read_only, MountFlags::RDONLY),
        (access.no_devices, MountFlags::NODEV),
        (access.no_suid, MountFlags::NOSUID),
        (access.no_exec, MountFlags::NOEXEC),
        (access.no_atime, MountFlags::NOATIME),
    ] {
        flags.set(flag, is_set);
    }
    let options = std::ffi::CString::new(options).unwrap_or_default();
    match rustix::mount::mount(source, directory, mounts::TYPE, flags, options.as_c_str()) {
        Ok(()) => Ok(Some(device)),
        Err(Errno::PERM) => Ok(None),
        Err(error) => Err(MountError::system("mounting on", directory, error)),
    }
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

/// Ends a connection by its number, in the host's list of connections. Where the host has not mounted that, root
/// mounts it at no directory, so that nothing else sees it.
fn abort_connection(number: u32) -> rustix::io::Result<()> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    use rustix::mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen,
    };
    let write = |list: BorrowedFd<'_>, prefix: &str| {
        let path = format!("{prefix}{number}/abort");
        let file = openat(list, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(&file, b"1").map(drop)
    };
    write(CWD, &format!("{CONNECTIONS}/")).or_else(|error| {
        let Ok(list) = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC) else {
            return Err(error);
        };
        fsconfig_create(list.as_fd())?;
        let flags = FsMountFlags::FSMOUNT_CLOEXEC;
        let list = fsmount(list.as_fd(), flags, MountAttrFlags::empty())?;
        write(list.as_fd(), "")
    })
}

/// Unmounts a directory, from any thread, at any time.
#[derive(Clone, Debug)]
pub struct Unmounter {
    directory: PathBuf,
    /// The kernel's number of the connection.
    connection: Option<u32>,
}

impl Unmounter {
    /// For a directory that is mounted.
    #[must_use]
    pub fn new(directory: &Path) -> Unmounter {
        Unmounter {
            directory: directory.to_path_buf(),
            connection: mounts::mounted_at(directory).map(|mount| mount.connection),
        }
    }

    /// Unmounts. Whoever serves the mount then ends.
    ///
    /// # Errors
    /// `Busy` while files on it are open; when this user may not, or nothing is mounted.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.run(UnmountFlags::NOFOLLOW, &["-u"])
    }

    /// Takes the mount away from the directory; it ends with its last open file.
    ///
    /// # Errors
    /// As [`Unmounter::unmount`], but for `Busy`.
    pub fn detach(&self) -> Result<(), MountError> {
        let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
        self.run(flags, &["-u", "-z"])
    }

    /// Whether the mount is still at its directory. After `umount -l` it is not, while files on it are open; another
    /// may be there then.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        let now = mounts::mounted_at(&self.directory).map(|mount| mount.connection);
        now.is_some() && now == self.connection
    }

    /// Takes the mount away and ends the connection: requests under way and all later ones fail. Also where the mount
    /// is no longer at its directory, but files on it are open, or another mount namespace has it.
    ///
    /// # Errors
    /// When the system gives no way to.
    pub fn abort(&self) -> Result<(), MountError> {
        if self.is_mounted() {
            let flags = UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH;
            match rustix::mount::unmount(&self.directory, flags) {
                Err(Errno::PERM) => self.detach()?,
                Err(error) => {
                    return Err(MountError::system("unmounting", &self.directory, error));
                }
                Ok(()) => return Ok(()),
            }
        }
        match self.connection.map(abort_connection) {
            // It is over already.
            None | Some(Ok(()) | Err(Errno::NOENT)) => Ok(()),
            Some(Err(error)) => {
                let path = Path::new(CONNECTIONS);
                Err(MountError::system("ending a connection in", path, error))
            }
        }
    }

    fn run(&self, flags: UnmountFlags, options: &[&str]) -> Result<(), MountError> {
        match rustix::mount::unmount(&self.directory, flags) {
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
