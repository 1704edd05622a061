//! One step of changing a file: applies a prepared change of its map, under the locks that keep readers away.
//!
//! The caller holds the inode's lock ([`Exclusive`]), so no write in place is under way. The step takes the file's data
//! lock exclusively just before the handle. So when the map changes, no reader that mapped blocks before is still
//! reading them, and no reader sees half of a change.

use journal::canary::{self, Canary};
use ondisk::inode::Inode;
use ondisk::{BlockSize, Feature, FileType, Flags, Ino, indirect};

use crate::blocks::OpenVolume;
use crate::core::Error;
use crate::core::sb::needs_large_file;
use crate::inode::{Exclusive, LoadedInode};
use crate::map::{self, ExtentDraft, MapChange, Mapping, Mappings};
use crate::space::orphan::OrphanChange;
use crate::token::LiveFs;

/// What a step does with the inode's entry among the orphans.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Orphan {
    Stays,
    /// Adds an entry, if the inode has none.
    Added,
    /// Removes the entry, if the inode has one.
    Removed,
}

/// A file that is being changed.
#[derive(Clone, Copy)]
pub(super) struct Changing<'a> {
    pub(super) mounted: &'a LiveFs,
    pub(super) locked: &'a Exclusive<'a>,
}

impl<'a> Changing<'a> {
    pub(super) fn volume(&self) -> &'a OpenVolume {
        self.mounted.volume()
    }

    /// The inode as it is now; no other thread changes it.
    pub(super) fn inode(&self) -> LoadedInode {
        self.locked.inode().snapshot()
    }

    pub(super) fn draft(&self) -> Result<ExtentDraft<'a>, Error> {
        ExtentDraft::new(self.mounted, self.locked)
    }

    /// Does what [`Changing::draft`] does, for a caller that has loaded the inode already.
    pub(super) fn draft_of(&self, inode: &LoadedInode) -> Result<ExtentDraft<'a>, Error> {
        ExtentDraft::of(self.mounted, self.locked, inode)
    }

    /// The run that holds block `block` of the file, or the hole, cut so that it begins with that block and ends at
    /// `end` at the latest.
    pub(super) fn run_at(&self, block: u64, end: u64) -> Result<Mapping, Error> {
        run_at(self.volume(), &self.inode(), block, end)
    }

    /// Applies a change of the map and the change `and` of the inode's record; stamps the inode's times.
    pub(super) fn apply(
        &self,
        change: MapChange<'_>,
        orphan: Orphan,
        and: impl FnOnce(&mut Inode),
    ) -> Result<(), Error> {
        self.apply_all(Some(change), orphan, true, and)
    }

    /// Applies the change `and` of the inode's record only; stamps the inode's times.
    pub(super) fn apply_inode(&self, and: impl FnOnce(&mut Inode)) -> Result<(), Error> {
        self.apply_all(None, Orphan::Stays, true, and)
    }

    pub(super) fn apply_all(
        &self,
        change: Option<MapChange<'_>>,
        orphan: Orphan,
        stamps: bool,
        and: impl FnOnce(&mut Inode),
    ) -> Result<(), Error> {
        let (mut blocks, revokes) = change.as_ref().map_or((1, 0), MapChange::cost);
        let live = self.locked.inode();
        let orphans = self.mounted.orphans();
        let entry = match orphan {
            Orphan::Stays => None,
            Orphan::Added => Some(orphans.add(&**live)),
            Orphan::Removed => Some(orphans.remove(&**live)),
        };
        blocks += entry.as_ref().map_or(0, OrphanChange::cost);
        let large_file = &self.mounted.writing().large_file;
        blocks += large_file.cost();
        let credits = self.mounted.reserve(blocks, revokes)?;
        let now = self.mounted.now()?;
        let _still = live.data_lock_exclusive();
        let entry = entry.map(OrphanChange::lock);
        let handle = self.mounted.begin(credits)?;
        let has_large_dir = self.volume().has(Feature::LARGE_DIR);
        let change_inode = |inode: &mut Inode| {
            let before = inode.size(has_large_dir);
            and(inode);
            if stamps {
                inode.set_mtime(now);
                inode.stamp(now);
            }
            (before, inode.size(has_large_dir))
        };
        let (before, bytes) = match change {
            Some(change) => {
                let sizes = change.apply_and(&handle, change_inode);
                // The change does not know whether it maps data that were just written, so it is counted as if it did.
                handle.maps_data();
                live.stamp_data(&handle);
                sizes
            }
            None => self.locked.change(&handle, change_inode),
        };
        if needs_large_file(bytes) {
            large_file.need(&handle);
        }
        if let Some(changes) = self.mounted.changes().filter(|_| bytes < before) {
            changes.note_cut(&handle, live.ino(), before);
        }
        if let Some(entry) = entry {
            entry.apply(&handle, live);
        }
        Ok(())
    }

    /// Writes zeros over the bytes of a range that are data on the device: the edges of a change, at most a few blocks.
    pub(super) fn zero_data(&self, from: u64, to: u64) -> Result<(), Error> {
        let inode = self.inode();
        if from < inode.bytes(self.volume()).min(to) {
            may_write_in_place(self.mounted, inode.ino())?;
        }
        let size = self.volume().geometry().block_size();
        let mut at = if canary::makes(Canary::ZerosLeftOut) {
            to
        } else {
            from
        };
        let journal = &self.mounted.writing().journal;
        while at < to {
            let run = self.run_at(at >> size.bits(), (at >> size.bits()) + 1)?;
            let end = to.min(run.end() << size.bits());
            if let Some(first) = run.physical.filter(|_| run.is_data()) {
                let skipped = at - (run.logical << size.bits());
                // The part is within one block.
                let zeros = vec![0; (end - at) as usize];
                let device = self.volume().cache().device();
                let written = device.write_at(first.offset(size) + skipped, &zeros);
                let inode = self.locked.inode();
                inode.data.set_overwritten(journal.current_epoch());
                written?;
            }
            at = end;
        }
        Ok(())
    }

    /// Zeroes the bytes after the end of the file in its last block, before the file grows.
    pub(super) fn zero_tail(&self) -> Result<(), Error> {
        let size = self.inode().bytes(self.volume());
        let block = self.volume().geometry().block_size().bytes_u64();
        self.zero_data(size, size.next_multiple_of(block))
    }
}

/// Refuses to change bytes of a file in place while commits are held back, so that everything until their release is
/// one transaction. A file that was made in the running epoch may be changed.
pub(super) fn may_write_in_place(mounted: &LiveFs, ino: Ino) -> Result<(), Error> {
    let journal = &mounted.writing().journal;
    if journal.is_held() && !mounted.get(ino)?.life.is_born_in(journal.current_epoch()) {
        Err(Error::NotSupported(
            "changing a part of a file's block in what is all or nothing",
        ))
    } else {
        Ok(())
    }
}

/// The run that holds block `block` of a file, or the hole, cut so that it begins with that block and ends at `end` at
/// the latest.
pub(super) fn run_at(
    volume: &OpenVolume,
    inode: &LoadedInode,
    block: u64,
    end: u64,
) -> Result<Mapping, Error> {
    // Usually the first run of the map is enough, which takes a third of the time of a walk.
    match map::next_run(volume, inode, block)? {
        None => return Ok(Mapping::hole(block..end)),
        Some(run) if run.logical > block => {
            return Ok(Mapping::hole(block..end.min(run.logical)));
        }
        Some(run) if run.end() >= end => return Ok(run.cut(&(block..end))),
        Some(_) => {}
    }
    let mut runs = Mappings::new(volume, inode, block..end)?;
    // The range is not empty, so it has a run or a hole.
    runs.next().unwrap_or(Ok(Mapping {
        logical: block,
        len: end - block,
        physical: None,
        unwritten: false,
    }))
}

/// Refuses an inode that is not a regular file, or whose data can't be changed.
pub(super) fn check_regular(inode: &LoadedInode) -> Result<(), Error> {
    match inode.file_type() {
        Some(FileType::Regular) => (),
        Some(FileType::Directory) => return Err(Error::IsDirectory),
        _ => return Err(Error::NotRegular),
    }
    let flags = inode.flags();
    if flags.contains(Flags::IMMUTABLE) {
        return Err(Error::NotPermitted);
    }
    if flags.contains(Flags::ENCRYPT) {
        return Err(Error::Encrypted);
    }
    if flags.contains(Flags::VERITY) {
        return Err(Error::NotPermitted);
    }
    if inode.is_inline() {
        return Err(Error::NotSupported("changing data inside an inode"));
    }
    if flags.contains(Flags::JOURNAL_DATA) {
        return Err(Error::NotSupported("changing a file with journaled data"));
    }
    Ok(())
}

/// The most blocks of a file with a map of pointers, of which an inode can count `counted` blocks: the file's blocks
/// and its blocks of pointers together must not be more. Like Linux, this subtracts the blocks of pointers that a map
/// of `counted` blocks would have.
fn most_mapped(counted: u64, size: BlockSize) -> u64 {
    let named = indirect::max_blocks(size).min((1 << 32) - 1);
    if named + indirect::pointer_blocks(named, size) <= counted {
        named
    } else {
        counted - indirect::pointer_blocks(counted.min(named), size)
    }
}

/// The most bytes that a file with this kind of map may have.
pub(super) fn max_bytes(volume: &OpenVolume, inode: &LoadedInode) -> u64 {
    let size = volume.geometry().block_size();
    // Without `huge_file` an inode counts its blocks in units of 512 bytes, in 32 bits.
    let counted = if volume.has(Feature::HUGE_FILE) {
        (1 << 32) - 1
    } else {
        ((1 << 32) - 1) >> (size.bits() - 9)
    };
    let blocks = if inode.flags().contains(Flags::EXTENTS) {
        counted
    } else {
        most_mapped(counted, size)
    };
    let named = blocks << size.bits();
    // Revision 0 has no features, and none can be turned on.
    if volume.has(Feature::LARGE_FILE) || volume.superblock().revision() > 0 {
        named
    } else {
        named.min((1 << 31) - 1)
    }
}
