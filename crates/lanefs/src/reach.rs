//! From a path to an inode that stays the one the path led to while its number is used.
//!
//! Others may rename and delete at any moment, and a deleted inode's number may soon be another file's: so what an
//! operation by path works on is held first, and counts if the path still leads there. Nothing is held on a file system
//! that is only read. Holding takes no lock. What a crash leaves: nothing of this is on disk.

use std::path::Path;

use engine::Ino;

use crate::{Error, Fs};

/// How often a path is followed anew because others changed names meanwhile.
pub(crate) const TRIES: usize = 1000;

/// An inode that stays until this is dropped.
pub(crate) struct HeldInode<'fs> {
    fs: &'fs Fs,
    ino: Ino,
    /// Whether the engine keeps it for us.
    is_held: bool,
}

impl HeldInode<'_> {
    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }
}

impl Drop for HeldInode<'_> {
    fn drop(&mut self) {
        if self.is_held {
            self.fs.0.let_go(self.ino);
        }
    }
}

impl Fs {
    /// What a path leads to, held.
    pub(crate) fn reach(&self, path: &Path, follow_last: bool) -> Result<HeldInode<'_>, Error> {
        let mut failure = engine::Error::Busy;
        for _ in 0..TRIES {
            let ino = self.find(path, follow_last)?;
            // The root stays anyway.
            if !self.0.is_opened_for_writing() || ino == Ino::ROOT {
                return Ok(self.held(ino, false));
            }
            match self.0.hold(ino) {
                Ok(()) => {
                    let held = self.held(ino, true);
                    if self.find(path, follow_last)? == ino {
                        return Ok(held);
                    }
                }
                // Deleted since.
                Err(error @ engine::Error::NotFound) => failure = error,
                Err(error) => return self.named(path, Err(error)),
            }
        }
        self.named(path, Err(failure))
    }

    /// What a name in a directory stands for, held.
    pub(crate) fn reach_in(
        &self,
        directory: Ino,
        name: &[u8],
    ) -> Result<HeldInode<'_>, engine::Error> {
        let ino = self.0.lookup_held(directory, name)?;
        Ok(self.held(ino, true))
    }

    fn held(&self, ino: Ino, is_held: bool) -> HeldInode<'_> {
        HeldInode {
            fs: self,
            ino,
            is_held,
        }
    }
}
