//! Keeps account of the inodes that the kernel knows. A writable mount holds each of them from its first lookup until
//! the kernel has forgotten it. After a change, the mount makes the kernel drop the attributes that have become old.
//!
//! What a crash leaves: an inode that is held and has no name is an orphan, which the next mount deletes.

use lanefs::{FileType, FsError, Ino, Metadata};

use super::MountedImage;
use crate::operations::Operations;

impl MountedImage {
    /// Counts a lookup of an inode and returns its metadata. If this is the first lookup, the inode is held.
    pub(super) fn enter(&self, ino: Ino) -> Result<Metadata, FsError> {
        if self.lookups.again(ino) {
            return self.tell(ino);
        }
        if self.is_writable {
            self.fs.inodes().hold(ino)?;
        }
        self.enter_held(ino)
    }

    /// Counts a lookup of an inode that the caller has just held, and returns its metadata. If the kernel already knew
    /// the inode, the additional hold is released.
    pub(super) fn enter_held(&self, ino: Ino) -> Result<Metadata, FsError> {
        if !self.lookups.first(ino) {
            self.let_go(ino);
        }
        self.tell(ino)
    }

    /// Answers a lookup by number, and returns the inode's metadata. The kernel looks up `.` in an inode's number to
    /// resolve a file handle (for open_by_handle_at, or an NFS server), and compares the generation itself.
    pub(super) fn by_number(&self, ino: Ino) -> Result<Metadata, FsError> {
        let fs = self.fs.inodes();
        let generation = fs.metadata(ino)?.generation;
        // On a writable file system this holds the inode.
        fs.open_by_handle(ino, generation)?;
        self.enter_held(ino)
    }

    /// Returns the metadata of an inode whose lookup was counted. If it can't be read, the lookup is taken back.
    fn tell(&self, ino: Ino) -> Result<Metadata, FsError> {
        let metadata = self.fs.inodes().metadata(ino);
        if metadata.is_err() {
            self.forget(ino, 1);
        }
        metadata
    }

    /// Makes the kernel drop an inode's attributes and ACLs after a change whose answer does not carry them. The thread
    /// that serves the request calls this before it answers, which can't deadlock: the kernel waits for nothing when it
    /// drops attributes.
    pub(super) fn attributes_changed(&self, ino: Ino) {
        self.stale.attributes(ino);
    }

    /// Makes the kernel drop the attributes of inodes for which it does so itself once it has the answer. That alone is
    /// not enough: if another process asks for the attributes and we answer before the change, the kernel may store
    /// that answer after it has dropped the attributes, and the old ones would stay. Inodes whose attributes the kernel
    /// was not shown since their last change are left out.
    pub(super) fn marked_by_kernel(&self, inos: &[Ino]) {
        for ino in inos {
            if self.lookups.hide(*ino) {
                self.attributes_changed(*ino);
            }
        }
    }

    /// Makes the kernel drop the listing of a moved directory, because its entry `..` has changed; does nothing for
    /// other files. This can't deadlock: the kernel changes nothing in that directory before it has the answer, and no
    /// process waits for a request while it has a page of a listing locked.
    pub(super) fn parent_changed(&self, moved: Ino) {
        let metadata = self.fs.inodes().metadata(moved);
        if metadata.is_ok_and(|metadata| metadata.file_type == FileType::Directory) {
            self.stale.listing(moved);
        }
    }

    /// Makes the kernel drop the attributes of `directories` if the change of their entries succeeded. Returns the
    /// change's result.
    pub(super) fn after<T>(
        &self,
        changed: Result<T, FsError>,
        directories: &[Ino],
    ) -> Result<T, FsError> {
        if changed.is_ok() {
            self.marked_by_kernel(directories);
        }
        changed
    }

    /// Releases an inode that the kernel has forgotten.
    pub(super) fn let_go(&self, ino: Ino) {
        if self.is_writable {
            // If the release can't delete an inode without names, it stays an orphan, which the next mount deletes.
            let _ = self.fs.inodes().release(ino);
        }
    }
}
