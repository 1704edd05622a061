//! Listing a directory that changes meanwhile: batch after batch, each under the directory's shared lock and from its
//! blocks as they are then.
//!
//! Where names may move (into an index, and when leaves are split), the order is that of their hashes, and a cookie is
//! a hash; a batch is a leaf. Elsewhere names stay in their place, a cookie is a place, and a batch is a block. Either
//! way a name that is there all the time is returned once. No lock is held between two batches. A batch keeps its
//! blocks as they were; a writer that changes one meanwhile changes a copy.

use buffer::Block;
use ondisk::dirent::{self, DirRecord};
use ondisk::dirhash::{self, HashVersion, NameHash};
use ondisk::{Corrupt, Feature, FileType, Ino, LBlock, Site};
use sync::Arc;

use super::{Directory, ListedEntry, search};
use crate::core::Error;
use crate::inode::LiveInode;
use crate::token::LiveFs;

/// Cookies of `.` and `..` in a listing by hash; those of names come behind.
const OWN: u64 = 1;
const PARENT: u64 = 2;
/// In a cookie by hash: the bits that count names with the same hash. No count is so large that the cookie would be
/// another major hash's.
const ALIKE: u64 = 0xff;

/// A listing of a directory in use.
pub(super) struct LiveListing<'a> {
    mounted: &'a LiveFs,
    live: Arc<LiveInode>,
    batch: Batch,
    /// How many entries of the batch were given.
    given: usize,
    /// Entries up to this cookie were given, or are in the batch; `None` at the end.
    after: Option<u64>,
}

/// Some entries.
#[derive(Default)]
struct Batch {
    /// Where their names are.
    blocks: Vec<Arc<Block>>,
    entries: Vec<Listed>,
    /// Behind which cookie to look for more.
    next: Option<u64>,
}

/// An entry in a batch; its name is copied when it is given.
struct Listed {
    cookie: u64,
    ino: Ino,
    /// Which of the batch's blocks it is in, and where its name begins there.
    block: u32,
    at: u32,
    len: u8,
    file_type: Option<FileType>,
}

impl Batch {
    /// Adds the entries of a block that get a cookie.
    fn add(
        &mut self,
        directory: &Directory<'_>,
        number: LBlock,
        block: Arc<Block>,
        mut cookie: impl FnMut(&DirRecord<'_>) -> Option<u64>,
    ) -> Result<(), Error> {
        let broken = |corrupt| directory.corrupt(corrupt);
        // A listing by hash has fewer blocks at once than a directory may have.
        let index = self.blocks.len() as u32;
        for entry in dirent::entries(&block, directory.form_of(number, &block)) {
            let entry = entry.map_err(broken)?;
            if !entry.is_used() {
                continue;
            }
            let Some(cookie) = cookie(&entry) else {
                continue;
            };
            dirent::verify_name(entry.name).map_err(broken)?;
            self.entries.push(Listed {
                cookie,
                ino: entry.ino,
                block: index,
                // Both fit: blocks have at most 64 KiB, names 255 bytes.
                at: (entry.offset + dirent::HEADER_LEN) as u32,
                len: entry.name.len() as u8,
                file_type: entry.file_type,
            });
        }
        self.blocks.push(block);
        Ok(())
    }

    fn name(&self, listed: &Listed) -> &[u8] {
        let at = listed.at as usize;
        &self.blocks[listed.block as usize][at..at + usize::from(listed.len)]
    }

    /// Sorts the entries from `first` on by their hashes, alike ones by the bytes of their names, and leaves out those
    /// up to a cookie.
    fn in_order(&mut self, first: usize, after: u64) {
        let mut hashed = self.entries.split_off(first);
        hashed.sort_unstable_by(|a, b| {
            let by_hash = a.cookie.cmp(&b.cookie);
            by_hash.then_with(|| self.name(a).cmp(self.name(b)))
        });
        let mut alike = (0, 0);
        for mut listed in hashed {
            alike = match alike {
                (before, count) if before == listed.cookie => {
                    (before, (count + 1).min(ALIKE - PARENT - 1))
                }
                _ => (listed.cookie, 0),
            };
            listed.cookie += alike.1;
            if listed.cookie > after {
                self.entries.push(listed);
            }
        }
    }
}

/// The first cookie of names with this hash.
fn cookie(hash: NameHash) -> u64 {
    let hash = u64::from(hash.major >> 1) << 32 | u64::from(hash.minor);
    (hash & !ALIKE) + PARENT + 1
}

impl<'a> LiveListing<'a> {
    pub(super) fn new(mounted: &'a LiveFs, live: Arc<LiveInode>, after: u64) -> LiveListing<'a> {
        LiveListing {
            mounted,
            live,
            batch: Batch::default(),
            given: 0,
            after: Some(after),
        }
    }

    pub(super) fn next(&mut self) -> Option<Result<ListedEntry, Error>> {
        loop {
            if let Some(listed) = self.batch.entries.get(self.given) {
                self.given += 1;
                return Some(Ok(ListedEntry {
                    ino: listed.ino,
                    name: self.batch.name(listed).to_vec(),
                    file_type: listed.file_type,
                    cookie: listed.cookie,
                    // Encrypted directories are not changed.
                    is_encrypted: false,
                }));
            }
            let after = self.after.take()?;
            match self.load(after) {
                Ok(batch) => {
                    self.after = batch.next;
                    (self.batch, self.given) = (batch, 0);
                }
                Err(error) => {
                    if let Error::Corrupt(corrupt) = &error {
                        self.mounted.note(*corrupt);
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
            return Ok(Batch::default());
        }
        let directory = Directory::new(self.mounted.volume(), inode)?;
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
            return Ok(Batch::default());
        }
        let base = number << bits;
        let mut batch = Batch {
            next: Some((number + 1) << bits),
            ..Batch::default()
        };
        // Below `limits::DIRECTORY_BLOCKS`.
        let number = LBlock(number as u32);
        if let Some(block) = self.block(number)? {
            batch.add(self, number, block, |entry| {
                let is_behind = base + entry.offset as u64 >= after;
                is_behind.then(|| base + (entry.offset + entry.len) as u64)
            })?;
        }
        Ok(batch)
    }

    /// `.` and `..`, if they were not given.
    fn dots_behind(&self, after: u64) -> Result<Batch, Error> {
        let mut batch = Batch::default();
        if after < PARENT {
            let mut dots = [OWN, PARENT].into_iter();
            batch.add(self, LBlock(0), self.indexed_block(LBlock(0))?, |entry| {
                let cookie = dots.next().filter(|cookie| *cookie > after);
                cookie.filter(|_| dirent::is_dots(entry.name))
            })?;
        }
        Ok(batch)
    }

    /// Adds a block's names with their hashes.
    fn hashed(&self, number: LBlock, version: HashVersion, batch: &mut Batch) -> Result<(), Error> {
        let seed = self.volume.geometry().hash_seed();
        let block = self.indexed_block(number)?;
        batch.add(self, number, block, |entry| {
            let hash = || dirhash::hash(version, &seed, entry.name).unwrap_or_default();
            (!dirent::is_dots(entry.name)).then(|| cookie(hash()))
        })
    }

    /// All of a directory of one block, by hash.
    fn only_block_behind(&self, version: HashVersion, after: u64) -> Result<Batch, Error> {
        let mut batch = self.dots_behind(after)?;
        let first = batch.entries.len();
        self.hashed(LBlock(0), version, &mut batch)?;
        batch.in_order(first, after);
        Ok(batch)
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
        let mut batch = self.dots_behind(after)?;
        let first = batch.entries.len();
        let mut leaf = leaf;
        let mut next = None;
        for _ in 0..self.blocks {
            self.hashed(leaf, version, &mut batch)?;
            next = self.next_leaf(&mut frames, |_| true)?;
            match next {
                Some((continuing, begins)) if begins & 1 == 1 => leaf = continuing,
                _ => break,
            }
        }
        batch.in_order(first, after);
        let next = next.map(|(_, begins)| {
            let (major, minor) = (begins & !1, 0);
            cookie(NameHash { major, minor }) - 1
        });
        // Never back: the index of a broken directory may be out of order.
        batch.next = next.filter(|next| *next > after);
        Ok(batch)
    }
}
