//! Inode allocation, the plain form: the first free number of the parent's group, else of the next group with one; a
//! directory below the root goes to a group with room for what it will hold.
//!
//! A number is taken out of the bitmap in memory while preparing ([`take`]), dropping it gives it back, applying it
//! puts it on the epoch's list. Freeing one is prepared too ([`claim`]): one that is free already is refused. Numbers
//! are taken from the lowest on, so that no record below a table's watermark was never written.

use journal::Handle;
use ondisk::{Corrupt, Geometry, Group, Ino, Site};

use crate::error::Error;
use crate::group::{Bits, Groups, InodeChange};
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
        true => roomiest(volume, groups).unwrap_or(of_parent),
        false => of_parent,
    };
    if groups.inodes.share(1, 0) == 0 {
        return Err(Error::NoSpace);
    }
    let found = (0..LOOKS)
        .find_map(|_| look(volume, groups, first).transpose())
        .transpose();
    if !matches!(found, Ok(Some(_))) {
        groups.inodes.add(1);
    }
    Ok(InodeNumber {
        groups,
        volume,
        ino: Some(found?.ok_or(Error::NoSpace)?),
        is_directory,
    })
}

/// Looks through all groups by one who has a share and finds nothing: as in [`crate::mballoc`].
const LOOKS: usize = 64;

/// One look through all groups.
fn look(volume: &Volume, groups: &Groups, first: Group) -> Result<Option<Ino>, Error> {
    let geometry = volume.geometry();
    for step in 0..geometry.groups() {
        let group = Group((first.0 + step) % geometry.groups());
        if groups.free_inodes(group) == 0 {
            continue;
        }
        match groups.with_bits(volume, group, Bits::take_inode) {
            // Others may do.
            Err(Error::Corrupt(corrupt)) => groups.exclude(group, corrupt),
            taken => {
                if let Some(index) = taken? {
                    return Ok(Some(geometry.ino_of(group, index)));
                }
            }
        }
    }
    Ok(None)
}

/// How many groups are looked at for a directory below the root.
const LOOKED_AT: u32 = 64;

/// Of the first groups, the one with the most free blocks that has free inodes.
fn roomiest(volume: &Volume, groups: &Groups) -> Option<Group> {
    (0..volume.geometry().groups().min(LOOKED_AT))
        .map(Group)
        .filter(|group| groups.free_inodes(*group) > 0)
        // The first of those that have as many.
        .max_by_key(|group| (groups.free_blocks(*group).0, std::cmp::Reverse(group.0)))
}

/// A number in use that the owner of this value is about to free; nobody else can. Dropping it leaves it in use.
pub(crate) struct FreeingNumber<'a> {
    groups: &'a Groups,
    geometry: &'a Geometry,
    /// `None` once it was freed.
    ino: Option<Ino>,
}

/// Prepares to free a number. Reads its group's bitmaps. Called while preparing, without a handle.
///
/// # Errors
/// `Corrupt` for a number of the file system's own, and for one that is free or being freed already; `Corrupt`, `Io`
/// from reading bitmaps.
pub(crate) fn claim<'a>(
    volume: &'a Volume,
    groups: &'a Groups,
    ino: Ino,
) -> Result<FreeingNumber<'a>, Error> {
    let geometry = volume.geometry();
    volume.check_ordinary(ino)?;
    let (group, index) = geometry.group_of_ino(ino).ok_or(Error::NotFound)?;
    match groups.with_bits(volume, group, |bits| bits.leave_inode(index))? {
        true => Ok(FreeingNumber {
            groups,
            geometry,
            ino: Some(ino),
        }),
        false => Err(Corrupt::at(Site::InodeFreedTwice).ino(ino).into()),
    }
}

impl FreeingNumber<'_> {
    /// Frees the number in the handle's epoch: it can be had again when that is durable. Uses [`BLOCKS_AN_INODE`] of
    /// the handle's blocks.
    pub(crate) fn apply(mut self, handle: &Handle<'_>, is_directory: bool) {
        if let Some(ino) = self.ino.take() {
            (0..BLOCKS_AN_INODE).for_each(|_| handle.use_block());
            let change = InodeChange {
                ino,
                is_set: false,
                is_directory,
            };
            self.groups.inode_changes.push(handle, change);
            self.groups.inodes.freed(1);
        }
    }
}

impl Drop for FreeingNumber<'_> {
    fn drop(&mut self) {
        if let Some(ino) = self.ino.take()
            && let Some((group, index)) = self.geometry.group_of_ino(ino)
        {
            self.groups
                .with_loaded(group, |bits| bits.stay_inode(index));
        }
    }
}
