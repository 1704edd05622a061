//! Whether the host's kernel uses a file or block device: what must not be written behind its back. A moment's
//! truth, asked before writing; against other programs that ask for it, an advisory lock (flock) keeps it true.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use device::{DeviceError, FileDevice, Ground, Layer};

use crate::Error;

/// Opens a file or block device to be written to, with a lock that holds until it is dropped.
///
/// # Errors
/// `InUse` when it is mounted, attached to a loop device, or open in another program of this kind; when it can't be
/// opened.
pub fn open_unused(path: impl AsRef<Path>) -> Result<FileDevice, Error> {
    let path = path.as_ref();
    unused(path, FileDevice::open(path))
}

/// Opens a file or block device to be read for as long as it is open, with a lock that keeps writers away.
///
/// # Errors
/// As [`open_unused`].
pub fn open_unchanging(path: impl AsRef<Path>) -> Result<FileDevice, Error> {
    let path = path.as_ref();
    unused(path, FileDevice::open_read_only(path))
}

fn unused(path: &Path, opened: Result<FileDevice, DeviceError>) -> Result<FileDevice, Error> {
    let user = match opened {
        Err(DeviceError::InUse { .. }) => user_of(path).or_else(|| lock_holder_behind(path)),
        Err(_) => None,
        Ok(_) => user_of(path),
    };
    match user {
        Some(user) => Err(Error::InUse {
            path: path.to_path_buf(),
            user,
        }),
        None => Ok(opened?),
    }
}

/// Who holds a lock on a file or device, or on what is behind it.
fn lock_holder_behind(path: &Path) -> Option<String> {
    let ground = Ground::of_path(path)?;
    let mut behind = ground.layers().iter().map(Layer::path);
    lock_holder(path).or_else(|| behind.find_map(lock_holder))
}

/// Who holds a lock (flock) on a file, as a clause.
fn lock_holder(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    let (device, ino) = (metadata.dev(), metadata.ino());
    let file = format!("{:02x}:{:02x}:{ino}", major(device), minor(device));
    let process = lock_on(&fs::read_to_string("/proc/locks").ok()?, &file)?;
    let name = fs::read_to_string(format!("/proc/{process}/comm")).ok();
    let name = name.unwrap_or_else(|| "a program".into());
    Some(format!(
        "{} (process {process}) has it open",
        name.trim_end()
    ))
}

/// The process that has an flock on the file, by the list of locks: number, `FLOCK`, `ADVISORY`, `READ` or `WRITE`,
/// process, file, first and last byte.
fn lock_on(list: &str, file: &str) -> Option<u32> {
    list.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_it = words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&file);
        is_it.then(|| words[4].parse().ok()).flatten()
    })
}

/// How `path` is in use, as a clause: mounted somewhere, or attached to a loop device; for a loop device or a partition
/// also how the bytes behind it are, other than through it. `None` also where the host does not tell.
#[must_use]
pub fn user_of(path: &Path) -> Option<String> {
    let ground = Ground::of_path(path)?;
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut devices = ground.devices();
    let mounted =
        devices.find_map(|(major, minor)| mount_point(&table, &format!("{major}:{minor}")));
    mounted.or_else(|| Some(format!("attached to /dev/{}", ground.other_loop_device()?)))
}

/// Linux's encoding of device numbers for programs.
fn major(number: u64) -> u64 {
    (number >> 8 & 0xFFF) | (number >> 32 & !0xFFF)
}

fn minor(number: u64) -> u64 {
    (number & 0xFF) | (number >> 12 & !0xFF)
}

/// The clause for the first mount of the device `major:minor` in a mountinfo table.
fn mount_point(table: &str, number: &str) -> Option<String> {
    let mut lines = table.lines().map(|line| line.split(' '));
    let mut found = lines.find_map(|mut words| (words.nth(2)? == number).then_some(words))?;
    let place = found.nth(1)?;
    Some(format!("mounted on {place}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_found_by_its_file() {
        let list = "1: POSIX  ADVISORY  WRITE 501 fe:00:77 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 502 fe:00:77 0 EOF\n\
            2: -> FLOCK  ADVISORY  WRITE 503 fe:00:78 0 EOF\n";
        assert_eq!(lock_on(list, "fe:00:77"), Some(502));
        assert_eq!(lock_on(list, "fe:00:78"), None);
    }

    #[test]
    fn a_mount_is_found_by_its_device_number() {
        let table = "22 1 0:20 / /proc rw - proc proc rw\n36 35 98:0 /mnt1 /mnt2 rw,noatime - ext3 /dev/root rw\n";
        assert_eq!(
            mount_point(table, "98:0").as_deref(),
            Some("mounted on /mnt2")
        );
        assert_eq!(mount_point(table, "98:1"), None);
        assert_eq!((major(0xFE01), minor(0xFE01)), (254, 1));
    }
}
