//! Inode allocation, the plain form: the first free number of the parent's group, else of the next group with one; a
//! directory below the root goes to a group with room for what it will hold.
//!
//! A number is taken out of the bitmap in memory while preparing ([`take`]), dropping it gives it back, applying it
//! puts it on the epoch's list. Numbers are taken from the lowest on, so that no record below a table's watermark was
//! never written.

use journal::Handle;
use ondisk::{Group, Ino, bitmap};
use sync::atomic::Ordering;

use crate::error::Error;
use crate::group::{Groups, InodeChange};
use crate::sb::Volume;

/// Blocks of a handle that taking or freeing a number uses: bitmaps, a descriptor block, the superblock.
pub(crate) const BLOCKS_AN_INODE: u32 = 4;

/// A number taken and not yet applied.
pub(crate) struct InodeNumber<'a> {
    groups: &'a Groups,
    volume: &'a Volume,
    /// `None` once it was applied.
    ino: Option<Ino>,
    is_directory: bool,
}

impl InodeNumber<'_> {
    /// Which number.
    pub(crate) fn ino(&self) -> Ino {
        // Only `apply` takes the number out, and it consumes the value.
        self.ino.expect("a number that was not applied")
    }

    /// The number is in use from the handle's epoch on. Uses [`BLOCKS_AN_INODE`] of the handle's blocks; the inode's
    /// own record counts on top of that.
    pub(crate) fn apply(mut self, handle: &Handle<'_>) -> Ino {
        let ino = self.ino();
        self.ino = None;
        (0..BLOCKS_AN_INODE).for_each(|_| handle.use_block());
        let change = InodeChange {
            ino,
            is_set: true,
            is_directory: self.is_directory,
        };
        self.groups.inode_changes.push(handle, change);
        ino
    }
}

impl Drop for InodeNumber<'_> {
    fn drop(&mut self) {
        if let Some(ino) = self.ino.take() {
            self.groups.give_back_inode(self.volume.geometry(), ino);
        }
    }
}

/// Takes a number for a new inode in directory `parent`. Called while preparing, without a handle.
///
/// # Errors
/// `NoSpace` when no number can be had now; `Corrupt`, `Io` from reading bitmaps.
pub(crate) fn take<'a>(
    volume: &'a Volume,
    groups: &'a Groups,
    parent: Ino,
    is_directory: bool,
) -> Result<InodeNumber<'a>, Error> {
    let geometry = volume.geometry();
    let of_parent = geometry
        .group_of_ino(parent)
        .map_or(Group(0), |(group, _)| group);
    let first = match is_directory && parent == Ino::ROOT {
        true => roomiest(volume, groups)?.unwrap_or(of_parent),
        false => of_parent,
    };
    for step in 0..geometry.groups() {
        let group = Group((first.0 + step) % geometry.groups());
        if groups
            .free_in_memory(group)
            .is_some_and(|(_, inodes)| inodes == 0)
        {
            continue;
        }
        let taken = groups.with_bits(volume, group, |bits| {
            let index = bitmap::find(&bits.inodes, 0, geometry.inodes_per_group(), false)?;
            bitmap::set(&mut bits.inodes, index);
            bits.free_inodes -= 1;
            Some(index)
        })?;
        if let Some(index) = taken {
            let ino = Some(geometry.ino_of(group, index));
            return Ok(InodeNumber {
                groups,
                volume,
                ino,
                is_directory,
            });
        }
    }
    Err(Error::NoSpace)
}

/// How many groups are looked at for a directory below the root.
const LOOKED_AT: u32 = 64;

/// Of the first groups, the one with the most free blocks that has free inodes.
fn roomiest(volume: &Volume, groups: &Groups) -> Result<Option<Group>, Error> {
    let mut best: Option<(u32, Group)> = None;
    for group in (0..volume.geometry().groups().min(LOOKED_AT)).map(Group) {
        let (blocks, inodes) =
            groups.with_bits(volume, group, |bits| (bits.free_blocks, bits.free_inodes))?;
        if inodes > 0 && best.is_none_or(|(most, _)| blocks > most) {
            best = Some((blocks, group));
        }
    }
    Ok(best.map(|(_, group)| group))
}

/// Frees a number in the handle's epoch: it can be had again when that is durable. Uses [`BLOCKS_AN_INODE`] of the
/// handle's blocks. The group's bitmaps must be in memory ([`load`]).
pub(crate) fn free(groups: &Groups, handle: &Handle<'_>, ino: Ino, is_directory: bool) {
    (0..BLOCKS_AN_INODE).for_each(|_| handle.use_block());
    groups.inode_changes.push(
        handle,
        InodeChange {
            ino,
            is_set: false,
            is_directory,
        },
    );
    // Relaxed: a hint for when numbers are short.
    groups.pending_inodes.fetch_add(1, Ordering::Relaxed);
}

/// Reads the bitmaps of an inode's group, so that it can be freed in an apply.
///
/// # Errors
/// `NotFound` for a number that no inode has; `Corrupt`, `Io`.
pub(crate) fn load(volume: &Volume, groups: &Groups, ino: Ino) -> Result<(), Error> {
    let (group, _) = volume.geometry().group_of_ino(ino).ok_or(Error::NotFound)?;
    groups.with_bits(volume, group, |_| ())
}
