//! Data and holes of a file on the host.

use std::ops::Range;

/// The next part of a file on the host.
pub(crate) enum HostRun {
    /// The next bytes that may not be zero.
    Data(Range<u64>),
    /// Only zeros follow, up to the file's end at this byte.
    End(u64),
    /// The host does not report data and holes: the file must be read.
    Unknown,
}
