//! What several crates' tests share: the programs of e2fsprogs, loop devices and kernel mounts, manifests of directory
//! trees, disks that fail or record, the states that a power cut leaves, and one random generator.
//!
//! Tests only; no crate that ships depends on it. A test that needs root or a program asks for it through
//! [`skip`], so that what did not run is said and can be counted.

mod disk;
mod e2fsprogs;
mod images;
mod loops;
mod manifest;
mod power_cut;
mod programs;
mod signals;

pub use disk::{DiskState, FailingDisk};
pub use e2fsprogs::{
    chosen_e2fsck, debugfs, debugfs_script, dumpe2fs, e2fsck_with, e2fsck_within, mke2fs,
    try_debugfs, try_mke2fs, tune2fs,
};
pub use images::{
    copy_image, copy_mounted_image, image_of, read_image, read_mounted_image, write_image,
};
pub use loops::{LoopDevice, SmallDisk};
pub use manifest::{Differences, Manifest, ManifestEntry, sha256};
pub use model::Random;
pub use power_cut::{DiskEvent, PowerCuts, surviving_writes};
pub use programs::{
    KernelMount, copy_program, e2fsck, found_nothing, have, is_root, number_in, run, skip,
    write_script,
};
pub use signals::heed_signals;
