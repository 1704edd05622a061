//! What a block device lies on: the file behind a loop device, the disk around a partition, and what is behind those.
//!
//! Two names may lead to the same bytes: a file and a loop device on it, two loop devices on one file. Each name has
//! one ground, a file or disk that is not part of another, and a range of its bytes. Two names share bytes if their
//! grounds are the same and their ranges overlap. The ground is read from sysfs and asked of the loop devices; what
//! neither reports is unknown.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{FileType, Mode, OFlags, Stat, major, makedev, minor};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, opcode};

/// At most this number of devices is followed: loop devices may lie on loop devices.
const STEPS_MAX: u32 = 16;

/// Sectors in sysfs have this many bytes, whatever the device's own have.
const SECTOR_BYTES: u64 = 512;

const LOOP_MAJOR: u32 = 7;

/// A file or device, whatever the name it was found by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileIdentity {
    File {
        device: u64,
        inode: u64,
    },
    BlockDevice(u64),
    /// Only the name is known that the kernel has for it, which need not lead there.
    Named(OsString),
}

impl FileIdentity {
    pub(crate) fn of(stat: &Stat) -> FileIdentity {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => FileIdentity::BlockDevice(stat.st_rdev),
            _ => FileIdentity::File {
                device: stat.st_dev,
                inode: stat.st_ino,
            },
        }
    }
}

/// Bytes of a loop device that a mount by lanefs has only because the kernel wants one.
const ANCHOR_BYTES: u64 = 512;

/// How the kernel shows memory that is behind an anchor, with the name of a block device between.
const MEMORY_NAME: &[u8] = b"/memfd:lanefs:";
const DELETED: &[u8] = b" (deleted)";

/// Whether a loop device, by its folder in sysfs, is the anchor of a mount by lanefs (`fuse::anchor`): the first sector
/// of an image, detached with the mount. Nothing is read from it or written to it, whether its server lives or not.
fn is_anchor(folder: &Path) -> bool {
    let number = |name: &str| value::<u64>(&folder.join("loop").join(name));
    number("offset") == Some(0)
        && number("sizelimit") == Some(ANCHOR_BYTES)
        && number("autoclear") == Some(1)
}

/// What is behind a loop device.
#[derive(Clone, Debug)]
pub struct Layer {
    path: PathBuf,
    identity: FileIdentity,
}

impl Layer {
    /// The name that the kernel has for it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens it, to be locked; a block device for writers so that the kernel refuses those that are taken. `None` where
    /// the name does not lead there (a file that was deleted, another mount namespace), or may not be opened.
    pub(crate) fn open(&self, read_only: bool) -> Result<Option<File>, Errno> {
        let is_it = |stat: rustix::io::Result<Stat>| {
            stat.is_ok_and(|stat| FileIdentity::of(&stat) == self.identity)
        };
        if !is_it(rustix::fs::stat(&self.path)) {
            return Ok(None);
        }
        let mut flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
        if !read_only && matches!(self.identity, FileIdentity::BlockDevice(_)) {
            flags |= OFlags::EXCL;
        }
        // Some file systems give an exclusive lock only to a file that is open for writing.
        let ways: &[OFlags] = if read_only {
            &[OFlags::RDONLY]
        } else {
            &[OFlags::RDWR, OFlags::RDONLY]
        };
        for way in ways {
            let open = || rustix::fs::open(&self.path, flags | *way, Mode::empty());
            match rustix::io::retry_on_intr(open) {
                Ok(file) => return Ok(is_it(rustix::fs::fstat(&file)).then(|| file.into())),
                Err(Errno::BUSY) => return Err(Errno::BUSY),
                Err(_) => {}
            }
        }
        Ok(None)
    }
}

/// Another block device that stands for some of the same bytes.
#[derive(Debug)]
pub(crate) struct Other {
    /// The kernel's name for it.
    pub(crate) name: String,
    pub(crate) number: u64,
    /// Whether it is a loop device, which a process attached; else it is a partition.
    pub(crate) is_loop: bool,
    pub(crate) is_read_only: bool,
}

/// The bytes that a file or block device stands for.
#[derive(Clone, Debug)]
pub struct Ground {
    identity: FileIdentity,
    range: Range<u64>,
    /// The block devices on the way, the first one among them.
    devices: Vec<u64>,
    layers: Vec<Layer>,
    /// What was met on the way to `identity`.
    way: Vec<FileIdentity>,
}

impl Ground {
    /// The ground of the file or device with this name; `None` if the name does not exist.
    #[must_use]
    pub fn of_path(path: &Path) -> Option<Ground> {
        rustix::fs::stat(path).ok().map(|stat| Ground::of(&stat))
    }

    pub(crate) fn of(stat: &Stat) -> Ground {
        Ground::below(FileIdentity::of(stat))
    }

    fn below(identity: FileIdentity) -> Ground {
        let mut ground = Ground {
            identity,
            range: 0..u64::MAX,
            devices: Vec::new(),
            layers: Vec::new(),
            way: Vec::new(),
        };
        for _ in 0..STEPS_MAX {
            let FileIdentity::BlockDevice(number) = ground.identity else {
                break;
            };
            ground.devices.push(number);
            let met = ground.identity.clone();
            if ground.descend(number).is_none() {
                break;
            }
            ground.way.push(met);
        }
        ground
    }

    /// Goes on to what the device is a part of, or what is behind it.
    fn descend(&mut self, number: u64) -> Option<()> {
        let name = format!("/sys/dev/block/{}:{}", major(number), minor(number));
        let folder = fs::canonicalize(name).ok()?;
        if folder.join("partition").exists() {
            let start: u64 = value(&folder.join("start"))?;
            let sectors: u64 = value(&folder.join("size"))?;
            let disk = device_number(folder.parent()?)?;
            self.narrow(
                start.saturating_mul(SECTOR_BYTES),
                sectors.saturating_mul(SECTOR_BYTES),
            );
            self.identity = FileIdentity::BlockDevice(disk);
            return Some(());
        }
        let path = PathBuf::from(line(&folder.join("loop/backing_file"))?);
        // If it is not known, everything counts as reached.
        let offset = value(&folder.join("loop/offset")).unwrap_or(0);
        let limit = value(&folder.join("loop/sizelimit")).filter(|limit| *limit != 0);
        self.narrow(offset, limit.unwrap_or(u64::MAX));
        let identity = backing(&folder, number)
            .or_else(|| Some(FileIdentity::of(&rustix::fs::stat(&path).ok()?)))
            .unwrap_or_else(|| FileIdentity::Named(path.clone().into_os_string()));
        self.layers.push(Layer {
            path,
            identity: identity.clone(),
        });
        self.identity = identity;
        Some(())
    }

    /// The same bytes, counted in what has them from `offset` on, `len` at most.
    fn narrow(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        self.range.start = self.range.start.saturating_add(offset).min(end);
        self.range.end = self.range.end.saturating_add(offset).min(end);
    }

    /// What is behind the loop devices on the way, from the top down.
    #[must_use]
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Whether the other is of the same file or device.
    pub(crate) fn is_same(&self, other: &Ground) -> bool {
        self.identities().eq(other.identities())
    }

    /// Whether it is a regular file that was asked for, not a device.
    pub(crate) fn is_file(&self) -> bool {
        self.way.is_empty() && matches!(self.identity, FileIdentity::File { .. })
    }

    /// The numbers of the block devices on the way, from the top down.
    pub(crate) fn device_numbers(&self) -> impl Iterator<Item = u64> {
        self.devices.iter().copied()
    }

    /// Everything on the way, from the top down.
    pub(crate) fn identities(&self) -> impl Iterator<Item = &FileIdentity> {
        self.way.iter().chain([&self.identity])
    }

    /// The name of a loop device that some of the bytes are reached through, other than those on the way.
    #[must_use]
    pub fn other_loop_device(&self) -> Option<String> {
        let mut others = self.others().into_iter();
        others.find(|other| other.is_loop).map(|other| other.name)
    }

    /// Whether this is a file or device, or an anchor of a mount of it.
    pub(crate) fn leads_to(&self, identity: &FileIdentity) -> bool {
        self.identities().any(|own| own == identity) || self.anchored().as_ref() == Some(identity)
    }

    /// The block device that an anchor in memory stands for: its name is in the memory's.
    fn anchored(&self) -> Option<FileIdentity> {
        let name = self.layers.last()?.path.as_os_str().as_bytes();
        let name = name.strip_prefix(MEMORY_NAME)?.strip_suffix(DELETED)?;
        Some(FileIdentity::of(
            &rustix::fs::stat(OsStr::from_bytes(name)).ok()?,
        ))
    }

    /// Whether the bytes have the anchor of a mount by lanefs: a loop device, which has the file open for writing.
    pub(crate) fn has_anchor(&self) -> bool {
        let disks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let mut anchors = disks
            .map(|disk| disk.path())
            .filter(|folder| is_anchor(folder));
        anchors.any(|folder| {
            let number = device_number(&folder);
            number.is_some_and(|number| {
                Ground::below(FileIdentity::BlockDevice(number)).overlaps(self)
            })
        })
    }

    /// Other block devices that some of the bytes are reached through: loop devices, and partitions of these and of the
    /// disks on the way. Anchors of mounts by lanefs are left out.
    pub(crate) fn others(&self) -> Vec<Other> {
        let disks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let mut others = Vec::new();
        for disk in disks {
            let folder = disk.path();
            let is_loop = folder.join("loop/backing_file").exists();
            if is_loop && is_anchor(&folder) {
                continue;
            }
            let Some(number) = device_number(&folder) else {
                continue;
            };
            if is_loop {
                others.extend(self.other(&folder, number, true));
            }
            if is_loop || self.devices.contains(&number) {
                let parts = fs::read_dir(&folder).into_iter().flatten().flatten();
                let parts = parts.map(|part| part.path());
                let parts = parts.filter(|part| part.join("partition").exists());
                others.extend(
                    parts.filter_map(|part| self.other(&part, device_number(&part)?, false)),
                );
            }
        }
        others
    }

    /// The block device with this folder in sysfs, if it is not on the way and stands for some of the bytes.
    fn other(&self, folder: &Path, number: u64, is_loop: bool) -> Option<Other> {
        let other = Ground::below(FileIdentity::BlockDevice(number));
        let is_other = !self.devices.contains(&number) && other.overlaps(self);
        is_other.then(|| Other {
            name: folder
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            number,
            is_loop,
            is_read_only: value(&folder.join("ro")) == Some(1),
        })
    }

    fn overlaps(&self, other: &Ground) -> bool {
        self.identity == other.identity
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }
}

/// A file of one line in sysfs. Names of files in it are as they are, byte by byte.
pub(crate) fn line(path: &Path) -> Option<OsString> {
    let bytes = fs::read(path).ok()?;
    let text = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    Some(OsStr::from_bytes(text).to_owned())
}

pub(crate) fn value<N: FromStr>(path: &Path) -> Option<N> {
    line(path)?.to_str()?.parse().ok()
}

/// The number of the device with this folder in sysfs.
pub(crate) fn device_number(folder: &Path) -> Option<u64> {
    let text = line(&folder.join("dev"))?;
    let (major, minor) = text.to_str()?.split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// What is behind a loop device, as the device itself reports: right also where its name leads elsewhere. `None` for a
/// process that may not open it.
fn backing(folder: &Path, number: u64) -> Option<FileIdentity> {
    // LOOP_GET_STATUS64, which fills in a struct loop_info64.
    const STATUS: Opcode = opcode::none(b'L', 5);
    const STATUS_BYTES: usize = 232;
    if major(number) != LOOP_MAJOR {
        return None;
    }
    let node = Path::new("/dev").join(folder.file_name()?);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(node, flags, Mode::empty()).ok()?;
    if FileIdentity::of(&rustix::fs::fstat(&file).ok()?) != FileIdentity::BlockDevice(number) {
        return None;
    }
    #[allow(unsafe_code)]
    // SAFETY: this is a loop device (major 7), and for those the operation takes a pointer to a struct loop_info64,
    // 232 bytes that any value is good for, which it writes.
    let status = unsafe {
        let getter = Getter::<STATUS, [u64; STATUS_BYTES / 8]>::new();
        rustix::ioctl::ioctl(&file, getter)
    };
    let [device, inode, node, ..] = status.ok()?;
    // Its third word is not 0 for what is a device itself.
    Some(match node {
        0 => FileIdentity::File { device, inode },
        number => FileIdentity::BlockDevice(number),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64) -> Ground {
        Ground::below(FileIdentity::File { device: 1, inode })
    }

    #[test]
    fn ranges_are_counted_in_the_ground() {
        // A partition at 1000 with 500 bytes, on a loop device at 300 that ends after 1200.
        let mut part = file(1);
        part.narrow(1000, 500);
        assert_eq!(part.range, 1000..1500);
        part.narrow(300, 1200);
        assert_eq!(part.range, 1300..1500);
        // What lies beyond the end is nothing.
        let mut beyond = file(1);
        beyond.narrow(1000, 500);
        beyond.narrow(300, 600);
        assert!(beyond.range.is_empty());
        let mut open = file(1);
        open.narrow(0, u64::MAX);
        assert_eq!(open.range, 0..u64::MAX);
        open.narrow(1500, u64::MAX);
        assert_eq!(open.range, 1500..u64::MAX);
        assert!(!open.overlaps(&part) && !part.overlaps(&open));
        assert!(part.overlaps(&file(1)) && file(1).overlaps(&part));
        assert!(!part.overlaps(&file(2)));
    }

    #[test]
    fn a_regular_file_is_its_own_ground() {
        let ground = Ground::of_path(Path::new("/proc/self/exe")).unwrap();
        assert!(ground.layers().is_empty());
        assert_eq!(ground.device_numbers().count(), 0);
        assert!(Ground::of_path(Path::new("/nonexistent")).is_none());
    }
}
