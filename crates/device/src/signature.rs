//! What a file, device or stream holds, by the signatures of formats other than ext2/3/4. Names only: the caller
//! decides what to do about them.

use crate::block_device::{BlockDevice, DeviceError};

/// Bytes from the start in which all signatures of [`recognize`] lie.
pub const START_BYTES: usize = 64 * 1024 + 128;

/// A format that is recognized.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Format {
    /// What it is, with its article.
    pub name: &'static str,
    /// Of which kind it is.
    pub kind: Kind,
}

/// Kinds of formats, by what makes their contents accessible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A disk image of virtual machines.
    Disk,
    /// Android's sparse disk image.
    AndroidSparse,
    /// A volume encrypted with LUKS.
    Luks,
    /// A physical volume of LVM.
    Lvm,
    /// A member of a Linux RAID array.
    Raid,
    /// A file system, or a volume of another system.
    FileSystem,
    /// A tar archive.
    Tar,
    /// Compressed; a tar may be in it.
    Compressed {
        /// The command that decompresses a file.
        unpack: &'static str,
    },
    /// An archive or package that a program turns into files.
    Archive {
        /// The command that unpacks a file.
        unpack: &'static str,
    },
    /// Something that holds no files.
    Other,
}

/// A place, the bytes there, and the format they belong to.
type Signature = (usize, &'static [u8], &'static str, Kind);

/// Longer signatures come before shorter ones that could be chance.
#[rustfmt::skip]
const SIGNATURES: &[Signature] = &[
    (0, b"QFI\xfb", "a qcow2 disk image", Kind::Disk),
    (0, b"QED\0", "a QED disk image", Kind::Disk),
    (0, b"KDMV", "a VMDK disk image", Kind::Disk),
    (0, b"# Disk DescriptorFile", "a VMDK descriptor", Kind::Disk),
    (0x40, b"\x7f\x10\xda\xbe", "a VDI disk image", Kind::Disk),
    (0, b"vhdxfile", "a VHDX disk image", Kind::Disk),
    (0, b"conectix", "a VHD disk image", Kind::Disk),
    (0, b"\x3a\xff\x26\xed", "an Android sparse image", Kind::AndroidSparse),
    (0, b"LUKS\xba\xbe", "a LUKS encrypted volume", Kind::Luks),
    (3, b"-FVE-FS-", "a BitLocker encrypted volume", Kind::FileSystem),
    (0x1_0040, b"_BHRfS_M", "a btrfs file system", Kind::FileSystem),
    (0, b"XFSB", "an XFS file system", Kind::FileSystem),
    (0, b"hsqs", "a squashfs file system", Kind::Archive { unpack: "unsquashfs" }),
    (1024, b"\xe2\xe1\xf5\xe0", "an EROFS file system", Kind::FileSystem),
    (1024, b"\x10\x20\xf5\xf2", "an F2FS file system", Kind::FileSystem),
    (4096 + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9", "a bcachefs file system", Kind::FileSystem),
    (4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca", "a bcache device", Kind::FileSystem),
    (3, b"NTFS    ", "an NTFS file system", Kind::FileSystem),
    (3, b"EXFAT   ", "an exFAT file system", Kind::FileSystem),
    (3, b"ReFS\0", "a ReFS file system", Kind::FileSystem),
    (82, b"FAT32   ", "a FAT file system", Kind::FileSystem),
    (54, b"FAT1", "a FAT file system", Kind::FileSystem),
    (0x8001, b"CD001", "an ISO 9660 file system", Kind::FileSystem),
    (0x8001, b"BEA01", "a UDF file system", Kind::FileSystem),
    (0x8000, b"JFS1", "a JFS file system", Kind::FileSystem),
    (0x1_0034, b"ReIsEr", "a ReiserFS file system", Kind::FileSystem),
    (0x1_0000, b"ReIsEr4", "a Reiser4 file system", Kind::FileSystem),
    (0x1_0000, b"\x01\x16\x19\x70", "a GFS2 file system", Kind::FileSystem),
    (0x2000, b"OCFSV2", "an OCFS2 file system", Kind::FileSystem),
    (1024, b"H+\0\x04", "an HFS+ file system", Kind::FileSystem),
    (1024, b"HX\0\x05", "an HFS+ file system", Kind::FileSystem),
    (32, b"NXSB", "an APFS container", Kind::FileSystem),
    (0, b"-rom1fs-", "a romfs file system", Kind::FileSystem),
    (0, b"\x45\x3d\xcd\x28", "a cramfs file system", Kind::FileSystem),
    (0, b"UBI#", "a UBI volume", Kind::FileSystem),
    (0, b"\x31\x18\x10\x06", "a UBIFS file system", Kind::FileSystem),
    (4086, b"SWAPSPACE2", "swap space", Kind::Other),
    (4086, b"SWAP-SPACE", "swap space", Kind::Other),
    (8182, b"SWAPSPACE2", "swap space", Kind::Other),
    (16_374, b"SWAPSPACE2", "swap space", Kind::Other),
    (32_758, b"SWAPSPACE2", "swap space", Kind::Other),
    (65_526, b"SWAPSPACE2", "swap space", Kind::Other),
    (0, b"LABELONE", "an LVM physical volume", Kind::Lvm),
    (512, b"LABELONE", "an LVM physical volume", Kind::Lvm),
    (1024, b"LABELONE", "an LVM physical volume", Kind::Lvm),
    (1536, b"LABELONE", "an LVM physical volume", Kind::Lvm),
    (4096, b"\xfc\x4e\x2b\xa9", "a member of a Linux RAID array", Kind::Raid),
    (0, b"\xfc\x4e\x2b\xa9", "a member of a Linux RAID array", Kind::Raid),
    (257, b"ustar", "a tar archive", Kind::Tar),
    (0, b"\xfd7zXZ\0", "an xz file", Kind::Compressed { unpack: "xz -dk" }),
    (0, b"\x28\xb5\x2f\xfd", "a zstd file", Kind::Compressed { unpack: "zstd -dk" }),
    (0, b"\x04\x22\x4d\x18", "an lz4 file", Kind::Compressed { unpack: "lz4 -dk" }),
    (0, b"PK\x03\x04", "a zip archive", Kind::Archive { unpack: "unzip" }),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", Kind::Archive { unpack: "7z x" }),
    (0, b"070701", "a cpio archive", Kind::Archive { unpack: "cpio -id -F" }),
    (0, b"070702", "a cpio archive", Kind::Archive { unpack: "cpio -id -F" }),
    (0, b"070707", "a cpio archive", Kind::Archive { unpack: "cpio -id -F" }),
    (0, b"!<arch>\ndebian-binary", "a Debian package", Kind::Archive { unpack: "dpkg-deb --fsys-tarfile" }),
    (0, b"!<arch>\n", "an ar archive", Kind::Archive { unpack: "ar x" }),
    (0, b"\xed\xab\xee\xdb", "an RPM package", Kind::Archive { unpack: "rpm2archive" }),
    (0, b"\x7fELF", "an ELF program or library", Kind::Other),
    (1040, b"\x7f\x13", "a Minix file system", Kind::FileSystem),
    (1040, b"\x8f\x13", "a Minix file system", Kind::FileSystem),
    (1040, b"\x68\x24", "a Minix file system", Kind::FileSystem),
    (1040, b"\x78\x24", "a Minix file system", Kind::FileSystem),
    (1048, b"\x5a\x4d", "a Minix file system", Kind::FileSystem),
    (0, b"BZh", "a bzip2 file", Kind::Compressed { unpack: "bzip2 -dk" }),
    (0, b"\x1f\x8b\x08", "a gzip file", Kind::Compressed { unpack: "gzip -dk" }),
];

/// The format that these bytes begin with, the start of a file, device or stream.
#[must_use]
pub fn recognize(start: &[u8]) -> Option<Format> {
    let holds = |at: usize, bytes: &[u8]| start.get(at..at + bytes.len()) == Some(bytes);
    let found = SIGNATURES.iter().find(|(at, bytes, ..)| holds(*at, bytes));
    found.map(|(_, _, name, kind)| Format { name, kind: *kind })
}

const RAID_MAGIC: [u8; 4] = [0xFC, 0x4E, 0x2B, 0xA9];
const ZFS: Format = Format {
    name: "a member of a ZFS pool",
    kind: Kind::FileSystem,
};
/// Bytes of a label of ZFS; four of them lie at the start and the end of a device.
const ZFS_LABEL: u64 = 256 << 10;
const ZFS_MAGIC: [u8; 8] = [0x0C, 0xB1, 0xBA, 0, 0, 0, 0, 0];

/// The format whose signature lies elsewhere than at the start: of RAID arrays, ZFS and VHD at the end.
///
/// # Errors
/// When the device can't be read.
pub fn recognize_elsewhere(device: &dyn BlockDevice) -> Result<Option<Format>, DeviceError> {
    let size = device.size();
    let raid = Format {
        name: "a member of a Linux RAID array",
        kind: Kind::Raid,
    };
    let from_end = |len: u64| size.checked_sub(len);
    // Versions 1.0 and 0.90 of md's superblock.
    let md = [
        from_end(8192).map(|at| at & !4095),
        (size & !0xFFFF).checked_sub(0x1_0000),
    ];
    for at in md.into_iter().flatten() {
        if holds(device, at, &RAID_MAGIC)? {
            return Ok(Some(raid));
        }
    }
    let firmware: [(u64, &[u8]); 2] = [
        (1024, b"Intel Raid ISM Cfg Sig."),
        (512, &[0xDE, 0x11, 0xDE, 0x11]),
    ];
    for (len, bytes) in firmware {
        if let Some(at) = from_end(len)
            && holds(device, at, bytes)?
        {
            return Ok(Some(Format {
                name: "a member of a firmware RAID array",
                kind: Kind::Raid,
            }));
        }
    }
    if let Some(at) = from_end(512)
        && holds(device, at, b"conectix")?
    {
        return Ok(Some(Format {
            name: "a VHD disk image of fixed size",
            kind: Kind::Disk,
        }));
    }
    let whole = size - size % ZFS_LABEL;
    let labels = [
        Some(0),
        Some(ZFS_LABEL),
        whole.checked_sub(2 * ZFS_LABEL),
        whole.checked_sub(ZFS_LABEL),
    ];
    for label in labels.into_iter().flatten() {
        // The second half of a label is a ring of uberblocks, each at a multiple of 1 KiB.
        let half = (ZFS_LABEL / 2) as usize;
        let mut ring = vec![0; half];
        if label + ZFS_LABEL > size {
            continue;
        }
        device.read_at(label + ZFS_LABEL / 2, &mut ring)?;
        if ring.chunks(1024).any(|slot| slot.starts_with(&ZFS_MAGIC)) {
            return Ok(Some(ZFS));
        }
    }
    Ok(None)
}

fn holds(device: &dyn BlockDevice, at: u64, bytes: &[u8]) -> Result<bool, DeviceError> {
    let end = at.checked_add(bytes.len() as u64);
    if end.is_none_or(|end| end > device.size()) {
        return Ok(false);
    }
    let mut found = vec![0; bytes.len()];
    device.read_at(at, &mut found)?;
    Ok(found == bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn every_signature_lies_within_the_start_that_is_asked_for() {
        for (at, bytes, name, _) in SIGNATURES {
            assert!(at + bytes.len() <= START_BYTES, "{name}");
            let mut start = vec![0; START_BYTES];
            start[*at..at + bytes.len()].copy_from_slice(bytes);
            assert!(recognize(&start).is_some(), "{name}");
        }
        assert_eq!(recognize(&[0; START_BYTES]), None);
        assert_eq!(recognize(b"BZ"), None);
    }

    #[test]
    fn signatures_at_the_end_are_recognized() {
        let size = (8 << 20) + 5 * 512;
        for (at, bytes, word) in [
            ((8 << 20) + 2560 - 8192, &RAID_MAGIC[..], "Linux RAID"),
            ((8 << 20) - (64 << 10), &RAID_MAGIC, "Linux RAID"),
            (size - 512, b"conectix", "VHD"),
            (size - 1024, b"Intel Raid ISM Cfg Sig.", "firmware"),
            ((8 << 20) - (128 << 10) + 4096, &ZFS_MAGIC, "ZFS"),
            (128 << 10, &ZFS_MAGIC, "ZFS"),
        ] {
            let device = MemoryDevice::new(size);
            assert_eq!(recognize_elsewhere(&device).unwrap(), None);
            let at = if word == "Linux RAID" { at & !4095 } else { at };
            device.write_at(at, bytes).unwrap();
            let found = recognize_elsewhere(&device).unwrap();
            assert!(
                found.is_some_and(|found| found.name.contains(word)),
                "{word} at {at}"
            );
        }
        assert_eq!(recognize_elsewhere(&MemoryDevice::new(100)).unwrap(), None);
    }
}
