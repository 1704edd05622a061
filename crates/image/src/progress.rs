//! The progress of a build, for a caller that shows it. The builder itself prints nothing.

/// What a build is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Looking at the sources.
    Scan,
    /// Deciding where everything goes.
    Plan,
    /// Copying data: the number of bytes in all, or 0 while it is not known.
    Copy {
        /// Bytes of all files and directories, whole blocks.
        total: u64,
    },
    /// Writing inodes, bitmaps and the rest.
    Metadata,
    /// Waiting for the device, or putting the image in place.
    Finish,
}

/// Receives the progress of a build, from many threads at once.
pub trait Progress: Sync {
    /// A phase begins.
    fn phase(&self, phase: Phase);
    /// `bytes` more bytes of the phase are done.
    fn advance(&self, bytes: u64);
}

/// Shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn phase(&self, _phase: Phase) {}
    fn advance(&self, _bytes: u64) {}
}
