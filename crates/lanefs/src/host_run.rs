//! Where a file of the host has data.

use std::ops::Range;

/// What follows a byte of a file of the host.
pub(crate) enum HostRun {
    /// The next bytes that may be something other than zero.
    Data(Range<u64>),
    /// Only zeros, up to the file's end.
    End(u64),
    /// What the host does not tell: the file is to be read.
    Unknown,
}
