//! File contents: from the device straight into the caller's buffer. Holes and unwritten blocks are zeros.
//!
//! One read of the device for each run that is contiguous on it, however many extents record it. Readers take
//! no lock here; what they share is the cache of extent blocks.

use ondisk::{Corrupt, FileType, Flags, Site};

use crate::error::Error;
use crate::extent;
use crate::icache::LoadedInode;
use crate::limits;
use crate::sb::Volume;

/// Fills `buf` from byte `offset` of a regular file. Returns how many bytes there were: fewer than asked for only
/// at the file's end.
pub(crate) fn read(
    volume: &Volume,
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
    volume: &Volume,
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
    match inode.is_inline() {
        true => read_inline(inode, offset, buf)?,
        false => extent::read_bytes(volume, inode, offset, buf)?,
    }
    Ok(len)
}

/// Fills all of `buf` from inline contents. What the size says beyond them is zeros, as in Linux: mke2fs makes such
/// files of holes.
fn read_inline(inode: &LoadedInode, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
    let (first, rest) = inode.inline_parts()?;
    let from = usize::try_from(offset).unwrap_or(usize::MAX);
    let bytes = first.iter().chain(rest).skip(from);
    let bytes = bytes.copied().chain(std::iter::repeat(0));
    buf.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    Ok(())
}

/// The target of a symbolic link.
pub(crate) fn read_link(volume: &Volume, inode: &LoadedInode) -> Result<Vec<u8>, Error> {
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
    if extent::is_short_link(inode) {
        // Short means shorter than the block area.
        return Ok(inode.block_area()[..bytes as usize].to_vec());
    }
    let mut target = vec![0; bytes as usize];
    read_any(volume, inode, 0, &mut target)?;
    Ok(target)
}
