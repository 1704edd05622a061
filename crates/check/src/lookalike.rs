//! Directories with a wrong mode: inodes whose mode is that of a special file, or of no type, but whose contents are
//! those of a directory.

use ondisk::{Feature, FileType, Flags, Ino, Inode, dirent, htree};

use crate::map::{word16, word32};
use crate::problem::Code;
use crate::volume::Volume;

/// Bytes of the record of '.'.
const DOT_LEN: usize = 12;
/// How many words of the block area may hold a device's number.
const DEVICE_WORDS: usize = 4;

/// Whether an inode may be a directory with a wrong mode.
pub fn is_candidate(inode: &Inode) -> bool {
    let is_known = matches!(
        inode.file_type(),
        Some(FileType::Directory | FileType::Regular | FileType::Symlink)
    );
    !is_known && inode.block_word(0) != 0 && inode.links_count() > 0
}

/// Reports the candidates that look like directories.
pub fn find(volume: &Volume<'_>, candidates: &[Ino]) {
    for ino in candidates {
        let inode = volume
            .slot(*ino)
            .and_then(|slot| Inode::parse(&slot).ok().map(|inode| (inode, slot)));
        if let Some((inode, slot)) = inode
            && looks_like_directory(volume, *ino, &inode, &slot)
        {
            volume.inode_has(*ino, Code::LooksDirectory);
        }
    }
}

fn looks_like_directory(volume: &Volume<'_>, ino: Ino, inode: &Inode, slot: &[u8]) -> bool {
    let flags = inode.flags();
    if volume.has(Feature::INLINE_DATA) && flags.contains(Flags::INLINE_DATA) {
        return is_inline_directory(volume, inode, slot);
    }
    let has_extents = volume.has(Feature::EXTENT) && flags.contains(Flags::EXTENTS);
    let words = (0..15).map(|word| (word, u64::from(inode.block_word(word))));
    let words: Vec<(usize, u64)> = words.filter(|(_, block)| *block != 0).collect();
    let is_device = matches!(
        inode.file_type(),
        Some(FileType::CharDevice | FileType::BlockDevice)
    );
    let is_number = !has_extents && words.iter().all(|(word, _)| *word < DEVICE_WORDS);
    if is_device && inode.links_count() == 1 && is_number {
        return false;
    }
    let first = if has_extents {
        first_block(volume, ino, inode)
    } else {
        Some(u64::from(inode.block_word(0)))
    };
    let bytes = first
        .filter(|block| volume.contains(*block, 1))
        .and_then(|block| volume.block(block));
    bytes.is_some_and(|bytes| has_dots(volume, ino, inode, &bytes))
        && (has_extents || words.iter().all(|(_, block)| is_a_files(volume, *block)))
}

/// Whether a block exists and does not belong to metadata.
fn is_a_files(volume: &Volume<'_>, block: u64) -> bool {
    volume.contains(block, 1) && !volume.metadata.contains(block)
}

/// The first block of an inode with extents, whatever its type.
fn first_block(volume: &Volume<'_>, ino: Ino, inode: &Inode) -> Option<u64> {
    let mut candidate = *inode;
    candidate.set_mode(FileType::Directory.mode_bits());
    let mut first = First(None);
    crate::file_map::walk(volume, ino, &candidate, &mut first);
    first.0
}

struct First(Option<u64>);

impl crate::map::Sink for First {
    fn run(&mut self, run: crate::map::MapRun) {
        if run.lblk == 0 {
            self.0 = Some(run.pblk);
        }
    }

    fn node(&mut self, _block: u64) -> bool {
        self.0.is_none()
    }

    fn problem(&mut self, _problem: crate::report::Problem) {}
}

/// Whether a block begins with the entries '.' and '..' of this inode.
fn has_dots(volume: &Volume<'_>, ino: Ino, inode: &Inode, bytes: &[u8]) -> bool {
    let seed = volume.seed(ino, inode);
    let is_sealed = !volume.geometry.has_metadata_csum()
        || match dirent::stored_checksum(bytes) {
            Some(_) => dirent::verify_checksum(bytes, seed).is_ok(),
            None => htree::verify_checksum(bytes, htree::Kind::Root, seed).is_ok(),
        };
    let len = usize::from(word16(bytes, 4));
    let is_dot = word32(bytes, 0) == ino.0
        && bytes[6] == 1
        && bytes[8] == b'.'
        && len.is_multiple_of(4)
        && (DOT_LEN..bytes.len() - DOT_LEN).contains(&len);
    if !is_sealed || !is_dot {
        return false;
    }
    let second = &bytes[len..];
    let len = usize::from(word16(second, 4));
    second[6] == 2 && second[8..10] == *b".." && len >= DOT_LEN && len.is_multiple_of(4)
}

/// Whether inline contents begin with a parent's number and a record.
fn is_inline_directory(volume: &Volume<'_>, inode: &Inode, slot: &[u8]) -> bool {
    let Some(rest) = crate::xattr::inline_len(slot) else {
        return false;
    };
    let area = inode.block_area();
    let geometry = &volume.geometry;
    let is_possible = |ino: u32| {
        ino < geometry.inodes_count() && (Ino(ino) >= geometry.first_ino() || Ino(ino) == Ino::ROOT)
    };
    let (parent, child) = (word32(area, 0), word32(area, 4));
    let is_child = child == 0 || is_possible(child) && Ino(child) != Ino::ROOT;
    rest.is_multiple_of(4)
        && is_possible(parent)
        && is_child
        && usize::from(word16(area, 8)) <= area.len() - 4
}
