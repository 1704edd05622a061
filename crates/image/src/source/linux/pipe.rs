//! Pipes and terminals as sources: a read that waits for their bytes ends as soon as the caller wants to stop.
//!
//! Reads wait for a short time, again and again, because the writer may never write again and never end.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use sync::atomic::{AtomicBool, Ordering};

/// How long is waited between two looks at the flag.
const WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Bytes that come when they come.
pub(in super::super) struct Pipe<'c> {
    pub(in super::super) file: File,
    /// Set when the bytes are not wanted any more. [atomic: Relaxed]
    pub(in super::super) cancel: &'c AtomicBool,
}

impl Read for Pipe<'_> {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        loop {
            // Relaxed: a flag that only ends loops; nothing is read because of it.
            if self.cancel.load(Ordering::Relaxed) {
                // Not `Interrupted`, after which readers try again.
                return Err(Error::other("interrupted"));
            }
            match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&WAIT)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(errno) => return Err(errno.into()),
            }
            match self.file.read(buf) {
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                result => return result,
            }
        }
    }
}

/// Opens a file that may be a FIFO, without waiting for its writer.
pub(in super::super) fn open(path: &Path) -> Result<File> {
    let mut options = File::options();
    // At most 31 bits are used.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    options.read(true).custom_flags(flags).open(path)
}
