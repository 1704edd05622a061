//! Directories and pipes as sources on systems other than Linux, with std alone: the same functions as in `linux`.
//!
//! Attributes are those of [`device::host`]; extended attributes and holes are not read. Files are opened by whole
//! paths here, so a directory that another process replaces during the build can redirect them; on Linux it can't.

pub(super) mod beneath;
pub(super) mod pipe;
pub(super) mod temporary;
pub(super) mod walk;

#[cfg(test)]
mod tests;
