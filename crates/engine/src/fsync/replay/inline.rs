//! Contents that are stored in inodes (`inline_data`). Only a replay for a reader meets them, because file systems with
//! that feature are not written to.
//!
//! The record of such a file is its whole inode, contents included. The names of such a directory have records of their
//! own: they are moved into a block before one of them is changed, and the names in the directory's own record are
//! ignored.

use ondisk::extent::{self, ExtentEntries};
use ondisk::inode::{Inode, attribute_area, attribute_area_mut};
use ondisk::xattr::{self, ListPlace, XattrEntry};
use ondisk::{Feature, FileType, Flags, Ino};

use super::said::Said;
use super::{Replay, bad_name};
use crate::core::Error;
use crate::dir::{self, DirListing};
use crate::inode::{Exclusive, LoadedInode};
use crate::names::{self, NewContent};

impl Replay<'_> {
    /// Whether a record is that of a file whose contents are in its inode.
    pub(super) fn is_inline(&self, record: &Inode) -> bool {
        record.file_type() == Some(FileType::Regular)
            && record.flags().contains(Flags::INLINE_DATA)
            && self.mounted.volume().has(Feature::INLINE_DATA)
    }

    /// Empties a file whose contents are in its inode before the replay or after it.
    ///
    /// # Errors
    /// As [`Replay::unmap`].
    pub(super) fn move_contents(&self, locked: &Exclusive<'_>, said: &Said) -> Result<(), Error> {
        let is_inline = self.is_inline(&said.inode);
        if is_inline && locked.inode().snapshot().is_inline() {
            return Ok(());
        }
        if is_inline {
            self.unmap(locked, 0, 1 << 32)?;
        }
        let has_extents = said.inode.flags().contains(Flags::EXTENTS);
        let form = match (is_inline, has_extents) {
            (true, _) => Flags::INLINE_DATA,
            (false, true) => Flags::EXTENTS,
            (false, false) => Flags(0),
        };
        self.change_slot(locked, |slot, inode| {
            remove_contents(slot);
            become_empty(inode, form);
        })
    }

    /// Gives a file the contents in its record, if they are there. It has the record's other fields already.
    ///
    /// # Errors
    /// As [`Replay::change_slot`].
    pub(super) fn take_contents(&self, locked: &Exclusive<'_>, said: &Said) -> Result<(), Error> {
        if !self.is_inline(&said.inode) {
            return Ok(());
        }
        let raw = &said.raw;
        self.change_slot(locked, |slot, inode| {
            let len = raw.len().min(slot.len());
            slot[..len].copy_from_slice(&raw[..len]);
            inode.set_extra_size(said.inode.extra_size());
            *inode.block_area_mut() = *said.inode.block_area();
        })
    }

    /// Changes an inode's slot, and its fields, which are written to the slot after `change`.
    fn change_slot(
        &self,
        locked: &Exclusive<'_>,
        change: impl FnOnce(&mut [u8], &mut Inode),
    ) -> Result<(), Error> {
        let mut inode = *locked.inode().snapshot();
        let credits = self.mounted.reserve(1, 0)?;
        let handle = self.mounted.begin(credits)?;
        locked.change_slot(&handle, |slot| {
            change(slot, &mut inode);
            inode.write_to(slot);
        });
        Ok(())
    }

    /// Moves the names of a directory from its inode into a block, where they can be changed.
    ///
    /// # Errors
    /// `Encrypted`; `NoSpace`, `Corrupt`, `Io`.
    pub(super) fn unfold(&self, above: &Exclusive<'_>) -> Result<(), Error> {
        let inode = above.inode().snapshot();
        if !inode.is_inline() {
            return Ok(());
        }
        if inode.flags().contains(Flags::ENCRYPT) {
            return Err(Error::Encrypted);
        }
        let (ino, mut record) = (inode.ino(), *inode);
        let (parent, names) = self.names_of(inode)?;
        let has_extents = self.mounted.volume().has(Feature::EXTENT);
        let form = if has_extents {
            Flags::EXTENTS
        } else {
            Flags(0)
        };
        become_empty(&mut record, form);
        let first = names::first_block(
            self.mounted,
            ino,
            parent,
            NewContent::Directory,
            &mut record,
        )?;
        let blocks = first.as_ref().map_or(0, names::FirstBlock::blocks);
        let credits = self.mounted.reserve(1 + blocks, 0)?;
        let handle = self.mounted.begin(credits)?;
        if let Some(first) = first {
            first.apply(&handle);
        }
        above.change_slot(&handle, |slot| {
            remove_contents(slot);
            record.write_to(slot);
        });
        drop(handle);
        let mut draft = dir::DirDraft::new(self.mounted, above)?;
        for (name, ino, file_type) in names {
            draft.add(&name, ino, file_type)?;
        }
        let names = draft.finish()?;
        let credits = self.mounted.reserve(names.blocks(), 0)?;
        let handle = self.mounted.begin(credits)?;
        names.apply(&handle);
        Ok(())
    }

    /// The parent of a directory, and its names.
    fn names_of(&self, inode: LoadedInode) -> Result<(Ino, Vec<Named>), Error> {
        let (ino, mut parent) = (inode.ino(), Ino::ROOT);
        let mut names = Vec::new();
        for entry in DirListing::new(self.mounted.volume(), inode, 0)? {
            let entry = entry?;
            match &entry.name[..] {
                b"." => {}
                b".." => parent = entry.ino,
                _ => {
                    let file_type = match entry.file_type {
                        Some(file_type) => Some(file_type),
                        None => self.mounted.load(entry.ino)?.file_type(),
                    };
                    let file_type = file_type.ok_or_else(|| bad_name(ino))?;
                    names.push((entry.name, entry.ino, file_type));
                }
            }
        }
        Ok((parent, names))
    }
}

/// A name, with the inode that it stands for and the type of that.
type Named = (Vec<u8>, Ino, FileType);

/// Removes contents and map from a record, and gives it the form that this flag stands for.
fn become_empty(record: &mut Inode, form: Flags) {
    let others = record.flags().without(Flags::INLINE_DATA);
    record.set_flags(others.without(Flags::EXTENTS).with(form));
    record.block_area_mut().fill(0);
    if form == Flags::EXTENTS {
        extent::encode(record.block_area_mut(), 0, ExtentEntries::Extents(&[]));
    }
}

/// Removes the part of an inode's contents that is stored among its attributes. A list of attributes that can't be
/// read, or can't be written again, stays as it is.
pub(super) fn remove_contents(slot: &mut [u8]) {
    let before = attribute_area(slot).unwrap_or_default().to_vec();
    let Ok(entries) = xattr::entries(ListPlace::Inode(&before)) else {
        return;
    };
    let is_contents =
        |entry: &XattrEntry<'_>| (entry.index, entry.name) == (xattr::INDEX_SYSTEM, &b"data"[..]);
    let all = entries.clone().count();
    let others: Vec<_> = entries.filter(|entry| !is_contents(entry)).collect();
    let Some(area) = attribute_area_mut(slot).filter(|_| others.len() < all) else {
        return;
    };
    if others.is_empty() {
        area.fill(0);
    } else if !xattr::encode_inode_area(area, &others) {
        // Values of a broken list may overlap.
        area.copy_from_slice(&before);
    }
}
