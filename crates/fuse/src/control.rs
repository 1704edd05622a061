//! The kernel's files that end a connection, kept open from the mount on.
//!
//! # Why
//!
//! The host lists connections by number in a file system of type `fusectl`, usually at `/sys/fs/fuse/connections`. The
//! number is that of the mount's device, and the kernel gives it to another mount as soon as this one is gone. A file
//! that was opened while the connection existed stays tied to it: once the connection is gone, the file reads as empty,
//! and a write does nothing.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Where the host usually has the list.
pub(crate) const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// Room for a number of requests in decimal digits.
const COUNT_BYTES: usize = 32;

/// The open files of one connection; see the module.
#[derive(Debug)]
pub(crate) struct Control {
    /// Read for the number of requests under way.
    waiting: OwnedFd,
    /// Written to end the connection.
    abort: OwnedFd,
}

impl Control {
    /// Opens the files of the connection that has this number now; `None` if the host does not show them to this
    /// process.
    pub(crate) fn open(number: u32) -> Option<Control> {
        // Root uses a mount of its own that is at no directory, so that others can unmount the host's list meanwhile.
        match private_list() {
            Some(list) => Control::open_in(list.as_fd(), &number.to_string()),
            None => Control::open_in(CWD, &format!("{CONNECTIONS}/{number}")),
        }
    }

    fn open_in(list: BorrowedFd<'_>, connection: &str) -> Option<Control> {
        let open = |name: &str, access: OFlags| {
            let path = format!("{connection}/{name}");
            openat(list, path, access | OFlags::CLOEXEC, Mode::empty()).ok()
        };
        Some(Control {
            waiting: open("waiting", OFlags::RDONLY)?,
            abort: open("abort", OFlags::WRONLY)?,
        })
    }

    /// Whether the connection exists. While it does, no other connection has its number.
    pub(crate) fn is_there(&self) -> bool {
        // The kernel does not let this file seek, so an open one can be read only once: each look opens it again.
        let path = format!("/proc/self/fd/{}", self.waiting.as_raw_fd());
        let again = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let mut count = [0; COUNT_BYTES];
        let read = again.and_then(|again| rustix::io::read(&again, &mut count));
        read.is_ok_and(|len| len > 0)
    }

    /// Ends the connection: requests under way and all later ones fail. Does nothing to one that is gone.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn abort(&self) -> Result<(), Errno> {
        rustix::io::write(&self.abort, b"1").map(drop)
    }
}

/// Mounts the list at no directory; `None` for a user who may not mount.
fn private_list() -> Option<OwnedFd> {
    let list = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
    fsconfig_create(list.as_fd()).ok()?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    fsmount(list.as_fd(), flags, MountAttrFlags::empty()).ok()
}

#[cfg(test)]
mod tests {
    use rustix::mount::{MountFlags, UnmountFlags};

    use super::*;
    use crate::connect::open_device;
    use crate::mounts;

    /// A mount without a server.
    struct Mount {
        directory: tempfile::TempDir,
        _device: OwnedFd,
    }

    impl Mount {
        fn new() -> Option<Mount> {
            let device = open_device().ok()?;
            let directory = tempfile::tempdir().unwrap();
            let options = format!(
                "fd={},rootmode=40000,user_id=0,group_id=0",
                device.as_raw_fd()
            );
            let options = std::ffi::CString::new(options).unwrap();
            let path = directory.path();
            let flags = MountFlags::empty();
            rustix::mount::mount("x", path, mounts::TYPE, flags, options.as_c_str()).ok()?;
            Some(Mount {
                directory,
                _device: device,
            })
        }

        fn number(&self) -> u32 {
            mounts::mounted_at(self.directory.path())
                .unwrap()
                .connection
        }
    }

    impl Drop for Mount {
        fn drop(&mut self) {
            let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
            let _ = rustix::mount::unmount(self.directory.path(), flags);
        }
    }

    #[test]
    fn the_files_of_a_connection_that_is_gone_do_nothing_to_the_next_with_its_number() {
        let Some(first) = Mount::new() else {
            return testkit::skip("mounting needs root and /dev/fuse");
        };
        let control = Control::open(first.number()).unwrap();
        assert!(control.is_there());
        let number = first.number();
        drop(first);
        assert!(!control.is_there());
        let second = Mount::new().unwrap();
        // The kernel gives the lowest number that is free, unless another program took it meanwhile.
        let now = Control::open(second.number()).unwrap();
        assert_eq!(control.abort(), Ok(()));
        assert!(now.is_there(), "{number}, {}", second.number());
        assert!(!control.is_there());
        // The number alone reaches the second mount.
        now.abort().unwrap();
        assert!(rustix::fs::statfs(second.directory.path()).is_err());
    }
}
