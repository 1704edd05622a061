//! Listing a directory that changes meanwhile: batch after batch, each under the directory's shared lock and from its
//! blocks as they are then.
//!
//! Where names may move (into an index, and when leaves are split), the order is that of their hashes, and a cookie
//! is a hash; a batch is a leaf. Elsewhere names stay where they are, a cookie is a place, and a batch is a block.
//! Either way a name that is there all the time is given once. No lock is held between two batches.

use std::collections::VecDeque;

use ondisk::dirent::{self, Entry};
use ondisk::dirhash::{self, HashVersion, NameHash};
use ondisk::{Corrupt, Feature, LBlock, Site};
use sync::Arc;

use super::list::{DirEntry, show};
use super::{Directory, search};
use crate::error::Error;
use crate::icache::{Icache, LiveInode};

/// Cookies of `.` and `..` in a listing by hash; those of names come behind.
const OWN: u64 = 1;
const PARENT: u64 = 2;
/// Of a cookie by hash, the bits that count names whose hashes are alike. No count comes so far that the cookie would
/// be another major hash's.
const ALIKE: u64 = 0xff;

/// A listing of a directory in use.
pub(super) struct Live<'a> {
    icache: &'a Icache,
    live: Arc<LiveInode>,
    batch: VecDeque<DirEntry>,
    /// Entries up to this cookie were given; `None` at the end.
    after: Option<u64>,
}

/// Some entries, and behind which cookie to look for more.
type Batch = (Vec<DirEntry>, Option<u64>);

/// The first cookie of names with this hash.
fn cookie(hash: NameHash) -> u64 {
    let hash = u64::from(hash.major >> 1) << 32 | u64::from(hash.minor);
    (hash & !ALIKE) + PARENT + 1
}

impl<'a> Live<'a> {
    pub(super) fn new(icache: &'a Icache, live: Arc<LiveInode>, after: u64) -> Live<'a> {
        Live {
            icache,
            live,
            batch: VecDeque::new(),
            after: Some(after),
        }
    }

    pub(super) fn next(&mut self) -> Option<Result<DirEntry, Error>> {
        loop {
            if let Some(entry) = self.batch.pop_front() {
                return Some(Ok(entry));
            }
            let after = self.after.take()?;
            match self.load(after) {
                Ok((entries, next)) => {
                    self.batch = entries.into();
                    self.after = next;
                }
                Err(error) => {
                    if let Error::Corrupt(corrupt) = &error {
                        self.icache.note(*corrupt);
                    }
                    return Some(Err(error));
                }
            }
        }
    }

    fn load(&self, after: u64) -> Result<Batch, Error> {
        let _unchanged = self.live.read_lock();
        let inode = self.live.snapshot();
        if inode.links_count() == 0 {
            return Ok((Vec::new(), None));
        }
        let directory = Directory::new(self.icache.volume(), inode)?;
        match default_version(&directory) {
            _ if directory.is_indexed() => directory.leaf_behind(after),
            Some(version) if directory.blocks == 1 => directory.only_block_behind(version, after),
            _ => directory.block_behind(after),
        }
    }
}

/// The hash that the directory gets when it becomes indexed; `None` if it does not.
fn default_version(directory: &Directory<'_>) -> Option<HashVersion> {
    let geometry = directory.volume.geometry();
    let version = HashVersion::from_code(geometry.hash_version())?.as_stored();
    let is_plain = version != HashVersion::SipHash && geometry.has(Feature::DIR_INDEX);
    is_plain.then(|| directory.hash_version(version))
}

impl Directory<'_> {
    /// The rest of one block by place.
    fn block_behind(&self, after: u64) -> Result<Batch, Error> {
        let bits = self.form.block_size.bits();
        let number = after >> bits;
        if number >= self.blocks {
            return Ok((Vec::new(), None));
        }
        let base = number << bits;
        let next = Some((number + 1) << bits);
        // Below `limits::DIRECTORY_BLOCKS`.
        let number = LBlock(number as u32);
        let Some(block) = self.block(number)? else {
            return Ok((Vec::new(), next));
        };
        let mut entries = Vec::new();
        for entry in dirent::entries(&block, self.form_of(number, &block)) {
            let entry = entry.map_err(|corrupt| self.corrupt(corrupt))?;
            if entry.is_used() && base + entry.offset as u64 >= after {
                entries.push(show(self, &entry, base).map_err(|corrupt| self.corrupt(corrupt))?);
            }
        }
        Ok((entries, next))
    }

    /// `.` and `..`, if they were not given.
    fn dots_behind(&self, after: u64) -> Result<Vec<DirEntry>, Error> {
        let mut dots = Vec::new();
        let block = self.indexed_block(LBlock(0))?;
        let form = self.form_of(LBlock(0), &block);
        for (entry, cookie) in dirent::entries(&block, form).zip([OWN, PARENT]) {
            let entry = entry.map_err(|corrupt| self.corrupt(corrupt))?;
            if entry.is_used() && dirent::is_dots(entry.name) && cookie > after {
                let shown = show(self, &entry, 0).map_err(|corrupt| self.corrupt(corrupt))?;
                dots.push(DirEntry { cookie, ..shown });
            }
        }
        Ok(dots)
    }

    /// Adds a block's names with their hashes.
    fn hashed(
        &self,
        number: LBlock,
        version: HashVersion,
        found: &mut Vec<(u64, DirEntry)>,
    ) -> Result<(), Error> {
        let block = self.indexed_block(number)?;
        let seed = self.volume.geometry().hash_seed();
        for entry in dirent::entries(&block, self.form_of(number, &block)) {
            let entry: Entry<'_> = entry.map_err(|corrupt| self.corrupt(corrupt))?;
            if entry.is_used() && !dirent::is_dots(entry.name) {
                let hash = dirhash::hash(version, &seed, entry.name).unwrap_or_default();
                let shown = show(self, &entry, 0).map_err(|corrupt| self.corrupt(corrupt))?;
                found.push((cookie(hash), shown));
            }
        }
        Ok(())
    }

    /// All of a directory of one block, by hash.
    fn only_block_behind(&self, version: HashVersion, after: u64) -> Result<Batch, Error> {
        let mut found = Vec::new();
        self.hashed(LBlock(0), version, &mut found)?;
        let mut entries = self.dots_behind(after)?;
        entries.extend(in_order(found, after));
        Ok((entries, None))
    }

    /// The leaf where the names behind a cookie begin, and those that continue it.
    fn leaf_behind(&self, after: u64) -> Result<Batch, Error> {
        let from = (after.saturating_sub(PARENT) >> 32) as u32;
        let broken = || self.corrupt(Corrupt::at(Site::ListingHole));
        let way = self.descend(|_, _| Some(from << 1))?.ok_or_else(broken)?;
        let search::Way {
            mut frames, leaf, ..
        } = way;
        let root = self.indexed_block(LBlock(0))?;
        let (root, _) = self.root(&root).map_err(|corrupt| self.corrupt(corrupt))?;
        let version = self.hash_version(root.version);
        let mut found = Vec::new();
        let mut leaf = leaf;
        let mut next = None;
        for _ in 0..self.blocks {
            self.hashed(leaf, version, &mut found)?;
            next = self.next_leaf(&mut frames, |_| true)?;
            match next {
                Some((continuing, begins)) if begins & 1 == 1 => leaf = continuing,
                _ => break,
            }
        }
        let mut entries = self.dots_behind(after)?;
        entries.extend(in_order(found, after));
        let next = next.map(|(_, begins)| {
            let (major, minor) = (begins & !1, 0);
            cookie(NameHash { major, minor }) - 1
        });
        // Never back: the index of a broken directory may be out of order.
        Ok((entries, next.filter(|next| *next > after)))
    }
}

/// Names in the order of their hashes, alike ones in that of their bytes; those behind a cookie.
fn in_order(mut found: Vec<(u64, DirEntry)>, after: u64) -> impl Iterator<Item = DirEntry> {
    found.sort_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name)));
    let mut alike = (0, 0);
    found.into_iter().filter_map(move |(first, entry)| {
        alike = match alike {
            (before, count) if before == first => (first, (count + 1).min(ALIKE - PARENT - 1)),
            _ => (first, 0),
        };
        let cookie = first + alike.1;
        (cookie > after).then_some(DirEntry { cookie, ..entry })
    })
}
