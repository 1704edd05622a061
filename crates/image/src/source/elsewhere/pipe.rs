//! Pipes and terminals as sources.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sync::atomic::{AtomicBool, Ordering};

/// Bytes of a pipe or a terminal, which may come late.
pub(in super::super) struct Pipe<'c> {
    pub(in super::super) file: File,
    /// Set when the build is interrupted; seen once the next bytes have come. [atomic: Relaxed]
    pub(in super::super) cancel: &'c AtomicBool,
}

impl Read for Pipe<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buf)?;
        // Relaxed: a flag that only ends loops; no data is published with it.
        if self.cancel.load(Ordering::Relaxed) {
            // Not the kind `Interrupted`, after which readers try again.
            Err(io::Error::other("interrupted"))
        } else {
            Ok(count)
        }
    }
}

/// Opens a file. If it is a FIFO, waits for its writer.
pub(in super::super) fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}
