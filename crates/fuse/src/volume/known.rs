//! The inodes that the kernel knows. The mount holds each of them from its lookup until the kernel forgets it, and
//! makes the kernel drop their attributes after a change.
//!
//! What a crash leaves: an inode that is held without names is an orphan, which the next mount deletes.

use lanefs::{FileType, FsError, Ino, Metadata};

use super::MountedImage;
use crate::operations::Operations;

impl MountedImage {
    /// Counts a lookup of an inode, and returns its metadata.
    pub(super) fn enter(&self, ino: Ino) -> Result<Metadata, FsError> {
        if self.lookups.again(ino) {
            return self.tell(ino);
        }
        if self.is_writable {
            self.fs.inodes().hold(ino)?;
        }
        self.enter_held(ino)
    }

    /// Counts a lookup of an inode that the caller has just held for it, and returns its metadata.
    pub(super) fn enter_held(&self, ino: Ino) -> Result<Metadata, FsError> {
        if !self.lookups.first(ino) {
            self.let_go(ino);
        }
        self.tell(ino)
    }

    /// Answers a lookup by number, which the kernel makes for handles (open_by_handle_at, an NFS server): it looks up
    /// `.` in the inode that has the number now, and compares the generation itself.
    pub(super) fn by_number(&self, ino: Ino) -> Result<Metadata, FsError> {
        let fs = self.fs.inodes();
        let generation = fs.metadata(ino)?.generation;
        // On a writable file system this holds the inode.
        fs.open_by_handle(ino, generation)?;
        self.enter_held(ino)
    }

    /// The metadata of an inode whose lookup was counted. If it can't be read, the lookup is uncounted.
    fn tell(&self, ino: Ino) -> Result<Metadata, FsError> {
        let metadata = self.fs.inodes().metadata(ino);
        if metadata.is_err() {
            self.forget(ino, 1);
        }
        metadata
    }

    /// Makes the kernel drop an inode's attributes and ACLs after a change whose answer does not carry them. Called
    /// before the answer by the thread that serves the request: dropping attributes never waits.
    pub(super) fn attributes_changed(&self, ino: Ino) {
        self.stale.attributes(ino);
    }

    /// As [`Self::attributes_changed`], for inodes whose attributes the kernel itself drops when it has the answer.
    /// That is too late if another process asked for the attributes, we answered before the change, and the kernel
    /// stores that answer after it has dropped the attributes: the old ones would stay. So the kernel is told to drop
    /// them, unless it has not asked for them since the last change.
    pub(super) fn marked_by_kernel(&self, inos: &[Ino]) {
        for ino in inos {
            if self.lookups.hide(*ino) {
                self.attributes_changed(*ino);
            }
        }
    }

    /// Makes the kernel drop the listing of a directory that moved, because its entry `..` has changed. This can't
    /// deadlock: the kernel changes nothing in that directory before it has the answer, and no process waits for a
    /// request while it has a page of a listing locked.
    pub(super) fn parent_changed(&self, moved: Ino) {
        let metadata = self.fs.inodes().metadata(moved);
        if metadata.is_ok_and(|metadata| metadata.file_type == FileType::Directory) {
            self.stale.listing(moved);
        }
    }

    /// Makes the kernel drop the attributes of directories if a change of their names succeeded; returns its result.
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
            // An inode that can't be deleted now stays an orphan, which the next mount deletes.
            let _ = self.fs.inodes().release(ino);
        }
    }
}
