//! What a file or device holds, so that what is no ext2/3/4 is named as what it is, with the next step.

use std::fmt;
use std::path::Path;

use device::{BlockDevice, DeviceError};

use crate::partition::Table;

/// Where the farthest signature ends (that of btrfs).
const LOOK_AT: u64 = 64 * 1024 + 128;
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
    Disk(Table),
    /// Something else that we know by name.
    Foreign(Foreign),
    /// Nothing but zeros where any file system would begin.
    Zeros,
    /// Nothing that we know.
    Unknown,
}

/// Something that is no ext2/3/4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Foreign {
    /// What it is, with its article.
    pub name: &'static str,
    next: Next,
}

/// What to do with something that is no ext2/3/4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// A disk format of virtual machines: `qemu-img` makes it raw.
    Convert,
    /// This command, whose last argument is the file.
    Run(&'static str),
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

/// A place, the bytes there, and what they mean.
type Signature = (usize, &'static [u8], &'static str, Next);

const LUKS: Next =
    Next::Say("open it first: cryptsetup open IMAGE NAME, then use /dev/mapper/NAME");
const LVM: Next =
    Next::Say("activate its volumes first (vgchange -ay), then use /dev/VOLUME_GROUP/VOLUME");
const RAID: Next =
    Next::Say("assemble the array first (mdadm --assemble), then use its /dev/md device");

/// Longer signatures come before shorter ones that could be chance.
const SIGNATURES: &[Signature] = &[
    (0, b"QFI\xfb", "a qcow2 disk image", Next::Convert),
    (0, b"KDMV", "a VMDK disk image", Next::Convert),
    (
        0,
        b"# Disk DescriptorFile",
        "a VMDK descriptor",
        Next::Convert,
    ),
    (0x40, b"\x7f\x10\xda\xbe", "a VDI disk image", Next::Convert),
    (0, b"vhdxfile", "a VHDX disk image", Next::Convert),
    (0, b"conectix", "a VHD disk image", Next::Convert),
    (0, b"LUKS\xba\xbe", "a LUKS encrypted volume", LUKS),
    (0x1_0040, b"_BHRfS_M", "a btrfs file system", Next::Other),
    (0, b"XFSB", "an XFS file system", Next::Other),
    (0, b"hsqs", "a squashfs file system", Next::Other),
    (
        1024,
        b"\xe2\xe1\xf5\xe0",
        "an EROFS file system",
        Next::Other,
    ),
    (
        1024,
        b"\x10\x20\xf5\xf2",
        "an F2FS file system",
        Next::Other,
    ),
    (
        4096 + 24,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9",
        "a bcachefs file system",
        Next::Other,
    ),
    (3, b"NTFS    ", "an NTFS file system", Next::Other),
    (3, b"EXFAT   ", "an exFAT file system", Next::Other),
    (82, b"FAT32   ", "a FAT file system", Next::Other),
    (54, b"FAT1", "a FAT file system", Next::Other),
    (0x8001, b"CD001", "an ISO 9660 file system", Next::Other),
    (4086, b"SWAPSPACE2", "swap space", Next::Other),
    (512, b"LABELONE", "an LVM physical volume", LVM),
    (
        4096,
        b"\xfc\x4e\x2b\xa9",
        "a member of a Linux RAID array",
        RAID,
    ),
    (
        0,
        b"\x3a\xff\x26\xed",
        "an Android sparse image",
        Next::Say("make it raw first: simg2img IMAGE IMAGE.raw"),
    ),
    (257, b"ustar", "a tar archive", Next::Build),
    (0, b"\xfd7zXZ\0", "an xz file", Next::Run("xz -dk")),
    (0, b"\x28\xb5\x2f\xfd", "a zstd file", Next::Run("zstd -dk")),
    (0, b"\x04\x22\x4d\x18", "an lz4 file", Next::Run("lz4 -dk")),
    (0, b"PK\x03\x04", "a zip archive", Next::Run("unzip")),
    (0, b"070701", "a cpio archive", Next::Other),
    (0, b"BZh", "a bzip2 file", Next::Run("bzip2 -dk")),
    (0, b"\x1f\x8b\x08", "a gzip file", Next::Run("gzip -dk")),
];

/// Looks at what a device holds: ext first, since its magic number is what the kernel goes by too.
///
/// # Errors
/// When the device can't be read.
pub fn probe(device: &dyn BlockDevice) -> Result<Content, DeviceError> {
    let len = device.size().min(LOOK_AT);
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
    if let Some((_, _, name, next)) = SIGNATURES.iter().find(|(at, bytes, ..)| holds(*at, bytes)) {
        return Ok(Content::Foreign(Foreign { name, next: *next }));
    }
    if let Some(table) = Table::read(device)? {
        return Ok(Content::Disk(table));
    }
    Ok(if start.iter().all(|byte| *byte == 0) {
        Content::Zeros
    } else {
        Content::Unknown
    })
}
