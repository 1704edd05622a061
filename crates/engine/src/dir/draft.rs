//! Changing a directory's names: prepared on copies of its blocks, applied by putting the copies in their place.
//!
//! A [`DirDraft`] belongs to the thread that holds the directory's lock exclusively. Every change is made on the
//! draft's own copies and seen by its next searches, so that several changes of one directory (a rename within it) need
//! no special care. New blocks are taken out of the free space, changed blocks are pinned; dropping the draft gives
//! everything back. [`DirDraft::finish`] returns what it costs, and [`PreparedNames::apply`] can't fail.
//!
//! What a cut leaves: all of the changes or none, because they are applied under one handle.

use std::collections::BTreeMap;

use ondisk::dirent::{self, DirBlockWriter};
use ondisk::htree::Kind;
use ondisk::{Corrupt, Feature, FileType, Flags, FsBlock, Ino, LBlock, Site};
use sync::Arc;

use buffer::Block;
use journal::Handle;

mod index;

use super::Directory;
use super::list::DirListing;
use super::search::{FoundRecord, NameHint};
use crate::blocks::{Pin, Seal};
use crate::core::Error;
use crate::core::limits;
use crate::inode::Placed;
use crate::inode::{Exclusive, LoadedInode};
use crate::map::{self, MapChange};
use crate::space::mballoc::TakenBlocks;
use crate::token::LiveFs;

/// Changes of a directory that are not yet applied.
pub(crate) struct DirDraft<'a> {
    mounted: &'a LiveFs,
    locked: &'a Exclusive<'a>,
    pub(super) directory: Directory<'a>,
    /// The blocks in `directory.changed`.
    pins: BTreeMap<u32, Pin>,
    /// New blocks, which follow the directory's last one.
    taken: Vec<TakenBlocks<'a>>,
    flags: Flags,
    /// Whether names moved from their places.
    is_reshaped: bool,
    /// Names put into blocks, and bytes of the longest one's record.
    placed: (usize, usize),
}

/// Changes of a directory, ready to be applied.
pub(crate) struct PreparedNames<'a> {
    mounted: &'a LiveFs,
    locked: &'a Exclusive<'a>,
    blocks: Vec<(Pin, Seal, Arc<Block>)>,
    /// The map with the new blocks, if there are any.
    grown: Option<MapChange<'a>>,
    size: u64,
    flags: Flags,
    placed: Placed,
}

/// Whether a directory holds no names but `.` and `..`. The caller holds its lock.
pub(crate) fn is_empty(mounted: &LiveFs, inode: LoadedInode) -> Result<bool, Error> {
    for entry in DirListing::new(mounted.volume(), inode, 0)? {
        if !dirent::is_dots(&entry?.name) {
            return Ok(false);
        }
    }
    Ok(true)
}

impl<'a> DirDraft<'a> {
    /// Begins to change the directory whose lock the caller holds.
    ///
    /// # Errors
    /// `NotDirectory`; `NotFound` for one that was removed; `Encrypted`, `Unsupported` for kinds that can't be
    /// changed.
    pub(crate) fn new(
        mounted: &'a LiveFs,
        locked: &'a Exclusive<'a>,
    ) -> Result<DirDraft<'a>, Error> {
        let inode = locked.inode().snapshot();
        if inode.links_count() == 0 {
            return Err(Error::NotFound);
        }
        let flags = inode.flags();
        let directory = Directory::new(mounted.volume(), inode)?;
        if directory.is_encrypted() {
            return Err(Error::Encrypted);
        }
        if directory.inode.is_inline() {
            return Err(Error::Unsupported("changing an inline directory"));
        }
        Ok(DirDraft {
            mounted,
            locked,
            directory,
            pins: BTreeMap::new(),
            taken: Vec::new(),
            flags,
            is_reshaped: false,
            placed: (0, 0),
        })
    }

    /// The record with a name.
    ///
    /// # Errors
    /// `NameTooLong`; `NotFound` for what can't be a name; `Corrupt`, `Io`.
    pub(crate) fn find(&self, name: &[u8]) -> Result<Option<FoundRecord>, Error> {
        self.directory.find_place(name)
    }

    /// The record with a name that was looked up before the directory was locked.
    ///
    /// # Errors
    /// As [`DirDraft::find`].
    pub(crate) fn find_seen(
        &self,
        seen: &NameHint,
        name: &[u8],
    ) -> Result<Option<FoundRecord>, Error> {
        match seen.place(self.locked).filter(|_| self.pins.is_empty()) {
            Some(place) => Ok(place),
            None => self.find(name),
        }
    }

    /// As [`DirDraft::add`], of a name that was looked up before the directory was locked.
    ///
    /// # Errors
    /// As [`DirDraft::add`].
    pub(crate) fn add_seen(
        &mut self,
        seen: &NameHint,
        name: &[u8],
        ino: Ino,
        file_type: FileType,
    ) -> Result<(), Error> {
        // No change of this draft moved names from leaf to leaf: it was the first, or only took a name away.
        if let Some(leaf) = seen.leaf(self.locked).filter(|_| !self.is_reshaped)
            && self.insert(leaf.block, name, ino, file_type)?
        {
            return Ok(());
        }
        self.add(name, ino, file_type)
    }

    /// Adds a name that is not there: a valid one, of at most 255 bytes.
    ///
    /// # Errors
    /// `NoSpace`, `DirectoryFull`, `Corrupt`, `Io`; the draft is then good for nothing.
    pub(crate) fn add(&mut self, name: &[u8], ino: Ino, file_type: FileType) -> Result<(), Error> {
        if self.directory.is_indexed() {
            return index::add(self, name, ino, file_type);
        }
        // A directory on a file system without the feature has no index after a change.
        self.flags = self.flags.without(Flags::INDEX);
        // No more blocks than the file system has.
        for number in 0..self.directory.blocks as u32 {
            if self.insert(LBlock(number), name, ino, file_type)? {
                return Ok(());
            }
        }
        let may_index = self.directory.volume.has(Feature::DIR_INDEX);
        if self.directory.blocks == 1 && may_index && index::convert(self)? {
            return index::add(self, name, ino, file_type);
        }
        let number = self.append()?;
        self.rewrite(number, [(ino, name, Some(file_type))].into_iter())
    }

    /// Removes a record that [`DirDraft::find`] found, with no change since.
    ///
    /// # Errors
    /// `Corrupt`, `Io`; the draft is then good for nothing.
    pub(crate) fn remove(&mut self, place: FoundRecord) -> Result<(), Error> {
        let form = self.directory.form;
        self.edit(place.block, |bytes| {
            dirent::remove(bytes, form, place.offset)
        })
    }

    /// Lets a record that [`DirDraft::find`] found name another inode.
    ///
    /// # Errors
    /// As [`DirDraft::remove`].
    pub(crate) fn retarget(
        &mut self,
        place: FoundRecord,
        ino: Ino,
        file_type: FileType,
    ) -> Result<(), Error> {
        // `..` of an indexed directory lies in a block without a tail of entries.
        let form = self.directory.form.without_checksum();
        let mut record_len = 0;
        self.edit(place.block, |bytes| {
            let entry = dirent::entries_from(bytes, form, place.offset).next();
            record_len = form.record_len(entry.transpose()?.map_or(&[], |entry| entry.name));
            dirent::retarget(bytes, form, place.offset, ino, Some(file_type))
        })?;
        // A replay takes the name away first, and others may come where it was.
        self.place(record_len);
        Ok(())
    }

    /// Counts a name for fast commits.
    fn place(&mut self, record_len: usize) {
        let (names, longest) = self.placed;
        self.placed = (names + 1, longest.max(record_len));
    }

    /// Lets `..` name another directory.
    ///
    /// # Errors
    /// As [`DirDraft::remove`].
    pub(crate) fn set_parent(&mut self, parent: Ino) -> Result<(), Error> {
        match self.find(b"..")? {
            Some(place) => self.retarget(place, parent, FileType::Directory),
            None => Err(self.directory.corrupt(Corrupt::at(Site::DraftBlock))),
        }
    }

    /// Adds a record to one block, if there is room.
    pub(super) fn insert(
        &mut self,
        number: LBlock,
        name: &[u8],
        ino: Ino,
        file_type: FileType,
    ) -> Result<bool, Error> {
        let Some(block) = self.directory.block(number)? else {
            return Ok(false);
        };
        let form = self.directory.form;
        let room = dirent::room(&block, form, name);
        let Some(room) = room.map_err(|corrupt| self.directory.corrupt(corrupt))? else {
            return Ok(false);
        };
        self.place(form.record_len(name));
        // Nobody changes the block meanwhile, so its copy is as it was looked at.
        self.edit(number, |bytes| {
            dirent::insert(bytes, form, room, ino, name, Some(file_type));
            Ok(())
        })?;
        Ok(true)
    }

    /// Lets one block hold these records and no others.
    pub(super) fn rewrite<'n>(
        &mut self,
        number: LBlock,
        records: impl Iterator<Item = (Ino, &'n [u8], Option<FileType>)>,
    ) -> Result<(), Error> {
        let form = self.directory.form;
        self.is_reshaped = true;
        self.edit(number, |bytes| {
            let mut writer = DirBlockWriter::new(bytes, form);
            for (ino, name, file_type) in records {
                if !writer.push(ino, name, file_type, None) {
                    return Err(Corrupt::at(Site::DraftOverrun));
                }
            }
            writer.finish();
            Ok(())
        })
    }

    /// Changes the draft's copy of a block, which is made and pinned on the first change.
    pub(super) fn edit(
        &mut self,
        number: LBlock,
        change: impl FnOnce(&mut [u8]) -> Result<(), Corrupt>,
    ) -> Result<(), Error> {
        if !self.pins.contains_key(&number.0) {
            let pin = self.pin(number)?;
            self.directory.changed.insert(number.0, pin.bytes());
            self.pins.insert(number.0, pin);
        }
        let changed = match self.directory.changed.get_mut(&number.0) {
            Some(block) => change(Arc::make_mut(block).bytes_mut()),
            None => Ok(()),
        };
        changed.map_err(|corrupt| self.directory.corrupt(corrupt))
    }

    fn pin(&self, number: LBlock) -> Result<Pin, Error> {
        let directory = &self.directory;
        let block = directory.indexed_block(number)?;
        let at = map::find_block(directory.volume, &directory.inode, number)?;
        // It was just read from there.
        let at = at.ok_or_else(|| directory.corrupt(Corrupt::at(Site::DraftHole)))?;
        let seal = self.seal(number, &block);
        let kind = crate::blocks::Kind::Directory;
        directory
            .volume
            .pin(at, kind, directory.inode.ino(), seal, |bytes| {
                let verified = directory.verify_checksum(number, bytes);
                verified.map_err(|corrupt| directory.corrupt(corrupt.block(at)))
            })
    }

    fn seal(&self, number: LBlock, bytes: &[u8]) -> Seal {
        let seed = self.directory.inode.seed();
        match self.directory.index_kind(number, bytes) {
            _ if !self.directory.form.checksum => Seal::None,
            None => Seal::Entries(seed),
            Some(Kind::Root) => Seal::IndexRoot(seed),
            Some(Kind::Node) => Seal::IndexNode(seed),
        }
    }

    /// Adds a block of zeros, which the caller fills.
    pub(super) fn append(&mut self) -> Result<LBlock, Error> {
        let directory = &mut self.directory;
        let bits = directory.form.block_size.bits();
        let most = if directory.volume.has(Feature::LARGE_DIR) {
            limits::DIRECTORY_BLOCKS
        } else {
            limits::DIRECTORY_BLOCKS.min(u64::from(u32::MAX) >> bits)
        };
        if directory.blocks >= most {
            return Err(Error::DirectoryFull);
        }
        let goal = match self.taken.last() {
            Some(blocks) => Some(blocks.run().start),
            None => match directory.blocks.checked_sub(1) {
                // At most 2^28 blocks.
                Some(last) => {
                    map::find_block(directory.volume, &directory.inode, LBlock(last as u32))?
                }
                None => None,
            },
        };
        let goal = FsBlock(goal.map_or(0, |block| block.0 + 1));
        let blocks = self.mounted.take_behind(goal)?;
        let kind = crate::blocks::Kind::Directory;
        let ino = directory.inode.ino();
        let start = blocks.run().start;
        let pin = directory.volume.pin_new(start, kind, ino, Seal::None)?;
        let number = LBlock(directory.blocks as u32);
        directory.blocks += 1;
        directory.changed.insert(number.0, pin.bytes());
        self.pins.insert(number.0, pin);
        self.taken.push(blocks);
        Ok(number)
    }

    /// The directory has an index from now on.
    pub(super) fn set_indexed(&mut self) {
        self.directory.indexed = true;
        self.flags = self.flags.with(Flags::INDEX);
    }

    /// Makes the changes ready to be applied.
    ///
    /// # Errors
    /// `NoSpace`, `Unsupported` when new blocks can't be mapped; `Corrupt`, `Io`.
    pub(crate) fn finish(mut self) -> Result<PreparedNames<'a>, Error> {
        let mut blocks = Vec::with_capacity(self.pins.len());
        // Of one block only; fast commits do not support more.
        let leaf = self.pins.keys().next().copied();
        let placed = Placed {
            leaf: leaf.filter(|_| self.directory.is_indexed()).unwrap_or(0),
            form: self.directory.form,
            names: self.placed.0,
            longest: self.placed.1,
        };
        for (number, pin) in std::mem::take(&mut self.pins) {
            if let Some(bytes) = self.directory.changed.get(&number) {
                blocks.push((pin, self.seal(LBlock(number), bytes), Arc::clone(bytes)));
            }
        }
        let added = self.taken.len() as u64;
        let grown = match added {
            0 => None,
            _ => {
                let mut map = map::ExtentDraft::new(self.mounted, self.locked)?;
                map.insert(self.directory.blocks - added, self.taken, false)?;
                Some(map.prepare()?)
            }
        };
        Ok(PreparedNames {
            mounted: self.mounted,
            locked: self.locked,
            blocks,
            grown,
            size: self.directory.blocks << self.directory.form.block_size.bits(),
            flags: self.flags,
            placed,
        })
    }
}

impl PreparedNames<'_> {
    /// Blocks of the handle that applying uses, the directory's inode among them.
    pub(crate) fn blocks(&self) -> u32 {
        // Nothing is freed, so nothing is revoked.
        let grown = self.grown.as_ref().map_or(1, |change| change.cost().0);
        // A handful.
        grown + self.blocks.len() as u32
    }

    /// Whether e2fsck, which replays names first fit, surely finds room for all that came since the last full commit.
    fn has_room_in_a_replay(&self, handle: &Handle<'_>) -> bool {
        let Some(changes) = self.mounted.changes() else {
            return true;
        };
        match &*self.blocks {
            [] => true,
            [(pin, ..)] if self.grown.is_none() => {
                let directory = self.locked.inode().ino();
                changes.note_placed(handle, directory, &self.placed, &pin.bytes())
            }
            _ => false,
        }
    }

    /// Applies the changes, under the lock under which they were prepared. Times and the number of links are the
    /// caller's affair.
    pub(crate) fn apply(self, handle: &Handle<'_>) {
        let locked = self.locked;
        if !self.has_room_in_a_replay(handle) {
            locked.inode().set_unloggable(handle);
        }
        // A directory's data are its names.
        locked.inode().stamp_data(handle);
        locked.change_names(|| {
            for (pin, seal, bytes) in self.blocks {
                pin.replace(handle, seal, bytes);
            }
            let has_grown = self.grown.is_some();
            if let Some(change) = self.grown {
                change.apply(handle);
            }
            locked.change(handle, |inode| {
                inode.set_flags(self.flags);
                if has_grown {
                    inode.set_size(self.size);
                }
            });
        });
    }
}
