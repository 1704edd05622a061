//! Whether any program has a regular file open for writing, as the kernel knows it: programs of other users, in
//! containers and in the kernel itself included, which `/proc` may not show.
//!
//! The kernel grants a read lease only on a file that is not open for writing. The lease is given back at once. A
//! program that opens the file for writing meanwhile waits until then, or gets `EAGAIN` if it does not wait. No locks.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The command that names the signal to send when a lease is asked back (`F_SETSIG`, which the crate lacks for Linux).
const SET_SIGNAL: libc::c_int = 10;

/// Whether any process, including this one, has the regular file of this name open for writing. `None` if it can't be
/// opened for reading, or the kernel does not tell.
pub(crate) fn is_open_for_writing(path: &Path) -> Option<bool> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    has_writer(&file.into())
}

/// Whether a process, this one included, has the file open for writing. `None` if the kernel does not tell: the caller
/// is neither the owner nor privileged, or the file system has no leases.
///
/// `file` must be open for reading only: a descriptor that can write counts as a writer.
fn has_writer(file: &File) -> Option<bool> {
    let fd = file.as_raw_fd();
    let control = |command: libc::c_int, argument: libc::c_int| {
        #[allow(unsafe_code)]
        // SAFETY: the descriptor is open as long as `file` is borrowed, and these commands take an integer.
        let done = unsafe { libc::fcntl(fd, command, argument) };
        match done {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // A lease that is asked back sends a signal. The usual one, SIGIO, ends a process that does not expect it; SIGURG
    // is ignored by default.
    control(SET_SIGNAL, libc::SIGURG).ok()?;
    match control(libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(()) => {
            // It ends with the descriptor in any case.
            let _ = control(libc::F_SETLEASE, libc::F_UNLCK);
            Some(false)
        }
        Err(error) if error.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) => Some(true),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_is_known_to_the_kernel() {
        let temporary = tempfile::NamedTempFile::new().unwrap();
        let file = File::open(temporary.path()).unwrap();
        if has_writer(&file).is_none() {
            return testkit::skip("the file system has no leases");
        }
        assert_eq!(has_writer(&file), Some(true));
        let path = temporary.into_temp_path();
        assert_eq!(has_writer(&file), Some(false));
        let _reader = File::open(&path).unwrap();
        assert_eq!(has_writer(&file), Some(false));
        let _writer = File::options().append(true).open(&path).unwrap();
        assert_eq!(has_writer(&file), Some(true));
    }
}
