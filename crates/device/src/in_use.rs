//! Opens a file or block device that is not in use; refuses one that is in use, and names its holder.
//!
//! A file can't be opened for writing while something may rely on its contents: a lock (flock, fcntl), a mount, a loop
//! device, swap, an exclusive open of a block device, or a program that has it open for writing without any lock, as
//! some virtual machine monitors do. A program that only has it open for reading does not count. A file can't be opened
//! for reading while something may write to it. These checks are true for a moment only; from then on [`FileDevice`]'s
//! locks keep other instances of lanefs, and QEMU, away.

use std::io;
use std::path::Path;

use sync::clock::Duration;

use crate::block_device::DeviceError;
use crate::file::FileDevice;
use crate::purpose::Purpose;
use crate::system::ground::Ground;
use crate::system::holder::{self, in_kernel};
use crate::system::lease::is_open_for_writing;

/// How often, and how far apart, the checks are repeated: a loop device is detached a moment after its unmount, and a
/// program that ended closes its files a moment later.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(50);

/// Opens a file or block device to write to it.
///
/// # Errors
/// `InUse` with its holder; as [`FileDevice::open`].
pub fn open_to_write(path: &Path) -> Result<FileDevice, DeviceError> {
    refuse_held(path, Purpose::Write)?;
    let device = FileDevice::open(path)?;
    refuse_once(&device, Purpose::Write)?;
    Ok(device)
}

/// Opens a file or block device for reading, if no process can write to it.
///
/// # Errors
/// `InUse` with its holder; as [`FileDevice::open_read_only`].
pub fn open_to_read(path: &Path) -> Result<FileDevice, DeviceError> {
    refuse_held(path, Purpose::Read)?;
    let device = FileDevice::open_read_only(path)?;
    refuse_once(&device, Purpose::Read)?;
    Ok(device)
}

/// Refuses a file that is in use, before it is locked. This process must not have it open for writing yet.
fn refuse_held(path: &Path, purpose: Purpose) -> Result<(), DeviceError> {
    for _ in 1..TRIES {
        if holder_of(path, purpose).is_none() {
            return Ok(());
        }
        sync::thread::sleep(PAUSE);
    }
    match holder_of(path, purpose) {
        Some(holder) => Err(in_use(path.display().to_string(), holder)),
        None => Ok(()),
    }
}

/// Refuses a file that the kernel began to use after it was checked and before it was locked.
fn refuse_once(device: &FileDevice, purpose: Purpose) -> Result<(), DeviceError> {
    match in_kernel(device.ground(), purpose) {
        Some(holder) => Err(in_use(device.path().to_owned(), holder)),
        None => Ok(()),
    }
}

fn in_use(path: String, holder: String) -> DeviceError {
    DeviceError::InUse { path, holder }
}

/// What uses a file or device now, other than by a lock.
fn holder_of(path: &Path, purpose: Purpose) -> Option<String> {
    let ground = Ground::of_path(path)?;
    let known = if ground.is_file() {
        is_open_for_writing(path)
    } else {
        None
    };
    // The kernel writes through loop devices and swap, too.
    let may_be_written = known != Some(false);
    if (may_be_written || purpose == Purpose::Write)
        && let Some(holder) = in_kernel(&ground, purpose)
    {
        return Some(holder);
    }
    if !may_be_written {
        return None;
    }
    let hidden = || {
        // If the server of a mount was killed, its anchor remains, which changes nothing.
        let is_explained = || holder::is_own_writer(&ground) || ground.has_anchor();
        let is_unexplained = known == Some(true) && !is_explained();
        is_unexplained.then(|| "a program out of sight has it open for writing".to_owned())
    };
    holder::writer(&ground).or_else(hidden)
}

/// A file that is about to be replaced by another one of its name: locked against other users until this is dropped.
#[derive(Debug)]
pub struct Replaced {
    device: Option<FileDevice>,
}

impl Replaced {
    /// Locks the file with this name, if it exists.
    ///
    /// # Errors
    /// `InUse` with its holder.
    pub fn hold(path: &Path) -> Result<Replaced, DeviceError> {
        match std::fs::metadata(path) {
            Ok(found) if found.is_file() => {}
            _ => return Ok(Replaced { device: None }),
        }
        refuse_held(path, Purpose::Write)?;
        let device = match FileDevice::open_to_replace(path) {
            Ok(device) => device,
            // A file that this process may not read can be replaced, but not be locked.
            Err(DeviceError::Open { source, .. })
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                return Ok(Replaced { device: None });
            }
            Err(error) => return Err(error),
        };
        refuse_once(&device, Purpose::Write)?;
        Ok(Replaced {
            device: Some(device),
        })
    }

    /// Repeats the checks just before the file is replaced, also for a file that got this name meanwhile.
    ///
    /// # Errors
    /// `InUse` with its holder.
    pub fn again(self, path: &Path) -> Result<Replaced, DeviceError> {
        let is_same = |device: &FileDevice| {
            let found = Ground::of_path(path);
            found.is_some_and(|found| found.is_same(device.ground()))
        };
        match &self.device {
            Some(device) if is_same(device) => {
                refuse_held(path, Purpose::Write)?;
                Ok(self)
            }
            _ => Replaced::hold(path),
        }
    }
}
