//! Between the library's types and lanefs's.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{FileAttr, Generation, INodeNo, Request};
use lanefs::{FileType, Flags, Ino, Metadata};
use rustix::fs::OFlags;
use rustix::io::Errno;
use sync::clock::{Duration, HostTime};

use crate::operations::{Answer, Caller, Named, New, Opening};
use crate::times;

/// How long the kernel may keep names and attributes: for good, because only this mount changes the image.
pub(super) const KEPT: Duration = Duration::from_secs(1 << 30);

/// The node that stands for the root. Its generation is 0: the kernel makes this node itself, before it asks for
/// anything.
const ROOT_NODE: u64 = 1;

/// The inode of a node. The root's own number is never a node: it would be a second inode of one directory.
pub(super) fn ino(node: INodeNo) -> Answer<Ino> {
    match node.0 {
        ROOT_NODE => Ok(Ino::ROOT),
        other => u32::try_from(other)
            .ok()
            .map(Ino)
            .filter(|ino| *ino != Ino::ROOT)
            .ok_or(Errno::NOENT),
    }
}

/// The node of an inode.
pub(crate) fn node(ino: Ino) -> INodeNo {
    match ino {
        Ino::ROOT => INodeNo(ROOT_NODE),
        other => INodeNo(other.0.into()),
    }
}

/// An inode as the answer to a look-up names it.
pub(super) struct Entry {
    pub(super) attr: FileAttr,
    pub(super) generation: Generation,
    /// How long the kernel may keep the attributes.
    pub(super) kept: Duration,
}

/// The entry of an inode. The library gives an answer one number for the node and for what stat shows, which differ for
/// the root; so the kernel does not keep the root's attributes from here, and asks for them when they are wanted.
pub(super) fn entry(metadata: &Metadata) -> Entry {
    let mut attr = attr(metadata, BLOCK_SIZE);
    let is_root = metadata.ino == Ino::ROOT;
    attr.ino = node(metadata.ino);
    Entry {
        attr,
        generation: Generation(if is_root {
            0
        } else {
            metadata.generation.0.into()
        }),
        kept: if is_root { Duration::ZERO } else { KEPT },
    }
}

pub(super) fn named(parent: INodeNo, name: &OsStr) -> Answer<Named<'_>> {
    Ok(Named {
        directory: ino(parent)?,
        name: name.as_bytes(),
    })
}

pub(super) fn errno(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.raw_os_error())
}

pub(super) fn kind(file_type: FileType) -> fuser::FileType {
    match file_type {
        FileType::Regular => fuser::FileType::RegularFile,
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::CharDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
    }
}

/// A device's number in 32 bits, as Linux packs it.
pub(super) fn packed((major, minor): (u32, u32)) -> u32 {
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

pub(super) fn unpacked(rdev: u32) -> (u32, u32) {
    (rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & 0xf_ff00)
}

pub(super) fn attr(metadata: &Metadata, block_size: u32) -> FileAttr {
    FileAttr {
        ino: INodeNo(metadata.ino.0.into()),
        size: metadata.size,
        blocks: metadata.blocks,
        atime: times::outgoing(metadata.atime),
        mtime: times::outgoing(metadata.mtime),
        ctime: times::outgoing(metadata.ctime),
        crtime: HostTime::UNIX_EPOCH,
        kind: kind(metadata.file_type),
        perm: metadata.mode & 0o7777,
        nlink: metadata.nlink,
        uid: metadata.uid,
        gid: metadata.gid,
        rdev: packed(metadata.rdev),
        blksize: block_size,
        flags: 0,
    }
}

/// What stat calls the best size of a read or write; a page, as for ext4 in most cases.
pub(super) const BLOCK_SIZE: u32 = 4096;

/// An inode's flags, and the bits that all file systems share for them.
const SHARED: [(Flags, u32); 6] = [
    (Flags::IMMUTABLE, 0x8),
    (Flags::APPEND, 0x10),
    (Flags::SYNC, 0x20),
    (Flags::NO_ATIME, 0x40),
    (Flags::NO_DUMP, 0x80),
    (Flags::PROJECT_INHERIT, 0x200),
];

/// Flags in the form that all file systems share: a word of bits, and what ext4 without projects leaves 0.
pub(super) fn shared_flags(flags: u32) -> [u8; 28] {
    let set = SHARED
        .iter()
        .filter(|(flag, _)| Flags(flags).contains(*flag));
    let bits = set.fold(0, |bits, (_, bit)| bits | bit);
    let mut bytes = [0; 28];
    bytes[..4].copy_from_slice(&u32::to_ne_bytes(bits));
    bytes
}

/// Who asks.
pub(super) fn caller(request: &Request) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
        pid: request.pid(),
    }
}

/// Who asks, and what for.
pub(super) fn new(request: &Request, mode: u32, umask: u32) -> New {
    New {
        // Permissions have 12 bits.
        mode: (mode & 0o7777) as u16,
        umask: (umask & 0o777) as u16,
        uid: request.uid(),
        gid: request.gid(),
    }
}

pub(super) fn opening(flags: i32) -> Opening {
    // The bits are the same, whatever the sign.
    let flags = OFlags::from_bits_retain(flags.cast_unsigned());
    Opening {
        writes: flags.intersects(OFlags::WRONLY | OFlags::RDWR),
        appends: flags.contains(OFlags::APPEND),
        exclusive: flags.contains(OFlags::EXCL),
        // A part of `O_SYNC`.
        synchronous: flags.contains(OFlags::DSYNC),
    }
}

/// What stands in a reply about a name that nothing has.
pub(super) fn attr_of_nothing() -> FileAttr {
    attr_of_listed(Ino(0), FileType::Regular)
}

/// What is known of an inode by its entry alone. No file can have this size, so that the kernel does not believe it: it
/// then lists the name, and says that it forgot the inode once.
pub(super) fn attr_of_listed(ino: Ino, file_type: FileType) -> FileAttr {
    let epoch = HostTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(ino.0.into()),
        size: u64::MAX,
        blocks: 0,
        atime: epoch,
        mtime: epoch,
        ctime: epoch,
        crtime: epoch,
        kind: kind(file_type),
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_packed_as_linux_does() {
        assert_eq!(packed((8, 1)), 0x801);
        assert_eq!(packed((0xabc, 0x1_2345)), 0x123a_bc45);
        assert_eq!(unpacked(0x123a_bc45), (0xabc, 0x1_2345));
    }
}
