//! Inodes whose last name or last bytes are being taken away: found again after a crash. They are recorded in the slots
//! of the orphan file, or on the classic list if the volume has no such file or no free slot was found.
//!
//! A step that makes an entry, or takes one back, prepares it ([`Orphans::add`], [`Orphans::remove`]) with the inode's
//! lock held: it claims a slot then, as a value that gives the slot back if it is dropped. Then it takes the list's
//! lock if the entry concerns the list ([`OrphanChange::lock`]; [`Rank::OrphanList`], before the handle, kept through
//! apply), and applies ([`LockedEntry::apply`]) in the same handle as the change that needs the entry (`nlink` 0, a
//! smaller size) or completes it. The inode remembers its entry ([`OrphanPlace`]), so an entry is removed in the form
//! that made it.
//!
//! The forms of [`OrphanForm`]: [`lockless`] and [`locked`] differ in how a slot is found, [`list`] uses none, and with
//! `none`, for measurements, a crash forgets what was under way.
//!
//! Only the committer changes slots on disk: handles put (slot, number, version) on the epoch's list, and the highest
//! version of a slot wins. A claim that was never applied is on no such list.
//!
//! What a crash leaves: every inode that was in the middle of a deletion or a cut is in a slot or on the list of a
//! committed epoch; the next mount deletes it (no names) or cuts it to its size.

use std::collections::BTreeMap;

use journal::canary::{self, Canary};
use journal::{Epoch, EpochLists, Folded, Handle, JournalError};
use ondisk::{FsBlock, Geometry, Ino, orphan_file};
use sync::{Arc, CachePadded, Mutex, MutexGuard, Rank};

use crate::core::sb::{self, change_superblock};
use crate::core::variants::{Chosen, OrphanForm};

mod counts;
mod doomed;
mod list;
mod locked;
mod lockless;
mod place;
mod slots;

pub(crate) use doomed::{Doomed, UnderWay};
use list::List;
use locked::Locked;
use lockless::Lockless;
pub(crate) use place::{Noted, OrphanPlace};
use slots::{Claim, Shape, Slots, Table};

/// Blocks of a handle that an entry or its removal uses at most: a slot's block; or the superblock, the inode and its
/// neighbour on the list.
const BLOCKS_AN_ORPHAN: u32 = 3;
/// What a block of slots is counted as, with its place in the file; no group has such a number.
const SLOTS: u64 = 1 << 62;

/// An inode that can be among the orphans, and on the classic list, where each names the next one in its `dtime`.
pub(crate) trait Chained: Send + Sync {
    /// Its number.
    fn ino(&self) -> Ino;

    /// What it remembers of its entry.
    fn place(&self) -> &OrphanPlace;

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
    /// The file's slots; empty on a volume without an orphan file.
    slots: Table,
    form: Chosen<OrphanForm>,
    lockless: Lockless,
    locked: CachePadded<Locked>,
    /// On lines of its own, because a thread that finds a slot reads the fields around it. [orphan list]
    list: CachePadded<Mutex<List>>,
    changes: EpochLists<Change>,
}

/// A change of an inode's entry in the next step, prepared. Dropped, nothing has changed.
pub(crate) struct OrphanChange<'a> {
    orphans: &'a Orphans,
    what: What<'a>,
}

enum What<'a> {
    /// It is as it should be.
    Nothing,
    /// A slot becomes the inode's.
    Claimed(Claim<'a>),
    /// The inode's slot becomes free.
    Released(u32),
    /// The inode is put on the list.
    Listed,
    /// It leaves its place on the list.
    Unlisted(u64),
}

/// An [`OrphanChange`] that is locked for the next handle; possibly with the change of a second inode.
pub(crate) struct LockedEntry<'a> {
    orphans: &'a Orphans,
    what: What<'a>,
    second: Option<What<'a>>,
    /// Locked if one of the changes concerns the list.
    list: Option<MutexGuard<'a, List>>,
}

impl Orphans {
    /// With the classic list only (empty until [`Orphans::restore`]), or an orphan file too, in this form.
    pub(crate) fn new(geometry: &Geometry, file: Option<OrphanFile>, form: OrphanForm) -> Orphans {
        let file = file.unwrap_or_default();
        let shape = Shape {
            // The file has at most 512 blocks, and a block 16,382 slots.
            blocks: file.blocks.len() as u32,
            slots: orphan_file::slots_per_block(geometry.block_size()) as u32,
        };
        Orphans {
            slots: Table::new(shape, &file.used),
            form: Chosen::new(form),
            lockless: Lockless::default(),
            locked: CachePadded::default(),
            blocks: file.blocks,
            seed: file.seed,
            list: CachePadded::new(Mutex::new(Rank::OrphanList, List::default())),
            changes: EpochLists::new(),
        }
    }

    /// Fills the classic list, its head last: at the mount, before other threads use it.
    pub(crate) fn restore(&self, chained: Vec<Arc<dyn Chained>>) {
        let mut list = self.list.lock();
        for inode in chained {
            let place = list.push(Arc::clone(&inode), None);
            inode.place().set(Noted::List(place));
        }
    }

    /// From now on this form is used.
    pub(crate) fn choose(&self, form: OrphanForm) {
        self.form.set(form);
    }

    /// What the forms counted, by name.
    pub(crate) fn counters(&self) -> [(&'static str, u64); 5] {
        self.lockless.counts.sums(&self.locked.counts)
    }

    /// Whether there is an orphan file.
    pub(crate) fn has_file(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Whether nothing is in the middle of being taken away. Nobody else uses the volume.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.list.lock().is_empty()
    }

    /// Takes all slots except `left`.
    #[cfg(test)]
    pub(crate) fn occupy(&self, left: usize) -> Vec<Claim<'_>> {
        let claim = || self.lockless.claim(&self.slots, Ino(1));
        let mut claims: Vec<_> = std::iter::from_fn(claim).collect();
        claims.truncate(claims.len().saturating_sub(left));
        claims
    }

    /// The form that finds and frees slots.
    fn form(&self) -> &dyn Slots {
        match self.form.get() {
            OrphanForm::Locked => &*self.locked,
            OrphanForm::Lockless | OrphanForm::List | OrphanForm::Nothing => &self.lockless,
        }
    }

    /// Prepares an entry for an inode, if it has none. The caller has the inode's lock, and keeps it through apply.
    pub(crate) fn add(&self, inode: &dyn Chained) -> OrphanChange<'_> {
        let form = self.form.get();
        let what = match (inode.place().get(), form) {
            (Noted::Slot(_) | Noted::List(_), _) | (_, OrphanForm::Nothing) => What::Nothing,
            (Noted::Nowhere, OrphanForm::List) => What::Listed,
            (Noted::Nowhere, OrphanForm::Lockless | OrphanForm::Locked) => {
                let claim = self.form().claim(&self.slots, inode.ino());
                claim.map_or(What::Listed, What::Claimed)
            }
        };
        OrphanChange {
            orphans: self,
            what,
        }
    }

    /// Prepares to take an inode's entry back, if it has one. As [`Orphans::add`].
    pub(crate) fn remove(&self, inode: &dyn Chained) -> OrphanChange<'_> {
        let what = match inode.place().get() {
            Noted::Nowhere => What::Nothing,
            Noted::Slot(slot) => What::Released(slot),
            Noted::List(place) => What::Unlisted(place),
        };
        OrphanChange {
            orphans: self,
            what,
        }
    }

    /// Folds what a sealed epoch changed into the images of the slots' blocks and of the superblock.
    pub(crate) fn fold(
        &self,
        geometry: &Geometry,
        sealed: Epoch,
        folded: &mut Folded<'_>,
    ) -> Result<(), JournalError> {
        let slots = self.slots.shape().slots;
        let mut newest = Newest::new();
        for Change { slot, ino, version } in self.changes.take(sealed) {
            let place = slot.map(|slot| (slot / slots, slot % slots));
            let block = newest.entry(place.map(|(block, _)| block)).or_default();
            let entry = block.entry(place.map_or(0, |(_, within)| within));
            let entry = entry.or_insert((version, ino));
            // The distance, for versions wrap.
            if version.wrapping_sub(entry.0).cast_signed() > 0 {
                *entry = (version, ino);
            }
        }
        for (block, changed) in newest {
            let Some(block) = block else {
                let head = changed.values().next().map(|(_, head)| *head);
                change_superblock(geometry, folded, |sb| {
                    sb.set_last_orphan(head.filter(|head| head.0 != 0));
                })?;
                continue;
            };
            let place = self.blocks[block as usize];
            let image = folded.image(place)?;
            for (slot, (_, ino)) in changed {
                let ino = Some(ino).filter(|ino| ino.0 != 0);
                orphan_file::set_slot(image, slot as usize, ino);
            }
            orphan_file::seal(image, place, self.seed);
        }
        Ok(())
    }

    fn put(&self, handle: &Handle<'_>, slot: Option<u32>, ino: Ino, version: u32) {
        let block = slot.map(|slot| u64::from(slot / self.slots.shape().slots));
        handle.use_blocks_for(block.map_or(sb::COUNTED_AS, |block| block | SLOTS), 1);
        if ino.0 == 0 || !canary::makes(Canary::OrphanLeftOut) {
            self.changes.push(handle, Change { slot, ino, version });
        }
    }
}

/// For each block of the file (none: the superblock), the newest number in each of its slots that changed.
type Newest = BTreeMap<Option<u32>, BTreeMap<u32, (u32, Ino)>>;

impl<'a> OrphanChange<'a> {
    /// Blocks of the handle that it uses at most.
    pub(crate) fn cost(&self) -> u32 {
        match self.what {
            What::Nothing => 0,
            What::Claimed(_) | What::Released(_) => 1,
            What::Listed | What::Unlisted(_) => BLOCKS_AN_ORPHAN,
        }
    }

    /// Waits for the list's lock, if the list is concerned: before the handle is begun.
    #[track_caller]
    pub(crate) fn lock(self) -> LockedEntry<'a> {
        self.lock_with(None)
    }

    /// As [`OrphanChange::lock`], together with the change of a second inode in the same handle.
    #[track_caller]
    pub(crate) fn lock_with(self, second: Option<OrphanChange<'a>>) -> LockedEntry<'a> {
        let second = second.map(|second| second.what);
        let concerns_list = |what: &What<'_>| matches!(what, What::Listed | What::Unlisted(_));
        let needs_list = concerns_list(&self.what) || second.as_ref().is_some_and(concerns_list);
        LockedEntry {
            orphans: self.orphans,
            what: self.what,
            second,
            list: needs_list.then(|| self.orphans.list.lock()),
        }
    }
}

impl<'a> LockedEntry<'a> {
    /// As [`OrphanChange::cost`], of both inodes.
    pub(crate) fn cost(&self) -> u32 {
        let each = match self.list {
            Some(_) => BLOCKS_AN_ORPHAN,
            None => 1,
        };
        each * (1 + u32::from(self.second.is_some()))
    }

    /// Changes the entry of the inode for which it was prepared. On the list, the next inode's number is in the
    /// record's `dtime`, so the caller deletes the inode after this.
    pub(crate) fn apply<C: Chained + 'static>(mut self, handle: &Handle<'_>, inode: &Arc<C>) {
        apply(self.orphans, self.what, self.list.as_mut(), handle, inode);
    }

    /// As [`LockedEntry::apply`], and changes the entry of the second inode.
    pub(crate) fn apply_both<C: Chained + 'static>(
        mut self,
        handle: &Handle<'_>,
        inode: &Arc<C>,
        second: &Arc<C>,
    ) {
        apply(self.orphans, self.what, self.list.as_mut(), handle, inode);
        if let Some(what) = self.second {
            apply(self.orphans, what, self.list.as_mut(), handle, second);
        }
    }
}

/// Changes the entry of one inode; `list` is locked if that concerns it.
fn apply<'a, C: Chained + 'static>(
    orphans: &Orphans,
    what: What<'a>,
    list: Option<&mut MutexGuard<'a, List>>,
    handle: &Handle<'_>,
    inode: &Arc<C>,
) {
    let noted = match (what, list) {
        (What::Claimed(claim), _) => {
            let (slot, version) = claim.keep();
            orphans.put(handle, Some(slot), inode.ino(), version);
            Noted::Slot(slot)
        }
        (What::Released(slot), _) => {
            let version = orphans.form().release(&orphans.slots, slot);
            orphans.put(handle, Some(slot), Ino(0), version);
            Noted::Nowhere
        }
        (What::Listed, Some(list)) => {
            let place = list.push(Arc::clone(inode) as _, Some(handle));
            let version = list.next_version();
            orphans.put(handle, None, inode.ino(), version);
            Noted::List(place)
        }
        (What::Unlisted(place), Some(list)) => {
            if let Some(head) = list.remove(handle, place) {
                let version = list.next_version();
                orphans.put(handle, None, head, version);
            }
            Noted::Nowhere
        }
        // What concerns the list was prepared with its lock.
        (What::Nothing | What::Listed | What::Unlisted(_), _) => return,
    };
    inode.place().set(noted);
}
