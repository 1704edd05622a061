//! Data and holes of a file of the host.

use std::ops::Range;

/// What comes next in a file of the host.
pub(crate) enum HostRun {
    /// The next bytes that may not be zero.
    Data(Range<u64>),
    /// Only zeros up to the file's end, which is at this byte.
    End(u64),
    /// The host does not tell: the file must be read.
    Unknown,
}
