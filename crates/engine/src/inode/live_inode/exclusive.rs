//! The exclusive lock of an inode, whose holder may change the record, or the names of a directory, under a handle.
//!
//! What a crash leaves: the record as it was at the end of a committed epoch.

use journal::Handle;
use ondisk::inode::Inode;
use sync::{Arc, RwLockWriteGuard};

use super::LiveInode;
use crate::inode::logging::{Logging, is_loggable};

/// The inode's lock, exclusive: the right to change it under a handle.
pub(crate) struct Exclusive<'a> {
    pub(super) inode: &'a Arc<LiveInode>,
    pub(super) _lock: RwLockWriteGuard<'a, ()>,
}

impl Exclusive<'_> {
    /// The inode.
    pub(crate) fn inode(&self) -> &Arc<LiveInode> {
        self.inode
    }

    /// Changes several blocks of the directory in one step for threads that read it without its lock. Never waits for a
    /// lock.
    pub(crate) fn change_names<R>(&self, change: impl FnOnce() -> R) -> R {
        self.inode.names.change(change)
    }

    /// Changes the fixed part of the record in the handle's epoch. Uses one of the handle's blocks the first time in
    /// an epoch.
    pub(crate) fn change<R>(&self, handle: &Handle<'_>, change: impl FnOnce(&mut Inode) -> R) -> R {
        let (result, concerns_data) = self.change_bytes(handle, |slot| {
            // The slot was parsed when it was loaded, and every change keeps its extra size.
            let mut inode = Inode::parse(slot).expect("a live inode parses");
            if let Some(atime) = self.inode.times.take_lazy_atime() {
                inode.set_atime(atime);
            }
            let before = inode;
            let result = change(&mut inode);
            let concerns_data =
                before.size(true) != inode.size(true) || before.block_area() != inode.block_area();
            if let Some(logging) = &self.inode.logging
                && !is_loggable(&before, &inode)
            {
                logging.set_unloggable(handle.epoch());
            }
            inode.write_to(slot);
            let only_record = before.generation() == inode.generation();
            ((result, concerns_data), inode, only_record)
        });
        if concerns_data {
            self.inode.stamp_data(handle);
        }
        result
    }

    /// Changes the whole slot, including attributes. The checksum is set when the slot is staged.
    pub(crate) fn change_slot<R>(
        &self,
        handle: &Handle<'_>,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        let result = self.change_bytes(handle, |slot| {
            let result = change(slot);
            // Every change keeps its extra size, or sets one that fits.
            let inode = Inode::parse(slot).expect("a live inode parses");
            (result, inode, false)
        });
        self.inode.set_unloggable(handle);
        self.inode.stamp_data(handle);
        result
    }

    /// Changes the slot. `change` also returns the new record, and whether nothing but the record changed and its
    /// generation is the same.
    fn change_bytes<R>(
        &self,
        handle: &Handle<'_>,
        change: impl FnOnce(&mut [u8]) -> (R, Inode, bool),
    ) -> R {
        self.inode.data.in_place.clear();
        let result = handle.change(
            self.inode,
            |inode| &inode.record.slot,
            |slot| {
                let slot = Arc::make_mut(slot).bytes_mut();
                let (result, inode, only_record) = change(slot);
                let is_nameless = inode.links_count() == 0;
                let record = &self.inode.record;
                record.set_nameless(is_nameless);
                record.replace_latest(&self.inode.place, &inode, slot, only_record);
                result
            },
        );
        self.inode.logging.iter().for_each(Logging::note);
        result
    }
}
