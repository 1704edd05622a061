//! Finds the inode that a path names, and holds it while an operation uses its number.
//!
//! Other threads may rename and delete files at any moment, and a deleted inode's number may soon be another file's. A
//! held inode keeps its number. On a file system that is only read, nothing is held. Crash: nothing of this is on disk.

use std::borrow::Cow;
use std::path::Path;

use device::host;
use engine::{Ino, WalkIntent};

use crate::{Error, Fs};

/// How often an operation begins anew because other threads changed names meanwhile.
pub(crate) const TRIES: usize = 1000;

/// An inode that is kept until this is dropped, with a clone of its file system.
pub(crate) struct OwnedInode {
    pub(crate) fs: Fs,
    pub(crate) ino: Ino,
    /// Whether the engine counts us as a holder.
    is_held: bool,
}

impl OwnedInode {
    /// Releases the inode, and deletes it if it has no name by now.
    pub(crate) fn release(mut self) -> Result<(), engine::Error> {
        if std::mem::take(&mut self.is_held) {
            self.fs.engine.release(self.ino)?;
        }
        Ok(())
    }
}

impl Drop for OwnedInode {
    fn drop(&mut self) {
        if self.is_held {
            self.fs.engine.let_go(self.ino);
        }
    }
}

/// An inode that is kept until this is dropped.
pub(crate) struct HeldInode<'fs> {
    fs: &'fs Fs,
    ino: Ino,
    /// Whether the engine keeps it for us.
    is_held: bool,
}

/// A path's directory and its last part.
pub(crate) struct NameInParent<'a> {
    pub(crate) parent: Ino,
    /// Keeps the directory; `None` for the root.
    pub(crate) _held: Option<HeldInode<'a>>,
    pub(crate) name: Cow<'a, [u8]>,
}

impl HeldInode<'_> {
    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }

    /// The same inode, held by a value with a clone of the file system.
    pub(crate) fn into_owned(mut self) -> OwnedInode {
        OwnedInode {
            fs: self.fs.clone(),
            ino: self.ino,
            is_held: std::mem::take(&mut self.is_held),
        }
    }
}

impl Drop for HeldInode<'_> {
    fn drop(&mut self) {
        if self.is_held {
            self.fs.engine.let_go(self.ino);
        }
    }
}

impl Fs {
    /// What a path leads to, held.
    pub(crate) fn reach(&self, path: &Path, follow_last: bool) -> Result<HeldInode<'_>, Error> {
        if !self.engine.is_opened_for_writing() {
            return Ok(self.held(self.find(path, follow_last)?, false));
        }
        let intent = if follow_last {
            WalkIntent::Find
        } else {
            WalkIntent::FindLink
        };
        let end = self.named(
            path,
            self.engine
                .walk_in(self.root, &host::path_bytes(path), intent),
        )?;
        // Only a walk to the place of a name may find nothing.
        let found = end.found.ok_or(engine::Error::NotFound);
        Ok(self.held(self.named(path, found)?, true))
    }

    /// The directory of a path's last name, held, with that name; and the inode that has the name, held, if one does.
    /// Symbolic links at the end are followed, also to a name that does not exist.
    pub(crate) fn reach_place(
        &self,
        path: &Path,
    ) -> Result<(NameInParent<'_>, Option<HeldInode<'_>>), Error> {
        let end = self.named(
            path,
            self.engine
                .walk_in(self.root, &host::path_bytes(path), WalkIntent::Place),
        )?;
        let found = end.found.map(|ino| self.held(ino, true));
        let parent = end.directory.unwrap_or(self.root);
        let place = NameInParent {
            parent,
            _held: end.directory.map(|directory| self.held(directory, true)),
            name: end.name.into(),
        };
        Ok((place, found))
    }

    /// What a name in a directory stands for, held.
    pub(crate) fn reach_in(
        &self,
        directory: Ino,
        name: &[u8],
    ) -> Result<HeldInode<'_>, engine::Error> {
        let ino = self.engine.lookup_held(directory, name)?;
        Ok(self.held(ino, true))
    }

    pub(crate) fn held(&self, ino: Ino, is_held: bool) -> HeldInode<'_> {
        HeldInode {
            fs: self,
            ino,
            is_held,
        }
    }
}
