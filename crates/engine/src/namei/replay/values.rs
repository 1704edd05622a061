//! Values of attributes that lie in inodes of their own (`ea_inode`), which only a replay to read meets: they go with
//! the last inode whose attributes name them.

use std::collections::BTreeSet;

use ondisk::inode::attribute_area;
use ondisk::xattr::{self as format, ListPlace, Value};
use ondisk::{Feature, Flags, FsBlock, Ino};

use super::Replay;
use crate::error::Error;
use crate::icache::LoadedInode;
use crate::reap;
use crate::xattr;

impl Replay<'_> {
    /// The inodes that hold values of attributes which go with an inode: those of its own list, and of its block's if
    /// no other inode shares it.
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

    /// Lets go of inodes that held values of a deleted inode's attributes. What is not such an inode stays.
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
