//! Changing a file's size, and taking its blocks away.
//!
//! A file shrinks in one step where its blocks can be freed in one; else the first step sets the size and puts the
//! inode among the orphans, and the last one takes it out: whoever opens the image after a cut in between goes on
//! ([`cut`]). Zeros behind the new end are written to the last block before the step that changes the size.

use ondisk::{Flags, Ino};

use super::step::{Changing, Orphan, check_regular, max_bytes};
use crate::error::Error;
use crate::icache::{Exclusive, Icache};

/// No map reaches further.
const MAP_END: u64 = 1 << 32;

/// Sets the size of a regular file.
pub(crate) fn truncate(icache: &Icache, ino: Ino, size: u64) -> Result<(), Error> {
    icache.volume().writing()?;
    check_regular(&icache.load_used(ino)?)?;
    let live = icache.get(ino)?;
    let locked = &live.write_lock();
    let file = Changing { icache, locked };
    let inode = icache.load_used(ino)?;
    check_regular(&inode)?;
    if inode.flags().contains(Flags::APPEND) {
        return Err(Error::NotPermitted);
    }
    if size > max_bytes(icache.volume(), &inode) {
        return Err(Error::FileTooLarge);
    }
    let old = inode.bytes(icache.volume());
    if size > old {
        file.zero_tail()?;
        return file.apply_inode(|inode| inode.set_size(size));
    }
    let block_size = icache.volume().geometry().block_size();
    if size < old {
        file.zero_data(size, size.next_multiple_of(block_size.bytes_u64()).min(old))?;
    }
    shrink(file, Some(size), block_size.blocks_for(size), size != old)
}

/// Frees all blocks of a locked inode from block `from` on, whatever its type: the rest of an interrupted truncation, or
/// all of an inode that has no names left. The inode should be among the orphans already if a cut may matter; it is
/// taken out by whoever put it there. Size and times stay.
pub(crate) fn cut(icache: &Icache, locked: &Exclusive<'_>, from: u64) -> Result<(), Error> {
    let file = Changing { icache, locked };
    let mut at = from;
    while at < MAP_END {
        let mut draft = file.draft()?;
        at = draft.remove(at..MAP_END)?;
        file.apply_all(Some(draft.prepare()?), Orphan::Stays, false, |_| {})?;
    }
    Ok(())
}

fn shrink(file: Changing<'_>, size: Option<u64>, from: u64, stamps: bool) -> Result<(), Error> {
    let set_size = |inode: &mut ondisk::inode::Inode| {
        if let Some(size) = size {
            inode.set_size(size);
        }
    };
    let mut at = from;
    loop {
        let mut draft = file.draft()?;
        let done = draft.remove(at..MAP_END)?;
        let orphan = match (at == from, done < MAP_END) {
            (true, true) => Orphan::Added,
            (false, false) => Orphan::Removed,
            (true, false) | (false, true) => Orphan::Stays,
        };
        file.apply_all(Some(draft.prepare()?), orphan, stamps, set_size)?;
        if done >= MAP_END {
            return Ok(());
        }
        at = done;
    }
}
