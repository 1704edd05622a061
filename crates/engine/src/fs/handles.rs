//! Inodes by handle: a number and a generation that a caller has stored, and that may be stale.
//!
//! The inode is looked up by both, without a lock. Another thread may be making or deleting it, so its lock is then
//! taken, shared: that waits until the other thread is done, and shows whether the inode exists. No other lock is held.

use ondisk::{Generation, Ino};

use crate::core::Error;
use crate::fs::{InodeFs, InodeRef};

impl InodeFs {
    /// The inode with this number, as long as it is the one that had this generation; held, as by [`InodeFs::hold`], if
    /// the file system is written to. One without names is found while it has other holders.
    ///
    /// # Errors
    /// `Stale` if it was deleted, or its number is free, or used or about to be used by another inode; `Corrupt`, `Io`.
    pub fn open_by_handle(&self, ino: Ino, generation: Generation) -> Result<InodeRef<'_>, Error> {
        self.noting(self.by_handle(ino, generation))
    }

    fn by_handle(&self, ino: Ino, generation: Generation) -> Result<InodeRef<'_>, Error> {
        let mounted = &self.mounted;
        let used = || match mounted.load_used(ino) {
            Err(Error::NotFound) => Err(Error::Stale),
            inode => inode,
        };
        let is_it = |found: Generation| (found == generation).then_some(()).ok_or(Error::Stale);
        if mounted.volume().check_ordinary(ino).is_err() {
            // An inode of the file system's own can't be opened.
            return Err(Error::Stale);
        }
        if !mounted.volume().is_writable() {
            let found = mounted.load(ino);
            let found = found.ok().filter(|inode| inode.mode() != 0);
            is_it(found.ok_or(Error::Stale)?.generation())?;
            let inode = used()?;
            return Ok(InodeRef { mounted, inode });
        }
        let live = mounted.get_by_handle(ino, generation)?;
        let _settled = mounted.settled(&live);
        let inode = used()?;
        is_it(inode.generation())?;
        if inode.links_count() == 0 && !live.life.is_held() {
            // It is about to be deleted.
            return Err(Error::Stale);
        }
        live.life.hold();
        Ok(InodeRef { mounted, inode })
    }
}
