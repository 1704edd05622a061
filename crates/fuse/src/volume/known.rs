//! The inodes that the kernel knows: each was looked up, and is held until the kernel forgets it; and the attributes of
//! them that the kernel must forget after a change.
//!
//! What a crash leaves: an inode that is held without names is an orphan, which the next mount deletes.

use lanefs::{FileType, FsError, Ino, Metadata};

use super::Volume;
use crate::operations::Operations;

impl Volume {
    /// Counts a look-up of an inode, and tells of it.
    pub(super) fn enter(&self, ino: Ino) -> Result<Metadata, FsError> {
        if self.lookups.again(ino) {
            return self.tell(ino);
        }
        if self.is_writable {
            self.fs.inodes().hold(ino)?;
        }
        self.enter_held(ino)
    }

    /// Counts a look-up of an inode that was just held for it, and tells of it.
    pub(super) fn enter_held(&self, ino: Ino) -> Result<Metadata, FsError> {
        if !self.lookups.first(ino) {
            self.let_go(ino);
        }
        self.tell(ino)
    }

    /// An inode of which the kernel has only a handle (open_by_handle_at, an NFS server): it asks for `.` in what the
    /// number stands for now, and compares the generation itself.
    pub(super) fn by_number(&self, ino: Ino) -> Result<Metadata, FsError> {
        let fs = self.fs.inodes();
        let generation = fs.metadata(ino)?.generation;
        // Held from here on, where the file system is written to.
        fs.open_by_handle(ino, generation)?;
        self.enter_held(ino)
    }

    /// What is to be known of an inode whose look-up was counted, which is taken back when there is nothing.
    fn tell(&self, ino: Ino) -> Result<Metadata, FsError> {
        let metadata = self.fs.inodes().metadata(ino);
        if metadata.is_err() {
            self.forget(ino, 1);
        }
        metadata
    }

    /// Has the kernel forget an inode's attributes and ACLs after a change whose answer does not carry them. Only
    /// attributes, so that nothing waits: called by the thread that has the request, before the answer.
    pub(super) fn attributes_changed(&self, ino: Ino) {
        self.stale.attributes(ino);
    }

    /// As `attributes_changed`, of inodes that the kernel itself marks when it has the answer. That is too late for a
    /// question which was answered before the change, and whose answer another process takes afterwards: what it says
    /// would be kept. So the kernel is told, unless it has not asked since the last change.
    pub(super) fn marked_by_kernel(&self, inos: &[Ino]) {
        for ino in inos {
            if self.lookups.hide(*ino) {
                self.attributes_changed(*ino);
            }
        }
    }

    /// A directory that moved has another entry `..`, of which the kernel keeps the listing. It changes nothing in that
    /// directory before it has the answer, and nobody waits for a request with such a page locked.
    pub(super) fn parent_changed(&self, moved: Ino) {
        let metadata = self.fs.inodes().metadata(moved);
        if metadata.is_ok_and(|metadata| metadata.file_type == FileType::Directory) {
            self.stale.listing(moved);
        }
    }

    /// After a change of names in these directories.
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

    pub(super) fn let_go(&self, ino: Ino) {
        if self.is_writable {
            // An inode that can't be deleted now is an orphan, for whoever opens the image next.
            let _ = self.fs.inodes().release(ino);
        }
    }
}
