//! States of a file system that the replay of fast commits must not make, whatever their checksums say: links and
//! devices of impossible sizes, and directories that are in two places, in no place, or within themselves.

use std::collections::{BTreeMap, BTreeSet};

use ondisk::inode::Inode;
use ondisk::{Corrupt, FileType, Ino, Site};

use super::{Replay, blocks};
use crate::core::Error;
use crate::core::limits;
use crate::dir;

impl Replay<'_> {
    /// Refuses records that no inode can have. Called when new numbers are taken and no inode is made yet.
    pub(super) fn check_records(&self) -> Result<(), Error> {
        // The most blocks that a map can name.
        let block_size = self.mounted.volume().geometry().block_size();
        let most = ((1 << 32) - 1) << block_size.bits();
        for (ino, said) in &self.everything.inodes {
            let inode = &said.inode;
            if inode.mode() == 0 || inode.links_count() == 0 || !self.is_in_use(*ino)? {
                continue;
            }
            let before = if self.fresh.contains(ino) {
                None
            } else {
                Some(self.mounted.load(*ino)?.size(false))
            };
            let fits = match inode.file_type() {
                Some(FileType::Directory) => true,
                Some(FileType::Regular) => inode.size(false) <= most,
                Some(FileType::Symlink) if before.is_none() => self.can_be_link(inode),
                // The target of a link, and a device, never change after they were made.
                Some(_) => inode.size(false) == before.unwrap_or(0),
                None => return Err(Corrupt::at(Site::FastCommitType).ino(*ino).into()),
            };
            if !fits {
                return Err(Corrupt::at(Site::FastCommitSize).ino(*ino).into());
            }
        }
        Ok(())
    }

    /// Whether a new link's record is as long as its target. The target of a long link is checked after it is mapped.
    fn can_be_link(&self, inode: &Inode) -> bool {
        let area = inode.block_area();
        let size = inode.size(false);
        if blocks::is_short(inode) {
            let end = area.iter().position(|byte| *byte == 0);
            return size > 0 && end.is_some_and(|end| end as u64 == size);
        }
        let block_bytes = self.mounted.volume().geometry().block_size().bytes_u64();
        let most = block_bytes.min(limits::SYMLINK_BYTES + 1);
        (area.len() as u64..most).contains(&size)
    }

    /// Refuses more names than can be looked up one by one in directories without an index. Such a directory may be as
    /// long as the file system, and consist of holes.
    pub(super) fn check_searches(&self) -> Result<(), Error> {
        let volume = self.mounted.volume();
        let mut names = BTreeMap::new();
        for (parent, _) in self.everything.names.keys() {
            *names.entry(*parent).or_insert(0_u64) += 1;
        }
        let mut searched = 0_u64;
        for (parent, names) in names {
            if !self.is_in_use(parent)? || !self.mounted.load(parent)?.is(FileType::Directory) {
                continue;
            }
            let blocks = dir::blocks_a_look(volume, self.mounted.load(parent)?)?.unwrap_or(0);
            searched = searched.saturating_add(names.saturating_mul(blocks));
        }
        if searched > limits::NAMES_BLOCKS {
            Err(Error::Unsupported(
                "too many names in fast commits for large directories without an index",
            ))
        } else {
            Ok(())
        }
    }

    /// Refuses new links whose targets are not in their blocks. Called when everything is mapped.
    pub(super) fn check_targets(&self) -> Result<(), Error> {
        let volume = self.mounted.volume();
        let block_size = volume.geometry().block_size();
        for ino in &self.fresh {
            let inode = self.mounted.load(*ino)?;
            if !inode.is(FileType::Symlink) || blocks::is_short(&self.everything.inodes[ino].inode)
            {
                continue;
            }
            let first = self
                .mapped(*ino, 0, 1)?
                .into_iter()
                .find(|run| run.is_data());
            let mut target = vec![0; block_size.bytes()];
            if let Some(start) = first.and_then(|run| run.physical) {
                let device = volume.cache().device();
                device.read_at(start.offset(block_size), &mut target)?;
            }
            let end = target.iter().position(|byte| *byte == 0);
            let size = self.everything.inodes[ino].inode.size(false);
            if end.is_none_or(|end| end as u64 != size) {
                return Err(Corrupt::at(Site::FastCommitTarget).ino(*ino).into());
            }
        }
        Ok(())
    }

    /// Refuses directories that are not named exactly once in the directory of their `..`, and directories that lose
    /// their name and are not empty. Called when all names are replayed.
    pub(super) fn check_directories(&self) -> Result<(), Error> {
        for ino in self.links.keys().chain(&self.fresh) {
            let inode = self.mounted.load(*ino)?;
            if !self.is_in_use(*ino)? || !inode.is(FileType::Directory) {
                continue;
            }
            let before = i64::from(!self.fresh.contains(ino));
            match before + self.links.get(ino).copied().unwrap_or(0) {
                0 if *ino != Ino::ROOT && dir::is_empty(self.mounted, inode)? => {}
                0 => return Err(full(*ino)),
                1 => {}
                _ => return Err(elsewhere(*ino)),
            }
        }
        let mut hanging = BTreeSet::new();
        for ((parent, _), ino) in &self.everything.names {
            let Some(ino) = *ino else { continue };
            if !self.mounted.load(ino)?.is(FileType::Directory) {
                continue;
            }
            let is_there = ino != Ino::ROOT && dir::lookup_in(self.mounted, ino, b"..")? == *parent;
            if !is_there || !self.hangs_from_old(ino, &mut hanging)? {
                return Err(elsewhere(ino));
            }
        }
        Ok(())
    }

    /// Whether a directory's parents lead to a directory that existed before; new ones could lead to each other.
    /// `hanging` holds the directories that are known to do so, so that each is checked once however deep the tree is.
    fn hangs_from_old(&self, ino: Ino, hanging: &mut BTreeSet<Ino>) -> Result<bool, Error> {
        let mut at = ino;
        let mut way = BTreeSet::new();
        while self.fresh.contains(&at) && !hanging.contains(&at) {
            if !way.insert(at) {
                return Ok(false);
            }
            at = dir::lookup_in(self.mounted, at, b"..")?;
        }
        hanging.append(&mut way);
        Ok(true)
    }
}

/// The error that refuses to remove a directory that is not empty.
pub(super) fn full(ino: Ino) -> Error {
    Corrupt::at(Site::FastCommitFull).ino(ino).into()
}

/// The error that refuses a directory in an impossible place.
fn elsewhere(ino: Ino) -> Error {
    Corrupt::at(Site::FastCommitPlace).ino(ino).into()
}
