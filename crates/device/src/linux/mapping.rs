//! What the kernel has built on a block device: mappings (dm: LVM, LUKS and others), arrays (md), caches. sysfs lists
//! them in the device's folder `holders`. Nothing is opened.

use std::fs;
use std::path::Path;

use super::ground::{device_number, line, value};

/// The most devices that are followed: mappings may lie on mappings.
const DEVICES_MAX: usize = 1 << 10;

/// Kinds of dm mappings, by how their UUIDs begin.
const KINDS: [(&str, &str); 5] = [
    ("CRYPT-LUKS", "LUKS"),
    ("CRYPT-", "dm-crypt"),
    ("LVM-", "LVM"),
    ("mpath-", "multipath"),
    ("DMRAID-", "RAID"),
];

/// A block device that lies on another one.
#[derive(Debug)]
pub(crate) struct StackedDevice {
    /// Its name in `/dev`, and what it is where that is known.
    pub(crate) name: String,
    pub(crate) number: u64,
    pub(crate) is_read_only: bool,
}

/// All that lies on the device with this number, directly or not; what lies on it directly first.
pub(crate) fn on(number: u64) -> Vec<StackedDevice> {
    let mut found: Vec<StackedDevice> = Vec::new();
    let mut next = 0;
    let mut below = number;
    loop {
        let (major, minor) = (rustix::fs::major(below), rustix::fs::minor(below));
        let holders = format!("/sys/dev/block/{major}:{minor}/holders");
        for holder in fs::read_dir(holders).into_iter().flatten().flatten() {
            let mapping = described(&holder.path());
            let is_new = |mapping: &StackedDevice| {
                mapping.number != number && found.iter().all(|known| known.number != mapping.number)
            };
            if found.len() < DEVICES_MAX {
                found.extend(mapping.filter(is_new));
            }
        }
        match found.get(next) {
            Some(mapping) => below = mapping.number,
            None => return found,
        }
        next += 1;
    }
}

fn described(folder: &Path) -> Option<StackedDevice> {
    let own = folder.file_name()?.to_string_lossy().into_owned();
    let text = |path: &str| Some(line(&folder.join(path))?.to_string_lossy().into_owned());
    let name = match text("dm/name") {
        Some(name) => format!("/dev/mapper/{name}"),
        None => format!("/dev/{own}"),
    };
    let by_uuid = || {
        let uuid = text("dm/uuid")?;
        let kind = KINDS.iter().find(|(start, _)| uuid.starts_with(start));
        kind.map(|(_, kind)| (*kind).to_owned())
    };
    let kind = text("md/level").or_else(by_uuid);
    Some(StackedDevice {
        name: match kind {
            Some(kind) if !kind.is_empty() => format!("{name} ({kind})"),
            _ => name,
        },
        number: device_number(folder)?,
        is_read_only: value(&folder.join("ro")) == Some(1),
    })
}
