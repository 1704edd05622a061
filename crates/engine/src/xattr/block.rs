//! An inode's block of attributes: taken, changed in place, shared with inodes that have the same attributes, copied
//! when it is shared and one of them changes, and freed with the last one that uses it.
//!
//! The count of references and the contents of these blocks are under one lock of the file system
//! ([`sync::Rank::XattrBlock`]), taken after the inode's and before the handle, and kept through apply: a block that
//! one inode uses is that inode's alone as long as it is held and the block is not known to [`AttributeBlocks`].
//! What a cut leaves: the inode with its old block or with its new one, each with its count right.

use journal::Handle;
use ondisk::xattr::{self, ListPlace};
use ondisk::{Corrupt, FsBlock, Ino, Site};
use sync::MutexGuard;

use super::{block_of, pin};
use crate::blocks::{AttributeBlocks, Kind};
use crate::blocks::{Pin, Seal};
use crate::core::Error;
use crate::core::sb::BlockPurpose;
use crate::inode::LoadedInode;
use crate::space::mballoc::{BLOCKS_A_RUN, Freeing, TakenBlocks};
use crate::token::LiveFs;

/// Inodes that share one block at most, as in Linux.
const MAX_REFERENCES: u32 = 1024;

/// A reference to a block of attributes that is removed, prepared except for the lock: [`Release::lock`] comes before
/// the handle, [`LockedRelease::apply`] under it.
pub(crate) struct Release<'a> {
    mounted: &'a LiveFs,
    /// Whose reference it is.
    ino: Ino,
    old: Option<(FsBlock, Pin)>,
}

/// A reference that is removed in the next handle.
pub(crate) struct LockedRelease<'a> {
    release: Release<'a>,
    known: Option<MutexGuard<'a, AttributeBlocks>>,
    /// The block, if it is freed with the reference.
    freeing: Option<Freeing<'a>>,
}

impl<'a> Release<'a> {
    /// Prepares to release the block of attributes that an inode has, if it has one. The caller holds its lock and no
    /// handle.
    ///
    /// # Errors
    /// `Corrupt`, `Io`, `ReadOnly`.
    pub(crate) fn prepare(mounted: &'a LiveFs, inode: &LoadedInode) -> Result<Release<'a>, Error> {
        let volume = mounted.volume();
        let (at, ino) = (block_of(volume, inode), inode.ino());
        if at.0 == 0 {
            let old = None;
            return Ok(Release { mounted, ino, old });
        }
        let pin = pin(mounted, inode, at)?;
        let bytes = pin.bytes();
        xattr::entries(ListPlace::Block(&bytes))
            .map_err(|corrupt| corrupt.ino(inode.ino()).block(at))?;
        if xattr::references(&bytes) == 0 {
            let corrupt = Corrupt::at(Site::XattrReferences).ino(inode.ino());
            return Err(corrupt.block(at).into());
        }
        // So that no bitmap is read under the lock, where it is decided who frees the block.
        if let Some(group) = volume.geometry().group_of_block(at) {
            mounted.groups().with_bits(volume, group, |_| ())?;
        }
        let old = Some((at, pin));
        Ok(Release { mounted, ino, old })
    }

    /// Blocks and revokes that the apply uses of its handle at most.
    pub(crate) fn cost(&self) -> (u32, u32) {
        match self.old {
            Some(_) => (BLOCKS_A_RUN, 1),
            None => (0, 0),
        }
    }

    /// Waits for the lock on such blocks, where there is one; before the handle, after all other locks.
    pub(crate) fn lock(self) -> Result<LockedRelease<'a>, Error> {
        let known = match self.old {
            Some(_) => Some(self.mounted.writing().attribute_blocks.lock()),
            None => None,
        };
        Ok(LockedRelease {
            freeing: self.claim()?,
            release: self,
            known,
        })
    }

    /// Prepares to free the block, if this is the last reference. The caller has the lock on such blocks.
    fn claim(&self) -> Result<Option<Freeing<'a>>, Error> {
        match &self.old {
            Some((at, pin)) if xattr::references(&pin.bytes()) == 1 => {
                Ok(Some(self.mounted.claim_blocks(self.ino, &[(*at, 1)])?))
            }
            _ => Ok(None),
        }
    }
}

impl LockedRelease<'_> {
    /// One inode fewer uses the block; with the last one it is freed.
    pub(crate) fn apply(mut self, handle: &Handle<'_>) {
        if let (Some(known), Some((at, pin))) = (&mut self.known, &self.release.old) {
            drop_reference(known, *at, pin, self.freeing, handle);
        }
    }
}

fn drop_reference(
    known: &mut AttributeBlocks,
    at: FsBlock,
    pin: &Pin,
    freeing: Option<Freeing<'_>>,
    handle: &Handle<'_>,
) {
    match freeing {
        Some(freeing) => {
            known.remove(at);
            handle.forget(at);
            freeing.apply(handle);
        }
        None => pin.change(handle, |block| {
            let references = xattr::references(block);
            xattr::set_references(block, references.saturating_sub(1));
        }),
    }
}

/// New contents for an inode's block of attributes, prepared except for the lock.
pub(super) struct BlockChange<'a> {
    old: Release<'a>,
    /// `None`: no attributes are left for it.
    new: Option<Vec<u8>>,
    /// A block in case that none can be changed or shared; `None` if none is free.
    spare: Option<TakenBlocks<'a>>,
}

/// What replaces an inode's block.
enum Fate<'a> {
    Nothing,
    InPlace,
    Shared(FsBlock, Pin),
    Fresh(TakenBlocks<'a>, Pin),
}

/// A change of an inode's block that the next handle makes.
pub(super) struct LockedChange<'a> {
    old: Release<'a>,
    new: Vec<u8>,
    fate: Fate<'a>,
    known: MutexGuard<'a, AttributeBlocks>,
    /// The old block, if it is freed with its reference.
    freeing: Option<Freeing<'a>>,
}

impl<'a> BlockChange<'a> {
    /// Prepares new contents for the block of an inode: `ino`'s, which has `old` now, if it has any.
    ///
    /// # Errors
    /// Those of [`Release::prepare`], except `NoSpace`, which [`BlockChange::lock`] returns if a block is needed then.
    pub(super) fn prepare(
        mounted: &'a LiveFs,
        ino: Ino,
        old: Option<&LoadedInode>,
        new: Option<Vec<u8>>,
    ) -> Result<BlockChange<'a>, Error> {
        let old = match old {
            Some(inode) => Release::prepare(mounted, inode)?,
            None => Release {
                mounted,
                ino,
                old: None,
            },
        };
        if new.is_some()
            && let Some((at, pin)) = &old.old
        {
            let mut known = mounted.writing().attribute_blocks.lock();
            let bytes = pin.bytes();
            if xattr::references(&bytes) == 1 {
                // From here on no thread finds it, so no other inode shares it.
                known.remove(*at);
                drop(known);
                let spare = None;
                return Ok(BlockChange { old, new, spare });
            }
            known.insert(*at, xattr::hash(&bytes), pin.clone());
        }
        let geometry = mounted.volume().geometry();
        let (group, _) = geometry.group_of_ino(ino).ok_or(Error::NotFound)?;
        let spare = match &new {
            None => None,
            Some(bytes) => {
                match mounted.take_blocks(
                    purpose(&old, bytes),
                    geometry.group_first_block(group),
                    1,
                ) {
                    Ok(blocks) => Some(blocks),
                    Err(Error::NoSpace) => None,
                    Err(error) => return Err(error),
                }
            }
        };
        Ok(BlockChange { old, new, spare })
    }

    /// Blocks and revokes that the apply uses of its handle at most.
    pub(super) fn cost(&self) -> (u32, u32) {
        let (blocks, revokes) = self.old.cost();
        let new = match self.new {
            Some(_) => 1 + BLOCKS_A_RUN,
            None => 0,
        };
        (blocks + new, revokes)
    }

    /// Waits for the lock on such blocks, and decides what becomes of the inode's; before the handle, after all other
    /// locks.
    ///
    /// # Errors
    /// `NoSpace` if a block is needed and none is free.
    pub(super) fn lock(self) -> Result<LockedChange<'a>, Error> {
        let mounted = self.old.mounted;
        let volume = mounted.volume();
        let known = mounted.writing().attribute_blocks.lock();
        let Some(new) = self.new else {
            return Ok(LockedChange {
                freeing: self.old.claim()?,
                old: self.old,
                new: Vec::new(),
                fate: Fate::Nothing,
                known,
            });
        };
        let has_room = |block: &[u8]| {
            xattr::references(block) < MAX_REFERENCES && has_equal_entries(block, &new)
        };
        let references = |pin: &Pin| xattr::references(&pin.bytes());
        let fate = if let Some((at, pin)) = known.find(xattr::hash(&new), has_room) {
            Fate::Shared(at, pin)
        } else if self
            .old
            .old
            .as_ref()
            .is_some_and(|(_, pin)| references(pin) == 1)
        {
            Fate::InPlace
        } else {
            let blocks = self.spare.ok_or(Error::NoSpace)?;
            let seal = if volume.geometry().has_metadata_csum() {
                Seal::Xattrs(volume.geometry().csum_seed())
            } else {
                Seal::None
            };
            let pin = volume.pin_new(blocks.run().start, Kind::Xattrs, Ino(0), seal)?;
            Fate::Fresh(blocks, pin)
        };
        let freeing = match fate {
            Fate::InPlace => None,
            _ => self.old.claim()?,
        };
        Ok(LockedChange {
            old: self.old,
            new,
            fate,
            known,
            freeing,
        })
    }
}

impl LockedChange<'_> {
    /// Makes the change; returns the block that the inode has from now on, 0 for none.
    pub(super) fn apply(mut self, handle: &Handle<'_>) -> FsBlock {
        let write = |pin: &Pin, new: &[u8]| pin.change(handle, |block| block.copy_from_slice(new));
        let at = match (self.fate, &self.old.old) {
            (Fate::InPlace, Some((at, pin))) => {
                write(pin, &self.new);
                self.known.insert(*at, xattr::hash(&self.new), pin.clone());
                return *at;
            }
            (Fate::Nothing | Fate::InPlace, _) => FsBlock(0),
            (Fate::Shared(at, pin), _) => {
                pin.change(handle, |block| {
                    xattr::set_references(block, xattr::references(block) + 1);
                });
                at
            }
            (Fate::Fresh(blocks, pin), _) => {
                let at = blocks.apply(handle).start;
                write(&pin, &self.new);
                self.known.insert(at, xattr::hash(&self.new), pin);
                at
            }
        };
        if let Some((old, pin)) = &self.old.old {
            drop_reference(&mut self.known, *old, pin, self.freeing, handle);
        }
        at
    }
}

/// The purpose of a new block: a step that removes attributes gets one on a full image too.
fn purpose(old: &Release<'_>, new: &[u8]) -> BlockPurpose {
    let count = |block: &[u8]| xattr::entries(ListPlace::Block(block)).map_or(0, Iterator::count);
    match &old.old {
        Some((_, pin)) if count(new) < count(&pin.bytes()) => BlockPurpose::Freeing,
        _ => BlockPurpose::Growing,
    }
}

/// Whether two blocks hold the same attributes, wherever in them.
fn has_equal_entries(a: &[u8], b: &[u8]) -> bool {
    match (
        xattr::entries(ListPlace::Block(a)),
        xattr::entries(ListPlace::Block(b)),
    ) {
        (Ok(a), Ok(b)) => a.eq(b),
        _ => false,
    }
}
