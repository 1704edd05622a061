//! Inodes that were in the middle of being cut or deleted: their blocks, their number, their entry among the orphans.
//!
//! A loop of steps, each of which a cut may follow: blocks go while the inode stays among the orphans; the last step
//! takes it out and, where it has no names, gives back its number. [`recover`] does so for all that an earlier mount
//! left; nobody else uses the volume then. Takes the inode's lock, and the orphans' for each last step.

use std::collections::HashSet;

use ondisk::inode::{BLOCK_AREA, Inode};
use ondisk::{Corrupt, FileType, Flags, FsBlock, Ino, Site, Timestamp};
use sync::Arc;

use crate::data;
use crate::error::Error;
use crate::ialloc::{self, BLOCKS_AN_INODE};
use crate::icache::{Exclusive, Icache, LiveInode};
use crate::orphan::{BLOCKS_AN_ORPHAN, Chained};
use crate::xattr;

/// Finishes what an earlier mount left: `first` is the head of the classic list, `slots` what the orphan file holds.
/// Before anyone else uses the volume.
///
/// # Errors
/// `Corrupt` for a list that is broken; as [`delete`].
pub(crate) fn recover(icache: &Icache, first: Option<Ino>, slots: &[Ino]) -> Result<(), Error> {
    let mut list: Vec<Arc<LiveInode>> = Vec::new();
    let mut seen: HashSet<u32> = HashSet::new();
    let mut next = first.unwrap_or(Ino(0));
    // An inode is on the list once, so the list ends.
    while next.0 != 0 {
        check_number(icache, next)?;
        if !seen.insert(next.0) {
            return Err(Corrupt::at(Site::OrphanLoop).ino(next).into());
        }
        let inode = icache.get(next)?;
        next = Ino(inode.snapshot().dtime());
        list.push(inode);
    }
    let found: Vec<Ino> = list
        .iter()
        .map(|inode| inode.ino())
        .chain(slots.iter().copied())
        .collect();
    let chained = list
        .into_iter()
        .rev()
        .map(|inode| inode as Arc<dyn Chained>);
    icache.orphans().restore(chained.collect());
    for ino in found {
        check_number(icache, ino)?;
        let live = icache.get(ino)?;
        let locked = live.write_lock();
        match live.snapshot().links_count() {
            0 => delete(icache, &locked)?,
            _ => finish_cut(icache, &locked)?,
        }
    }
    Ok(())
}

fn check_number(icache: &Icache, ino: Ino) -> Result<(), Error> {
    let geometry = icache.volume().geometry();
    match ino >= geometry.first_ino() && ino.0 <= geometry.inodes_count() {
        true => Ok(()),
        false => Err(Corrupt::at(Site::OrphanNumber).ino(ino).into()),
    }
}

/// Cuts a locked file to the size that it has, and takes it out of the orphans.
fn finish_cut(icache: &Icache, locked: &Exclusive<'_>) -> Result<(), Error> {
    let inode = locked.inode().snapshot();
    if inode.is(FileType::Regular) {
        data::finish_truncate(icache, locked)?;
    }
    let credits = icache.reserve(1 + BLOCKS_AN_ORPHAN, 0)?;
    let mut orphans = icache.orphans().lock();
    let handle = icache.begin(credits)?;
    orphans.remove(&handle, locked.inode().ino());
    Ok(())
}

/// Deletes a locked inode that has no names, is among the orphans, and is used by nobody: its blocks, step by step,
/// then its number.
///
/// # Errors
/// `Corrupt`, `Io`, `Aborted`; what is left stays among the orphans.
pub(crate) fn delete(icache: &Icache, locked: &Exclusive<'_>) -> Result<(), Error> {
    data::cut(icache, locked, 0)?;
    let (volume, groups) = (icache.volume(), icache.groups());
    let inode = locked.inode().snapshot();
    let attributes = xattr::Release::prepare(icache, &inode)?;
    ialloc::load(volume, groups, inode.ino())?;
    let (blocks, revokes) = attributes.cost();
    let credits = icache.reserve(1 + BLOCKS_AN_ORPHAN + BLOCKS_AN_INODE + blocks, revokes)?;
    let now = icache.now()?;
    let _still = locked.inode().data_lock_exclusive();
    let mut orphans = icache.orphans().lock();
    let attributes = attributes.lock()?;
    let handle = icache.begin(credits)?;
    attributes.apply(&handle);
    // First: on the classic list, the next inode's number is in the record.
    orphans.remove(&handle, inode.ino());
    locked.change(&handle, |inode| clear(inode, now));
    ialloc::free(groups, &handle, inode.ino(), inode.is(FileType::Directory));
    Ok(())
}

/// What is left in the record of a deleted inode: its generation, and when it was deleted.
pub(crate) fn clear(inode: &mut Inode, now: Timestamp) {
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
