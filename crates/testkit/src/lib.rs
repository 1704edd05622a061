//! What several crates' tests share: manifests of directory trees, e2fsck, and kernel loop mounts.
//!
//! Tests only; no crate that ships depends on it. A test that needs root or a program asks for it through
//! [`skip`], so that what did not run is said and can be counted.

mod disk;
mod manifest;
mod programs;

pub use disk::{DiskState, FailingDisk};
pub use manifest::{Differences, Manifest, ManifestEntry, sha256};
pub use programs::{KernelMount, e2fsck, found_nothing, have, is_root, run, skip};
