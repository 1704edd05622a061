//! Replays fast commits: applies their records to a file system that nothing else uses. The changes are made on a
//! device that is thrown away or committed as a whole, so no step here has to survive a crash.
//!
//! What Linux writes and Linux can't replay is taken for what it means: an inode without links is deleted; a new
//! directory gets its block, and its parent counts it; a short link's target and a device's numbers are in the record.
//! Link counts are counted from the names, not believed. Every number and every block is one that the file system has,
//! and is the file's own or free: else the replay is refused.
//!
//! Another program may have begun to replay the same log in place, without finishing it: see [`half`].
//!
//! Order: blocks of inodes that the log names are marked in use where they are not; inodes whose number was given to
//! another are deleted; numbers and blocks that records name are taken before anything else can get them; new inodes;
//! names; maps; fields; what has no name left goes.

use std::collections::{BTreeMap, BTreeSet};

use journal::canary::{self, Canary};
use ondisk::extent::{self, ExtentEntries};
use ondisk::inode::Inode;
use ondisk::{Corrupt, Feature, FileType, Flags, FsBlock, Ino, Site};

use crate::attr::MODIFIABLE;
use crate::core::Error;
use crate::dir;
use crate::inode::{Exclusive, LoadedInode};
use crate::names::{self, NewContent};
use crate::reap::{self, Left};
use crate::space::ialloc::{self, BLOCKS_AN_INODE, InodeNumber};
use crate::token::LiveFs;

mod blocks;
mod check;
mod half;
mod inline;
mod said;
mod values;

use said::{Everything, Place, Said};

/// Does what complete fast commits say. `left`: inodes that an earlier mount left to be deleted; those stay, except
/// ones whose numbers others got.
///
/// # Errors
/// `Corrupt` for records that contradict the file system; `Unsupported` for what can't be replayed; `NoSpace`, `Io`.
pub(crate) fn replay(mounted: &LiveFs, area: &[u8], left: &Left<'_>) -> Result<(), Error> {
    let geometry = mounted.volume().geometry();
    let mut everything = Everything::read(area, geometry.block_size(), geometry.inode_size())?;
    for ino in everything.inodes.keys().chain(everything.runs.keys()) {
        check(mounted, *ino)?;
    }
    for ((parent, name), ino) in &everything.names {
        check(mounted, *parent)?;
        ino.map_or(Ok(()), |ino| check(mounted, ino))?;
        names::verify_new_name(name).map_err(|_| bad_name(*parent))?;
    }
    blocks::trim(mounted, &mut everything)?;
    let mut replay = Replay {
        mounted,
        everything: &everything,
        orphans: left.all(mounted)?,
        gone: BTreeSet::new(),
        fresh: BTreeSet::new(),
        links: BTreeMap::new(),
        there: BTreeSet::new(),
        parents: BTreeSet::new(),
    };
    replay.keep_blocks()?;
    replay.check_searches()?;
    replay.delete_replaced(left)?;
    let numbers = replay.take_numbers()?;
    replay.check_records()?;
    let blocks = replay.take_blocks()?;
    replay.make(numbers)?;
    for (place, ino) in &everything.names {
        replay.name(place, *ino)?;
    }
    replay.check_directories()?;
    replay.map(blocks)?;
    replay.check_targets()?;
    replay.finish()
}

/// Refuses numbers that no ordinary inode has.
fn check(mounted: &LiveFs, ino: Ino) -> Result<(), Error> {
    mounted.volume().check_ordinary(ino)?;
    match mounted.volume().geometry().group_of_ino(ino) {
        Some(_) => Ok(()),
        None => Err(Corrupt::at(Site::FastCommitInode).ino(ino).into()),
    }
}

/// The refusal of a name that stands for no inode, or that its directory can't have.
fn bad_name(ino: Ino) -> Error {
    Corrupt::at(Site::FastCommitName).ino(ino).into()
}

/// The flags that a record may change: others say how contents or names are recorded.
fn changeable() -> Flags {
    let all = MODIFIABLE.into_iter().fold(Flags(0), Flags::with);
    all.without(Flags::EXTENTS).without(Flags::CASEFOLD)
}

struct Replay<'a> {
    mounted: &'a LiveFs,
    everything: &'a Everything,
    /// Inodes that wait to be deleted or cut, and stay.
    orphans: BTreeSet<Ino>,
    /// Inodes that were deleted because others got their numbers.
    gone: BTreeSet<Ino>,
    /// Inodes that were made here.
    fresh: BTreeSet<Ino>,
    /// Names that inodes got, less those that they lost.
    links: BTreeMap<Ino, i64>,
    /// Inodes that had a name already which they were to get.
    there: BTreeSet<Ino>,
    /// Directories in which a new directory had its name already.
    parents: BTreeSet<Ino>,
}

impl<'a> Replay<'a> {
    /// Deletes inodes whose numbers others got in the same transaction, with their names.
    fn delete_replaced(&mut self, left: &Left<'_>) -> Result<(), Error> {
        let mut replaced: BTreeMap<Ino, Vec<&'a Place>> = BTreeMap::new();
        for (ino, said) in &self.everything.inodes {
            if said.inode.mode() == 0 || !self.is_in_use(*ino)? {
                continue;
            }
            if !said::is_another(&*self.mounted.load(*ino)?, &said.inode) {
                continue;
            }
            replaced.insert(*ino, Vec::new());
        }
        if replaced.is_empty() {
            return Ok(());
        }
        let orphans = self.orphans.iter().copied();
        let orphans: BTreeSet<Ino> = orphans.filter(|ino| replaced.contains_key(ino)).collect();
        if !orphans.is_empty() {
            left.recall(self.mounted, &orphans)?;
        }
        // Names are only taken away here, so all are looked up once.
        for place in self.everything.names.keys() {
            if let Some(target) = self.stands_for(place)?
                && let Some(names) = replaced.get_mut(&target)
            {
                names.push(place);
            }
        }
        for (ino, names) in replaced {
            self.take_names_away(ino, &names)?;
            self.delete(ino)?;
            self.orphans.remove(&ino);
            self.gone.insert(ino);
        }
        // From here on the numbers are free.
        self.mounted.sync_all()
    }

    /// Takes away the names of an inode that is to be deleted, and those in it.
    fn take_names_away(&mut self, ino: Ino, names: &[&Place]) -> Result<(), Error> {
        let now = self.mounted.load(ino)?;
        let is_directory = now.is(FileType::Directory);
        let everything = self.everything;
        let within = (ino, Box::default())..(Ino(ino.0.saturating_add(1)), Box::default());
        let within = everything.names.range(within).map(|(place, _)| place);
        for place in within.filter(|_| is_directory).chain(names.iter().copied()) {
            if self.stands_for(place)?.is_some() {
                self.name(place, None)?;
            }
        }
        if is_directory && !dir::is_empty(self.mounted, self.mounted.load(ino)?)? {
            return Err(check::full(ino));
        }
        let had = match i64::from(now.links_count()) {
            // It was an orphan.
            0 => 0,
            _ if is_directory => 1,
            links => links,
        };
        // Some may have gone with the directory that they were in.
        match self.links.remove(&ino).unwrap_or(0) + had {
            0 => Ok(()),
            // A name that no record takes away would stand for the new one.
            _ => Err(Corrupt::at(Site::FastCommitReuse).ino(ino).into()),
        }
    }

    /// Whether a number is an inode's, before the replay or through it. The bitmap decides: the record of a deleted
    /// inode is as Linux left it, with its mode.
    fn is_in_use(&self, ino: Ino) -> Result<bool, Error> {
        if self.fresh.contains(&ino) || self.gone.contains(&ino) {
            return Ok(self.fresh.contains(&ino));
        }
        let (volume, groups) = (self.mounted.volume(), self.mounted.groups());
        let number = volume.geometry().group_of_ino(ino);
        let (group, index) = number.ok_or(Error::NotFound)?;
        if !groups.inode_bits(volume, group)?.is_in_image(index) {
            return Ok(false);
        }
        let now = self.mounted.load(ino)?;
        let is_deleted = now.links_count() == 0 && !self.orphans.contains(&ino);
        if now.mode() == 0 || is_deleted {
            Err(Corrupt::at(Site::FastCommitDeleted).ino(ino).into())
        } else {
            Ok(true)
        }
    }

    /// What a name stands for now.
    fn stands_for(&self, (parent, name): &Place) -> Result<Option<Ino>, Error> {
        if !self.is_in_use(*parent)? || !self.mounted.load(*parent)?.is(FileType::Directory) {
            return Ok(None);
        }
        match dir::lookup_in(self.mounted, *parent, name) {
            Ok(ino) => Ok(Some(ino)),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn delete(&self, ino: Ino) -> Result<(), Error> {
        let live = self.mounted.get(ino)?;
        let locked = live.write_lock();
        self.change(&locked, |inode| inode.set_links_count(0))?;
        self.delete_unlinked(locked)
    }

    /// Deletes an inode without links, and releases the values of its attributes.
    fn delete_unlinked(&self, locked: Exclusive<'_>) -> Result<(), Error> {
        let values = self.values_of(&locked.inode().snapshot())?;
        reap::delete(self.mounted, &locked, reap::Patience::AllSteps)?;
        drop(locked);
        self.release_values(values)
    }

    /// Changes an inode's fields.
    fn change(&self, locked: &Exclusive<'_>, change: impl FnOnce(&mut Inode)) -> Result<(), Error> {
        let credits = self.mounted.reserve(1, 0)?;
        let handle = self.mounted.begin(credits)?;
        locked.change(&handle, change);
        Ok(())
    }

    /// Takes the numbers of inodes that are new.
    fn take_numbers(&mut self) -> Result<BTreeMap<Ino, InodeNumber<'a>>, Error> {
        let (volume, groups) = (self.mounted.volume(), self.mounted.groups());
        let mut numbers = BTreeMap::new();
        for (ino, said) in &self.everything.inodes {
            if said.inode.mode() == 0 || said.inode.links_count() == 0 {
                continue;
            }
            let is_directory = said.inode.file_type() == Some(FileType::Directory);
            if let Some(number) = ialloc::take_exact(volume, groups, *ino, is_directory)? {
                self.check_never_used(*ino, said)?;
                numbers.insert(*ino, number);
                self.fresh.insert(*ino);
            }
        }
        Ok(numbers)
    }

    /// Makes the inodes that are new, without names.
    fn make(&self, numbers: BTreeMap<Ino, InodeNumber<'a>>) -> Result<(), Error> {
        let parents = self.first_parents();
        for (ino, number) in numbers {
            let said = &self.everything.inodes[&ino];
            let live = self.mounted.get_new(ino)?;
            let locked = live.write_lock();
            let mut record = self.fresh_record(said);
            let content = match record.file_type() {
                Some(FileType::Directory) => NewContent::Directory,
                _ => NewContent::Empty,
            };
            let parent = parents.get(&ino).copied().unwrap_or(Ino::ROOT);
            let first = names::first_block(self.mounted, ino, parent, content, &mut record)?;
            let blocks = first.as_ref().map_or(0, names::FirstBlock::blocks);
            let credits = self.mounted.reserve(1 + BLOCKS_AN_INODE + blocks, 0)?;
            let handle = self.mounted.begin(credits)?;
            number.apply(&handle, live.of_ialloc());
            live.life.set_linkable(false);
            if let Some(first) = first {
                first.apply(&handle);
            }
            live.life.set_born(handle.epoch());
            let raw = &said.raw;
            locked.change_slot(&handle, |slot| {
                slot.fill(0);
                let len = raw.len().min(slot.len());
                slot[..len].copy_from_slice(&raw[..len]);
                record.write_to(slot);
                if !record.flags().contains(Flags::INLINE_DATA) {
                    inline::remove_contents(slot);
                }
            });
        }
        Ok(())
    }

    /// The directories in which inodes get their first names.
    fn first_parents(&self) -> BTreeMap<Ino, Ino> {
        let mut parents = BTreeMap::new();
        for ((parent, _), target) in &self.everything.names {
            if let Some(ino) = target {
                parents.entry(*ino).or_insert(*parent);
            }
        }
        parents
    }

    /// Lets a name stand for an inode, or nothing.
    fn name(&mut self, place: &Place, ino: Option<Ino>) -> Result<(), Error> {
        let (parent, name) = place;
        // The directory may be gone too, or have come and gone.
        if self.stands_for(place)? == ino {
            ino.into_iter()
                .for_each(|ino| self.note_there(*parent, ino));
            return Ok(());
        }
        for named in ino.iter().chain([parent]) {
            if !self.is_in_use(*named)? {
                return Err(bad_name(*named));
            }
        }
        let live = self.mounted.get(*parent)?;
        let above = &live.write_lock();
        self.unfold(above)?;
        let mut draft = dir::DirDraft::new(self.mounted, above)?;
        let place = draft.find(name)?;
        let mut subdirectories = 0;
        if let Some(place) = place {
            subdirectories -= i64::from(self.mounted.load(place.ino)?.is(FileType::Directory));
            *self.links.entry(place.ino).or_insert(0) -= 1;
            draft.remove(place)?;
        }
        if let Some(ino) = ino {
            let file_type = self.mounted.load(ino)?.file_type();
            let file_type = file_type.ok_or_else(|| bad_name(ino))?;
            subdirectories += i64::from(file_type == FileType::Directory);
            *self.links.entry(ino).or_insert(0) += 1;
            draft.add(name, ino, file_type)?;
        }
        let names = draft.finish()?;
        let credits = self.mounted.reserve(names.blocks() + 1, 0)?;
        let now = self.mounted.now()?;
        let handle = self.mounted.begin(credits)?;
        names.apply(&handle);
        above.change(&handle, |inode| {
            names::stamp_names(inode, now);
            match subdirectories {
                1 => names::add_subdirectory(inode),
                -1 => names::drop_subdirectory(inode),
                _ => {}
            }
        });
        Ok(())
    }

    /// Gives inodes the fields of their records and the links of their names; deletes those that have none.
    fn finish(&self) -> Result<(), Error> {
        let named = self.links.keys();
        let touched: BTreeSet<Ino> = self
            .everything
            .inodes
            .keys()
            .chain(named)
            .chain(self.there.union(&self.parents))
            .copied()
            .collect();
        let counted = self.count_where_in_doubt(&touched)?;
        for ino in touched {
            if !self.is_in_use(ino)? {
                continue;
            }
            let live = self.mounted.get(ino)?;
            let locked = live.write_lock();
            let now = live.snapshot();
            let links = counted.get(&ino).copied();
            let links = links.unwrap_or_else(|| self.links_of(&now));
            let said = self.everything.inodes.get(&ino);
            let sectors = self.sectors_of(&locked);
            let is_left = canary::makes(Canary::FieldsNotReplayed);
            let said = said.filter(|said| said.inode.mode() != 0 && !is_left);
            self.change(&locked, |inode| {
                if let Some(said) = said {
                    self.take_fields(inode, &said.inode);
                }
                sectors
                    .into_iter()
                    .for_each(|sectors| self.set_sectors(inode, sectors));
                inode.set_links_count(links);
            })?;
            if let Some(said) = said {
                self.take_contents(&locked, said)?;
            }
            if links == 0 && !self.orphans.contains(&ino) {
                self.delete_unlinked(locked)?;
            }
        }
        Ok(())
    }

    /// The number of the inode's names; for a directory, counted from its contents.
    fn links_of(&self, now: &LoadedInode) -> u16 {
        let change = self.links.get(&now.ino()).copied().unwrap_or(0);
        let is_fresh = self.fresh.contains(&now.ino());
        if now.is(FileType::Directory) {
            let is_named = change > 0 || change == 0 && !is_fresh;
            return if is_named { now.links_count() } else { 0 };
        }
        let before = if is_fresh {
            0
        } else {
            now.links_count().into()
        };
        // Names were counted one by one.
        u16::try_from(i64::max(before + change, 0)).unwrap_or(u16::MAX)
    }

    /// The record that a new inode begins with: without blocks, names or attributes of its own.
    fn fresh_record(&self, said: &Said) -> Inode {
        let mut record = said.inode;
        let is_directory = record.file_type() == Some(FileType::Directory);
        record.set_links_count(if is_directory { 2 } else { 1 });
        record.set_xattr_block(FsBlock(0));
        record.set_dtime(0);
        record.set_flags(self.fresh_flags(&said.inode));
        let is_mapped = match record.file_type() {
            Some(FileType::Symlink) => !blocks::is_short(&record),
            Some(FileType::Regular | FileType::Directory) => !self.is_inline(&record),
            _ => false,
        };
        if is_mapped {
            record.block_area_mut().fill(0);
        }
        if record.flags().contains(Flags::EXTENTS) {
            extent::encode(record.block_area_mut(), 0, ExtentEntries::Extents(&[]));
        }
        self.set_sectors(&mut record, 0);
        record
    }

    /// The flags that a new inode begins with.
    fn fresh_flags(&self, said: &Inode) -> Flags {
        let volume = self.mounted.volume();
        let is_directory = said.file_type() == Some(FileType::Directory);
        let kept = changeable().with(Flags::EXTENTS);
        let flags = Flags(said.flags().0 & kept.0);
        let is_folded = volume.has(Feature::CASEFOLD) && said.flags().contains(Flags::CASEFOLD);
        if self.is_inline(said) {
            flags.without(Flags::EXTENTS).with(Flags::INLINE_DATA)
        } else if is_directory {
            let mut flags = flags;
            if volume.has(Feature::EXTENT) {
                // A directory whose names were in its inode gets a block.
                flags = flags.with(Flags::EXTENTS);
            }
            if is_folded {
                flags = flags.with(Flags::CASEFOLD);
            }
            flags
        } else {
            flags
        }
    }

    /// Takes a record's fields, except those that follow from the map, the names and the attributes of the inode, and
    /// an orphan's `dtime`.
    fn take_fields(&self, inode: &mut Inode, said: &Inode) {
        let now = *inode;
        let volume = self.mounted.volume();
        let (huge, size) = (
            volume.has(Feature::HUGE_FILE),
            volume.geometry().block_size(),
        );
        *inode = *said;
        inode.set_extra_size(now.extra_size());
        *inode.block_area_mut() = *now.block_area();
        inode.set_xattr_block(now.xattr_block());
        inode.set_dtime(now.dtime());
        let mut may = changeable();
        if volume.has(Feature::VERITY) {
            may = may.with(Flags::VERITY);
        }
        let (flags, may) = (now.flags().0, may.0);
        inode.set_flags(Flags(flags & !may | said.flags().0 & may));
        self.set_sectors(inode, now.sectors(huge, size));
        if now.file_type() == Some(FileType::Directory) {
            inode.set_size(now.size_both_words());
        }
    }

    fn set_sectors(&self, inode: &mut Inode, sectors: u64) {
        let volume = self.mounted.volume();
        let huge = volume.has(Feature::HUGE_FILE);
        // It is a count that an inode held before, or 0.
        let _fits = inode.set_sectors(sectors, huge, volume.geometry().block_size());
    }
}
