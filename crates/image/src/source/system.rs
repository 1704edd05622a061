//! The functions for single files, chosen for this system. `directory` itself chooses the system's walk, because a walk
//! makes nodes of a tree.

#[cfg(not(target_os = "linux"))]
pub(super) use super::elsewhere::{beneath, pipe, temporary};
#[cfg(target_os = "linux")]
pub(super) use super::linux::{beneath, pipe, temporary};
