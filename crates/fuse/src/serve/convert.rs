//! Between the protocol's structures and lanefs's types.

use lanefs::{FileType, Flags, Ino, Metadata, SetAttributes, SetTime, Timestamp};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::abi::{self, statx, valid};
use crate::extension::Extension;
use crate::operations::{Answer, Caller, Named, New, Opening};
use crate::request::{ino, node};

/// How long the kernel may keep names and attributes, in seconds: for good, because only this mount changes the image.
const KEPT: u64 = 1 << 30;
/// What stat calls the best size of a read or write; a page, as for ext4 in most cases.
const BLOCK_SIZE: u32 = 4096;
/// Nanoseconds in a second, less one.
const NANOSECONDS_MAX: u32 = 999_999_999;

pub(super) fn named(directory: u64, name: &[u8]) -> Answer<Named<'_>> {
    Ok(Named {
        directory: ino(directory)?,
        name,
    })
}

/// A file's type as the high bits of its mode.
pub(super) fn type_bits(file_type: FileType) -> u32 {
    u32::from(file_type.mode_bits())
}

/// A device's number in 32 bits, as Linux packs it.
fn packed((major, minor): (u32, u32)) -> u32 {
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

pub(super) fn unpacked(rdev: u32) -> (u32, u32) {
    (rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & 0xf_ff00)
}

fn attr(metadata: &Metadata) -> abi::Attr {
    // The protocol's seconds are signed numbers in an unsigned field.
    let seconds = |time: Timestamp| time.seconds.cast_unsigned();
    let nanoseconds = |time: Timestamp| time.nanoseconds.min(NANOSECONDS_MAX);
    abi::Attr {
        ino: metadata.ino.0.into(),
        size: metadata.size,
        blocks: metadata.blocks,
        atime: seconds(metadata.atime),
        mtime: seconds(metadata.mtime),
        ctime: seconds(metadata.ctime),
        atime_nsec: nanoseconds(metadata.atime),
        mtime_nsec: nanoseconds(metadata.mtime),
        ctime_nsec: nanoseconds(metadata.ctime),
        mode: type_bits(metadata.file_type) | u32::from(metadata.mode & 0o7777),
        nlink: metadata.nlink,
        uid: metadata.uid,
        gid: metadata.gid,
        rdev: packed(metadata.rdev),
        block_size: BLOCK_SIZE,
        flags: 0,
    }
}

pub(super) fn attr_out(metadata: &Metadata) -> abi::AttrOut {
    abi::AttrOut {
        valid: KEPT,
        attr: attr(metadata),
        ..abi::AttrOut::default()
    }
}

/// The answer to a statx. Linux 6.18 takes the time of birth from it, and what stat(2) has; not the attributes.
pub(super) fn statx_out(metadata: &Metadata) -> abi::StatxOut {
    let time = |time: Timestamp| abi::StatxTime {
        seconds: time.seconds,
        nanoseconds: time.nanoseconds.min(NANOSECONDS_MAX),
        reserved: 0,
    };
    let has_birth = match metadata.crtime {
        Some(_) => statx::BTIME,
        None => 0,
    };
    abi::StatxOut {
        valid: KEPT,
        stat: abi::Statx {
            mask: statx::BASIC | has_birth,
            block_size: BLOCK_SIZE,
            attributes: u64::from(metadata.flags.0) & statx::OF_FLAGS,
            nlink: metadata.nlink,
            uid: metadata.uid,
            gid: metadata.gid,
            mode: metadata.file_type.mode_bits() | metadata.mode & 0o7777,
            ino: metadata.ino.0.into(),
            size: metadata.size,
            blocks: metadata.blocks,
            attributes_mask: statx::OF_FLAGS,
            atime: time(metadata.atime),
            btime: metadata.crtime.map(time).unwrap_or_default(),
            ctime: time(metadata.ctime),
            mtime: time(metadata.mtime),
            rdev_major: metadata.rdev.0,
            rdev_minor: metadata.rdev.1,
            ..abi::Statx::default()
        },
        ..abi::StatxOut::default()
    }
}

/// The answer to a look-up. The root's generation is 0: the kernel makes this node itself, before it asks for anything.
pub(super) fn entry_out(metadata: &Metadata) -> abi::EntryOut {
    let generation = match metadata.ino {
        Ino::ROOT => 0,
        _ => metadata.generation.0.into(),
    };
    abi::EntryOut {
        node: node(metadata.ino),
        generation,
        entry_valid: KEPT,
        attr_valid: KEPT,
        attr: attr(metadata),
        ..abi::EntryOut::default()
    }
}

/// The answer about a name that does not exist: node 0, for as long as any other answer.
pub(super) fn entry_of_nothing() -> abi::EntryOut {
    abi::EntryOut {
        entry_valid: KEPT,
        attr_valid: KEPT,
        ..abi::EntryOut::default()
    }
}

/// What is known of an inode by its entry alone. No file can have this size, so the kernel does not believe it: it then
/// lists the name, and forgets the inode once.
pub(super) fn entry_of_listed(ino: Ino, file_type: FileType) -> abi::EntryOut {
    abi::EntryOut {
        node: node(ino),
        entry_valid: KEPT,
        attr_valid: KEPT,
        attr: abi::Attr {
            ino: ino.0.into(),
            size: u64::MAX,
            mode: type_bits(file_type),
            block_size: BLOCK_SIZE,
            ..abi::Attr::default()
        },
        ..abi::EntryOut::default()
    }
}

fn timestamp(seconds: u64, nanoseconds: u32) -> Timestamp {
    Timestamp {
        seconds: seconds.cast_signed(),
        nanoseconds: nanoseconds.min(NANOSECONDS_MAX),
    }
}

/// What a SETATTR changes.
pub(super) fn set_attributes(change: &abi::SetAttrIn) -> SetAttributes {
    let has = |bit| change.valid & bit != 0;
    let time = |bit, now, seconds: u64, nanoseconds: u32| {
        has(bit).then(|| {
            if has(now) {
                SetTime::Now
            } else {
                SetTime::At(timestamp(seconds, nanoseconds))
            }
        })
    };
    SetAttributes {
        // Permissions have 12 bits.
        mode: has(valid::MODE).then_some((change.mode & 0o7777) as u16),
        uid: has(valid::UID).then_some(change.uid),
        gid: has(valid::GID).then_some(change.gid),
        size: has(valid::SIZE).then_some(change.size),
        atime: time(
            valid::ATIME,
            valid::ATIME_NOW,
            change.atime,
            change.atime_nsec,
        ),
        mtime: time(
            valid::MTIME,
            valid::MTIME_NOW,
            change.mtime,
            change.mtime_nsec,
        ),
        ctime: has(valid::CTIME).then(|| timestamp(change.ctime, change.ctime_nsec)),
    }
}

/// An inode's flags, and the bits that all file systems share for them.
const SHARED: [(Flags, u32); 6] = [
    (Flags::IMMUTABLE, 0x8),
    (Flags::APPEND, 0x10),
    (Flags::SYNC, 0x20),
    (Flags::NO_ATIME, 0x40),
    (Flags::NO_DUMP, 0x80),
    (Flags::PROJECT_INHERIT, 0x200),
];

/// The word of `struct fsxattr` that has the project.
const PROJECT: usize = 3;

/// Flags and project in the form that all file systems share (`struct fsxattr`): a word of bits, two about extents and
/// one about copies, which ext4 leaves 0, and before the last the project.
pub(super) fn shared_flags(flags: u32, project: u32) -> [u8; 28] {
    let set = SHARED
        .iter()
        .filter(|(flag, _)| Flags(flags).contains(*flag));
    let bits = set.fold(0, |bits, (_, bit)| bits | bit);
    let mut bytes = [0; 28];
    bytes[..4].copy_from_slice(&u32::to_ne_bytes(bits));
    bytes[PROJECT * 4..][..4].copy_from_slice(&project.to_ne_bytes());
    bytes
}

/// An inode's flags with those that all file systems share as a caller of FS_IOC_FSSETXATTR wants them. The project
/// must be 0: an image that has projects is not written to.
pub(super) fn with_shared_flags(flags: u32, wanted: &[u8]) -> Answer<u32> {
    let words: Option<Vec<u32>> = (0..5)
        .map(|at| wanted.get(at * 4..)?.first_chunk().copied())
        .map(|word| word.map(u32::from_ne_bytes))
        .collect();
    let words = words.ok_or(Errno::INVAL)?;
    let known = SHARED.iter().fold(0, |known, (_, bit)| known | bit);
    // Says that there are attributes; a caller that changes what it read hands it back.
    let ignored = 1 << 31;
    if words[0] & !(known | ignored) != 0 || words[PROJECT] != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(SHARED
        .iter()
        .fold(flags, |flags, (flag, bit)| match words[0] & bit {
            0 => flags & !flag.0,
            _ => flags | flag.0,
        }))
}

/// Whether a read by a file with these flags leaves the time of access as it is.
pub(super) fn keeps_atime(flags: u32) -> bool {
    OFlags::from_bits_retain(flags).contains(OFlags::NOATIME)
}

/// The owner and the mode of an inode that a caller makes.
pub(super) fn new<'a>(
    caller: Caller,
    mode: u32,
    umask: u32,
    extension: &'a Extension<'a>,
) -> New<'a> {
    New {
        // Permissions have 12 bits.
        mode: (mode & 0o7777) as u16,
        umask: (umask & 0o777) as u16,
        caller,
        extension,
    }
}

pub(super) fn opening(flags: u32) -> Opening {
    let flags = OFlags::from_bits_retain(flags);
    Opening {
        writes: flags.intersects(OFlags::WRONLY | OFlags::RDWR),
        appends: flags.contains(OFlags::APPEND),
        exclusive: flags.contains(OFlags::EXCL),
        // A part of `O_SYNC`.
        synchronous: flags.contains(OFlags::DSYNC),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_flags_change_no_others() {
        let extents = 0x8_0000;
        let flags = extents | Flags::NO_DUMP.0;
        assert_eq!(with_shared_flags(flags, &shared_flags(flags, 0)), Ok(flags));
        assert_eq!(with_shared_flags(flags, &[0; 28]), Ok(extents));
        let mut wanted = [0; 28];
        wanted[0] = 0x40;
        let changed = extents | Flags::NO_ATIME.0;
        assert_eq!(with_shared_flags(flags, &wanted), Ok(changed));
        assert_eq!(shared_flags(0, 7)[12], 7);
        // A flag that ext4 does not have, and a project.
        for refused in [1, 12] {
            let mut wanted = [0; 28];
            wanted[refused] = 0x80;
            let answer = with_shared_flags(flags, &wanted);
            assert_eq!(answer, Err(Errno::OPNOTSUPP));
        }
        assert_eq!(with_shared_flags(flags, &[0; 19]), Err(Errno::INVAL));
    }

    #[test]
    fn device_numbers_are_packed_as_linux_does() {
        assert_eq!(packed((8, 1)), 0x801);
        assert_eq!(packed((0xabc, 0x1_2345)), 0x123a_bc45);
        assert_eq!(unpacked(0x123a_bc45), (0xabc, 0x1_2345));
    }

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        let change = abi::SetAttrIn {
            valid: valid::MTIME,
            mtime: (-2i64).cast_unsigned(),
            mtime_nsec: 300_000_000,
            ..abi::SetAttrIn::default()
        };
        let expected = SetTime::At(Timestamp {
            seconds: -2,
            nanoseconds: 300_000_000,
        });
        let change = set_attributes(&change);
        assert_eq!((change.mtime, change.atime), (Some(expected), None));
    }
}
