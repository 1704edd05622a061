//! File contents: from the device straight into the caller's buffer. Holes and unwritten blocks are zeros.
//!
//! One read of the device for each run that is contiguous on it, however many extents record it. On a volume that is
//! written to, a reader holds the file's data lock shared ([`sync::Rank::InodeData`]) while it maps and reads, and what
//! changes the map takes it exclusively for the apply: the plain form, in which reads wait for applies and these for
//! reads. So nobody reads a block that is no longer the file's. Nobody writes one either: a write in place holds the
//! inode's lock shared, and what changes the map holds that exclusively, too.

use ondisk::{Corrupt, FileType, Flags, Ino, Site};

use crate::blocks::OpenVolume;
use crate::core::Error;
use crate::core::limits;
use crate::inode::{LoadedInode, MountedFs};
use crate::map;

mod allocate;
mod place;
mod seek;
mod size;
mod step;
mod write;

pub use allocate::Allocate;
pub(crate) use allocate::allocate;
pub(crate) use seek::{mappings, seek};
pub(crate) use size::{apply_cut, finish_truncate, truncate};
pub(crate) use write::{append, write};

/// Works on an inode as it is while its map does not change.
fn under_data_lock<R>(
    mounted: &MountedFs,
    ino: Ino,
    work: impl FnOnce(&LoadedInode) -> Result<R, Error>,
) -> Result<R, Error> {
    if !mounted.volume().is_writable() {
        return work(&mounted.load_used(ino)?);
    }
    let live = mounted.get(ino)?;
    let _still = live.data_lock();
    work(&mounted.used(&live)?)
}

/// [`read`] of an inode as it is now.
pub(crate) fn read_now(
    mounted: &MountedFs,
    ino: Ino,
    offset: u64,
    buf: &mut [u8],
) -> Result<usize, Error> {
    under_data_lock(mounted, ino, |inode| {
        read(mounted.volume(), inode, offset, buf)
    })
}

/// Fills `buf` from byte `offset` of a regular file. Returns how many bytes there were: fewer than asked for only
/// at the file's end.
pub(crate) fn read(
    volume: &OpenVolume,
    inode: &LoadedInode,
    offset: u64,
    buf: &mut [u8],
) -> Result<usize, Error> {
    match inode.file_type() {
        Some(FileType::Regular) => (),
        Some(FileType::Directory) => return Err(Error::IsDirectory),
        _ => return Err(Error::NotRegular),
    }
    if inode.flags().contains(Flags::ENCRYPT) {
        return Err(Error::Encrypted);
    }
    if inode.flags().contains(Flags::VERITY) {
        return Err(Error::Unsupported("a file protected by fs-verity"));
    }
    read_any(volume, inode, offset, buf)
}

/// [`read`] without regard to the type of file.
fn read_any(
    volume: &OpenVolume,
    inode: &LoadedInode,
    offset: u64,
    buf: &mut [u8],
) -> Result<usize, Error> {
    let rest = inode.bytes(volume).saturating_sub(offset);
    let len = usize::try_from(rest).unwrap_or(usize::MAX).min(buf.len());
    let buf = &mut buf[..len];
    if len == 0 {
        return Ok(0);
    }
    if inode.is_inline() {
        read_inline(inode, offset, buf)?
    } else {
        map::read_bytes(volume, inode, offset, buf)?
    }
    Ok(len)
}

/// Fills all of `buf` from inline contents. Bytes between their end and the size are zeros, as in Linux: mke2fs makes
/// such files of holes.
fn read_inline(inode: &LoadedInode, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
    let (first, rest) = inode.inline_parts()?;
    let from = usize::try_from(offset).unwrap_or(usize::MAX);
    let bytes = first.iter().chain(rest).skip(from);
    let bytes = bytes.copied().chain(std::iter::repeat(0));
    buf.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    Ok(())
}

/// The target of a symbolic link.
pub(crate) fn read_link(volume: &OpenVolume, inode: &LoadedInode) -> Result<Vec<u8>, Error> {
    if !inode.is(FileType::Symlink) {
        return Err(Error::NotSymlink);
    }
    if inode.flags().contains(Flags::ENCRYPT) {
        return Err(Error::Encrypted);
    }
    let bytes = inode.bytes(volume);
    if bytes > limits::SYMLINK_BYTES {
        return Err(Corrupt::at(Site::SymlinkSize).ino(inode.ino()).into());
    }
    if map::is_short_link(inode) {
        // Short means shorter than the block area.
        return Ok(inode.block_area()[..bytes as usize].to_vec());
    }
    let mut target = vec![0; bytes as usize];
    read_any(volume, inode, 0, &mut target)?;
    Ok(target)
}
