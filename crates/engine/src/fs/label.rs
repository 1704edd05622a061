//! The label, by which blkid and fstab find the file system.

use super::{InodeFs, enter};
use crate::core::Error;
use crate::core::sb::LABEL_BYTES;

impl InodeFs {
    /// The file system's label.
    #[must_use]
    pub fn label(&self) -> Vec<u8> {
        match self.mounted.live() {
            Ok(live) => live.writing().label.get(),
            Err(_) => self.superblock().label().to_vec(),
        }
    }

    /// Changes the file system's label, durably. When this returns the superblock on the device has it, for programs
    /// that look there (blkid). A crash leaves the old label or the new.
    ///
    /// # Errors
    /// `InvalidArgument` for more than 16 bytes or a zero among them; `ReadOnly`, `Closed`, `Stopped`, `Aborted`.
    pub fn set_label(&self, label: &[u8]) -> Result<(), Error> {
        if label.len() > LABEL_BYTES || label.contains(&0) {
            return Err(Error::InvalidArgument);
        }
        let live = self.live()?;
        {
            let _change = enter(live)?;
            let credits = live.reserve(1, 0)?;
            let handle = live.begin(credits)?;
            live.writing().label.set(&handle, label);
        }
        live.sync_all()?;
        self.checkpoint()
    }
}
