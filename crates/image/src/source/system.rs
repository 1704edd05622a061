//! The calls of this system on single files. Its walk through a directory, which makes nodes of a tree, is taken by
//! `directory` itself.

#[cfg(not(target_os = "linux"))]
pub(super) use super::elsewhere::{beneath, pipe, temporary};
#[cfg(target_os = "linux")]
pub(super) use super::linux::{beneath, pipe, temporary};
