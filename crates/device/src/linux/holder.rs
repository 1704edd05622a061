//! Which program holds the bytes of a file or block device, as a clause for a message.
//!
//! The kernel's own users are found in sysfs and procfs: loop devices, mappings and arrays, mounts, swap.
//! A program is found by its lock in `/proc/locks`, or by its open file in `/proc`, as far as this process may read
//! that. Every answer is true for a moment only. Nothing is written, and no lock is held.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags, major, makedev, minor};

use super::ground::{FileIdentity, Ground, Other};
use super::mapping::{self, StackedDevice};
use crate::purpose::Purpose;

/// The most open files that are looked at in `/proc`, so that a host with very many does not stop a command.
const OPEN_FILES_MAX: usize = 1 << 20;

/// The kernel's use of the bytes: a mount, a loop device, or swap. One that only reads does not disturb a reader.
pub(crate) fn in_kernel(ground: &Ground, purpose: Purpose) -> Option<String> {
    let disturbs = |is_read_only: bool| purpose == Purpose::Write || !is_read_only;
    let mounts = Mount::all();
    let place_of = |number: u64| {
        let mut found = mounts.iter().filter(|mount| disturbs(mount.is_read_only));
        let mount = found.find(|mount| mount.shows(number))?;
        Some(format!("mounted on {}", mount.point.display()))
    };
    if let Some(place) = ground.device_numbers().find_map(place_of) {
        return Some(place);
    }
    let others = ground.others();
    let (loops, parts): (Vec<&Other>, Vec<&Other>) = others.iter().partition(|other| other.is_loop);
    let place_on_part = || {
        parts.iter().find_map(|part| {
            let place = place_of(part.number)?;
            Some(format!("/dev/{} {place}", part.name))
        })
    };
    let all = ground.device_numbers();
    let all: Vec<u64> = all.chain(others.iter().map(|other| other.number)).collect();
    let mapped = || {
        let mappings: Vec<StackedDevice> =
            all.iter().flat_map(|number| mapping::on(*number)).collect();
        let mut disturbing = mappings.iter().filter(|found| disturbs(found.is_read_only));
        let first = disturbing.next()?;
        let place = mappings.iter().find_map(|found| place_of(found.number));
        let swap = || {
            let mut numbers = mappings.iter().map(|found| found.number);
            swaps_to(|area| numbers.any(|number| *area == FileIdentity::BlockDevice(number)))
        };
        let part = format!("part of {}", first.name);
        Some(match place {
            Some(place) => format!("{part}, {place}"),
            None if swap() => format!("{part}, used as swap"),
            None => part,
        })
    };
    if let Some(other) = loops.iter().find(|other| disturbs(other.is_read_only)) {
        let attached = format!("attached to /dev/{}", other.name);
        let place = loops.iter().find_map(|other| place_of(other.number));
        return Some(match place.or_else(place_on_part).or_else(mapped) {
            Some(place) => format!("{attached}, {place}"),
            None => attached,
        });
    }
    let swap = || is_swap(ground, &others).then(|| "used as swap".to_owned());
    place_on_part().or_else(mapped).or_else(swap)
}

/// Whether the kernel swaps to the bytes.
fn is_swap(ground: &Ground, others: &[Other]) -> bool {
    swaps_to(|area| {
        let mut numbers = others.iter().map(|other| other.number);
        ground.identities().any(|own| own == area)
            || numbers.any(|number| *area == FileIdentity::BlockDevice(number))
    })
}

/// True if the kernel uses a file or device as swap for which `is_it` returns true.
fn swaps_to(mut is_it: impl FnMut(&FileIdentity) -> bool) -> bool {
    let table = fs::read("/proc/swaps").unwrap_or_default();
    let mut areas = table
        .split(|byte| *byte == b'\n')
        .skip(1)
        .filter_map(|line| {
            let end = line.iter().position(|byte| matches!(byte, b' ' | b'\t'))?;
            let stat = rustix::fs::stat(unescaped(&line[..end])).ok()?;
            Some(FileIdentity::of(&stat))
        });
    areas.any(|area| is_it(&area))
}

/// A mount of this process's namespace.
struct Mount {
    number: u64,
    point: PathBuf,
    kind: Vec<u8>,
    source: PathBuf,
    is_read_only: bool,
}

impl Mount {
    /// All of them, as `/proc/self/mountinfo` lists them.
    fn all() -> Vec<Mount> {
        let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
        let lines = table.split(|byte| *byte == b'\n');
        lines.filter_map(Mount::parse).collect()
    }

    /// Reads a line: number, parent, device, root, mount point, options, optional fields, `-`, type, source, options
    /// of the file system.
    fn parse(line: &[u8]) -> Option<Mount> {
        let mut words = line.split(|byte| *byte == b' ');
        let number = std::str::from_utf8(words.nth(2)?).ok()?;
        let (major, minor) = number.split_once(':')?;
        let number = makedev(major.parse().ok()?, minor.parse().ok()?);
        let point = unescaped(words.nth(1)?);
        words.find(|word| *word == b"-")?;
        let kind = words.next()?.to_vec();
        let source = unescaped(words.next()?);
        let mut options = words.next()?.split(|byte| *byte == b',');
        Some(Mount {
            number,
            point,
            kind,
            source,
            is_read_only: options.any(|word| word == b"ro"),
        })
    }

    /// Whether it shows the block device with this number. Some file systems (btrfs) have a number of their own, and
    /// only the source names the device.
    fn shows(&self, number: u64) -> bool {
        let is_named = || {
            rustix::fs::stat(&self.source)
                .is_ok_and(|stat| FileIdentity::of(&stat) == FileIdentity::BlockDevice(number))
        };
        self.number == number
            || (major(self.number) == 0 && self.source.starts_with("/dev/") && is_named())
    }

    /// Where a FUSE server shows this file or device.
    fn by_server(identity: &FileIdentity) -> Option<PathBuf> {
        let mut mounts = Mount::all().into_iter();
        let found = mounts.find(|mount| {
            mount.kind.starts_with(b"fuse")
                && mount.source.is_absolute()
                && Ground::of_path(&mount.source).is_some_and(|ground| ground.leads_to(identity))
        });
        found.map(|mount| mount.point)
    }
}

/// A name in a table of the kernel, in which blanks, tabs, newlines and backslashes are written as `\ooo`.
fn unescaped(word: &[u8]) -> PathBuf {
    let mut name = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|digits| {
            byte == b'\\'
                && digits[0] <= b'3'
                && digits.iter().all(|digit| (b'0'..=b'7').contains(digit))
        });
        match octal {
            Some(digits) => {
                name.push(
                    digits
                        .iter()
                        .fold(0, |value, digit| value << 3 | (digit - b'0')),
                );
                rest = &after[3..];
            }
            None => {
                name.push(byte);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(name))
}

/// The program that has a lock on the file or device itself, or on what is behind it.
pub(crate) fn with_lock(ground: &Ground) -> String {
    let table = fs::read_to_string("/proc/locks").unwrap_or_default();
    let locked = ground.identities().find_map(|identity| {
        let process = lock_on(&table, &lock_name(identity)?)?;
        Some(described(process, identity))
    });
    // A lock of an open file description (OFD) has no process in the table.
    let opened = || {
        Some(described(
            open_in(ground, false)?,
            ground.identities().next()?,
        ))
    };
    let unknown = || "another program, or this one, has a lock on it".to_owned();
    locked.or_else(opened).unwrap_or_else(unknown)
}

/// A file as the table of locks names it: the device's numbers in hexadecimal, and the inode.
fn lock_name(identity: &FileIdentity) -> Option<String> {
    match identity {
        FileIdentity::File { device, inode } => Some(format!(
            "{:02x}:{:02x}:{inode}",
            major(*device),
            minor(*device)
        )),
        // The lock is on the node that it was opened by.
        FileIdentity::BlockDevice(_) | FileIdentity::Named(_) => None,
    }
}

/// The process, other than this one, that has a lock on the file, by the list of locks: number, kind, `ADVISORY`,
/// `READ` or `WRITE`, process, file, first and last byte.
fn lock_on(list: &str, file: &str) -> Option<u32> {
    list.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_it =
            matches!(words.get(1), Some(&"FLOCK" | &"POSIX")) && words.get(5) == Some(&file);
        let process = is_it.then(|| words[4].parse().ok()).flatten();
        // This process may have taken one of several locks, and was refused another.
        process.filter(|process| *process != std::process::id())
    })
}

/// A process that has the file open: its command and number, and where it shows the file, if it is a FUSE server.
fn described(process: u32, identity: &FileIdentity) -> String {
    let command = fs::read_to_string(format!("/proc/{process}/comm"));
    let command = command.unwrap_or_else(|_| "a program".into());
    let use_of_it = match Mount::by_server(identity) {
        Some(point) => format!("has it mounted on {}", point.display()),
        None => "has it open".to_owned(),
    };
    format!("{} (process {process}) {use_of_it}", command.trim_end())
}

/// A process that has the bytes open for writing.
pub(crate) fn writer(ground: &Ground) -> Option<String> {
    let process = open_in(ground, true)?;
    let identity = ground.identities().next()?;
    let text = described(process, identity);
    Some(match text.strip_suffix("has it open") {
        Some(subject) => format!("{subject}has it open for writing"),
        None => text,
    })
}

/// Whether this process has the bytes open for writing itself.
pub(crate) fn is_own_writer(ground: &Ground) -> bool {
    let mut budget = OPEN_FILES_MAX;
    has_open(Path::new("/proc/self"), ground, true, &mut budget)
}

/// A process, other than this one, that has the bytes open, for writing if `writing`.
fn open_in(ground: &Ground, writing: bool) -> Option<u32> {
    let mut budget = OPEN_FILES_MAX;
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let process: u32 = entry.file_name().to_str()?.parse().ok()?;
        let is_other = process != std::process::id();
        (is_other && has_open(&entry.path(), ground, writing, &mut budget)).then_some(process)
    })
}

/// Whether the process with this folder in `/proc` has the bytes open. What may not be read there is not.
fn has_open(process: &Path, ground: &Ground, writing: bool, budget: &mut usize) -> bool {
    let Ok(files) = fs::read_dir(process.join("fd")) else {
        return false;
    };
    files.flatten().any(|file| {
        if *budget == 0 {
            return false;
        }
        *budget -= 1;
        let link = file.path();
        let Some(opened) = identity_at(&link) else {
            return false;
        };
        // The link's own mode is what the file is open for.
        let may_write = || rustix::fs::lstat(&link).is_ok_and(|stat| stat.st_mode & 0o200 != 0);
        ground.identities().any(|own| *own == opened) && (!writing || may_write())
    })
}

/// The file or device that a name leads to. A server that does not answer is not waited for.
fn identity_at(path: &Path) -> Option<FileIdentity> {
    // rustix names this flag for glibc alone.
    let dont_sync = AtFlags::from_bits_retain(libc::AT_STATX_DONT_SYNC.cast_unsigned());
    let (flags, wanted) = (dont_sync, StatxFlags::TYPE | StatxFlags::INO);
    let Statx {
        stx_mode,
        stx_ino,
        stx_rdev_major,
        stx_rdev_minor,
        stx_dev_major,
        stx_dev_minor,
        ..
    } = rustix::fs::statx(CWD, path, flags, wanted).ok()?;
    match FileType::from_raw_mode(stx_mode.into()) {
        FileType::BlockDevice => Some(FileIdentity::BlockDevice(makedev(
            stx_rdev_major,
            stx_rdev_minor,
        ))),
        FileType::RegularFile => Some(FileIdentity::File {
            device: makedev(stx_dev_major, stx_dev_minor),
            inode: stx_ino,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_found_by_its_file() {
        let list = "1: OFDLCK  ADVISORY  WRITE -1 fe:00:77 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 502 fe:00:77 0 EOF\n\
            3: POSIX  ADVISORY  WRITE 503 fe:00:79 0 EOF\n\
            2: -> FLOCK  ADVISORY  WRITE 504 fe:00:78 0 EOF\n";
        assert_eq!(lock_on(list, "fe:00:77"), Some(502));
        assert_eq!(lock_on(list, "fe:00:79"), Some(503));
        assert_eq!(lock_on(list, "fe:00:78"), None);
        let own = format!(
            "1: FLOCK ADVISORY WRITE {} fe:00:77 0 EOF",
            std::process::id()
        );
        assert_eq!(lock_on(&own, "fe:00:77"), None);
    }

    #[test]
    fn a_mount_is_read_from_the_kernels_table() {
        let line =
            b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root ro,errors=continue";
        let mount = Mount::parse(line).unwrap();
        assert_eq!((mount.number, mount.is_read_only), (makedev(98, 0), true));
        assert_eq!(mount.point, Path::new("/mnt 2"));
        assert_eq!(
            (&mount.kind[..], mount.source.to_str()),
            (&b"ext3"[..], Some("/dev/root"))
        );
        assert!(Mount::parse(b"22 1 0:20 / /proc rw").is_none());
        assert!(Mount::parse(b"").is_none());
        assert_eq!(unescaped(b"a\\134b\\9\\04"), Path::new("a\\b\\9\\04"));
    }

    #[test]
    fn an_open_file_is_found_in_its_process() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let ground = Ground::of_path(file.path()).unwrap();
        assert!(is_own_writer(&ground));
        assert_eq!(writer(&ground), None);
        let other = Ground::of_path(Path::new("/proc/self/exe")).unwrap();
        assert!(!is_own_writer(&other));
    }
}
