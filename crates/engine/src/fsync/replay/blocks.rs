//! The blocks of files that are replayed: taken before anything else can get them, and mapped.
//!
//! What is mapped comes from records of ranges and from the file's own map, never from the words that a record of an
//! inode has instead of one. Linux changes a map's form (`chattr +e`, `-e`) with no word of it but the record's flag:
//! the file's own map is then brought into that form. A record's pointers must be those that the file has in the end.

use std::collections::BTreeMap;

use ondisk::extent::{self, ExtentEntries};
use ondisk::inode::{BLOCK_AREA, Inode};
use ondisk::{Corrupt, Feature, FileType, Flags, FsBlock, Ino, Site};

use super::Replay;
use super::said::{Everything, Said, To};
use crate::core::Error;
use crate::data;
use crate::inode::Exclusive;
use crate::map::{ExtentDraft, Mapping, Mappings};
use crate::space::group::GroupRun;
use crate::space::mballoc::{self, TakenBlocks};
use crate::token::LiveFs;

/// Pointers in an inode without extents that are those of its first blocks.
const DIRECT: usize = 12;
/// The blocks that a file can have.
const ALL: std::ops::Range<u64> = 0..1 << 32;

/// Removes ranges of written blocks after a file's end from the records: no reader can see those, and only files with
/// fs-verity have any.
pub(super) fn trim(mounted: &LiveFs, everything: &mut Everything) -> Result<(), Error> {
    let (volume, groups) = (mounted.volume(), mounted.groups());
    for (ino, runs) in &mut everything.runs {
        let number = volume.geometry().group_of_ino(*ino);
        let (group, index) = number.ok_or(Error::NotFound)?;
        let home = if groups.inode_bits(volume, group)?.is_in_image(index) {
            Some(*mounted.load(*ino)?)
        } else {
            None
        };
        let said = everything.inodes.get(ino).map(|said| said.inode);
        let Some(inode) = said.filter(|said| said.mode() != 0).or(home) else {
            continue;
        };
        let is_file = inode.file_type() == Some(FileType::Regular);
        // A record's flag counts only if the file system has the feature.
        let is_sealed = |inode: &Inode| inode.flags().contains(Flags::VERITY);
        let has_tail = home.is_some_and(|home| is_sealed(&home))
            || volume.has(Feature::VERITY) && is_sealed(&inode);
        if is_file && !has_tail {
            runs.trim(blocks_of(mounted, &inode));
        }
    }
    Ok(())
}

/// The blocks up to a file's end.
fn blocks_of(mounted: &LiveFs, inode: &Inode) -> u64 {
    let block_bytes = mounted.volume().geometry().block_size().bytes();
    inode.size_both_words().div_ceil(block_bytes as u64)
}

impl<'a> Replay<'a> {
    /// Takes the blocks that files are to have and have not; by file and the first block in it.
    pub(super) fn take_blocks(&self) -> Result<BTreeMap<(Ino, u64), TakenBlocks<'a>>, Error> {
        let mut taken = BTreeMap::new();
        for (ino, runs) in &self.everything.runs {
            if !self.has_runs(*ino)? {
                continue;
            }
            for (first, to) in &runs.0 {
                for part in self.missing(*ino, *first, *to)? {
                    let blocks = self.take_run(*ino, &part)?;
                    taken.insert((*ino, part.logical), blocks);
                }
            }
        }
        Ok(taken)
    }

    /// Whether an inode's map is what records say: a directory's is its own affair.
    fn has_runs(&self, ino: Ino) -> Result<bool, Error> {
        let said = self.everything.inodes.get(&ino);
        if !self.is_in_use(ino)? || said.is_some_and(|said| said.inode.links_count() == 0) {
            return Ok(false);
        }
        if said.is_some_and(|said| self.is_inline(&said.inode)) {
            // Blocks that it had before its contents moved into the inode are freed with its map.
            return Ok(false);
        }
        let inode = match said {
            Some(said) if self.fresh.contains(&ino) => said.inode,
            _ => *self.mounted.load(ino)?,
        };
        if said.is_none() && self.is_inline(&inode) {
            return Err(other_blocks(ino));
        }
        match inode.file_type() {
            Some(FileType::Regular) => Ok(true),
            Some(FileType::Directory) => Ok(false),
            Some(FileType::Symlink) => Ok(!is_short(&inode)),
            _ => Err(Error::Unsupported(
                "a fast commit that maps blocks of such an inode",
            )),
        }
    }

    /// Whether a file's map is one of extents in the end.
    fn has_extents(&self, ino: Ino) -> Result<bool, Error> {
        let flags = match self.everything.inodes.get(&ino) {
            Some(said) => said.inode.flags(),
            None => self.mounted.load(ino)?.flags(),
        };
        Ok(flags.contains(Flags::EXTENTS))
    }

    /// The parts of a run that are not mapped as they should be, each within a group.
    fn missing(&self, ino: Ino, first: u64, to: To) -> Result<Vec<Mapping>, Error> {
        let Some((at, unwritten)) = to.at else {
            return Ok(Vec::new());
        };
        if unwritten && !self.has_extents(ino)? {
            return Err(other_blocks(ino));
        }
        let volume = self.mounted.volume();
        if !volume.geometry().contains(at, to.end - first) {
            let corrupt = Corrupt::at(Site::FastCommitBlocks);
            return Err(corrupt.ino(ino).block(at).into());
        }
        volume.check_unowned(ino, at, to.end - first)?;
        let mut missing = Vec::new();
        let is_fresh = self.fresh.contains(&ino);
        let before = if is_fresh {
            // It is not made yet.
            vec![Mapping::hole(first..to.end)]
        } else {
            self.mapped(ino, first, to.end)?
        };
        for run in before {
            let wanted = FsBlock(at.0 + (run.logical - first));
            if run.physical != Some(wanted) {
                missing.extend(self.by_group(Mapping {
                    physical: Some(wanted),
                    unwritten,
                    ..run
                }));
            }
        }
        Ok(missing)
    }

    /// How a range is mapped now.
    pub(super) fn mapped(&self, ino: Ino, first: u64, end: u64) -> Result<Vec<Mapping>, Error> {
        let inode = self.mounted.load(ino)?;
        Mappings::new(self.mounted.volume(), &inode, first..end)?.collect()
    }

    fn by_group(&self, run: Mapping) -> Vec<Mapping> {
        let geometry = self.mounted.volume().geometry();
        let mut parts = Vec::new();
        let Some(start) = run.physical else {
            return parts;
        };
        let mut done = 0;
        while done < run.len {
            let at = FsBlock(start.0 + done);
            let Some((group, bit)) = geometry.bit_of_block(at) else {
                break;
            };
            let rest = u64::from(geometry.group_clusters(group).saturating_sub(bit)).max(1);
            let len = rest.min(run.len - done);
            parts.push(Mapping {
                logical: run.logical + done,
                len,
                physical: Some(at),
                unwritten: run.unwritten,
            });
            done += len;
        }
        parts
    }

    fn take_run(&self, ino: Ino, part: &Mapping) -> Result<TakenBlocks<'a>, Error> {
        let start = part.physical.unwrap_or(FsBlock(0));
        let run = GroupRun {
            start,
            // Within a group.
            len: part.len as u32,
        };
        let taken = mballoc::take_exact(self.mounted.volume(), self.mounted.groups(), run)?;
        taken.ok_or_else(|| {
            let corrupt = Corrupt::at(Site::FastCommitInUse);
            corrupt.ino(ino).block(start).into()
        })
    }

    /// Maps files as records say; `taken` are the blocks for that.
    pub(super) fn map(
        &self,
        mut taken: BTreeMap<(Ino, u64), TakenBlocks<'a>>,
    ) -> Result<(), Error> {
        for (ino, said) in &self.everything.inodes {
            self.bring_into_form(*ino, said)?;
        }
        for (ino, runs) in &self.everything.runs {
            if !self.has_runs(*ino)? {
                continue;
            }
            let live = self.mounted.get(*ino)?;
            let locked = &live.write_lock();
            for (first, to) in &runs.0 {
                for part in self.mapped(*ino, *first, to.end)? {
                    let wanted = to.at.map(|(at, _)| FsBlock(at.0 + (part.logical - first)));
                    if part.physical.is_some() && part.physical != wanted {
                        self.unmap(locked, part.logical, part.end())?;
                    }
                }
                let Some((_, unwritten)) = to.at else {
                    continue;
                };
                let keys: Vec<_> = taken
                    .range((*ino, *first)..(*ino, to.end))
                    .map(|(key, _)| *key)
                    .collect();
                for key in keys {
                    let Some(blocks) = taken.remove(&key) else {
                        continue;
                    };
                    let mut draft = ExtentDraft::new(self.mounted, locked)?;
                    draft.insert(key.1, vec![blocks], unwritten)?;
                    data::apply_cut(self.mounted, locked, draft.prepare()?)?;
                }
                self.convert(locked, *first, to.end, unwritten)?;
            }
        }
        for (ino, said) in &self.everything.inodes {
            self.check_pointers(*ino, said)?;
        }
        Ok(())
    }

    /// Whether the record is of a file that has a map after the replay.
    fn is_file(&self, ino: Ino, said: &Said) -> Result<bool, Error> {
        let is_regular = said.inode.file_type() == Some(FileType::Regular);
        Ok(is_regular && said.inode.links_count() > 0 && self.is_in_use(ino)?)
    }

    /// Brings a file's map into the form that its record has, as Linux did before it logged that.
    fn bring_into_form(&self, ino: Ino, said: &Said) -> Result<(), Error> {
        if !self.is_file(ino, said)? {
            return Ok(());
        }
        let live = self.mounted.get(ino)?;
        let locked = &live.write_lock();
        if live.snapshot().is_inline() || self.is_inline(&said.inode) {
            return self.move_contents(locked, said);
        }
        let has_extents = said.inode.flags().contains(Flags::EXTENTS);
        if live.snapshot().flags().contains(Flags::EXTENTS) == has_extents {
            return Ok(());
        }
        if has_extents && !self.mounted.volume().has(Feature::EXTENT) {
            return Err(other_blocks(ino));
        }
        let (mut pieces, mut at) = (Vec::new(), ALL.start);
        while at < ALL.end {
            let mut draft = ExtentDraft::new(self.mounted, locked)?;
            let (some, done) = draft.take(at..ALL.end)?;
            data::apply_cut(self.mounted, locked, draft.prepare()?)?;
            pieces.extend(some);
            at = done;
        }
        if !has_extents && pieces.iter().any(|piece| piece.unwritten) {
            return Err(Error::Unsupported(
                "a fast commit that takes extents from a file with preallocated blocks",
            ));
        }
        self.change(locked, |inode| {
            inode.block_area_mut().fill(0);
            if has_extents {
                extent::encode(inode.block_area_mut(), 0, ExtentEntries::Extents(&[]));
            }
            let others = inode.flags().without(Flags::EXTENTS);
            inode.set_flags(Flags(others.0 | said.inode.flags().0 & Flags::EXTENTS.0));
        })?;
        for piece in pieces {
            let mut draft = ExtentDraft::new(self.mounted, locked)?;
            draft.put(piece)?;
            data::apply_cut(self.mounted, locked, draft.prepare()?)?;
        }
        Ok(())
    }

    /// Refuses a record whose pointers, up to the file's end, are not those of the file's blocks: a part of what Linux
    /// mapped is not known.
    fn check_pointers(&self, ino: Ino, said: &Said) -> Result<(), Error> {
        let has_pointers =
            !said.inode.flags().contains(Flags::EXTENTS) && !self.is_inline(&said.inode);
        if !self.is_file(ino, said)? || !has_pointers {
            return Ok(());
        }
        let mut words = [0; DIRECT];
        for run in self.mapped(ino, 0, DIRECT as u64)? {
            let Some(start) = run.physical else { continue };
            for (word, block) in words[run.logical as usize..run.end() as usize]
                .iter_mut()
                .zip(start.0..)
            {
                *word = block;
            }
        }
        let is_same =
            |(index, word): (usize, &u64)| u64::from(said.inode.block_word(index)) == *word;
        // What it has behind its end, as in the middle of a truncation, is left out.
        let end = blocks_of(self.mounted, &said.inode).min(DIRECT as u64) as usize;
        if words[..end].iter().enumerate().all(is_same) {
            Ok(())
        } else {
            Err(other_blocks(ino))
        }
    }

    pub(super) fn unmap(&self, locked: &Exclusive<'_>, first: u64, end: u64) -> Result<(), Error> {
        let mut at = first;
        while at < end {
            let mut draft = ExtentDraft::new(self.mounted, locked)?;
            at = draft.remove(at..end)?;
            data::apply_cut(self.mounted, locked, draft.prepare()?)?;
        }
        Ok(())
    }

    fn convert(
        &self,
        locked: &Exclusive<'_>,
        first: u64,
        end: u64,
        unwritten: bool,
    ) -> Result<(), Error> {
        let inode = locked.inode().snapshot();
        let runs = Mappings::new(self.mounted.volume(), &inode, first..end)?;
        for run in runs.collect::<Result<Vec<_>, _>>()? {
            let mut at = run.logical;
            while run.physical.is_some() && run.unwritten != unwritten && at < run.end() {
                let mut draft = ExtentDraft::new(self.mounted, locked)?;
                at = draft.convert(at..run.end(), unwritten)?;
                data::apply_cut(self.mounted, locked, draft.prepare()?)?;
            }
        }
        Ok(())
    }
}

/// The refusal of a record whose blocks the file can't have.
fn other_blocks(ino: Ino) -> Error {
    Corrupt::at(Site::FastCommitMap).ino(ino).into()
}

/// Whether a link's target is in the inode.
pub(super) fn is_short(inode: &Inode) -> bool {
    let fits = inode.size(false) < BLOCK_AREA as u64;
    fits && !inode.flags().contains(Flags::EXTENTS)
}
