//! Why a file or block device is opened.

/// What the caller intends to do with the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Read them: no other program may change them meanwhile.
    Read,
    /// Write them, or replace the file: no other program may use them.
    Write,
}
