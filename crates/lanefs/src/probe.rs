//! What a file or device holds, so that other formats are named for what they are, with the next step.

use std::fmt;
use std::path::Path;

use device::signature::{Format, Kind, START_BYTES, recognize, recognize_elsewhere};
use device::{BlockDevice, DeviceError};

use crate::partition::PartitionTable;

/// The superblock's magic number, little-endian, and its place.
const EXT_MAGIC: (usize, [u8; 2]) = (1024 + 56, [0x53, 0xEF]);
/// The byte of `s_feature_incompat` that says "this is an external journal", and the bit.
const JOURNAL_DEVICE: (usize, u8) = (1024 + 96, 0x08);

/// What a file or device holds.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Content {
    /// An ext2, ext3 or ext4 file system, or at least its magic number.
    Ext,
    /// A disk with partitions.
    Disk(PartitionTable),
    /// Something else that we know by name.
    Foreign(Foreign),
    /// Nothing but zeros where any file system would begin.
    Zeros,
    /// Nothing that we know.
    Unknown,
}

/// Something that is not an ext2/3/4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Foreign {
    /// What it is, with its article.
    pub name: &'static str,
    next: Next,
}

/// What to do with something that is not an ext2/3/4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// A disk format of virtual machines: `qemu-img` makes it raw.
    Convert,
    /// This command, whose last argument is the file, decompresses it.
    Run(&'static str),
    /// This command, whose last argument is the file, unpacks it.
    Unpack(&'static str),
    /// This sentence.
    Say(&'static str),
    /// Another program reads it.
    Other,
    /// An archive that `lanefs build` takes.
    Build,
}

impl Foreign {
    /// The next step, as a sentence; `path` is where it was found.
    #[must_use]
    pub fn next_step(&self, path: &Path) -> String {
        let path = path.display();
        match self.next {
            Next::Convert => {
                format!("make it raw first: qemu-img convert -O raw {path} {path}.raw")
            }
            Next::Run(command) => {
                format!("unpack it first ({command} {path}); a tar in it is for `lanefs build`")
            }
            Next::Unpack(command) => {
                format!("lanefs reads ext2, ext3 and ext4 only; {command} {path} unpacks it")
            }
            Next::Say(sentence) => sentence.to_owned(),
            Next::Other => "lanefs reads ext2, ext3 and ext4 only".to_owned(),
            Next::Build => format!("to make an image of it: lanefs build {path} NEW.img"),
        }
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl From<Format> for Foreign {
    fn from(format: Format) -> Foreign {
        let next = match format.kind {
            Kind::Disk => Next::Convert,
            Kind::AndroidSparse => Next::Say("make it raw first: simg2img IMAGE IMAGE.raw"),
            Kind::Luks => {
                Next::Say("open it first: cryptsetup open IMAGE NAME, then use /dev/mapper/NAME")
            }
            Kind::Lvm => Next::Say(
                "activate its volumes first (vgchange -ay), then use /dev/VOLUME_GROUP/VOLUME",
            ),
            Kind::Raid => Next::Say(
                "assemble the array first (mdadm --assemble), then use its /dev/md device",
            ),
            Kind::Tar => Next::Build,
            Kind::Compressed { unpack } => Next::Run(unpack),
            Kind::Archive { unpack } => Next::Unpack(unpack),
            Kind::FileSystem | Kind::Other => Next::Other,
        };
        Foreign {
            name: format.name,
            next,
        }
    }
}

/// Looks at what a device holds: ext first, since its magic number is what the kernel goes by too.
///
/// # Errors
/// When the device can't be read.
pub fn probe(device: &dyn BlockDevice) -> Result<Content, DeviceError> {
    let len = device.size().min(START_BYTES as u64);
    let mut start = vec![0; len as usize];
    device.read_at(0, &mut start)?;
    let holds = |at: usize, bytes: &[u8]| start.get(at..at + bytes.len()) == Some(bytes);

    if holds(EXT_MAGIC.0, &EXT_MAGIC.1) {
        let (at, bit) = JOURNAL_DEVICE;
        return Ok(if start.get(at).is_some_and(|byte| byte & bit != 0) {
            let next = Next::Say("name the file system that uses it, not its journal");
            Content::Foreign(Foreign {
                name: "an external ext4 journal",
                next,
            })
        } else {
            Content::Ext
        });
    }
    if let Some(format) = recognize(&start) {
        return Ok(Content::Foreign(format.into()));
    }
    if let Some(table) = PartitionTable::read(device)? {
        return Ok(Content::Disk(table));
    }
    if let Some(format) = recognize_elsewhere(device)? {
        return Ok(Content::Foreign(format.into()));
    }
    Ok(if start.iter().all(|byte| *byte == 0) {
        Content::Zeros
    } else {
        Content::Unknown
    })
}
