//! Inodes whose last name or last bytes are being taken away: found again after a crash. The plain form: one lock
//! ([`Rank::OrphanList`]) around the free slots of the orphan file and the classic list, which serves where there is
//! no such file, or when it is full.
//!
//! The lock is taken before the handle and kept through apply ([`Orphans::lock`]). An inode's entry is made in the
//! same handle as the change that needs it (`nlink` 0, a smaller size), and taken back in the one that completes it.
//! Slots change on disk by the committer alone: handles put (slot, number, version) on the epoch's list, and the
//! highest version of a slot wins.
//!
//! What a crash leaves: every inode that was in the middle of something is in a slot or on the list of a committed
//! epoch; whoever opens the image deletes it (no names) or cuts it to its size.

use std::collections::{BTreeMap, HashMap};

use journal::{Epoch, EpochLists, Folded, Handle, JournalError};
use ondisk::{FsBlock, Geometry, Ino, orphan_file};
use sync::{Arc, Mutex, MutexGuard, Rank};

use crate::sb::change_superblock;
use crate::variants::OrphanForm;

mod doomed;
mod slots;

pub(crate) use doomed::{Doomed, UnderWay};
use slots::Slots;

/// Blocks of a handle that an entry or its removal uses at most: a slot's block; or the superblock, the inode and its
/// neighbour on the list.
pub(crate) const BLOCKS_AN_ORPHAN: u32 = 3;

/// An inode that can be on the classic list, where each names the next one in its `dtime`.
pub(crate) trait Chained: Send + Sync {
    /// Its number.
    fn ino(&self) -> Ino;

    /// Names the next inode of the list, 0 for none. Uses one of the handle's blocks the first time in an epoch. The
    /// list's lock protects the field.
    fn set_next(self: Arc<Self>, handle: &Handle<'_>, next: Ino);
}

/// Where the orphan file's slots are.
#[derive(Default)]
pub(crate) struct OrphanFile {
    /// Its blocks, in order.
    pub(crate) blocks: Vec<FsBlock>,
    /// The checksum seed of its inode, where there are checksums.
    pub(crate) seed: Option<u32>,
    /// Slots that hold a number now.
    pub(crate) used: Vec<(u32, Ino)>,
}

/// A change of a slot or (without a slot) of the list's head.
struct Change {
    slot: Option<u32>,
    ino: Ino,
    version: u32,
}

/// The orphans.
pub(crate) struct Orphans {
    /// [const after mount]
    blocks: Vec<FsBlock>,
    seed: Option<u32>,
    slots_per_block: u32,
    /// The file's slots; none where there is no file.
    slots: Box<dyn Slots>,
    state: Mutex<State>,
    changes: EpochLists<Change>,
}

/// [orphan list]
#[derive(Default)]
struct State {
    /// The slot of each inode that has one.
    slots: HashMap<u32, u32>,
    /// The classic list; its head is the last one here.
    list: Vec<Arc<dyn Chained>>,
    /// Of the list's head.
    version: u32,
}

/// The lock on the orphans, for one step.
pub(crate) struct Locked<'a> {
    orphans: &'a Orphans,
    state: MutexGuard<'a, State>,
}

impl Orphans {
    /// With the classic list only (empty until [`Orphans::restore`]), or an orphan file too, in this form.
    pub(crate) fn new(geometry: &Geometry, file: Option<OrphanFile>, form: OrphanForm) -> Orphans {
        // A block has at most 16,382 slots, and the file 512 blocks.
        let slots_per_block = orphan_file::slots_per_block(geometry.block_size()) as u32;
        let file = file.unwrap_or_default();
        let slots = file.blocks.len() as u32 * slots_per_block;
        let state = State {
            slots: file.used.iter().map(|(slot, ino)| (ino.0, *slot)).collect(),
            ..State::default()
        };
        Orphans {
            slots: slots::of_form(form, slots, &file.used),
            blocks: file.blocks,
            seed: file.seed,
            slots_per_block,
            state: Mutex::new(Rank::OrphanList, state),
            changes: EpochLists::new(),
        }
    }

    /// Says what the classic list holds, its head last: at the mount, before anyone else uses it.
    pub(crate) fn restore(&self, list: Vec<Arc<dyn Chained>>) {
        self.state.lock().list = list;
    }

    /// Whether there is an orphan file.
    pub(crate) fn has_file(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Whether nothing is in the middle of being taken away.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.slots.is_empty() && state.list.is_empty()
    }

    /// Waits for the lock; before the handle is begun.
    #[track_caller]
    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked {
            orphans: self,
            state: self.state.lock(),
        }
    }

    /// Folds what a sealed epoch changed into the images of the slots' blocks and of the superblock.
    pub(crate) fn fold(
        &self,
        geometry: &Geometry,
        sealed: Epoch,
        folded: &mut Folded<'_>,
    ) -> Result<(), JournalError> {
        let mut newest: BTreeMap<Option<u32>, (u32, Ino)> = BTreeMap::new();
        for change in self.changes.take(sealed) {
            let entry = newest
                .entry(change.slot)
                .or_insert((change.version, change.ino));
            // The distance, for versions wrap.
            if change.version.wrapping_sub(entry.0).cast_signed() > 0 {
                *entry = (change.version, change.ino);
            }
        }
        for (slot, (_, ino)) in newest {
            match slot {
                Some(slot) => {
                    let place = self.blocks[(slot / self.slots_per_block) as usize];
                    let image = folded.image(place)?;
                    let at = (slot % self.slots_per_block) as usize * 4;
                    image[at..at + 4].copy_from_slice(&ino.0.to_le_bytes());
                    orphan_file::seal(image, place, self.seed);
                }
                None => change_superblock(geometry, folded, |sb| {
                    sb.set_last_orphan(Some(ino).filter(|head| head.0 != 0));
                })?,
            }
        }
        Ok(())
    }
}

impl Locked<'_> {
    /// Whether an inode has an entry.
    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.state.slots.contains_key(&ino.0)
            || self.state.list.iter().any(|orphan| orphan.ino() == ino)
    }

    /// Gives an inode an entry, if it has none. Uses up to [`BLOCKS_AN_ORPHAN`] of the handle's blocks.
    pub(crate) fn add(&mut self, handle: &Handle<'_>, inode: Arc<dyn Chained>) {
        let ino = inode.ino();
        if self.has(ino) {
            return;
        }
        if let Some((slot, version)) = self.orphans.slots.claim(ino) {
            self.state.slots.insert(ino.0, slot);
            self.put(handle, Some(slot), ino, version);
            return;
        }
        let next = self.state.list.last().map_or(Ino(0), |head| head.ino());
        Arc::clone(&inode).set_next(handle, next);
        self.state.list.push(inode);
        self.put_head(handle, ino);
    }

    /// Takes an inode's entry back, if it has one. Uses up to [`BLOCKS_AN_ORPHAN`] of the handle's blocks.
    pub(crate) fn remove(&mut self, handle: &Handle<'_>, ino: Ino) {
        if let Some(slot) = self.state.slots.remove(&ino.0) {
            let version = self.orphans.slots.release(slot);
            self.put(handle, Some(slot), Ino(0), version);
            return;
        }
        let Some(place) = self
            .state
            .list
            .iter()
            .position(|orphan| orphan.ino() == ino)
        else {
            return;
        };
        let removed = self.state.list.remove(place);
        let next = place
            .checked_sub(1)
            .map_or(Ino(0), |next| self.state.list[next].ino());
        match self.state.list.get(place) {
            // The one that named it comes before it on the list, so behind it here.
            Some(before) => Arc::clone(before).set_next(handle, next),
            None => self.put_head(handle, next),
        }
        removed.set_next(handle, Ino(0));
    }

    fn put_head(&mut self, handle: &Handle<'_>, head: Ino) {
        self.state.version = self.state.version.wrapping_add(1);
        self.put(handle, None, head, self.state.version);
    }

    fn put(&self, handle: &Handle<'_>, slot: Option<u32>, ino: Ino, version: u32) {
        handle.use_block();
        let change = Change { slot, ino, version };
        self.orphans.changes.push(handle, change);
    }
}
