//! Group descriptors: read when first needed, verified, and of each only the place of its inode table kept.

use journal::{Epoch, Folded, JournalError};
use ondisk::{FsBlock, Group, GroupDesc, Ino};
use sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;
use crate::limits;
use crate::sb::{Kind, Volume};

/// The places of inode tables, by group.
pub(crate) struct Groups {
    /// A table's first block; 0 while it was not read. [atomic: Relaxed, a fact of the immutable device]
    inode_tables: Box<[AtomicU64]>,
}

impl Groups {
    /// Of the volume's groups; reads nothing.
    pub(crate) fn new(volume: &Volume) -> Groups {
        let groups = volume.geometry().groups();
        let kept = if groups <= limits::KEPT_GROUPS {
            groups
        } else {
            0
        };
        Groups {
            inode_tables: (0..kept).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Folds what a sealed epoch changed without locks into the images of its blocks.
    pub(crate) fn fold(
        &self,
        _volume: &Volume,
        _sealed: Epoch,
        _folded: &mut Folded<'_>,
    ) -> Result<(), JournalError> {
        Ok(())
    }

    /// What the epoch freed may be used again.
    pub(crate) fn committed(&self, _volume: &Volume, _epoch: Epoch) {}

    /// The first block of a group's inode table. The group must exist.
    pub(crate) fn inode_table(&self, volume: &Volume, group: Group) -> Result<FsBlock, Error> {
        let kept = self.inode_tables.get(group.0 as usize);
        if let Some(kept) = kept {
            // Relaxed: the value is all there is; pairs with the store below, which stores the same always.
            let block = kept.load(Ordering::Relaxed);
            if block != 0 {
                return Ok(FsBlock(block));
            }
        }
        let table = descriptor(volume, group)?.inode_table();
        if let Some(kept) = kept {
            // Relaxed: pairs with the load above.
            kept.store(table.0, Ordering::Relaxed);
        }
        Ok(table)
    }
}

/// A group's descriptor, verified. The group must exist.
pub(crate) fn descriptor(volume: &Volume, group: Group) -> Result<GroupDesc, Error> {
    let geometry = volume.geometry();
    let per_block = geometry.descs_per_block();
    let at = volume.descriptor_block(group.0 / per_block);
    let block = volume.read_block(at, Kind::Descriptors, Ino(0), |_| Ok(()))?;
    let (_, byte) = geometry.desc_place(group);
    // A descriptor lies within its block, as its size divides the block's.
    let raw = block
        .get(byte..byte + geometry.desc_size())
        .unwrap_or_default();
    Ok(GroupDesc::verify(raw, geometry, group)?)
}
