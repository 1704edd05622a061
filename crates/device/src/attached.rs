//! What is behind a loop device: the file or device that it makes a block device of, as sysfs tells. No locks; a
//! moment's truth.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A file that a loop device makes a block device of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attached {
    /// The loop device's name in /dev.
    pub name: String,
    /// The file. It may be gone, or be another in this mount namespace.
    pub file: PathBuf,
    /// The bytes of the file that are in the device.
    pub bytes: Range<u64>,
}

impl Attached {
    /// What is behind the block device with this number, if it is a loop device or a partition on one.
    #[must_use]
    pub fn to(number: u64) -> Option<Attached> {
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let device = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        // A partition lies in its disk's folder.
        Attached::of_folder(&device).or_else(|| Attached::of_folder(device.parent()?))
    }

    /// All that is behind loop devices.
    pub fn all() -> impl Iterator<Item = Attached> {
        let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        entries.filter_map(|entry| Attached::of_folder(&entry.path()))
    }

    /// By a disk's folder in sysfs.
    fn of_folder(folder: &Path) -> Option<Attached> {
        let file = fs::read_to_string(folder.join("loop/backing_file")).ok()?;
        let number = |name: &str| {
            let text = fs::read_to_string(folder.join("loop").join(name)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let (offset, limit) = (number("offset")?, number("sizelimit")?);
        let end = match limit {
            0 => u64::MAX,
            limit => offset.saturating_add(limit),
        };
        Some(Attached {
            name: folder.file_name()?.to_string_lossy().into_owned(),
            file: PathBuf::from(file.strip_suffix('\n').unwrap_or(&file)),
            bytes: offset..end,
        })
    }

    /// Whether both have bytes in common, if they are of one file.
    #[must_use]
    pub fn overlaps(&self, other: &Attached) -> bool {
        self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end
    }
}
