//! Finding a name in a directory.

use std::borrow::Cow;

use buffer::Block;
use ondisk::casefold::{self, FoldedName};
use ondisk::dirent::{self, DirForm};
use ondisk::dirhash::{self, HashVersion};
use ondisk::htree::{self, IndexBlock};
use ondisk::{Corrupt, Feature, Ino, LBlock, Site};
use sync::Arc;

use super::blocks::Blocks;
use super::{Directory, encoded};
use crate::blocks::OpenVolume;
use crate::core::Error;
use crate::inode::{Exclusive, LiveInode, LoadedInode, MountedFs};

/// The inode that `name` names in a directory.
fn lookup(volume: &OpenVolume, inode: LoadedInode, name: &[u8]) -> Result<Ino, Error> {
    look(volume, inode, name)?.ino.ok_or(Error::NotFound)
}

/// What a search for a name came to.
#[derive(Clone, Copy, Default)]
struct Looked {
    /// The inode that it names, if it is there.
    ino: Option<Ino>,
    /// Its record, where it has one.
    place: Option<FoundRecord>,
    /// Where it is not there: the leaf of the index that would hold it, if that is known.
    leaf: Option<Leaf>,
}

impl Looked {
    fn at(place: Option<FoundRecord>) -> Looked {
        Looked {
            ino: place.map(|place| place.ino),
            place,
            leaf: None,
        }
    }

    fn only(ino: Option<Ino>) -> Looked {
        Looked {
            ino,
            ..Looked::default()
        }
    }
}

fn look(volume: &OpenVolume, inode: LoadedInode, name: &[u8]) -> Result<Looked, Error> {
    let directory = Directory::new(volume, inode)?;
    if name == b"." {
        return Ok(Looked::only(Some(directory.inode.ino())));
    }
    let wanted = match Name::new(&directory, name) {
        // A string that can't be a name is refused when it is added.
        Err(Error::NotFound) => return Ok(Looked::default()),
        wanted => wanted?,
    };
    if directory.inode.is_inline() {
        return Ok(Looked::only(directory.find_inline(&wanted)?));
    }
    if name == b".." {
        return Ok(Looked::at(directory.find_in(LBlock(0), &wanted)?));
    }
    directory.search(&wanted)
}

/// Bytes for which a directory counts as one block when names are kept.
const BYTES_A_BLOCK: u64 = 4096;

/// How often a lookup is tried before it waits for a thread that changes the directory.
pub(super) const TRIES: usize = 3;

/// [`lookup`] in the directory with this number as it is now. Others may change it meanwhile: an answer other than
/// "found" counts only if the names did not change; after some tries the directory's lock decides.
pub(crate) fn lookup_in(mounted: &MountedFs, ino: Ino, name: &[u8]) -> Result<Ino, Error> {
    let volume = mounted.volume();
    if !volume.is_writable() {
        return lookup(volume, mounted.load_used(ino)?, name);
    }
    if let Some(found) = mounted.known_name(ino, name) {
        return Ok(found);
    }
    let live = mounted.get(ino)?;
    for _ in 0..TRIES {
        if let Some(found) = glance(mounted, &live, name) {
            return found;
        }
    }
    let _unchanged = live.read_lock();
    lookup(volume, mounted.load_used(ino)?, name)
}

/// One try of [`lookup_in`], which takes no lock: `None` if others changed the directory meanwhile.
pub(crate) fn glance(
    mounted: &MountedFs,
    live: &LiveInode,
    name: &[u8],
) -> Option<Result<Ino, Error>> {
    let before = live.names.version();
    let found = mounted.load_used(live.ino()).and_then(|directory| {
        let blocks = directory.bytes(mounted.volume()) / BYTES_A_BLOCK;
        Ok((lookup(mounted.volume(), directory, name)?, blocks))
    });
    let is_still = before & 1 == 0 && live.names.version() == before;
    match found {
        Ok((ino, blocks)) => {
            if is_still && !dirent::is_dots(name) {
                mounted.know_name(live, before, (name, ino), blocks);
            }
            Some(Ok(ino))
        }
        Err(error) => is_still.then_some(Err(error)),
    }
}

/// What a name stood for, looked up without a lock, for a caller that looks again under the lock.
pub(crate) struct NameHint {
    /// The directory. The reference keeps the versions apart from those of an instance loaded later.
    directory: Arc<LiveInode>,
    /// The version of its names at which it was seen; `None` if the names changed meanwhile.
    version: Option<u64>,
    looked: Looked,
}

impl NameHint {
    /// The inode that the name stood for.
    pub(crate) fn ino(&self) -> Option<Ino> {
        self.looked.ino
    }

    /// The version of the directory's names at which it was seen; `None` if they changed meanwhile.
    pub(super) fn version(&self) -> Option<u64> {
        self.version
    }

    /// The directory.
    pub(super) fn directory(&self) -> &LiveInode {
        &self.directory
    }

    /// The leaf that the name would have been in.
    pub(super) fn hint(&self) -> Option<Leaf> {
        self.looked.leaf
    }

    /// What is still true in a directory whose lock the caller has: the place of the name's record, or that the name
    /// does not exist. `None` if the directory changed.
    pub(super) fn place(&self, locked: &Exclusive<'_>) -> Option<Option<FoundRecord>> {
        let is_record = self.looked.ino.is_some() == self.looked.place.is_some();
        (is_record && self.holds(locked)).then_some(self.looked.place)
    }

    /// The leaf that the name would be in, of the directory whose lock the caller has, if that is known.
    pub(super) fn leaf(&self, locked: &Exclusive<'_>) -> Option<Leaf> {
        self.looked.leaf.filter(|_| self.holds(locked))
    }

    fn holds(&self, locked: &Exclusive<'_>) -> bool {
        Arc::ptr_eq(&self.directory, locked.inode())
            && self.version == Some(self.directory.names.version())
    }
}

/// Looks a name up on a file system that is written to; a missing name is not an error.
pub(crate) fn see(mounted: &MountedFs, ino: Ino, name: &[u8]) -> Result<NameHint, Error> {
    let directory = mounted.get(ino)?;
    see_in(mounted, directory, name)
}

pub(super) fn see_in(
    mounted: &MountedFs,
    directory: Arc<LiveInode>,
    name: &[u8],
) -> Result<NameHint, Error> {
    let look =
        |directory: &LiveInode| look(mounted.volume(), mounted.load_used(directory.ino())?, name);
    for _ in 0..TRIES {
        let before = directory.names.version();
        let looked = look(&directory);
        let is_still = before & 1 == 0 && directory.names.version() == before;
        if is_still || looked.as_ref().is_ok_and(|looked| looked.ino.is_some()) {
            let looked = looked?;
            let version = is_still.then_some(before);
            return Ok(NameHint {
                directory,
                version,
                looked,
            });
        }
    }
    let unchanged = directory.read_lock();
    let looked = look(&directory)?;
    let version = Some(directory.names.version());
    drop(unchanged);
    Ok(NameHint {
        directory,
        version,
        looked,
    })
}

/// A record that has a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FoundRecord {
    /// The inode that it names.
    pub(crate) ino: Ino,
    pub(super) block: LBlock,
    pub(super) offset: usize,
}

/// A name that is looked for, and how it is compared.
pub(super) enum Name<'a> {
    /// Byte for byte.
    Exact(Cow<'a, [u8]>),
    /// Without case.
    Folded(FoldedName<'a>),
}

impl<'a> Name<'a> {
    pub(super) fn new(directory: &Directory<'_>, name: &'a [u8]) -> Result<Name<'a>, Error> {
        if directory.is_encrypted() && name != b".." {
            if name.len() > encoded::ENCODED_MAX {
                return Err(Error::NameTooLong);
            }
            let name = encoded::decode(name).ok_or(Error::NotFound)?;
            return Ok(Name::Exact(Cow::Owned(name)));
        }
        if name.len() > dirent::NAME_MAX {
            return Err(Error::NameTooLong);
        }
        if !dirent::is_valid_name(name) {
            return Err(Error::NotFound);
        }
        if !directory.is_casefolded() || name == b".." {
            return Ok(Name::Exact(Cow::Borrowed(name)));
        }
        if directory.volume.superblock().encoding() != casefold::ENCODING_UTF8_12_1 {
            return Err(Error::Unsupported("the encoding of casefolded names"));
        }
        if !casefold::IS_SUPPORTED {
            return Err(Error::Unsupported(
                "a name in a directory that ignores case (feature `casefold`)",
            ));
        }
        Ok(Name::Folded(FoldedName::new(name)))
    }

    fn is(&self, stored: &[u8]) -> bool {
        match self {
            Name::Exact(name) => **name == *stored,
            Name::Folded(wanted) => wanted.is(stored),
        }
    }

    /// The major word of the hash; none for a hash that takes a key.
    pub(super) fn hash(&self, version: HashVersion, seed: &[u32; 4]) -> Option<u32> {
        let hash = match self {
            Name::Exact(name) => dirhash::hash(version, seed, name),
            Name::Folded(wanted) => wanted.hash(version, seed),
        };
        hash.map(|hash| hash.major)
    }
}

/// The first record of `bytes` that names what is wanted: the inode, and the byte at which it begins.
fn find_in_bytes(
    bytes: &[u8],
    form: DirForm,
    wanted: &Name<'_>,
) -> Result<Option<(Ino, usize)>, Corrupt> {
    if let Name::Exact(name) = wanted {
        return dirent::find(bytes, form, name);
    }
    for entry in dirent::entries(bytes, form) {
        let entry = entry?;
        if entry.is_used() && wanted.is(entry.name) {
            return Ok(Some((entry.ino, entry.offset)));
        }
    }
    Ok(None)
}

/// The leaf that would hold a name, and the name's hash.
#[derive(Clone, Copy)]
pub(super) struct Leaf {
    pub(super) block: LBlock,
    pub(super) hash: u32,
}

/// What a search through an index came to.
enum Searched {
    Found(FoundRecord),
    /// The leaf for the name does not hold it.
    Absent(Leaf),
    /// The index does not help: it makes no sense, or its hash takes a key.
    Useless,
}

/// An index block on the way down, and the entry that was taken.
pub(super) struct Frame {
    pub(super) block: Arc<Block>,
    pub(super) number: LBlock,
    pub(super) taken: usize,
}

/// A way down an index.
pub(super) struct Way {
    /// From the root on; at least the root.
    pub(super) frames: Vec<Frame>,
    pub(super) leaf: LBlock,
    pub(super) hash: u32,
}

impl Directory<'_> {
    pub(super) fn find_inline(&self, wanted: &Name<'_>) -> Result<Option<Ino>, Error> {
        let (parent, runs) = self.inline_parts()?;
        if wanted.is(b"..") {
            return Ok(Some(parent));
        }
        for run in runs {
            let found = find_in_bytes(run, self.form.without_checksum(), wanted)
                .map_err(|corrupt| self.corrupt(corrupt))?;
            if let Some((ino, _)) = found {
                return Ok(Some(ino));
            }
        }
        Ok(None)
    }

    /// The record that has a name, else the leaf of the index that would hold it. A name that the index does not lead
    /// to has no record that could be changed.
    fn search(&self, wanted: &Name<'_>) -> Result<Looked, Error> {
        if self.is_indexed() {
            match self.find_by_index(wanted)? {
                Searched::Found(place) => return Ok(Looked::at(Some(place))),
                Searched::Absent(leaf) if !self.is_casefolded() => {
                    return Ok(Looked {
                        leaf: Some(leaf),
                        ..Looked::default()
                    });
                }
                Searched::Absent(_) | Searched::Useless => {}
            }
        }
        let mut blocks = Blocks::new(self, 0)?;
        while let Some(open) = blocks.next_block(self) {
            let open = open?;
            let found = find_in_bytes(&open.block, open.form, wanted)
                .map_err(|corrupt| self.corrupt(corrupt.block(open.physical)))?;
            if let Some((ino, offset)) = found {
                let block = open.number;
                return Ok(if self.is_indexed() {
                    Looked::only(Some(ino))
                } else {
                    Looked::at(Some(FoundRecord { ino, block, offset }))
                });
            }
        }
        Ok(Looked::default())
    }

    /// Looks through one block; there is nothing in a hole.
    fn find_in(&self, number: LBlock, wanted: &Name<'_>) -> Result<Option<FoundRecord>, Error> {
        let Some(block) = self.block(number)? else {
            return Ok(None);
        };
        let found = find_in_bytes(&block, self.form_of(number, &block), wanted)
            .map_err(|corrupt| self.corrupt_in(number, corrupt))?;
        Ok(found.map(|(ino, offset)| FoundRecord {
            ino,
            block: number,
            offset,
        }))
    }

    /// The record with a name, in a directory that is being changed: `..` in block 0, others through the index where
    /// there is one, which must make sense.
    pub(super) fn find_place(&self, name: &[u8]) -> Result<Option<FoundRecord>, Error> {
        let wanted = Name::new(self, name)?;
        if name == b".." {
            return self.find_in(LBlock(0), &wanted);
        }
        if self.is_indexed() {
            return match self.find_by_index(&wanted)? {
                Searched::Found(place) => Ok(Some(place)),
                Searched::Absent(_) => Ok(None),
                Searched::Useless => Err(self.corrupt(Corrupt::at(Site::IndexUseless))),
            };
        }
        // No more blocks than the file system has.
        for number in 0..self.blocks as u32 {
            let found = self.find_in(LBlock(number), &wanted)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// A block that the index leads to, which must be there.
    pub(super) fn indexed_block(&self, number: LBlock) -> Result<Arc<Block>, Error> {
        match self.block(number)? {
            Some(block) => Ok(block),
            None => Err(self.corrupt(Corrupt::at(Site::HtreeBlock))),
        }
    }

    pub(super) fn root<'b>(
        &self,
        block: &'b [u8],
    ) -> Result<(htree::Root, IndexBlock<'b>), Corrupt> {
        let levels_max = if self.volume.has(Feature::LARGE_DIR) {
            htree::LEVELS_MAX_LARGE
        } else {
            htree::LEVELS_MAX
        };
        htree::root(block, self.form, levels_max, self.form.hashes)
    }

    /// The index in a block of the directory.
    pub(super) fn index<'b>(
        &self,
        number: LBlock,
        block: &'b [u8],
    ) -> Result<IndexBlock<'b>, Corrupt> {
        match number {
            LBlock(0) => self.root(block).map(|(_, index)| index),
            _ => htree::node(block, self.form),
        }
    }

    fn find_by_index(&self, wanted: &Name<'_>) -> Result<Searched, Error> {
        match self.descend(|version, seed| wanted.hash(version, seed))? {
            Some(way) => self.find_in_leaves(way.frames, way.leaf, way.hash, wanted),
            None => Ok(Searched::Useless),
        }
    }

    /// Descends the index to the first leaf for a name with the hash that `hash` returns; `None` if the index is
    /// broken, or `hash` returns `None`.
    pub(super) fn descend(
        &self,
        hash: impl FnOnce(HashVersion, &[u32; 4]) -> Option<u32>,
    ) -> Result<Option<Way>, Error> {
        let block = self.indexed_block(LBlock(0))?;
        let Ok((root, _)) = self.root(&block) else {
            return Ok(None);
        };
        let version = self.hash_version(root.version);
        let Some(hash) = hash(version, &self.volume.geometry().hash_seed()) else {
            return Ok(None);
        };
        let mut frames: Vec<Frame> = Vec::with_capacity(3);
        let mut next = (LBlock(0), block);
        loop {
            let (number, block) = next;
            let Ok(index) = self.index(number, &block) else {
                return Ok(None);
            };
            let taken = index.find(hash);
            let below = index.block(taken);
            frames.push(Frame {
                block,
                number,
                taken,
            });
            if frames.len() > usize::from(root.levels) {
                return Ok(Some(Way {
                    frames,
                    leaf: below,
                    hash,
                }));
            }
            next = (below, self.indexed_block(below)?);
        }
    }

    /// Looks through the leaf that the index names, and those that continue it.
    fn find_in_leaves(
        &self,
        mut frames: Vec<Frame>,
        leaf: LBlock,
        hash: u32,
        wanted: &Name<'_>,
    ) -> Result<Searched, Error> {
        let mut leaf = leaf;
        for _ in 0..self.blocks {
            let block = self.indexed_block(leaf)?;
            let form = self.form_of(leaf, &block);
            let found = find_in_bytes(&block, form, wanted);
            if let Some((ino, offset)) = found.map_err(|corrupt| self.corrupt_in(leaf, corrupt))? {
                return Ok(Searched::Found(FoundRecord {
                    ino,
                    block: leaf,
                    offset,
                }));
            }
            match self.continuing_leaf(&mut frames, hash)? {
                Some(next) => leaf = next,
                None => return Ok(Searched::Absent(Leaf { block: leaf, hash })),
            }
        }
        Err(self.corrupt(Corrupt::at(Site::HtreeWide)))
    }

    /// The leaf behind the current one, if it continues it under the same hash.
    fn continuing_leaf(&self, frames: &mut [Frame], hash: u32) -> Result<Option<LBlock>, Error> {
        let next = self.next_leaf(frames, |begins| begins == hash | 1)?;
        Ok(next.map(|(leaf, _)| leaf))
    }

    /// The leaf after the current one and the hash at which it begins, if `wanted` accepts that hash.
    pub(super) fn next_leaf(
        &self,
        frames: &mut [Frame],
        wanted: impl Fn(u32) -> bool,
    ) -> Result<Option<(LBlock, u32)>, Error> {
        // Up to the first index block with an entry behind the one taken ...
        let mut level = frames.len();
        let (mut next, begins) = loop {
            let Some(above) = level.checked_sub(1) else {
                return Ok(None);
            };
            level = above;
            let frame = &mut frames[level];
            let index = self
                .index(frame.number, &frame.block)
                .map_err(|corrupt| self.corrupt_in(frame.number, corrupt))?;
            let taken = frame.taken + 1;
            if taken < index.count() {
                let begins = index.hash(taken);
                if !wanted(begins) {
                    return Ok(None);
                }
                let below = index.block(taken);
                frame.taken = taken;
                break (below, begins);
            }
        };
        // ... and down again along the first entries.
        for frame in &mut frames[level + 1..] {
            let block = self.indexed_block(next)?;
            let number = next;
            next = self
                .index(number, &block)
                .map_err(|corrupt| self.corrupt_in(number, corrupt))?
                .block(0);
            *frame = Frame {
                block,
                number,
                taken: 0,
            };
        }
        Ok(Some((next, begins)))
    }
}
