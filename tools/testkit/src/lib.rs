//! What several crates' tests share: manifests of directory trees, e2fsck, kernel loop mounts, disks that fail or
//! record, and the states that a power cut leaves.
//!
//! Tests only; no crate that ships depends on it. A test that needs root or a program asks for it through
//! [`skip`], so that what did not run is said and can be counted.

mod disk;
mod images;
mod manifest;
mod power_cut;
mod programs;
mod signals;

pub use disk::{DiskState, FailingDisk};
pub use images::{copy_image, read_image, write_image};
pub use manifest::{Differences, Manifest, ManifestEntry, sha256};
pub use power_cut::{DiskEvent, PowerCuts, surviving_writes};
pub use programs::{
    KernelMount, copy_program, e2fsck, found_nothing, have, is_root, run, skip, write_script,
};
pub use signals::heed_signals;
