//! Inodes that were in the middle of being cut or deleted: their blocks, their number, their entry among the orphans.
//! The one way in which an inode is deleted.
//!
//! A [`Deletion`] is one step: all that is left of an inode that has no names goes. Where that is too much, the inode
//! is among the orphans, and blocks go in steps before ([`delete`]), each of which a cut may follow. Takes the inode's
//! lock, and the orphans' for each last step.
//!
//! # Recovery
//!
//! [`recover`] finishes what an earlier mount left, before any other thread uses the volume. It tolerates an orphan
//! that is corrupt, for example one whose inode is not in use, or a slot of the orphan file with an impossible number:
//! that is put on record, and the orphan keeps its entry, for e2fsck. More than [`limits::ORPHANS_LEFT`] of these fail
//! the mount. The classic list is read as a whole first: an impossible number, a damaged inode or a circle on it, or
//! more than [`limits::ORPHANS_LISTED`] inodes, fail the mount before any orphan is finished. If the first corrupt
//! orphan makes the file system read-only (`errors=remount-ro`), the mount succeeds, and the orphans after it stay.
//!
//! # When space runs out
//!
//! `InodeFs::change` runs every change in [`with_room`]. If it fails with `NoSpace`, all doomed inodes are deleted, and
//! everything is committed if that makes freed space available; then it is tried again. There are at most
//! [`ROOM_TRIES`] such rounds, fewer if one finds nothing to free, and one last try. (Each try has a second look of its
//! own, in `token/take.rs`.) If the last try was refused a share of the sum of free blocks or inodes, other threads
//! may have what came back: the change leaves the gate, enters it alone (`Gate::enter_alone`), and runs [`with_room`]
//! once more with no other change under way. What is refused then is the caller's ENOSPC.

use std::collections::{BTreeSet, HashSet};

use journal::Handle;
use journal::canary::{self, Canary};
use ondisk::inode::{BLOCK_AREA, Inode, attribute_area, attribute_area_mut};
use ondisk::{Corrupt, FileType, Flags, FsBlock, Ino, Site, Timestamp};
use sync::Arc;

use crate::core::Error;
use crate::core::limits;
use crate::core::sb::BlockPurpose;
use crate::data;
use crate::inode::{Exclusive, LiveInode};
use crate::map::{self, MapChange};
use crate::space::ialloc::{self, BLOCKS_AN_INODE, FreeingNumber};
use crate::space::orphan::{Chained, Noted, UnderWay};
use crate::token::LiveFs;
use crate::xattr;

/// The blocks that a file can have.
const ALL: std::ops::Range<u64> = 0..1 << 32;

/// Inodes that an earlier mount left to be deleted or cut.
pub(crate) struct Left<'a> {
    /// The head of the classic list.
    pub(crate) first: Option<Ino>,
    /// Slots of the orphan file with their inodes.
    pub(crate) slots: &'a [(u32, Ino)],
}

impl Left<'_> {
    /// All of them, read and not checked.
    ///
    /// # Errors
    /// `Corrupt` for a list that forms a circle; `Io`.
    pub(crate) fn all(&self, mounted: &LiveFs) -> Result<BTreeSet<Ino>, Error> {
        let mut orphans = BTreeSet::new();
        let mut next = self.first.unwrap_or(Ino(0));
        // An inode is on the list once, so the list ends.
        while next.0 != 0 {
            if !orphans.insert(next) {
                return Err(Corrupt::at(Site::OrphanTwice).ino(next).into());
            }
            next = Ino(mounted.load(next)?.dtime());
        }
        orphans.extend(self.slots.iter().map(|(_, ino)| ino));
        Ok(orphans)
    }

    /// Lets some of them know their entries, which then go with them; before any is changed, and once.
    ///
    /// # Errors
    /// As [`recover`].
    pub(crate) fn recall(&self, mounted: &LiveFs, some: &BTreeSet<Ino>) -> Result<(), Error> {
        let list = read_list(mounted, self.first)?;
        if list.iter().any(|inode| some.contains(&inode.ino())) {
            restore(mounted, &list);
        }
        for (slot, ino) in self.slots.iter().filter(|(_, ino)| some.contains(ino)) {
            check_number(mounted, *ino)?;
            let live = mounted.get(*ino)?;
            let _locked = live.write_lock();
            set_slot(mounted, &live, *slot)?;
        }
        Ok(())
    }
}

/// Finishes what an earlier mount left: first what is on the classic list, whose head is `first`, then what is in slots
/// of the orphan file. Before anyone else uses the volume. What can't be finished is put on record and stays as it is,
/// for e2fsck: a number that no orphan can have, an inode that is not in use or is there twice.
///
/// # Errors
/// `Corrupt` for a list that is broken, or more than [`limits::ORPHANS_LEFT`] that can't be finished; as [`delete`].
pub(crate) fn recover(
    mounted: &LiveFs,
    first: Option<Ino>,
    slots: &[(u32, Ino)],
) -> Result<(), Error> {
    let list = read_list(mounted, first)?;
    restore(mounted, &list);
    let mut left = 0;
    let on_list = list.iter().map(|inode| (inode.ino(), None));
    let in_slots = slots.iter().map(|(slot, ino)| (*ino, Some(*slot)));
    for (ino, slot) in on_list.chain(in_slots) {
        match finish(mounted, ino, slot) {
            // It stays among the orphans, and the others need not wait for e2fsck.
            Err(Error::Corrupt(corrupt)) if left < limits::ORPHANS_LEFT => {
                left += 1;
                mounted.note(corrupt);
            }
            // That is what was asked for when corruption is met.
            Err(Error::ReadOnly) if left > 0 => return Ok(()),
            done => done?,
        }
    }
    Ok(())
}

/// The inodes of the classic list, its head first.
fn read_list(mounted: &LiveFs, first: Option<Ino>) -> Result<Vec<Arc<LiveInode>>, Error> {
    let mut list: Vec<Arc<LiveInode>> = Vec::new();
    let mut seen: HashSet<u32> = HashSet::new();
    let mut next = first.unwrap_or(Ino(0));
    // An inode is on the list once, so the list ends.
    while next.0 != 0 {
        check_number(mounted, next)?;
        if !seen.insert(next.0) {
            return Err(Corrupt::at(Site::OrphanLoop).ino(next).into());
        }
        if list.len() == limits::ORPHANS_LISTED {
            return Err(Corrupt::at(Site::OrphanMany).ino(next).into());
        }
        let inode = mounted.get(next)?;
        next = Ino(inode.snapshot().dtime());
        list.push(inode);
    }
    Ok(list)
}

/// Fills the classic list in memory.
fn restore(mounted: &LiveFs, list: &[Arc<LiveInode>]) {
    let chained = list.iter().rev().map(|inode| Arc::clone(inode) as _);
    mounted.orphans().restore(chained.collect());
}

/// Lets an inode remember its slot. The caller has its lock.
fn set_slot(mounted: &LiveFs, live: &LiveInode, slot: u32) -> Result<(), Error> {
    let ino = live.ino();
    if live.life.is_orphan() {
        return Err(Corrupt::at(Site::OrphanAgain).ino(ino).into());
    }
    // One that is free is refused.
    let number = ialloc::claim(mounted.volume(), mounted.groups(), ino, live.of_ialloc())?;
    drop(number);
    live.place().set(Noted::Slot(slot));
    Ok(())
}

/// Finishes what was begun with an inode on the list, or in this slot.
fn finish(mounted: &LiveFs, ino: Ino, slot: Option<u32>) -> Result<(), Error> {
    check_number(mounted, ino)?;
    let live = mounted.get(ino)?;
    let locked = live.write_lock();
    let inode = live.snapshot();
    if let Some(slot) = slot {
        set_slot(mounted, &live, slot)?;
    }
    match inode.links_count() {
        0 if canary::makes(Canary::OrphanUnfinished) => Ok(()),
        0 => delete(mounted, &locked, Patience::AllSteps).map(drop),
        _ => finish_cut(mounted, &locked),
    }
}

/// Deletes an inode whose last holder was the caller: now, or by a thread that serves the queue. The caller has nothing
/// locked.
///
/// # Errors
/// As [`delete`].
pub(crate) fn doom(mounted: &LiveFs, ino: Ino) -> Result<(), Error> {
    if mounted.doomed().push(ino) {
        Ok(())
    } else {
        reap(mounted, &mounted.doomed().begin(ino), Patience::AllSteps).map(drop)
    }
}

/// Deletes an inode whose last holder was the caller: at once if that takes one step for which the log has room, so
/// that no other thread is woken; otherwise like [`doom`]. The caller has nothing locked.
///
/// # Errors
/// As [`delete`].
pub(crate) fn delete_or_doom(mounted: &LiveFs, ino: Ino) -> Result<(), Error> {
    let is_done = reap(mounted, &mounted.doomed().begin(ino), Patience::OneStep)?;
    if is_done { Ok(()) } else { doom(mounted, ino) }
}

/// Releases an inode that was held, without I/O: if it has no names, a thread that serves the queue deletes it, or the
/// next change does.
pub(crate) fn let_go(mounted: &LiveFs, ino: Ino) {
    if mounted.release_absent(ino, 1) {
        return;
    }
    // Held and not absent, so it is in memory. Were it read and that failed, it would stay held: it has names then.
    let Ok(live) = mounted.get(ino) else {
        return;
    };
    if live.life.release(1) {
        mounted.give_back_kept(&live);
        if live.is_released_for_good() {
            mounted.doomed().leave(ino);
        }
    }
}

/// Before the caller takes its own locks to doom more: deletes an inode of a full queue.
pub(crate) fn help(mounted: &LiveFs) {
    if mounted.doomed().is_full()
        && let Some(doomed) = mounted.doomed().take()
    {
        reap_noting(mounted, &doomed);
    }
}

/// Before a change: deletes what was left in a queue that no thread serves. The caller holds nothing.
pub(crate) fn catch_up(mounted: &LiveFs) {
    if mounted.doomed().is_served() {
        return;
    }
    while let Some(doomed) = mounted.doomed().take() {
        reap_noting(mounted, &doomed);
    }
}

/// Deletes all that waits, and waits until nothing is being deleted. The caller holds nothing.
pub(crate) fn drain(mounted: &LiveFs) {
    while let Some(doomed) = mounted.doomed().take() {
        reap_noting(mounted, &doomed);
    }
    mounted.doomed().wait_idle();
}

/// Deletes what others doom, until the queue is no longer served: the work of a thread of its own.
pub(crate) fn serve(mounted: &LiveFs) {
    let writing = mounted.writing();
    while mounted.doomed().wait() {
        // Before the inode counts as being deleted: a thread that freezes waits until none is.
        let Some(_change) = writing.gate.enter() else {
            // Closed: the inodes that are left stay orphans.
            return;
        };
        // Frozen until it was dropped, the file system stays as it is.
        if mounted.doomed().is_served()
            && let Some(doomed) = mounted.doomed().take()
        {
            reap_noting(mounted, &doomed);
        }
    }
}

/// [`reap`] for a caller that gets no error back.
fn reap_noting(mounted: &LiveFs, doomed: &UnderWay<'_>) {
    // A failure of the journal is reported to every later caller. What is left is an orphan, which the next mount
    // deletes.
    if let Err(Error::Corrupt(corrupt)) = reap(mounted, doomed, Patience::AllSteps) {
        mounted.note(corrupt);
    }
}

/// Deletes an inode that has no names and no holders, in the number of steps that it takes; leaves any other alone. The
/// caller holds nothing. Returns whether it is done, like [`delete`]. What a cut between two steps leaves: an orphan
/// with fewer blocks.
fn reap(mounted: &LiveFs, doomed: &UnderWay<'_>, patience: Patience) -> Result<bool, Error> {
    let live = mounted.get(doomed.ino())?;
    let locked = live.write_lock();
    let inode = live.snapshot();
    if inode.links_count() > 0 || inode.mode() == 0 || live.life.is_held() {
        Ok(true)
    } else {
        delete(mounted, &locked, patience)
    }
}

/// How often an operation is tried again when others used the space that was there.
const ROOM_TRIES: usize = 3;

/// Does an operation that may need space. If it finds none, all doomed inodes are deleted and what was freed becomes
/// durable before it is tried again. `None` if it was refused space to the last: others may have taken what became
/// free, or hold blocks that they will not use. The caller holds nothing.
pub(crate) fn with_room<T>(
    mounted: &LiveFs,
    mut operation: impl FnMut(&LiveFs) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    for _ in 0..ROOM_TRIES {
        match operation(mounted) {
            Err(Error::NoSpace) if make_room(mounted)? => {}
            Err(Error::NoSpace) => break,
            done => return done.map(Some),
        }
    }
    let before = mounted.groups().refusals();
    match operation(mounted) {
        // What has no place for another reason needs no room.
        Err(Error::NoSpace) if mounted.groups().refusals() > before => Ok(None),
        done => done.map(Some),
    }
}

/// Whether there may be space now.
fn make_room(mounted: &LiveFs) -> Result<bool, Error> {
    let writing = mounted.writing();
    let had_doomed = !mounted.doomed().is_idle();
    drain(mounted);
    let floor = writing.reserve.floor(BlockPurpose::Growing);
    let groups = mounted.groups();
    if groups.blocks.commit_helps(floor) || groups.inodes.commit_helps() {
        mounted.sync_all()?;
        return Ok(true);
    }
    // What others took and gave back meanwhile counts too.
    Ok(had_doomed || groups.blocks.sum() > floor && groups.inodes.sum() > 0)
}

fn check_number(mounted: &LiveFs, ino: Ino) -> Result<(), Error> {
    let geometry = mounted.volume().geometry();
    mounted.volume().check_ordinary(ino)?;
    if ino != Ino::ROOT && ino.0 <= geometry.inodes_count() {
        Ok(())
    } else {
        Err(Corrupt::at(Site::OrphanNumber).ino(ino).into())
    }
}

/// Cuts a locked file to the size that it has, and takes it out of the orphans.
fn finish_cut(mounted: &LiveFs, locked: &Exclusive<'_>) -> Result<(), Error> {
    let inode = locked.inode().snapshot();
    if inode.is(FileType::Regular) {
        data::finish_truncate(mounted, locked)?;
    }
    let entry = mounted.orphans().remove(&**locked.inode());
    let credits = mounted.reserve(1 + entry.cost(), 0)?;
    let entry = entry.lock();
    let handle = mounted.begin(credits)?;
    entry.apply(&handle, locked.inode());
    Ok(())
}

/// How much a deletion may take.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// All steps that are left, each of which may wait for the log.
    AllSteps,
    /// One step, for which the log has room without a wait.
    OneStep,
}

/// Deletes a locked inode that has no names and no users and is among the orphans: its blocks, step by step, then all
/// that is left. `false` if that takes more than `patience` allows: nothing is done then.
///
/// # Errors
/// `Corrupt`, `Io`, `Aborted`; what is left stays among the orphans.
pub(crate) fn delete(
    mounted: &LiveFs,
    locked: &Exclusive<'_>,
    patience: Patience,
) -> Result<bool, Error> {
    loop {
        let deletion = match Deletion::prepare(mounted, locked)? {
            Prepared::Whole(deletion) => deletion,
            Prepared::Part(_) if patience == Patience::OneStep => return Ok(false),
            Prepared::Part(change) => {
                data::apply_cut(mounted, locked, change)?;
                continue;
            }
        };
        let (blocks, revokes) = deletion.cost();
        let entry = mounted.orphans().remove(&**locked.inode());
        let blocks = blocks + entry.cost();
        let credits = match patience {
            Patience::AllSteps => Some(mounted.reserve(blocks, revokes)?),
            Patience::OneStep => mounted.reserve_at_once(blocks, revokes)?,
        };
        let Some(credits) = credits else {
            return Ok(false);
        };
        let now = mounted.now()?;
        let _still = locked.inode().data_lock_exclusive();
        let entry = entry.lock();
        let deletion = deletion.lock()?;
        let handle = mounted.begin(credits)?;
        // First: on the classic list, the next inode's number is in the record.
        entry.apply(&handle, locked.inode());
        deletion.apply(&handle, now);
        return Ok(true);
    }
}

/// What one step can take away of an inode without names.
pub(crate) enum Prepared<'a> {
    /// All of it.
    Whole(Deletion<'a>),
    /// Some of its blocks.
    Part(MapChange<'a>),
}

/// The deletion of an inode with all that it has, in one step.
pub(crate) struct Deletion<'a> {
    locked: &'a Exclusive<'a>,
    map: Option<MapChange<'a>>,
    attributes: xattr::Release<'a>,
    number: FreeingNumber<'a>,
    is_directory: bool,
    /// It has attributes in its record.
    has_attributes: bool,
}

/// A deletion in the next handle.
pub(crate) struct LockedDeletion<'a> {
    locked: &'a Exclusive<'a>,
    map: Option<MapChange<'a>>,
    attributes: xattr::LockedRelease<'a>,
    number: FreeingNumber<'a>,
    is_directory: bool,
    /// It has attributes in its record.
    has_attributes: bool,
}

impl<'a> Deletion<'a> {
    /// Prepares to delete an inode that has no names and no holders. The caller has its lock.
    ///
    /// # Errors
    /// `Corrupt` for one whose map has blocks that are not possible; `Io`.
    pub(crate) fn prepare(
        mounted: &'a LiveFs,
        locked: &'a Exclusive<'a>,
    ) -> Result<Prepared<'a>, Error> {
        mounted.give_back_kept(locked.inode());
        let inode = locked.inode().snapshot();
        let of_ialloc = locked.inode().of_ialloc();
        of_ialloc.forget();
        let mut map = None;
        if map::is_mapped(&inode) {
            let mut draft = map::ExtentDraft::new(mounted, locked)?;
            let done = draft.remove(ALL)?;
            let change = draft.prepare()?;
            if done < ALL.end {
                return Ok(Prepared::Part(change));
            }
            map = Some(change);
        }
        Ok(Prepared::Whole(Deletion {
            locked,
            map,
            attributes: xattr::Release::prepare(mounted, &inode)?,
            number: ialloc::claim(mounted.volume(), mounted.groups(), inode.ino(), of_ialloc)?,
            is_directory: inode.is(FileType::Directory),
            has_attributes: attribute_area(inode.slot()).is_some_and(ondisk::xattr::is_area),
        }))
    }

    /// Blocks and revokes of the handle that it uses, the inode's own block among them.
    pub(crate) fn cost(&self) -> (u32, u32) {
        let (blocks, revokes) = self.map.as_ref().map_or((1, 0), MapChange::cost);
        let attributes = self.attributes.cost();
        (
            blocks + attributes.0 + BLOCKS_AN_INODE,
            revokes + attributes.1,
        )
    }

    /// Waits for the lock on blocks of attributes, where there is one: before the handle, after all other locks.
    ///
    /// # Errors
    /// `Corrupt`, `Io` from the bitmap of that block.
    pub(crate) fn lock(self) -> Result<LockedDeletion<'a>, Error> {
        Ok(LockedDeletion {
            locked: self.locked,
            map: self.map,
            attributes: self.attributes.lock()?,
            number: self.number,
            is_directory: self.is_directory,
            has_attributes: self.has_attributes,
        })
    }
}

impl LockedDeletion<'_> {
    /// Deletes it in the handle's epoch.
    pub(crate) fn apply(self, handle: &Handle<'_>, now: Timestamp) {
        if let Some(map) = self.map {
            map.apply(handle);
        }
        self.attributes.apply(handle);
        if !canary::makes(Canary::NumberKept) {
            self.number.apply(handle, self.is_directory);
        }
        if self.has_attributes {
            // A replayed fast commit would give them to the next inode of this number.
            self.locked.change_slot(handle, |slot| {
                attribute_area_mut(slot)
                    .into_iter()
                    .for_each(|area| area.fill(0));
                // The slot of a live inode parses.
                let mut inode = Inode::parse(slot).expect("a live inode parses");
                clear(&mut inode, now);
                inode.write_to(slot);
            })
        } else {
            self.locked.change(handle, |inode| clear(inode, now))
        }
    }
}

/// What is left in the record of a deleted inode: its generation, and when it was deleted.
fn clear(inode: &mut Inode, now: Timestamp) {
    inode.set_mode(0);
    inode.set_links_count(0);
    inode.set_size(0);
    inode.set_flags(Flags(0));
    inode.set_xattr_block(FsBlock(0));
    *inode.block_area_mut() = [0; BLOCK_AREA];
    inode.set_blocks_lo(0);
    // The word holds seconds of the years 1970 to 2106; 0 would mean "not deleted".
    let seconds = u32::try_from(now.seconds).unwrap_or(u32::MAX);
    inode.set_dtime(seconds.max(1));
    inode.set_ctime(now);
}
