//! A directory of the host: of the kernel's ext4, of a FUSE mount, of anything that is mounted.
//!
//! One system call an operation, relative to an open directory.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use lanefs::Error;
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;
use sync::thread;

use crate::target::{Counters, MountedTarget, Remount, Target};

/// Bytes of names asked for at once.
const NAMES: usize = 32 << 10;
/// The name that libfuse gives a file that was removed while its server had it open; some stay when it is closed.
const HIDDEN: &str = ".fuse_hidden";
/// How many times removing a directory is tried again while only such files are left in it, and the pause before each.
const HIDDEN_TRIES: u32 = 100;
const HIDDEN_PAUSE: Duration = Duration::from_millis(10);

/// A host's directory.
#[derive(Debug)]
pub struct HostDirectory {
    path: PathBuf,
    root: OwnedFd,
    may_remount: bool,
}

impl HostDirectory {
    /// Opens a directory. With `may_remount`, where it is a mounted file system's root, it is unmounted and mounted
    /// again for measurements that begin with nothing in memory.
    ///
    /// # Errors
    /// When it can't be opened.
    pub fn open(path: &Path, may_remount: bool) -> Result<HostDirectory, Error> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty());
        Ok(HostDirectory {
            path: path.to_owned(),
            root: root.map_err(|errno| host("opening", path, errno.into()))?,
            may_remount,
        })
    }

    fn said(&self, operation: &'static str, errno: rustix::io::Errno) -> Error {
        host(operation, &self.path, errno.into())
    }

    fn opened(&self, parent: &OwnedFd, name: &str, flags: OFlags) -> Result<OwnedFd, Error> {
        let flags = flags | OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o644))
            .map_err(|errno| self.said("opening a file in", errno))
    }

    /// The way that calls take: what is mounted there.
    #[must_use]
    pub fn way(&self) -> String {
        match mount_of(&self.path) {
            Some(mount) => format!("system calls; {} on {}", mount.kind, mount.source),
            None => "system calls".into(),
        }
    }
}

/// Whether a name that was listed with this type is a directory's; not every file system gives the type in the list.
fn is_directory(dir: &OwnedFd, name: &CStr, listed: FileType) -> Result<bool, Errno> {
    match listed {
        FileType::Unknown => {
            let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
            Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
        }
        listed => Ok(listed == FileType::Directory),
    }
}

fn host(operation: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::Host {
        operation,
        path: path.to_owned(),
        source,
    }
}

/// A line of `/proc/self/mountinfo`.
struct Mount {
    at: String,
    options: String,
    kind: String,
    source: String,
}

/// The mount in which a directory lies.
fn mount_of(path: &Path) -> Option<Mount> {
    let path = path.canonicalize().ok()?;
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mounts = table.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let left: Vec<&str> = left.split(' ').collect();
        let mut right = right.split(' ');
        Some(Mount {
            at: (*left.get(4)?).to_owned(),
            options: (*left.get(5)?).to_owned(),
            kind: right.next()?.to_owned(),
            source: right.next()?.to_owned(),
        })
    });
    mounts
        .filter(|mount| path.starts_with(&mount.at))
        .max_by_key(|mount| mount.at.len())
}

/// Runs a program whose failure is an error.
fn succeed(path: &Path, command: &mut Command) -> Result<(), Error> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| host("remounting", path, error))?;
    if output.status.success() {
        Ok(())
    } else {
        let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(host("remounting", path, std::io::Error::other(text)))
    }
}

impl HostDirectory {
    /// Removes what a FUSE server left of removed files in a directory; returns whether nothing else is there.
    fn unhide(&self, parent: &OwnedFd, name: &str) -> Result<bool, Error> {
        let dir = self.open_dir(parent, name)?;
        let mut names = Vec::new();
        self.read_dir(&dir, &mut |name, _| names.push(name.to_vec()))?;
        for hidden in names
            .iter()
            .filter(|name| name.starts_with(HIDDEN.as_bytes()))
        {
            match rustix::fs::unlinkat(&dir, hidden.as_slice(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(self.said("removing a file of", errno)),
            }
        }
        Ok(names.iter().all(|name| name.starts_with(HIDDEN.as_bytes())))
    }
}

impl Remount for HostDirectory {
    fn remount(
        self,
        _: Option<usize>,
        _: &[String],
    ) -> Result<MountedTarget<HostDirectory>, Error> {
        let mount = mount_of(&self.path);
        let is_root = |mount: &Mount| {
            let path = self.path.canonicalize();
            path.is_ok_and(|path| path == Path::new(&mount.at))
        };
        let mount = mount.filter(|mount| self.may_remount && is_root(mount));
        let Some(mount) = mount.filter(|mount| mount.source.starts_with("/dev/")) else {
            self.settle()?;
            return Ok(MountedTarget {
                target: self,
                is_fresh: false,
                is_bounded: false,
            });
        };
        let HostDirectory { path, root, .. } = self;
        drop(root);
        succeed(&path, Command::new("umount").arg(&path))?;
        let mut again = Command::new("mount");
        again.args(["-t", &mount.kind, "-o", &mount.options, &mount.source]);
        succeed(&path, again.arg(&path))?;
        Ok(MountedTarget {
            target: HostDirectory::open(&path, true)?,
            is_fresh: true,
            is_bounded: false,
        })
    }
}

impl Target for HostDirectory {
    type Dir = OwnedFd;
    type File = OwnedFd;

    fn root(&self) -> &OwnedFd {
        &self.root
    }

    fn mkdir(&self, parent: &OwnedFd, name: &str) -> Result<OwnedFd, Error> {
        rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))
            .map_err(|errno| self.said("making a directory in", errno))?;
        self.open_dir(parent, name)
    }

    fn rmdir(&self, parent: &OwnedFd, name: &str) -> Result<(), Error> {
        let mut tries = 0..HIDDEN_TRIES;
        loop {
            match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
                Ok(()) => return Ok(()),
                Err(Errno::NOTEMPTY) if tries.next().is_some() && self.unhide(parent, name)? => {
                    thread::sleep(HIDDEN_PAUSE);
                }
                Err(errno) => return Err(self.said("removing a directory of", errno)),
            }
        }
    }

    fn open_dir(&self, parent: &OwnedFd, name: &str) -> Result<OwnedFd, Error> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(parent, name, flags, Mode::empty())
            .map_err(|errno| self.said("opening a directory of", errno))
    }

    fn read_dir(&self, dir: &OwnedFd, visit: &mut dyn FnMut(&[u8], bool)) -> Result<(), Error> {
        let said = |errno| self.said("listing a directory of", errno);
        rustix::fs::seek(dir, SeekFrom::Start(0)).map_err(said)?;
        let mut names = [MaybeUninit::uninit(); NAMES];
        let mut entries = RawDir::new(dir, &mut names);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(said)?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            match is_directory(dir, entry.file_name(), entry.file_type()) {
                // fuse2fs removes what it kept for the sake of an open file whenever it learns that it was closed.
                Err(Errno::NOENT) => {}
                is_directory => visit(name, is_directory.map_err(said)?),
            }
        }
        Ok(())
    }

    fn create(&self, parent: &OwnedFd, name: &str) -> Result<OwnedFd, Error> {
        self.opened(parent, name, OFlags::CREATE | OFlags::EXCL)
    }

    fn creat(&self, parent: &OwnedFd, name: &str) -> Result<OwnedFd, Error> {
        self.opened(parent, name, OFlags::CREATE | OFlags::TRUNC)
    }

    fn open(&self, parent: &OwnedFd, name: &str) -> Result<OwnedFd, Error> {
        self.opened(parent, name, OFlags::empty())
    }

    fn open_path(&self, from: &OwnedFd, path: &str) -> Result<OwnedFd, Error> {
        self.open(from, path)
    }

    fn close(&self, file: OwnedFd) -> Result<(), Error> {
        drop(file);
        Ok(())
    }

    fn unlink(&self, parent: &OwnedFd, name: &str) -> Result<(), Error> {
        rustix::fs::unlinkat(parent, name, AtFlags::empty())
            .map_err(|errno| self.said("removing a file of", errno))
    }

    fn rename(&self, parent: &OwnedFd, name: &str, new_name: &str) -> Result<(), Error> {
        rustix::fs::renameat(parent, name, parent, new_name)
            .map_err(|errno| self.said("renaming a file of", errno))
    }

    fn move_file(
        &self,
        parent: &OwnedFd,
        name: &str,
        new_parent: &OwnedFd,
        new_name: &str,
    ) -> Result<(), Error> {
        rustix::fs::renameat(parent, name, new_parent, new_name)
            .map_err(|errno| self.said("moving a file of", errno))
    }

    fn stat(&self, parent: &OwnedFd, name: &str) -> Result<u64, Error> {
        rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
            .map(|stat| stat.st_size.unsigned_abs())
            .map_err(|errno| self.said("looking at a file of", errno))
    }

    fn read(&self, file: &OwnedFd, offset: u64, bytes: &mut [u8]) -> Result<usize, Error> {
        rustix::io::pread(file, bytes, offset)
            .map_err(|errno| self.said("reading a file of", errno))
    }

    fn write(&self, file: &OwnedFd, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut done = 0;
        while done < bytes.len() {
            let written = rustix::io::pwrite(file, &bytes[done..], offset + done as u64)
                .map_err(|errno| self.said("writing to a file of", errno))?;
            done += written;
        }
        Ok(())
    }

    fn fallocate(&self, file: &OwnedFd, offset: u64, len: u64) -> Result<(), Error> {
        rustix::fs::fallocate(file, FallocateFlags::empty(), offset, len)
            .map_err(|errno| self.said("reserving blocks of", errno))
    }

    fn truncate(&self, file: &OwnedFd, size: u64) -> Result<(), Error> {
        rustix::fs::ftruncate(file, size).map_err(|errno| self.said("truncating a file of", errno))
    }

    fn pieces(&self, file: &OwnedFd) -> Result<Option<u64>, Error> {
        // The FIEMAP ioctl has no safe wrapper, so filefrag of e2fsprogs is called instead.
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let output = Command::new("filefrag").arg(&path).output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let said = text.unwrap_or_default();
        let count = said
            .rsplit(": ")
            .next()
            .and_then(|rest| rest.split(' ').next());
        Ok(count.and_then(|count| count.parse().ok()))
    }

    fn fsync(&self, file: &OwnedFd) -> Result<(), Error> {
        rustix::fs::fsync(file).map_err(|errno| self.said("syncing a file of", errno))
    }

    /// The flushes that its block device did, if it lies on one.
    fn counters(&self) -> Counters {
        let mount = mount_of(&self.path);
        let name = mount.and_then(|mount| Some(mount.source.strip_prefix("/dev/")?.to_owned()));
        let statistics = name
            .and_then(|name| std::fs::read_to_string(format!("/sys/class/block/{name}/stat")).ok());
        let flushes = statistics.and_then(|text| text.split_whitespace().nth(15)?.parse().ok());
        flushes.map_or(Counters::new(), |flushes| vec![("device.flushes", flushes)])
    }

    fn settle(&self) -> Result<(), Error> {
        rustix::fs::syncfs(&self.root).map_err(|errno| self.said("syncing", errno))
    }
}
