//! Directories, block by block.

use core::ops::ControlFlow;

use ondisk::dirent::{self, DirForm};
use ondisk::htree::IndexBlock;
use ondisk::inode::{Inode, attribute_area, checksum_seed};
use ondisk::xattr::{self, INDEX_SYSTEM, ListPlace, Value};
use ondisk::{Corrupt, FileType, Flags, FsBlock, Ino, htree};

use crate::error::InspectError;
use crate::image::RawImage;
use crate::walk::{BUDGET, Piece, walk};

/// Blocks of a directory that are looked at, at most.
const BLOCKS_MAX: u64 = 1 << 22;

/// Gets a block's logical number, its place and its bytes.
type Visit<'a, E> = &'a mut dyn FnMut(u64, FsBlock, &[u8]) -> Result<ControlFlow<()>, E>;

/// An inode known to be a directory.
pub struct DirectoryReader<'a> {
    raw: &'a RawImage,
    ino: Ino,
    inode: Inode,
    slot: Vec<u8>,
    form: DirForm,
}

/// A block of a directory.
pub struct DirectoryBlock<'a> {
    /// Its number in the directory.
    pub lblk: u64,
    /// Where it is on disk.
    pub place: FsBlock,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// What it holds of the index; `None` for a block of entries.
    pub index: Option<Result<DirectoryIndex<'a>, Corrupt>>,
    /// Whether its checksum is wrong.
    pub is_checksum_wrong: bool,
}

/// A block of a directory's index.
pub enum DirectoryIndex<'a> {
    /// Its root.
    Root(htree::Root, IndexBlock<'a>),
    /// A node below the root.
    Node(IndexBlock<'a>),
}

impl<'a> DirectoryReader<'a> {
    /// Reads a directory's inode.
    ///
    /// # Errors
    /// `NotADirectory`, and the errors of reading and parsing the inode.
    pub fn open(raw: &'a RawImage, ino: Ino) -> Result<DirectoryReader<'a>, InspectError> {
        let slot = raw.slot(ino)?;
        let inode = Inode::parse(&slot).map_err(|corrupt| corrupt.ino(ino))?;
        if inode.file_type() != Some(FileType::Directory) {
            return Err(InspectError::NotADirectory(ino));
        }
        let form = DirForm::of(&raw.geometry, inode.flags());
        Ok(DirectoryReader {
            raw,
            ino,
            inode,
            slot,
            form,
        })
    }

    /// How its entries are written.
    #[must_use]
    pub fn form(&self) -> DirForm {
        self.form
    }

    /// The directory above it and its runs of entries, if it has no blocks of its own: behind the number of the
    /// directory above, and in the attributes.
    #[must_use]
    pub fn inline(&self) -> Option<(Ino, [&[u8]; 2])> {
        let is_inline = self.inode.flags().contains(Flags::INLINE_DATA);
        is_inline.then(|| (Ino(self.inode.block_word(0)), self.inline_runs()))
    }

    fn inline_runs(&self) -> [&[u8]; 2] {
        let area = attribute_area(&self.slot).unwrap_or_default();
        let entries = xattr::entries(ListPlace::Inode(area))
            .ok()
            .into_iter()
            .flatten();
        let mut data = entries.filter(|entry| entry.index == INDEX_SYSTEM && entry.name == b"data");
        let rest = match data.next().map(|entry| entry.value) {
            Some(Value::Here(bytes)) => bytes,
            _ => &[],
        };
        [&self.inode.block_area()[4..], rest]
    }

    /// Calls `visit` with every block: its logical number, its place, its bytes.
    fn read_blocks<E: From<InspectError>>(&self, visit: Visit<'_, E>) -> Result<(), E> {
        let (mut budget, mut left) = (BUDGET, BLOCKS_MAX);
        walk::<E>(self.raw, self.ino, &self.inode, &mut budget, &mut |piece| {
            let Piece::Run(run) = piece else {
                return Ok(ControlFlow::Continue(()));
            };
            left = left
                .checked_sub(run.len)
                .ok_or(InspectError::DirectoryTooLarge)?;
            for index in 0..run.len {
                let block = FsBlock(run.start.0 + index);
                if visit(run.logical + index, block, &self.raw.block(block)?)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// The inode of a name; `None` if it has no entry. What is broken is passed over.
    ///
    /// # Errors
    /// Those of reading the directory's map and blocks.
    pub fn lookup(&self, name: &[u8]) -> Result<Option<Ino>, InspectError> {
        let form = self.form.without_checksum();
        let search = |block: &[u8]| {
            let mut entries = dirent::entries(block, form).filter_map(Result::ok);
            entries
                .find(|entry| entry.is_used() && entry.name == name)
                .map(|entry| entry.ino)
        };
        if let Some((parent, runs)) = self.inline() {
            if name == b".." {
                return Ok(Some(parent));
            }
            return Ok(runs.into_iter().find_map(search));
        }
        let mut found = None;
        self.read_blocks::<InspectError>(&mut |_, _, block| {
            // Blocks of an index have no checksum tail where leaves have one, but look like one free record.
            found = search(block);
            Ok(if found.is_some() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })?;
        Ok(found)
    }

    /// Calls `visit` with every block, in the directory's order. A directory that is stored in its inode has none.
    ///
    /// # Errors
    /// Those of reading the directory's map and blocks, and those of `visit`.
    pub fn blocks<E: From<InspectError>>(
        &self,
        visit: &mut dyn FnMut(&DirectoryBlock<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_hashed = self.inode.flags().contains(Flags::INDEX);
        let seed = checksum_seed(
            self.raw.geometry.csum_seed(),
            self.ino,
            self.inode.generation(),
        );
        self.read_blocks(&mut |lblk, place, bytes| {
            let index = self.index(lblk, bytes, is_hashed);
            let checked = match &index {
                Some(Ok(DirectoryIndex::Root(..))) => {
                    htree::verify_checksum(bytes, htree::Kind::Root, seed)
                }
                Some(Ok(DirectoryIndex::Node(_))) => {
                    htree::verify_checksum(bytes, htree::Kind::Node, seed)
                }
                Some(Err(_)) | None => dirent::verify_checksum(bytes, seed),
            };
            visit(&DirectoryBlock {
                lblk,
                place,
                bytes,
                index,
                is_checksum_wrong: self.form.checksum && checked.is_err(),
            })?;
            Ok(ControlFlow::Continue(()))
        })
    }

    /// What a block holds of the index.
    fn index<'b>(
        &self,
        lblk: u64,
        bytes: &'b [u8],
        is_hashed: bool,
    ) -> Option<Result<DirectoryIndex<'b>, Corrupt>> {
        let form = self.form;
        if !is_hashed {
            return None;
        }
        if lblk == 0 {
            let root = htree::root(bytes, form, htree::LEVELS_MAX_LARGE, form.hashes);
            return Some(root.map(|(root, index)| DirectoryIndex::Root(root, index)));
        }
        htree::is_node(bytes, form).then(|| htree::node(bytes, form).map(DirectoryIndex::Node))
    }
}
