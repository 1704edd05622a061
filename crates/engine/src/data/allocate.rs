//! fallocate: reserving, punching, zeroing, and moving parts of a file.
//!
//! Each is a loop of steps; what a cut leaves is a prefix of the range done (the size grown as far). Moving what is
//! behind a range (collapse, insert) is one step; the blocks of a collapsed range are freed before it.

use std::ops::Range;

use ondisk::{Flags, Ino};

use super::step::{Changing, Orphan, check_regular, max_bytes};
use super::write::fill_hole;
use crate::core::Error;
use crate::map::Mapping;
use crate::token::LiveFs;

/// What [`crate::InodeFs::allocate`] does with a range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocate {
    /// Holes get blocks that read as zeros; the file grows to hold the range.
    Grow,
    /// As `Grow`, but the size stays.
    KeepSize,
    /// Whole blocks of it become holes, and the rest zeros. The size stays.
    Punch,
    /// Whole blocks of it become blocks that read as zeros without having been written, and the rest zeros; the file
    /// grows to hold the range.
    Zero,
    /// As `Zero`, but the size stays.
    ZeroKeepSize,
    /// The range, of whole blocks, is cut out of the file.
    Collapse,
    /// A hole of the range's length, of whole blocks, is put in at its start.
    Insert,
}

/// Does `how` to `len` bytes from `offset` on; returns the file's flags.
pub(crate) fn allocate(
    mounted: &LiveFs,
    ino: Ino,
    how: Allocate,
    offset: u64,
    len: u64,
) -> Result<Flags, Error> {
    mounted.volume().check_ordinary(ino)?;
    let live = mounted.get(ino)?;
    check_regular(&mounted.used(&live)?)?;
    let locked = &live.write_lock();
    let file = Changing { mounted, locked };
    let inode = mounted.used(&live)?;
    check_regular(&inode)?;
    let end = offset.checked_add(len).ok_or(Error::FileTooLarge)?;
    if len == 0 {
        return Err(Error::InvalidArgument);
    }
    let adds = matches!(how, Allocate::Grow | Allocate::KeepSize);
    if inode.flags().contains(Flags::APPEND) && !adds {
        return Err(Error::NotPermitted);
    }
    if how != Allocate::Punch && !inode.flags().contains(Flags::EXTENTS) {
        return Err(Error::NotSupported(
            "reserving blocks in a file without extents",
        ));
    }
    if end > max_bytes(mounted.volume(), &inode) && how != Allocate::Punch {
        return Err(Error::FileTooLarge);
    }
    let range = offset..end;
    if matches!(how, Allocate::Punch | Allocate::Collapse | Allocate::Insert) {
        mounted.give_back_kept(&live);
    }
    match how {
        Allocate::Grow => reserve(file, &range, true).and_then(|changed| stamp(file, changed)),
        Allocate::KeepSize => reserve(file, &range, false).and_then(|changed| stamp(file, changed)),
        Allocate::Punch => punch(file, &range),
        Allocate::Zero => zero(file, &range, true),
        Allocate::ZeroKeepSize => zero(file, &range, false),
        Allocate::Collapse => collapse(file, &range),
        Allocate::Insert => insert(file, &range),
    }?;
    Ok(inode.flags())
}

/// As in Linux, the times say that a file was modified also where it was as wanted before.
fn stamp(file: Changing<'_>, has_changed: bool) -> Result<(), Error> {
    if has_changed {
        Ok(())
    } else {
        file.apply_inode(|_| {})
    }
}

/// Puts unwritten blocks into the holes of a range; returns whether that, or the size, changed the file.
fn reserve(file: Changing<'_>, range: &Range<u64>, grows: bool) -> Result<bool, Error> {
    let mut has_changed = false;
    let size = file.volume().geometry().block_size();
    if grows && file.inode().bytes(file.volume()) < range.end {
        file.zero_tail()?;
    }
    let (mut at, last) = (range.start >> size.bits(), size.blocks_for(range.end));
    while at < last {
        let run = file.run_at(at, last)?;
        if run.physical.is_some() {
            at = run.end();
            continue;
        }
        let (draft, runs) = fill_hole(file, &file.inode(), &run, true)?;
        at = runs.last().map_or(last, Mapping::end);
        let reached = range.end.min(at << size.bits());
        file.apply(draft.prepare()?, Orphan::Stays, |inode| {
            if grows && inode.size(false) < reached {
                inode.set_size(reached);
            }
        })?;
        has_changed = true;
    }
    if grows && file.inode().bytes(file.volume()) < range.end {
        file.apply_inode(|inode| inode.set_size(range.end))?;
        has_changed = true;
    }
    Ok(has_changed)
}

/// The whole blocks within a range of bytes; empty if there are none.
fn whole_blocks(file: Changing<'_>, range: &Range<u64>) -> Range<u64> {
    let size = file.volume().geometry().block_size();
    let (first, last) = (size.blocks_for(range.start), range.end >> size.bits());
    first..last.max(first)
}

/// Zeroes the data of a range that is not in whole blocks of it.
fn zero_edges(file: Changing<'_>, range: &Range<u64>) -> Result<(), Error> {
    let size = file.volume().geometry().block_size();
    let whole = whole_blocks(file, range);
    let (first, last) = (whole.start << size.bits(), whole.end << size.bits());
    if whole.is_empty() {
        return file.zero_data(range.start, range.end);
    }
    file.zero_data(range.start, first)?;
    file.zero_data(last, range.end)
}

/// Frees the whole blocks of a range, one step after another.
fn punch_blocks(file: Changing<'_>, blocks: Range<u64>) -> Result<(), Error> {
    let mut at = blocks.start;
    while at < blocks.end {
        let mut draft = file.draft()?;
        at = draft.remove(at..blocks.end)?;
        file.apply(draft.prepare()?, Orphan::Stays, |_| {})?;
    }
    Ok(())
}

fn punch(file: Changing<'_>, range: &Range<u64>) -> Result<(), Error> {
    let bytes = file.inode().bytes(file.volume());
    let block_bytes = file.volume().geometry().block_size().bytes_u64();
    // As in Linux, what is beyond the last block of the file stays.
    let range = range.start..range.end.min(bytes.next_multiple_of(block_bytes));
    if range.start >= bytes {
        return stamp(file, false);
    }
    zero_edges(file, &range)?;
    let blocks = whole_blocks(file, &range);
    if blocks.is_empty() {
        file.apply_inode(|_| {})
    } else {
        punch_blocks(file, blocks)
    }
}

fn zero(file: Changing<'_>, range: &Range<u64>, grows: bool) -> Result<(), Error> {
    if grows && file.inode().bytes(file.volume()) < range.end {
        file.zero_tail()?;
    }
    // A full disk leaves all bytes as they are.
    reserve(file, range, false)?;
    zero_edges(file, range)?;
    let blocks = whole_blocks(file, range);
    let mut at = blocks.start;
    while at < blocks.end {
        let mut draft = file.draft()?;
        at = draft.convert(at..blocks.end, true)?;
        file.apply(draft.prepare()?, Orphan::Stays, |_| {})?;
    }
    file.apply_inode(|inode| {
        if grows && inode.size(false) < range.end {
            inode.set_size(range.end);
        }
    })
}

/// A range of whole blocks, in blocks.
fn in_blocks(file: Changing<'_>, range: &Range<u64>) -> Result<Range<u64>, Error> {
    let size = file.volume().geometry().block_size();
    let is_whole = |bytes: u64| bytes.is_multiple_of(size.bytes_u64());
    if is_whole(range.start) && is_whole(range.end) {
        Ok(range.start >> size.bits()..range.end >> size.bits())
    } else {
        Err(Error::InvalidArgument)
    }
}

fn collapse(file: Changing<'_>, range: &Range<u64>) -> Result<(), Error> {
    let blocks = in_blocks(file, range)?;
    let bytes = file.inode().bytes(file.volume());
    if range.end >= bytes {
        return Err(Error::InvalidArgument);
    }
    let len = blocks.end - blocks.start;
    // Whether it can be done at all is found out first.
    let mut trial = file.draft()?;
    trial.remove_for_trial(blocks.clone())?;
    trial.shift(blocks.end, -(len as i64))?;
    drop(trial);
    punch_blocks(file, blocks.clone())?;
    let mut draft = file.draft()?;
    draft.shift(blocks.end, -(len as i64))?;
    file.apply(draft.prepare()?, Orphan::Stays, |inode| {
        inode.set_size(bytes - (range.end - range.start));
    })
}

fn insert(file: Changing<'_>, range: &Range<u64>) -> Result<(), Error> {
    let blocks = in_blocks(file, range)?;
    let inode = file.inode();
    let bytes = inode.bytes(file.volume());
    if range.start >= bytes {
        return Err(Error::InvalidArgument);
    }
    let len = range.end - range.start;
    let grown = bytes.checked_add(len).ok_or(Error::FileTooLarge)?;
    if grown > max_bytes(file.volume(), &inode) {
        return Err(Error::FileTooLarge);
    }
    let mut draft = file.draft()?;
    // At most 2^32 blocks.
    draft.shift(blocks.start, (blocks.end - blocks.start) as i64)?;
    file.apply(draft.prepare()?, Orphan::Stays, |inode| {
        inode.set_size(grown)
    })
}
