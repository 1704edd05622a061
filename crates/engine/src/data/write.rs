//! Writing: data go to their blocks first, then one handle says that they are there.
//!
//! A write is a loop of steps, one run of the map each: blocks that hold data are written in place under the inode's
//! shared lock, and where the last such write was is remembered; for a hole, blocks are taken out of the bitmaps in
//! memory, filled while nothing points to them, and mapped; unwritten blocks are filled and converted. What a cut
//! leaves: a prefix of the steps, the size that of the last one. The commit's first flush, before its record, covers
//! the data.
//!
//! # Times
//!
//! A step that changes the map sets mtime and ctime itself. A write in place sets them after its bytes are written, in
//! a step of its own under the inode's exclusive lock. It leaves them as they are if both are less than [`TICK`] (4 ms)
//! old, and no thread has read them or set them by hand since a write in place set them. So a thread that reads them
//! before and after a write sees different times.

use journal::canary::{self, Canary};
use ondisk::{Flags, Ino, Timestamp};
use sync::Arc;

use super::place::take_runs;
use super::step::{Changing, Orphan, check_regular, max_bytes, may_write_in_place, run_at};
use crate::core::Error;
use crate::inode::{InPlace, LiveInode, LoadedInode};
use crate::map::{self, ExtentDraft, Mapping};
use crate::space::mballoc::TakenBlocks;
use crate::token::LiveFs;

/// Nanoseconds for which writes in place leave the times as they are: as the tick of a kernel's clock.
const TICK: i64 = 4_000_000;
/// Bytes that one step writes at most.
const STEP_BYTES: u64 = 8 << 20;
/// Bytes of zeros that are written at once.
const ZEROS: usize = 1 << 20;

/// Writes `bytes` at `offset` of a regular file; returns how many were written, fewer only if an error stopped it, and
/// the file's flags.
pub(crate) fn write(
    mounted: &LiveFs,
    ino: Ino,
    offset: u64,
    bytes: &[u8],
) -> Result<(usize, Flags), Error> {
    mounted.volume().check_ordinary(ino)?;
    let live = &mounted.get(ino)?;
    let (mut done, mut times) = (0, None);
    if offset < live.bytes_hint() {
        // Mostly all of it is in place, and one look at the inode does.
        let first = overwrite_shared(mounted, live, offset, bytes)?;
        if first.bytes == bytes.len() {
            keep_times(mounted, live, first.times)?;
            return Ok((first.bytes, first.flags));
        }
        (done, times) = (first.bytes, first.times.filter(|_| first.bytes > 0));
    }
    let inode = mounted.used(live)?;
    check_regular(&inode)?;
    let most = max_bytes(mounted.volume(), &inode);
    let room = most.saturating_sub(offset);
    if room == 0 && done == 0 && !bytes.is_empty() {
        return Err(Error::FileTooLarge);
    }
    let len = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
    let mut is_behind = offset >= inode.bytes(mounted.volume());
    while done < len {
        let at = offset + done as u64;
        if done > 0 {
            is_behind = at >= live.snapshot().bytes(mounted.volume());
        }
        match step(mounted, live, is_behind, at, &bytes[done..len]) {
            Ok(step) => {
                done += step.bytes;
                times = step.times;
            }
            Err(error) if done == 0 => return Err(error),
            Err(Error::Io(_)) => {
                // The caller learns how much was written, and from fsync why not more.
                live.write_errors.add();
                break;
            }
            Err(_) => break,
        }
    }
    keep_times(mounted, live, times)?;
    Ok((done, inode.flags()))
}

/// Writes `bytes` behind the end of a regular file, in one piece as far as others see: where, how many, fewer only if
/// an error stopped it, and the file's flags.
pub(crate) fn append(
    mounted: &LiveFs,
    ino: Ino,
    bytes: &[u8],
) -> Result<(u64, usize, Flags), Error> {
    mounted.volume().check_ordinary(ino)?;
    let live = &mounted.get(ino)?;
    let locked = &live.write_lock();
    let inode = mounted.used(live)?;
    check_regular(&inode)?;
    let offset = inode.bytes(mounted.volume());
    let room = max_bytes(mounted.volume(), &inode).saturating_sub(offset);
    if room == 0 && !bytes.is_empty() {
        return Err(Error::FileTooLarge);
    }
    let len = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
    let mut done = 0;
    while done < len {
        let changing = Changing { mounted, locked };
        let later = (done > 0).then(|| changing.inode());
        let now = later.as_ref().unwrap_or(&inode);
        match extend(changing, now, offset + done as u64, &bytes[done..len]) {
            Ok(written) => done += written,
            Err(error) if done == 0 => return Err(error),
            Err(Error::Io(_)) => {
                // A part was written, so the call returns that; the next sync reports the error.
                live.write_errors.add();
                break;
            }
            Err(_) => break,
        }
    }
    Ok((offset, done, inode.flags()))
}

/// What one step did.
struct Step {
    bytes: usize,
    flags: Flags,
    /// The times of the last change of the contents and of the inode, if they were not set with it.
    times: Option<(Timestamp, Timestamp)>,
}

/// Whether a write in place leaves the times as they are: they are of this tick, and no thread has read them since a
/// write set them. So a thread that reads the times before a write and after it sees different times.
fn may_keep(live: &LiveInode, times: (Timestamp, Timestamp), now: Timestamp) -> bool {
    let is_recent = |time: Timestamp| {
        let seconds = now.seconds.wrapping_sub(time.seconds);
        let nanoseconds = i64::from(now.nanoseconds) - i64::from(time.nanoseconds);
        matches!(seconds, 0 | 1) && (0..TICK).contains(&(seconds * 1_000_000_000 + nanoseconds))
    };
    is_recent(times.0) && is_recent(times.1) && !live.times.are_seen()
}

/// Sets the times after a write in place, which found these, if they may not stay.
fn keep_times(
    mounted: &LiveFs,
    live: &Arc<LiveInode>,
    times: Option<(Timestamp, Timestamp)>,
) -> Result<(), Error> {
    if let Some(times) = times
        && !may_keep(live, times, mounted.now()?)
    {
        let locked = &live.write_lock();
        live.times.set_unseen();
        Changing { mounted, locked }.apply_inode(|_| {})?;
    }
    Ok(())
}

/// Writes some of `bytes`, which lie behind the end unless others write meanwhile, or do not.
fn step(
    mounted: &LiveFs,
    live: &Arc<LiveInode>,
    mut is_behind: bool,
    offset: u64,
    bytes: &[u8],
) -> Result<Step, Error> {
    loop {
        if !is_behind {
            let done = overwrite_shared(mounted, live, offset, bytes)?;
            if done.bytes > 0 {
                return Ok(done);
            }
        }
        let locked = &live.write_lock();
        let inode = mounted.used(live)?;
        check_regular(&inode)?;
        if is_behind && offset < inode.bytes(mounted.volume()) {
            is_behind = false;
            continue;
        }
        let changing = Changing { mounted, locked };
        return Ok(Step {
            bytes: extend(changing, &inode, offset, bytes)?,
            flags: inode.flags(),
            times: None,
        });
    }
}

/// Writes bytes that are within the file and its data blocks; other threads may do so at the same time.
fn overwrite_shared(
    mounted: &LiveFs,
    live: &LiveInode,
    offset: u64,
    bytes: &[u8],
) -> Result<Step, Error> {
    // Whatever changes the map holds this lock exclusively.
    let still = live.read_lock();
    let volume = mounted.volume();
    let journal = &mounted.writing().journal;
    if let Some(known) = live.in_place(&still)
        && let Some(place) = known.place(offset, bytes.len())
        && !journal.is_held()
    {
        let written = volume.cache().device().write_at(place, bytes);
        live.data.set_overwritten(journal.current_epoch());
        written?;
        return Ok(Step {
            bytes: bytes.len(),
            flags: known.flags,
            times: Some((known.changed, known.changed)),
        });
    }
    let inode = mounted.used(live)?;
    check_regular(&inode)?;
    if inode.flags().contains(Flags::APPEND) && offset < inode.bytes(volume) {
        return Err(Error::NotPermitted);
    }
    let mut place = None;
    let written = overwrite(mounted, &inode, offset, bytes, &mut place);
    live.data.set_overwritten(journal.current_epoch());
    if let Some(place) = place {
        live.set_in_place(&still, &place);
    }
    Ok(Step {
        bytes: written?,
        flags: inode.flags(),
        times: Some((inode.mtime(), inode.ctime())),
    })
}

/// Writes the bytes that are within the file and its data blocks, in place; reports in which run the last piece was.
fn overwrite(
    mounted: &LiveFs,
    inode: &LoadedInode,
    offset: u64,
    bytes: &[u8],
    place: &mut Option<InPlace>,
) -> Result<usize, Error> {
    let volume = mounted.volume();
    let size = volume.geometry().block_size();
    let file_bytes = inode.bytes(volume);
    let end = file_bytes.min(offset.saturating_add(bytes.len() as u64));
    let mut at = offset;
    while at < end {
        let block = at >> size.bits();
        let run = map::find_run(volume, inode, block)?.filter(Mapping::is_data);
        let Some((run, first)) = run.and_then(|run| Some((run, run.physical?))) else {
            break;
        };
        may_write_in_place(mounted, inode.ino())?;
        let stop = end.min(run.end() << size.bits());
        let part = &bytes[(at - offset) as usize..(stop - offset) as usize];
        let start = run.logical << size.bits();
        let device = first.offset(size);
        volume
            .cache()
            .device()
            .write_at(device + (at - start), part)?;
        // The next write there relies on both times being equal; usually a write set them last.
        *place = (inode.mtime() == inode.ctime()).then(|| InPlace {
            start,
            end: file_bytes.min(run.end() << size.bits()),
            device,
            changed: inode.mtime(),
            flags: inode.flags(),
        });
        at = stop;
    }
    Ok((at - offset.min(at)) as usize)
}

/// Writes what begins in a hole, in unwritten blocks, or reaches beyond the end: one run of the map of the inode, which
/// is as it is now.
fn extend(
    file: Changing<'_>,
    inode: &LoadedInode,
    offset: u64,
    bytes: &[u8],
) -> Result<usize, Error> {
    let size = file.volume().geometry().block_size();
    let old_size = inode.bytes(file.volume());
    let end = offset + (bytes.len() as u64).min(STEP_BYTES);
    let first = offset >> size.bits();
    let run = run_at(file.volume(), inode, first, size.blocks_for(end))?;
    let is_tail = old_size < offset && old_size >> size.bits() < first;
    if is_tail || old_size < end && run.is_data() {
        file.zero_tail()?;
    }
    if run.is_data() {
        let stop = end.min(run.end() << size.bits());
        let len = (stop - offset) as usize;
        fill(file, &[run], true, offset, &bytes[..len])?;
        file.apply_inode(|inode| grow(inode, stop))?;
        return Ok(len);
    }
    let draft;
    let (runs, stop) = match run.physical {
        Some(_) => {
            let (filled, done) = convert(file, &run)?;
            draft = filled;
            (vec![run], done)
        }
        None => {
            let (filled, runs) = fill_hole(file, inode, &run, false)?;
            draft = filled;
            let stop = runs.last().map_or(run.logical, Mapping::end);
            (runs, stop)
        }
    };
    let stop = end.min(stop << size.bits());
    if stop <= offset {
        return Err(Error::NoSpace);
    }
    let change = draft.prepare()?;
    let len = (stop - offset) as usize;
    if canary::makes(Canary::MappedBeforeData) {
        file.apply(change, Orphan::Stays, |inode| grow(inode, stop))?;
        fill(file, &runs, false, offset, &bytes[..len])?;
        return Ok(len);
    }
    fill(file, &runs, false, offset, &bytes[..len])?;
    file.apply(change, Orphan::Stays, |inode| grow(inode, stop))?;
    Ok(len)
}

fn grow(inode: &mut ondisk::inode::Inode, size: u64) {
    if inode.size(false) < size {
        inode.set_size(size);
    }
}

/// Maps new blocks in a hole, or in a part of it from its start on: in a draft, and where.
pub(super) fn fill_hole<'a>(
    file: Changing<'a>,
    inode: &LoadedInode,
    hole: &Mapping,
    unwritten: bool,
) -> Result<(ExtentDraft<'a>, Vec<Mapping>), Error> {
    let mut hole = *hole;
    loop {
        let blocks = take_runs(file, inode, &hole)?;
        let runs = mapped(hole.logical, &blocks);
        let mut draft = file.draft_of(inode)?;
        match draft.insert(hole.logical, blocks, unwritten) {
            Ok(()) => return Ok((draft, runs)),
            // No block was left for the map: fewer of them may do.
            Err(Error::NoSpace) if runs.len() > 1 || runs.iter().any(|run| run.len > 1) => {
                hole.len = runs.iter().map(|run| run.len).sum::<u64>() / 2;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Makes unwritten blocks written in a draft; returns the block up to which that is done. If the map would need a block
/// to tell them from their neighbours, and no block is free, the neighbours become zeros on the device.
fn convert<'a>(file: Changing<'a>, run: &Mapping) -> Result<(ExtentDraft<'a>, u64), Error> {
    let mut draft = file.draft()?;
    match draft.convert(run.logical..run.end(), false) {
        Err(Error::NoSpace) => {}
        done => return Ok((draft, done?)),
    }
    let whole = map::find_run(file.volume(), &file.inode(), run.logical)?.unwrap_or(*run);
    let size = file.volume().geometry().block_size();
    let zeros = vec![0; ZEROS.max(size.bytes())];
    if let Some(first) = whole.physical {
        let (mut at, end) = (
            first.offset(size),
            first.offset(size) + (whole.len << size.bits()),
        );
        while at < end {
            // No more than `zeros` holds.
            let len = (end - at).min(zeros.len() as u64) as usize;
            file.volume().cache().device().write_at(at, &zeros[..len])?;
            at += len as u64;
        }
    }
    let mut draft = file.draft()?;
    draft.convert(whole.logical..whole.end(), false)?;
    Ok((draft, run.end().min(whole.end())))
}

/// Where blocks will be mapped.
fn mapped(logical: u64, blocks: &[TakenBlocks<'_>]) -> Vec<Mapping> {
    let mut at = logical;
    let run = |blocks: &TakenBlocks<'_>| {
        let run = blocks.run();
        let logical = at;
        at += u64::from(run.len);
        Mapping {
            logical,
            len: run.len.into(),
            physical: Some(run.start),
            unwritten: false,
        }
    };
    blocks.iter().map(run).collect()
}

/// Writes `bytes` at `offset` to the blocks of `runs`, all of which hold data or none. Of blocks that were no data,
/// what is not written is zeroed; of others that hold the end, what is behind it was zeroed.
fn fill(
    file: Changing<'_>,
    runs: &[Mapping],
    was_data: bool,
    offset: u64,
    bytes: &[u8],
) -> Result<(), Error> {
    let size = file.volume().geometry().block_size();
    let block_bytes = size.bytes_u64();
    let device = file.volume().cache().device();
    let end = offset + bytes.len() as u64;
    for run in runs {
        let (Some(first), from) = (run.physical, run.logical << size.bits()) else {
            continue;
        };
        let place = |at: u64| first.offset(size) + (at - from);
        let (start, stop) = (offset.max(from), end.min(run.end() << size.bits()));
        let whole = start.next_multiple_of(block_bytes).min(stop);
        if was_data {
            device.write_at(
                place(start),
                &bytes[(start - offset) as usize..(stop - offset) as usize],
            )?;
            continue;
        }
        // A first block that is not written from its start, whole blocks, a last block that is not written to its end.
        let pieces = [
            (start, whole),
            (whole, stop & !(block_bytes - 1)),
            (stop & !(block_bytes - 1), stop),
        ];
        let mut done = start;
        for (piece, piece_end) in pieces {
            let (piece, piece_end) = (piece.max(done), piece_end);
            if piece >= piece_end {
                continue;
            }
            let part = &bytes[(piece - offset) as usize..(piece_end - offset) as usize];
            let (head, tail) = (
                piece % block_bytes,
                piece_end.next_multiple_of(block_bytes) - piece_end,
            );
            if head == 0 && tail == 0 {
                device.write_at(place(piece), part)?;
            } else {
                let mut padded = vec![0; head as usize];
                padded.extend_from_slice(part);
                padded.resize(padded.len() + tail as usize, 0);
                device.write_at(place(piece - head), &padded)?;
            }
            done = piece_end;
        }
    }
    Ok(())
}
