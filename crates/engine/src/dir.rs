//! Directories: finding a name, and listing all of them.
//!
//! ```text
//! linear:  blocks of entries               looked through from the first
//! indexed: block 0 is the root of an index by hash; listing takes no notice of it
//! inline:  entries within the inode, behind the parent's number
//! ```
//!
//! A name is looked up as the kernel does it: through the index if the directory has one. It is looked up block by
//! block if the directory has no index, if the index is broken, or if names are compared without case and the index
//! (perhaps made under other rules) does not have the name. A block is verified when it is first read, and every record
//! before it is used. A lookup or a listing visits at most the blocks of the directory, which are at most those of the
//! file system.
//!
//! In encrypted directories names are shown in the form that [`encoded`] describes, and are looked up in it.

mod blocks;
mod draft;
mod encoded;
mod list;
mod live;
mod search;
mod slot;

use std::collections::BTreeMap;

use buffer::Block;
use ondisk::casefold::FoldedName;
use ondisk::dirent::{self, DirForm};
use ondisk::dirhash::{self, HashVersion};
use ondisk::htree::{self, Kind};
use ondisk::{Corrupt, Feature, FileType, Flags, FsBlock, Ino, LBlock, Site};
use sync::Arc;

use crate::blocks::OpenVolume;
use crate::core::Error;
use crate::core::limits;
use crate::inode::LoadedInode;
use crate::map;

pub(crate) use draft::{DirDraft, PreparedNames, is_empty};
pub use list::DirListing;
pub(crate) use search::{FoundRecord, NameHint, glance, lookup_in, see};
pub(crate) use slot::find_slot;

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedEntry {
    /// The inode it names; not verified to be in use.
    pub ino: Ino,
    /// The name: no slash or NUL in it, not empty; in an encrypted directory an encoded form of it, other than for
    /// `.` and `..`.
    pub name: Vec<u8>,
    /// The inode's type, where the directory records it.
    pub file_type: Option<FileType>,
    /// Where the entries behind this one begin, for [`crate::InodeFs::read_dir_from`]. Grows from entry to entry. On a
    /// file system that is open for writing it holds whatever happens to the directory: see [`DirListing`].
    pub cookie: u64,
    /// Whether the name is encrypted.
    pub is_encrypted: bool,
}

/// Blocks that a lookup in a directory reads one after the other; `None` if an index leads to the name.
pub(crate) fn blocks_a_look(volume: &OpenVolume, inode: LoadedInode) -> Result<Option<u64>, Error> {
    let directory = Directory::new(volume, inode)?;
    Ok((!directory.is_indexed()).then_some(directory.blocks))
}

/// An inode that is a directory, and how to read it.
struct Directory<'a> {
    volume: &'a OpenVolume,
    inode: LoadedInode,
    form: DirForm,
    blocks: u64,
    /// Whether block 0 is the root of an index.
    indexed: bool,
    /// Blocks as a draft has changed them so far; none for readers.
    changed: BTreeMap<u32, Arc<Block>>,
}

impl<'a> Directory<'a> {
    fn new(volume: &'a OpenVolume, inode: LoadedInode) -> Result<Directory<'a>, Error> {
        if !inode.is(FileType::Directory) {
            return Err(Error::NotDirectory);
        }
        let geometry = volume.geometry();
        let blocks = inode.bytes(volume) >> geometry.block_size().bits();
        if blocks > geometry.blocks_count().min(limits::DIRECTORY_BLOCKS) {
            return Err(Corrupt::at(Site::DirectorySize).ino(inode.ino()).into());
        }
        let mut directory = Directory {
            volume,
            form: DirForm::of(geometry, inode.flags()),
            inode,
            blocks,
            indexed: false,
            changed: BTreeMap::new(),
        };
        let has_index = directory.inode.flags().contains(Flags::INDEX);
        directory.indexed = has_index && volume.has(Feature::DIR_INDEX);
        // Without the feature casefold the flag has no meaning.
        directory.form.hashes &= directory.is_casefolded();
        Ok(directory)
    }

    fn is_encrypted(&self) -> bool {
        self.inode.flags().contains(Flags::ENCRYPT)
    }

    fn is_casefolded(&self) -> bool {
        self.volume.has(Feature::CASEFOLD) && self.inode.flags().contains(Flags::CASEFOLD)
    }

    fn is_indexed(&self) -> bool {
        self.indexed
    }

    /// The inode's place, for messages.
    fn corrupt(&self, corrupt: Corrupt) -> Error {
        corrupt.ino(self.inode.ino()).into()
    }

    /// The inode's place and that of one of its blocks, for messages.
    fn corrupt_in(&self, number: LBlock, corrupt: Corrupt) -> Error {
        // The block's place comes from the map. The block was read a moment ago, so the map fails only if it is
        // damaged, too.
        match map::find_block(self.volume, &self.inode, number) {
            Ok(Some(at)) => self.corrupt(corrupt.block(at)),
            _ => self.corrupt(corrupt),
        }
    }

    /// The hash function that a root's version stands for in this file system.
    fn hash_version(&self, stored: HashVersion) -> HashVersion {
        if self.volume.geometry().has_unsigned_hash() {
            stored.unsigned()
        } else {
            stored
        }
    }

    /// The major word of the hash of a name that the directory holds; `None` for a hash that takes a key.
    fn name_hash(&self, version: HashVersion, seed: &[u32; 4], name: &[u8]) -> Option<u32> {
        let hash = if self.is_casefolded() {
            FoldedName::new(name).hash(version, seed)
        } else {
            dirhash::hash(version, seed, name)
        };
        hash.map(|hash| hash.major)
    }

    /// Block `number` of the directory, with its checksum verified; `None` for a hole and beyond the end.
    fn block(&self, number: LBlock) -> Result<Option<Arc<Block>>, Error> {
        if let Some(block) = self.changed.get(&number.0) {
            return Ok(Some(Arc::clone(block)));
        }
        if u64::from(number.0) >= self.blocks {
            return Ok(None);
        }
        match map::find_block(self.volume, &self.inode, number)? {
            Some(at) => self.block_at(number, at).map(Some),
            None => Ok(None),
        }
    }

    /// The same, when its place on the device is known.
    fn block_at(&self, number: LBlock, at: FsBlock) -> Result<Arc<Block>, Error> {
        let kind = crate::blocks::Kind::Directory;
        let verify = |bytes: &[u8]| {
            let verified = self.verify_checksum(number, bytes);
            verified.map_err(|corrupt| self.corrupt(corrupt.block(at)))
        };
        self.volume.read_block(at, kind, self.inode.ino(), verify)
    }

    /// Which kind of checksum a block has shows in the block itself.
    fn verify_checksum(&self, number: LBlock, bytes: &[u8]) -> Result<(), Corrupt> {
        let seed = self.inode.seed();
        match self.index_kind(number, bytes) {
            _ if !self.form.checksum => Ok(()),
            Some(kind) => htree::verify_checksum(bytes, kind, seed),
            None => dirent::verify_checksum(bytes, seed),
        }
    }

    /// Which part of an index a block is, if any.
    fn index_kind(&self, number: LBlock, bytes: &[u8]) -> Option<Kind> {
        match number {
            _ if !self.is_indexed() => None,
            LBlock(0) => Some(Kind::Root),
            _ => htree::is_node(bytes, self.form).then_some(Kind::Node),
        }
    }

    /// How the entries of a block are written: those of an index block have no checksum among them.
    fn form_of(&self, number: LBlock, bytes: &[u8]) -> DirForm {
        match self.index_kind(number, bytes) {
            Some(_) => self.form.without_checksum(),
            None => self.form,
        }
    }

    /// The parts of an inline directory: the parent, and two runs of entries.
    fn inline_parts(&self) -> Result<(Ino, [&[u8]; 2]), Error> {
        let (area, rest) = self.inode.inline_parts()?;
        let Some((parent, first)) = area.split_first_chunk::<4>() else {
            return Err(self.corrupt(Corrupt::at(Site::DirectoryInline)));
        };
        Ok((Ino(u32::from_le_bytes(*parent)), [first, rest]))
    }
}
