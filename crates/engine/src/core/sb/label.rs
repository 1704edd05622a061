//! The file system's label, which can be changed while it is mounted (`FS_IOC_SETFSLABEL`).
//!
//! A change is a step: the committer puts the label into the superblock's image. What a crash leaves: the old label or
//! the new. Copies of the superblock in other groups keep the old one, as after tune2fs.

use journal::{Epoch, EpochLists, Folded, Handle, JournalError};
use ondisk::{Geometry, Superblock};
use sync::{Mutex, Rank};

use super::change_superblock;

/// Bytes that a label has room for.
pub(crate) const LABEL_BYTES: usize = 16;

/// The label, and how often it was changed.
#[derive(Clone)]
struct Version {
    label: Vec<u8>,
    number: u64,
}

/// The label; see the module.
pub(crate) struct Label {
    /// [leaf]
    current: Mutex<Version>,
    new: EpochLists<Version>,
}

impl Label {
    pub(crate) fn new(superblock: &Superblock) -> Label {
        let label = superblock.label().to_vec();
        Label {
            current: Mutex::new(Rank::Leaf, Version { label, number: 0 }),
            new: EpochLists::new(),
        }
    }

    /// The label now.
    pub(crate) fn get(&self) -> Vec<u8> {
        self.current.lock().label.clone()
    }

    /// Changes it in the handle's epoch. Uses one of the handle's blocks.
    pub(crate) fn set(&self, handle: &Handle<'_>, label: &[u8]) {
        handle.use_block();
        let version = {
            let mut current = self.current.lock();
            current.label = label.to_vec();
            current.number += 1;
            current.clone()
        };
        self.new.push(handle, version);
    }

    /// Folds a sealed epoch's newest label into the superblock's image.
    pub(crate) fn fold(
        &self,
        geometry: &Geometry,
        sealed: Epoch,
        folded: &mut Folded<'_>,
    ) -> Result<(), JournalError> {
        let versions = self.new.take(sealed).into_iter();
        match versions.max_by_key(|version| version.number) {
            Some(newest) => change_superblock(geometry, folded, |sb| sb.set_label(&newest.label)),
            None => Ok(()),
        }
    }
}
