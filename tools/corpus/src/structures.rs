//! Where an image's structures are, and how each is sealed after a change.

use engine::{InodeFs, MountOptions, ReplayPolicy};
use ondisk::dirent::{self, DirForm};
use ondisk::htree;
use ondisk::jbd2::{self, JournalSuperblock, LogFormat};
use ondisk::{
    BlockSize, FileType, Flags, FsBlock, Geometry, Group, Ino, LBlock, Superblock, extent, inode,
    xattr,
};
use sync::Arc;

use crate::overlay::PatchedBytes;

/// What a structure is, with what its checksum needs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    /// The primary superblock.
    Superblock,
    /// A group's descriptor.
    Descriptor(Group),
    /// A group's block or inode bitmap; its sum stands in the descriptor and is left as it is.
    Bitmap,
    /// An inode in its table.
    Inode(Ino),
    /// A block of directory entries.
    Directory(DirForm, u32),
    /// A block of a directory's index.
    Index(DirForm, htree::Kind, u32),
    /// A block of an extent tree.
    Extents(u32),
    /// A block of block numbers.
    Pointers,
    /// A block of extended attributes.
    Xattrs(FsBlock),
    /// The journal's superblock.
    JournalSuperblock,
    /// A descriptor, revoke or commit block of the journal.
    Log(LogFormat),
    /// A block of the fast-commit area, or any other of the journal.
    LogData,
}

/// A structure's place.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Structure {
    /// What it is.
    pub kind: Kind,
    /// The byte at which it begins.
    pub offset: usize,
    /// Its bytes.
    pub len: usize,
}

/// All structures of an image, by class.
#[derive(Clone, Debug)]
pub struct Structures {
    /// The image's geometry.
    pub geometry: Geometry,
    /// Structures of one class each; none is empty.
    pub classes: Vec<Vec<Structure>>,
}

/// Log blocks that are taken as data at most.
const LOG_DATA: usize = 64;

impl Structures {
    /// Finds the structures of an image that is whole.
    ///
    /// # Panics
    /// When it is not.
    #[must_use]
    pub fn of(image: &PatchedBytes) -> Structures {
        let options = MountOptions {
            journal: ReplayPolicy::Ignore,
            ..MountOptions::default()
        };
        let fs = InodeFs::open(Arc::new(image.clone()), &options)
            .unwrap_or_else(|error| panic!("a seed does not open: {error}"));
        let geometry = *fs.geometry();
        let mut finder = Finder {
            image,
            fs: &fs,
            geometry,
            found: Vec::new(),
        };
        finder.push(Kind::Superblock, 1024, Superblock::SIZE);
        for group in geometry.all_groups() {
            finder.group(group);
        }
        for ino in 1..=geometry.inodes_count() {
            finder.inode(Ino(ino));
        }
        let mut classes: Vec<Vec<Structure>> = Vec::new();
        for structure in finder.found {
            let same = |class: &&mut Vec<Structure>| {
                std::mem::discriminant(&class[0].kind) == std::mem::discriminant(&structure.kind)
            };
            match classes.iter_mut().find(same) {
                Some(class) => class.push(structure),
                None => classes.push(vec![structure]),
            }
        }
        Structures { geometry, classes }
    }
}

struct Finder<'a> {
    image: &'a PatchedBytes,
    fs: &'a InodeFs,
    geometry: Geometry,
    found: Vec<Structure>,
}

impl Finder<'_> {
    fn block_size(&self) -> BlockSize {
        self.geometry.block_size()
    }

    fn push(&mut self, kind: Kind, offset: usize, len: usize) {
        if offset + len <= self.image.len() {
            self.found.push(Structure { kind, offset, len });
        }
    }

    /// Where a block begins. Images are far smaller than memory.
    fn at(&self, block: FsBlock) -> usize {
        block.offset(self.block_size()) as usize
    }

    fn push_block(&mut self, kind: Kind, block: FsBlock) {
        self.push(kind, self.at(block), self.block_size().bytes());
    }

    fn group(&mut self, group: Group) {
        let (block, at) = self.geometry.desc_place(group);
        let (offset, len) = (self.at(block) + at, self.geometry.desc_size());
        self.push(Kind::Descriptor(group), offset, len);
        let raw = self.image.get(offset, len);
        let low = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        for at in [0, 4] {
            self.push_block(Kind::Bitmap, FsBlock(low(at).into()));
        }
    }

    fn inode(&mut self, ino: Ino) {
        let Ok(inode) = self.fs.inode(ino) else {
            return;
        };
        let Some((group, index)) = self.geometry.group_of_ino(ino) else {
            return;
        };
        let (block, at) = self.geometry.desc_place(group);
        let table = self.image.get(self.at(block) + at + 8, 4);
        let table = FsBlock(u32::from_le_bytes([table[0], table[1], table[2], table[3]]).into());
        let (block, at) = self.geometry.inode_place(table, index);
        let (offset, len) = (self.at(block) + at, self.geometry.inode_size());
        self.push(Kind::Inode(ino), offset, len);
        let metadata = inode.metadata();
        let seed = inode::checksum_seed(self.geometry.csum_seed(), ino, metadata.generation);
        if let Some(block) = inode.xattr_block() {
            self.push_block(Kind::Xattrs(block), block);
        }
        let area = self.image.get(offset + 40, inode::BLOCK_AREA);
        if inode.is_inline() {
            return;
        }
        if metadata.flags.contains(Flags::EXTENTS) {
            self.tree(&area, seed);
        } else if matches!(metadata.file_type, FileType::Regular | FileType::Directory) {
            self.pointers(&area[48..]);
        }
        if ino == Ino::JOURNAL {
            self.journal();
        } else if metadata.file_type == FileType::Directory {
            self.directory(&inode, metadata.flags, seed);
        }
    }

    /// The blocks below an extent tree's root.
    fn tree(&mut self, root: &[u8], seed: u32) {
        let mut below = vec![root.to_vec()];
        while let Some(node) = below.pop() {
            if extent::depth(&node) == 0 {
                continue;
            }
            if let extent::ExtentEntries::Indices(indices) = extent::ExtentNode::view(&node) {
                for index in indices {
                    self.push_block(Kind::Extents(seed), index.leaf());
                    below.push(
                        self.image
                            .get(self.at(index.leaf()), self.block_size().bytes()),
                    );
                }
            }
        }
    }

    /// The indirect, double and triple indirect blocks, but not those below them.
    fn pointers(&mut self, roots: &[u8]) {
        for word in roots.chunks_exact(4) {
            let block = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            if block != 0 {
                self.push_block(Kind::Pointers, FsBlock(block.into()));
            }
        }
    }

    fn directory(&mut self, inode: &engine::InodeRef<'_>, flags: Flags, seed: u32) {
        let form = DirForm::of(&self.geometry, flags);
        for (number, block) in blocks_of(inode) {
            let bytes = self.image.get(self.at(block), self.block_size().bytes());
            let indexed = flags.contains(Flags::INDEX);
            let kind = match number {
                LBlock(0) if indexed => Kind::Index(form, htree::Kind::Root, seed),
                _ if indexed && htree::is_node(&bytes, form) => {
                    Kind::Index(form, htree::Kind::Node, seed)
                }
                _ => Kind::Directory(form, seed),
            };
            self.push_block(kind, block);
        }
    }

    fn journal(&mut self) {
        let Ok(inode) = self.fs.inode(Ino::JOURNAL) else {
            return;
        };
        let blocks: Vec<_> = blocks_of(&inode).collect();
        let bytes = |block: FsBlock| self.image.get(self.at(block), self.block_size().bytes());
        let Some((_, first)) = blocks.first() else {
            return;
        };
        let superblock = JournalSuperblock::read(&bytes(*first));
        let format =
            superblock.and_then(|it| it.verify(self.block_size(), blocks.len() as u64).ok());
        let Some(format) = format else {
            return;
        };
        let (first, mut data) = (*first, 0);
        let mut kinds = vec![(Kind::JournalSuperblock, first)];
        for (_, block) in &blocks[1..] {
            let bytes = bytes(*block);
            if jbd2::BlockHeader::of(&bytes).is_some() {
                kinds.push((Kind::Log(format), *block));
            } else if data < LOG_DATA && bytes.iter().any(|byte| *byte != 0) {
                data += 1;
                kinds.push((Kind::LogData, *block));
            }
        }
        for (kind, block) in kinds {
            self.push_block(kind, block);
        }
    }
}

/// The blocks of a file that are there.
pub(crate) fn blocks_of(inode: &engine::InodeRef<'_>) -> impl Iterator<Item = (LBlock, FsBlock)> {
    let runs: Vec<_> = inode
        .mappings()
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|run| Some((run.logical as u32, run.physical?, run.len)))
        .collect();
    runs.into_iter().flat_map(|(logical, physical, len)| {
        (0..len as u32).map(move |i| (LBlock(logical + i), FsBlock(physical.0 + u64::from(i))))
    })
}

impl Kind {
    /// Gives a structure's bytes the checksum that their kind has; what cannot be sealed any more is left as it is.
    pub fn seal(self, bytes: &mut [u8], geometry: &Geometry) {
        let sealed = geometry.has_metadata_csum();
        match self {
            Kind::Superblock => {
                let Ok(raw) = <&mut [u8; Superblock::SIZE]>::try_from(bytes) else {
                    return;
                };
                let mut superblock = *Superblock::view(raw);
                superblock.seal();
                raw.copy_from_slice(superblock.bytes());
            }
            Kind::Descriptor(group) => {
                if let Some(sum) = ondisk::group_desc::computed_checksum(bytes, geometry, group) {
                    bytes[0x1E..0x20].copy_from_slice(&sum.to_le_bytes());
                }
            }
            Kind::Inode(ino) if sealed => inode::set_checksum(bytes, geometry.csum_seed(), ino),
            Kind::Directory(_, seed) if sealed => dirent::seal(bytes, seed),
            Kind::Index(_, kind, seed) if sealed && is_sealable(bytes, kind) => {
                htree::seal(bytes, kind, seed);
            }
            // The tail's place follows from the header; if that was changed, it must still lie in the block.
            Kind::Extents(seed) if sealed && extent::verify_tail(bytes, seed).is_err() => {
                let max = usize::from(u16::from_le_bytes([bytes[4], bytes[5]]));
                if 12 + 12 * max + 4 <= bytes.len() {
                    extent::set_tail(bytes, seed);
                }
            }
            Kind::Xattrs(at) if sealed => {
                xattr::set_block_checksum(bytes, geometry.csum_seed(), at)
            }
            Kind::JournalSuperblock => {
                if let Some(mut superblock) = JournalSuperblock::read(bytes) {
                    superblock.seal();
                    bytes[..superblock.bytes().len()].copy_from_slice(superblock.bytes());
                }
            }
            Kind::Log(format) => seal_log(bytes, &format),
            _ => {}
        }
    }
}

/// Whether an index block's capacity and count still fit it.
fn is_sealable(bytes: &[u8], kind: htree::Kind) -> bool {
    let start = match kind {
        htree::Kind::Root => 32,
        htree::Kind::Node => 8,
    };
    let word = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (limit, count) = (word(start), word(start + 2));
    count <= limit && start + 8 * limit + 8 <= bytes.len()
}

fn seal_log(bytes: &mut [u8], format: &LogFormat) {
    let header = jbd2::BlockHeader::of(bytes);
    if header.and_then(|header| header.kind()) == Some(jbd2::BlockKind::Commit) {
        if let Some(commit) = jbd2::CommitBlock::read(bytes) {
            commit.write(format, bytes);
        }
    } else {
        format.seal_tail(bytes);
    }
}
