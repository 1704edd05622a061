//! The state that another program leaves if it begins to replay the same log in place and does not finish. Linux, asked
//! for a read-only mount, fails at the first name, after it has written records of inodes home, with their links, and
//! marked their blocks as free; a cut may leave the same state of any replay.
//!
//! So the blocks that the log's inodes map are marked in use before anything else. An inode's link count is accepted if
//! the home state and the log's names give the count in its record; otherwise names are counted in all directories. An
//! inode's space is computed from its map. What can't be distinguished from a new inode is refused.

use std::collections::{BTreeMap, BTreeSet};

use ondisk::{Corrupt, FileType, FsBlock, Ino, Site};

use super::Replay;
use super::said::{self, Said};
use crate::core::Error;
use crate::core::limits;
use crate::dir::DirListing;
use crate::inode::Exclusive;
use crate::map::{self, ExtentDraft};
use crate::names;
use crate::space::mballoc;

impl Replay<'_> {
    /// Marks blocks in use that inodes of the log have. An inode whose map can't be read is left as it is, because it
    /// can't be changed; a bitmap that can't be read may be one that was not written whole, and ends the replay.
    pub(super) fn keep_blocks(&self) -> Result<(), Error> {
        let everything = self.everything;
        let names = everything.names.iter();
        let named = names.flat_map(|((parent, _), ino)| [Some(*parent), *ino]);
        let told = everything.inodes.keys().chain(everything.runs.keys());
        let all: BTreeSet<Ino> = told.copied().chain(named.flatten()).collect();
        // Each block is one inode's, so all inodes have no more than there are: many that share one large map would
        // keep us busy for hours.
        let most = self.mounted.volume().geometry().blocks_count();
        let (mut kept, mut held, mut unread) = (0, 0, 0);
        for ino in all {
            let runs = self.runs_of(ino)?;
            unread += u32::from(runs.is_none());
            let runs = runs.unwrap_or_default();
            held += runs.iter().map(|(_, len)| len).sum::<u64>();
            if held > most || unread > limits::UNREAD_MAPS {
                return Err(Corrupt::at(Site::FastCommitShared).ino(ino).into());
            }
            kept += self.keep_runs(ino, runs)?;
        }
        match kept {
            0 => Ok(()),
            // From here on they can be freed.
            _ => self.mounted.sync_all(),
        }
    }

    /// The blocks that an inode has at home; `None` if that can't be read.
    fn runs_of(&self, ino: Ino) -> Result<Option<Vec<(FsBlock, u64)>>, Error> {
        let (volume, groups) = (self.mounted.volume(), self.mounted.groups());
        let number = volume.geometry().group_of_ino(ino);
        let (group, index) = number.ok_or(Error::NotFound)?;
        if !groups.inode_bits(volume, group)?.is_in_image(index) {
            return Ok(Some(Vec::new()));
        }
        let runs = (self.mounted.get(ino)).and_then(|live| self.blocks_of(&live.write_lock()));
        match runs {
            Err(Error::Corrupt(_)) => Ok(None),
            runs => runs.map(Some),
        }
    }

    /// How many were free.
    fn keep_runs(&self, ino: Ino, runs: Vec<(FsBlock, u64)>) -> Result<u64, Error> {
        let (volume, groups) = (self.mounted.volume(), self.mounted.groups());
        let mut kept = 0;
        for (start, len) in runs {
            volume.check_unowned(ino, start, len)?;
            for blocks in mballoc::take_free(volume, groups, start, len)? {
                kept += u64::from(blocks.run().len);
                let credits = self.mounted.reserve(mballoc::BLOCKS_A_RUN, 0)?;
                let handle = self.mounted.begin(credits)?;
                blocks.apply(&handle);
            }
        }
        Ok(kept)
    }

    /// The blocks that an inode's space is: data, index, attributes.
    fn blocks_of(&self, locked: &Exclusive<'_>) -> Result<Vec<(FsBlock, u64)>, Error> {
        let inode = locked.inode().snapshot();
        let mut runs = if map::is_mapped(&inode) {
            ExtentDraft::new(self.mounted, locked)?.into_blocks()?
        } else {
            Vec::new()
        };
        let attributes = inode.xattr_block();
        if attributes != FsBlock(0) {
            runs.push((attributes, 1));
        }
        Ok(runs)
    }

    /// The space of an inode by its map, which is brought up to date; `None` if it has no map, or the map can't be
    /// read.
    pub(super) fn sectors_of(&self, locked: &Exclusive<'_>) -> Option<u64> {
        if !map::is_mapped(&locked.inode().snapshot()) {
            return None;
        }
        let runs = self.blocks_of(locked).ok()?;
        let size = self.mounted.volume().geometry().block_size();
        let blocks: u64 = runs.iter().map(|(_, len)| len).sum();
        Some(blocks << (size.bits() - 9))
    }

    /// An inode has a name already that it was to get. One that is new here had none before.
    pub(super) fn note_there(&mut self, parent: Ino, ino: Ino) {
        self.there.insert(ino);
        if self.fresh.contains(&ino) {
            *self.links.entry(ino).or_insert(0) += 1;
            self.parents.insert(parent);
        }
    }

    /// Refuses to make an inode anew whose record is that of the same file with blocks: its number's bit is lost.
    pub(super) fn check_never_used(&self, ino: Ino, said: &Said) -> Result<(), Error> {
        // What can't be read was never written.
        let Ok(now) = self.mounted.load(ino) else {
            return Ok(());
        };
        let is_there = now.mode() != 0 && now.links_count() > 0 && now.dtime() == 0;
        if !is_there || said::is_another(&now, &said.inode) || self.gone.contains(&ino) {
            return Ok(());
        }
        let live = self.mounted.get(ino)?;
        match self.blocks_of(&live.write_lock()) {
            Ok(blocks) if blocks.is_empty() => Ok(()),
            _ => Err(half(ino)),
        }
    }

    /// The links of inodes for which the home state and the log do not agree. All names are replayed.
    pub(super) fn count_where_in_doubt(
        &self,
        touched: &BTreeSet<Ino>,
    ) -> Result<BTreeMap<Ino, u16>, Error> {
        let mut counted = BTreeMap::new();
        for ino in touched {
            if self.is_in_use(*ino)? && self.is_in_doubt(*ino)? {
                counted.insert(*ino, 0);
            }
        }
        if counted.is_empty() {
            return Ok(counted);
        }
        let names = self.count_names(counted.keys().copied().collect())?;
        for (ino, links) in &mut counted {
            let found = names.get(ino).copied().unwrap_or(0);
            *links = self.links_by(*ino, found)?;
        }
        Ok(counted)
    }

    fn is_in_doubt(&self, ino: Ino) -> Result<bool, Error> {
        let now = self.mounted.load(ino)?;
        let ours = i64::from(self.links_of(&now));
        let said = self.everything.links.get(&ino);
        if now.is(FileType::Directory) {
            // A directory with more subdirectories than can be counted has a link count of one.
            let differs = said.is_some_and(|said| *said != ours && *said > 1);
            return Ok(ours > 1 && (differs || self.parents.contains(&ino)));
        }
        Ok(said.map_or(self.there.contains(&ino), |said| *said != ours))
    }

    /// How many names inodes have, or subdirectories. Each directory is read once, whatever leads to it.
    fn count_names(&self, wanted: BTreeSet<Ino>) -> Result<BTreeMap<Ino, u32>, Error> {
        let mut found = BTreeMap::new();
        let mut met = BTreeSet::from([Ino::ROOT]);
        let mut next = vec![Ino::ROOT];
        while let Some(directory) = next.pop() {
            for entry in DirListing::of(self.mounted, directory, 0)? {
                let entry = entry?;
                if entry.name == b"." || entry.name == b".." {
                    continue;
                }
                let may_be = entry.file_type.is_none_or(|is| is == FileType::Directory);
                let is_directory = may_be && self.mounted.load(entry.ino)?.is(FileType::Directory);
                let named = if is_directory { directory } else { entry.ino };
                if wanted.contains(&named) {
                    let count: &mut u32 = found.entry(named).or_insert(0);
                    *count = count.saturating_add(1);
                }
                if is_directory && met.insert(entry.ino) {
                    next.push(entry.ino);
                }
            }
        }
        Ok(found)
    }

    /// The link count of an inode that has `found` names, or subdirectories.
    fn links_by(&self, ino: Ino, found: u32) -> Result<u16, Error> {
        let now = self.mounted.load(ino)?;
        let ours = self.links_of(&now);
        if now.is(FileType::Directory) {
            let links = u16::try_from(found.saturating_add(2)).ok();
            let links = links.filter(|links| *links <= names::LINKS_MAX);
            return Ok(links.unwrap_or(ours));
        }
        if self.fresh.contains(&ino) && found > u32::from(ours) {
            // It had names before, and was another's that is lost.
            return Err(half(ino));
        }
        let is_to_go = self.everything.links.get(&ino) == Some(&0);
        match found {
            // An inode without names that the area does not record as deleted keeps its links: e2fsck finds it a name.
            0 if !is_to_go => Ok(ours),
            found => Ok(u16::try_from(found).unwrap_or(u16::MAX)),
        }
    }
}

/// The refusal of an image that another program has half replayed and whose former state is unknown.
fn half(ino: Ino) -> Error {
    Corrupt::at(Site::FastCommitHalf).ino(ino).into()
}
