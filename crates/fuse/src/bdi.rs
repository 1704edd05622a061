//! What the kernel keeps of a mount's files before it asks the server: how far it reads ahead, and how many dirty pages
//! it lets programs make.
//!
//! Linux reads at most 128 KiB ahead on a FUSE mount, whatever the server offers in INIT, and lets the mount have 1 %
//! of the pages that may be dirty on the host. Root can raise both in `/sys/class/bdi`. The kernel's files for a mount
//! are called after its device: `MAJOR:MINOR`, and `-fuseblk` behind it if the mount has a block device.

use std::path::{Path, PathBuf};

use crate::mounts::device_numbers;

/// The kernel's folder of these settings.
const FOLDER: &str = "/sys/class/bdi";
/// KiB that are read ahead: as much as one READ can ask for.
const READ_AHEAD_KIB: u32 = 1024;
/// The share of the host's dirty pages that a mount may have, in per cent. Most of them are left for the image itself,
/// so that the server's own writes are not slowed down until the pages of its clients are written, which takes the
/// server.
const MAX_RATIO: u32 = 20;

/// Raises both for the mount with this number of a connection; what is higher already stays. Has no effect where the
/// host does not allow it (users other than root, containers). Called after INIT, which may lower the first.
pub(crate) fn widen(connection: u32) {
    let (major, minor) = device_numbers(connection);
    for suffix in ["-fuseblk", ""] {
        let folder = Path::new(FOLDER).join(format!("{major}:{minor}{suffix}"));
        raise(folder.join("read_ahead_kb"), READ_AHEAD_KIB);
        raise(folder.join("max_ratio"), MAX_RATIO);
    }
}

fn raise(file: PathBuf, least: u32) {
    let now = std::fs::read_to_string(&file);
    let now = now.ok().and_then(|text| text.trim().parse::<u32>().ok());
    if now.is_some_and(|now| now < least) {
        // Where this fails the mount works as well, only slower.
        let _ = std::fs::write(file, least.to_string());
    }
}
