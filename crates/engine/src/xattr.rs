//! Extended attributes: in the inode's slot, in its attribute block, and (read only) in inodes that hold long values.
//!
//! Lists are verified by `ondisk` before they are walked; values in inodes are compared with their hashes. ACLs
//! are answered in the form that system calls exchange. Names that Linux hides (inline data, encryption
//! contexts, unknown prefixes) are left out.

mod acl;
mod block;
mod lists;
mod write;

use ondisk::inode::attribute_area;
use ondisk::xattr::{self, ListPlace, Value, XattrEntry};
use ondisk::{Corrupt, Feature, FileType, Flags, FsBlock, Ino, Site, acl as acl_format};

use crate::blocks::{Kind, OpenVolume};
use crate::blocks::{Pin, Seal};
use crate::core::Error;
use crate::core::limits;
use crate::inode::{LoadedInode, MountedFs};
use crate::map;
use crate::token::LiveFs;

pub(crate) use acl::{follow_mode, inherit, set as set_acl};
pub(crate) use block::{LockedRelease, Release};
pub(crate) use lists::Lists;
pub(crate) use write::{LockedXattrs, XattrChange, apply};

/// Whether setting an attribute may create it or replace it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum XattrFlag {
    /// Either.
    #[default]
    Any,
    /// Only create.
    Create,
    /// Only replace.
    Replace,
}

/// An extended attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Xattr {
    /// The whole name, prefix and all.
    pub name: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

/// Sets (with a value) or removes an attribute.
pub(crate) fn change(
    mounted: &LiveFs,
    ino: Ino,
    name: &[u8],
    value: Option<&[u8]>,
    flag: XattrFlag,
) -> Result<(), Error> {
    write::verify_length(name)?;
    if value.is_some_and(|value| value.len() > limits::XATTR_VALUE_BYTES) {
        return Err(Error::ValueTooLarge);
    }
    if let Some((index @ (xattr::INDEX_ACL_ACCESS | xattr::INDEX_ACL_DEFAULT), _)) =
        xattr::split_name(name)
    {
        return set_acl(mounted, ino, index, value, false);
    }
    let live = mounted.get(ino)?;
    let flags = {
        let locked = live.write_lock();
        let inode = mounted.load_used(ino)?;
        write::may_change(&inode)?;
        if write::is_refused_user(name, |file_type| inode.is(file_type)) {
            return Err(Error::NotPermitted);
        }
        // An error of the inode's flags comes first, as in Linux.
        let (index, rest) = write::split(name)?;
        let mut lists = Lists::of(mounted, &inode)?;
        match value {
            Some(value) => lists.set(index, rest, value, flag)?,
            None if lists.remove(index, rest) => {}
            None => return Err(Error::NoAttribute),
        }
        if !lists.is_changed() {
            return Ok(());
        }
        apply(mounted, &locked, &lists, |_| {})?;
        inode.flags()
    };
    mounted.settle(ino, flags)
}

/// Adds attributes, whole name and value, to those that a new inode has. ACLs come from its directory only.
///
/// # Errors
/// As [`change`]; `NotSupported` for an ACL.
pub(crate) fn add(
    lists: &mut Lists,
    file_type: FileType,
    attributes: &[(&[u8], &[u8])],
) -> Result<(), Error> {
    for (name, value) in attributes {
        write::verify_length(name)?;
        if write::is_refused_user(name, |of| of == file_type) {
            return Err(Error::NotPermitted);
        }
        if value.len() > limits::XATTR_VALUE_BYTES {
            return Err(Error::ValueTooLarge);
        }
        let (index, rest) = write::split(name)?;
        if matches!(index, xattr::INDEX_ACL_ACCESS | xattr::INDEX_ACL_DEFAULT) {
            return Err(Error::NotSupported(
                "an ACL of a file that does not exist yet",
            ));
        }
        lists.set(index, rest, value, XattrFlag::Any)?;
    }
    Ok(())
}

/// All attributes of an inode as it is now.
pub(crate) fn read_now(mounted: &MountedFs, ino: Ino) -> Result<Vec<Xattr>, Error> {
    // A thread that changes the attributes has the lock, so no block is freed while it is read.
    let live = mounted.get(ino)?;
    let _still = live.read_lock();
    read_all(mounted, &mounted.load_used(ino)?)
}

/// The value of one attribute of an inode as it is now, by its whole name.
///
/// # Errors
/// `NoAttribute`; Linux's error for names that no inode, or not this one, can have.
pub(crate) fn read_one(mounted: &MountedFs, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Error> {
    let found = if mounted.volume().is_writable() {
        read_now(mounted, ino)?
    } else {
        read_all(mounted, &mounted.load_used(ino)?)?
    };
    match found.into_iter().find(|xattr| xattr.name == name) {
        Some(xattr) => Ok(xattr.value),
        None => Err(write::absence(&mounted.load_used(ino)?, name)),
    }
}

/// All attributes of an inode, those in its slot first.
pub(crate) fn read_all(mounted: &MountedFs, inode: &LoadedInode) -> Result<Vec<Xattr>, Error> {
    let mut all = Vec::new();
    let mut budget = limits::XATTR_BYTES;
    if let Some(area) = attribute_area(inode.slot()) {
        collect(
            mounted,
            inode,
            ListPlace::Inode(area),
            &mut budget,
            &mut all,
        )?;
    }
    let volume = mounted.volume();
    let at = block_of(volume, inode);
    if at.0 != 0 {
        let block = read_block(volume, inode, at)?;
        collect(
            mounted,
            inode,
            ListPlace::Block(&block),
            &mut budget,
            &mut all,
        )
        .map_err(|error| place(error, at))?;
    }
    Ok(all)
}

/// The attribute block; 0 for none. Without `64bit` the upper half of the field may mean something else (Hurd).
pub(crate) fn block_of(volume: &OpenVolume, inode: &LoadedInode) -> FsBlock {
    if volume.has(Feature::BIT64) {
        inode.xattr_block()
    } else {
        FsBlock(inode.xattr_block().0 & 0xffff_ffff)
    }
}

/// Adds the block to an error that has none.
fn place(error: Error, block: FsBlock) -> Error {
    match error {
        Error::Corrupt(corrupt) => Error::Corrupt(corrupt.block(block)),
        other => other,
    }
}

/// Adds the inode to an error that has none.
fn place_in(error: Error, ino: Ino) -> Error {
    match error {
        Error::Corrupt(corrupt) => Error::Corrupt(corrupt.ino(ino)),
        other => other,
    }
}

fn read_block(
    volume: &OpenVolume,
    inode: &LoadedInode,
    at: FsBlock,
) -> Result<sync::Arc<buffer::Block>, Error> {
    let geometry = volume.geometry();
    if !volume.blocks().contains(&at.0) {
        let corrupt = Corrupt::at(Site::XattrBlockPlace).ino(inode.ino());
        return Err(corrupt.block(at).into());
    }
    volume.check_unowned(inode.ino(), at, 1)?;
    // Inodes share such blocks, so the checksum's seed is the file system's.
    volume.read_block(at, Kind::Xattrs, Ino(0), |bytes| {
        if geometry.has_metadata_csum() {
            xattr::verify_block_checksum(bytes, geometry.csum_seed(), at)?;
        }
        Ok(())
    })
}

/// Pins an inode's block of attributes, verified.
pub(crate) fn pin(mounted: &MountedFs, inode: &LoadedInode, at: FsBlock) -> Result<Pin, Error> {
    let volume = mounted.volume();
    let geometry = volume.geometry();
    read_block(volume, inode, at)?;
    let seal = if geometry.has_metadata_csum() {
        Seal::Xattrs(geometry.csum_seed())
    } else {
        Seal::None
    };
    volume.pin(at, Kind::Xattrs, Ino(0), seal, |_| Ok(()))
}

fn collect(
    mounted: &MountedFs,
    inode: &LoadedInode,
    area: ListPlace<'_>,
    budget: &mut u64,
    all: &mut Vec<Xattr>,
) -> Result<(), Error> {
    let entries = xattr::entries(area).map_err(|corrupt| corrupt.ino(inode.ino()))?;
    for entry in entries {
        let is_inline_data = (entry.index, entry.name) == (xattr::INDEX_SYSTEM, b"data");
        let Some(prefix) = xattr::prefix(entry.index).filter(|_| !is_inline_data) else {
            continue;
        };
        let size = match entry.value {
            Value::Here(value) => value.len() as u64,
            Value::Inode { size, .. } => size.into(),
        };
        let spent = size + xattr::entry_size(entry.name.len()) as u64;
        *budget = budget.checked_sub(spent).ok_or(Error::Unsupported(
            "more than 20 MiB of extended attributes",
        ))?;
        let value = match entry.value {
            Value::Here(value) => value.to_vec(),
            Value::Inode { ino, size } => read_value(mounted, inode, &entry, ino, size)?,
        };
        let value = match entry.index {
            xattr::INDEX_ACL_ACCESS | xattr::INDEX_ACL_DEFAULT => {
                acl_format::disk_to_xattr(&value).map_err(|corrupt| corrupt.ino(inode.ino()))?
            }
            _ => value,
        };
        all.push(Xattr {
            name: [prefix.as_bytes(), entry.name].concat(),
            value,
        });
    }
    Ok(())
}

/// The value of an attribute that lies in an inode of its own.
fn read_value(
    mounted: &MountedFs,
    owner: &LoadedInode,
    entry: &XattrEntry<'_>,
    ino: Ino,
    size: u32,
) -> Result<Vec<u8>, Error> {
    let volume = mounted.volume();
    let holder = mounted.load(ino)?;
    let fits = volume.has(Feature::EA_INODE)
        && holder.flags().contains(Flags::EA_INODE)
        && holder.is(FileType::Regular)
        && !holder.is_inline()
        && holder.bytes(volume) == u64::from(size);
    if !fits {
        return Err(Corrupt::at(Site::XattrInode).ino(ino).into());
    }
    // At most 16 MiB: the list was verified.
    let mut value = vec![0; size as usize];
    map::read_bytes(volume, &holder, 0, &mut value)?;
    // The oldest form of this feature kept no hash, but a pointer back to its only owner.
    let points_back = holder.mtime_word() == owner.ino().0;
    if points_back && holder.generation() == owner.generation() {
        return Ok(value);
    }
    let hash = xattr::value_hash(volume.geometry().csum_seed(), &value);
    if holder.value_hash() != hash || !xattr::is_inode_entry_hash(entry.hash, entry.name, hash) {
        return Err(Corrupt::at(Site::XattrInodeHash).ino(ino).into());
    }
    Ok(value)
}
