//! Changing a file's size, and taking its blocks away.
//!
//! A file shrinks in one step if its blocks can be freed in one. Otherwise the first step sets the size and puts the
//! inode among the orphans, and the last one takes it out: the next mount after a cut in between continues
//! ([`finish_truncate`]). Zeros after the new end are written to the last block before the step that changes the size.

use ondisk::{Flags, Ino};

use super::step::{Changing, Orphan, check_regular, max_bytes};
use crate::core::Error;
use crate::inode::Exclusive;
use crate::map;
use crate::token::LiveFs;

/// No map reaches further.
const MAP_END: u64 = 1 << 32;

/// Sets the size of a regular file; returns its flags.
pub(crate) fn truncate(mounted: &LiveFs, ino: Ino, size: u64) -> Result<Flags, Error> {
    mounted.volume().check_ordinary(ino)?;
    let live = mounted.get(ino)?;
    check_regular(&mounted.used(&live)?)?;
    let locked = &live.write_lock();
    let file = Changing { mounted, locked };
    let inode = mounted.used(&live)?;
    check_regular(&inode)?;
    if inode.flags().contains(Flags::APPEND) {
        return Err(Error::NotPermitted);
    }
    if size > max_bytes(mounted.volume(), &inode) {
        return Err(Error::FileTooLarge);
    }
    let old = inode.bytes(mounted.volume());
    if size > old {
        file.zero_tail()?;
        file.apply_inode(|inode| inode.set_size(size))?;
        return Ok(inode.flags());
    }
    let block_size = mounted.volume().geometry().block_size();
    mounted.give_back_kept(&live);
    if size < old {
        file.zero_data(size, size.next_multiple_of(block_size.bytes_u64()).min(old))?;
    }
    shrink(file, size, block_size.blocks_for(size), size != old)?;
    Ok(inode.flags())
}

/// Frees all blocks of a locked inode from block `from` on, whatever its type. The inode is among the orphans; its
/// size, its times and its entry there stay.
fn cut(mounted: &LiveFs, locked: &Exclusive<'_>, from: u64) -> Result<(), Error> {
    let file = Changing { mounted, locked };
    if !map::is_mapped(&file.inode()) {
        return Ok(());
    }
    let mut at = from;
    while at < MAP_END {
        let mut draft = file.draft()?;
        at = draft.remove(at..MAP_END)?;
        file.apply_all(Some(draft.prepare()?), Orphan::Stays, false, |_| {})?;
    }
    Ok(())
}

/// Takes a part of a locked inode's blocks away, whatever its type. As [`cut`].
pub(crate) fn apply_cut(
    mounted: &LiveFs,
    locked: &Exclusive<'_>,
    change: map::MapChange<'_>,
) -> Result<(), Error> {
    Changing { mounted, locked }.apply_all(Some(change), Orphan::Stays, false, |_| {})
}

/// Does what is left of an interrupted truncation: zeroes what is behind the end in the last block, and frees the
/// blocks behind it. As [`cut`].
pub(crate) fn finish_truncate(mounted: &LiveFs, locked: &Exclusive<'_>) -> Result<(), Error> {
    let file = Changing { mounted, locked };
    let volume = mounted.volume();
    file.zero_tail()?;
    let size = file.inode().bytes(volume);
    cut(
        mounted,
        locked,
        volume.geometry().block_size().blocks_for(size),
    )
}

/// Sets the size and frees all blocks from `from` on.
fn shrink(file: Changing<'_>, size: u64, from: u64, stamps: bool) -> Result<(), Error> {
    let is_nameless = file.inode().links_count() == 0;
    let mut at = from;
    loop {
        let mut draft = file.draft()?;
        let done = draft.remove(at..MAP_END)?;
        let orphan = match done < MAP_END {
            // Without names it is among the orphans, and stays there.
            _ if is_nameless => Orphan::Stays,
            true => Orphan::Added,
            // An earlier truncation may have failed halfway.
            false => Orphan::Removed,
        };
        file.apply_all(Some(draft.prepare()?), orphan, stamps, |inode| {
            inode.set_size(size);
        })?;
        if done >= MAP_END {
            return Ok(());
        }
        at = done;
    }
}
