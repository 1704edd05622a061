//! Values of attributes that are stored in inodes of their own (`ea_inode`). Only a replay for a reader meets them.
//! Such an inode is deleted with the last inode whose attributes refer to it.

use std::collections::BTreeSet;

use ondisk::inode::attribute_area;
use ondisk::xattr::{self as format, ListPlace, Value};
use ondisk::{Feature, Flags, FsBlock, Ino};

use super::Replay;
use crate::core::Error;
use crate::inode::LoadedInode;
use crate::reap;
use crate::xattr;

impl Replay<'_> {
    /// The inodes that hold attribute values and lose a reference when this inode is deleted: those in the inode's own
    /// list, and those in its attribute block unless other inodes share the block.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub(super) fn values_of(&self, inode: &LoadedInode) -> Result<BTreeSet<Ino>, Error> {
        let volume = self.mounted.volume();
        let mut holders = BTreeSet::new();
        if !volume.has(Feature::EA_INODE) {
            return Ok(holders);
        }
        let mut add = |list: ListPlace<'_>| -> Result<(), Error> {
            for entry in format::entries(list).map_err(|corrupt| corrupt.ino(inode.ino()))? {
                if let Value::Inode { ino, .. } = entry.value {
                    holders.insert(ino);
                }
            }
            Ok(())
        };
        add(ListPlace::Inode(
            attribute_area(inode.slot()).unwrap_or_default(),
        ))?;
        let at = xattr::block_of(volume, inode);
        if at != FsBlock(0) {
            let block = xattr::pin(self.mounted, inode, at)?.bytes();
            if format::references(&block) == 1 {
                add(ListPlace::Block(&block))?;
            }
        }
        Ok(holders)
    }

    /// Takes one reference from each inode that held a value for a deleted inode, and deletes it if that was the last.
    /// Inodes that are not value holders stay as they are.
    ///
    /// # Errors
    /// As [`reap::delete`].
    pub(super) fn release_values(&self, holders: BTreeSet<Ino>) -> Result<(), Error> {
        for ino in holders {
            if !self.is_in_use(ino)? {
                continue;
            }
            let live = self.mounted.get(ino)?;
            let locked = live.write_lock();
            let inode = live.snapshot();
            let references = inode.value_references();
            if !inode.flags().contains(Flags::EA_INODE) || references == 0 {
                continue;
            }
            self.change(&locked, |inode| {
                inode.set_value_references(references - 1);
                if references == 1 {
                    inode.set_links_count(0);
                }
            })?;
            if references == 1 {
                reap::delete(self.mounted, &locked, reap::Patience::AllSteps)?;
            }
        }
        Ok(())
    }
}
