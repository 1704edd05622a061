//! Lists a directory that may change meanwhile: in batches, each read under the directory's shared lock from its blocks
//! as they are then.
//!
//! In a directory whose names may move (into an index, or when a leaf is split), the listing has the order of the
//! names' hashes, a cookie is a hash, and a batch is a leaf. In other directories names stay in their place, a cookie
//! is a place, and a batch is a block. Either way a name that exists all the time is returned once. No lock is held
//! between two batches. A batch keeps its blocks as they were; a writer that changes one of them meanwhile changes a
//! copy.

use buffer::Block;
use ondisk::dirent::{self, DirRecord};
use ondisk::dirhash::{self, HashVersion, NameHash};
use ondisk::{Corrupt, Feature, FileType, Ino, LBlock, Site};
use sync::Arc;

use super::{Directory, ListedEntry, search};
use crate::core::Error;
use crate::inode::LiveInode;
use crate::token::LiveFs;

/// Cookies of `.` and `..` in a listing by hash; those of other names are larger.
const OWN: u64 = 1;
const PARENT: u64 = 2;
/// The bits of a cookie by hash that count names with the same hash. The count never becomes so large that the cookie
/// would be that of another major hash.
const ALIKE: u64 = 0xff;

/// A listing of a directory in use.
pub(super) struct LiveListing<'a> {
    mounted: &'a LiveFs,
    live: Arc<LiveInode>,
    batch: Batch,
    /// How many entries of the batch were returned.
    given: usize,
    /// Entries up to this cookie were returned, or are in the batch; `None` at the end.
    after: Option<u64>,
}

/// Entries that were read together.
#[derive(Default)]
struct Batch {
    /// The blocks that hold the entries' names.
    blocks: Vec<Arc<Block>>,
    entries: Vec<Listed>,
    /// The cookie after which the next batch begins; `None` at the end.
    next: Option<u64>,
}

/// An entry in a batch; its name is copied when the entry is returned.
struct Listed {
    cookie: u64,
    ino: Ino,
    /// The index of its block in the batch, and where its name begins there.
    block: u32,
    at: u32,
    len: u8,
    file_type: Option<FileType>,
}

impl Batch {
    /// Adds those entries of a block for which `cookie` returns a cookie.
    fn add(
        &mut self,
        directory: &Directory<'_>,
        number: LBlock,
        block: Arc<Block>,
        mut cookie: impl FnMut(&DirRecord<'_>) -> Option<u64>,
    ) -> Result<(), Error> {
        let broken = |corrupt| directory.corrupt(corrupt);
        // A batch of a listing by hash has fewer blocks than a directory may have.
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

    /// Sorts the entries from `first` on by their hashes, and those of one hash by the bytes of their names. Leaves out
    /// those up to the cookie `after`.
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
    /// The entries of one block by place, after a cookie.
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

    /// `.` and `..`, if they are after a cookie.
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

    /// All entries of a directory of one block, by hash.
    fn only_block_behind(&self, version: HashVersion, after: u64) -> Result<Batch, Error> {
        let mut batch = self.dots_behind(after)?;
        let first = batch.entries.len();
        self.hashed(LBlock(0), version, &mut batch)?;
        batch.in_order(first, after);
        Ok(batch)
    }

    /// The entries of the leaf where the names after a cookie begin, and of the leaves that continue it.
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
