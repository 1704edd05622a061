//! The open image that all clones of an [`crate::Fs`] and all its open files and directories share.
//!
//! The drop of the last of them closes the file system, unless it was closed or abandoned before. Locks: none of its
//! own. Crash: as [`engine::InodeFs::close`].

use std::ops::Deref;

use sync::Guarded;

use crate::report;

/// An open file system.
pub(crate) struct OpenImage {
    inodes: engine::InodeFs,
    /// Whether all changes are one, which [`OpenImage::close_atomic`] commits and a drop discards.
    is_atomic: bool,
    /// Whether the last drop writes nothing. [the reference count orders it]
    is_left_alone: Guarded<bool>,
}

impl Deref for OpenImage {
    type Target = engine::InodeFs;

    fn deref(&self) -> &engine::InodeFs {
        &self.inodes
    }
}

impl OpenImage {
    pub(crate) fn new(inodes: engine::InodeFs) -> OpenImage {
        OpenImage {
            inodes,
            is_atomic: false,
            is_left_alone: Guarded::new(false),
        }
    }

    /// Makes the last drop write nothing.
    pub(crate) fn leave_alone(&self) {
        self.is_left_alone.set(true);
    }

    /// Makes everything durable and leaves a clean image.
    pub(crate) fn close(mut self) -> Result<(), engine::Error> {
        self.leave_alone();
        self.inodes.close_in_place()
    }

    /// Makes all changes from here on one. If this fails, the caller must close the file system.
    pub(crate) fn begin_atomic(&mut self) -> Result<(), engine::Error> {
        self.inodes.begin_atomic()?;
        self.is_atomic = true;
        Ok(())
    }

    /// Commits all changes since [`OpenImage::begin_atomic`] as one.
    pub(crate) fn close_atomic(mut self) -> Result<(), engine::Error> {
        self.leave_alone();
        self.inodes.close_atomic()
    }
}

impl Drop for OpenImage {
    fn drop(&mut self) {
        let is_left_alone = self.is_left_alone.get();
        if is_left_alone || !self.is_opened_for_writing() || self.is_retired() {
            return;
        }
        let ended = if self.is_atomic {
            // Marks the image clean. If that fails, the next opening replays it to the same state.
            self.inodes.abandon()
        } else {
            self.inodes.close_in_place()
        };
        if let Err(error) = ended {
            report::not_closed(&error);
        }
    }
}
