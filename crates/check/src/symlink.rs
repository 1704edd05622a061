//! Symbolic links: the target is where it must be, and has the length that the inode records.

use ondisk::{Flags, Ino, Inode};

use crate::file_map::{is_fast_symlink, walk};
use crate::map::{MapRun, Sink, word16};
use crate::report::Problem;
use crate::volume::Volume;

/// Bytes of the length with which an encrypted target begins.
pub const ENCRYPTED_HEADER: usize = 2;

/// The length of the target in these bytes: up to the first zero byte, or, if it is encrypted, what its header says.
pub fn target_len(inode: &Inode, bytes: &[u8]) -> usize {
    if inode.flags().contains(Flags::ENCRYPT) {
        return usize::from(word16(bytes, 0)) + ENCRYPTED_HEADER;
    }
    let end = bytes.iter().position(|byte| *byte == 0);
    end.unwrap_or(bytes.len())
}

/// Whether the inode is a symbolic link that can be followed. `inline` is the length of the attribute with inline data.
pub fn is_valid(volume: &Volume<'_>, ino: Ino, inode: &Inode, inline: Option<usize>) -> bool {
    let size = inode.size_both_words();
    let never = Flags::IMMUTABLE.with(Flags::APPEND).with(Flags::INDEX);
    if size == 0 || inode.flags().0 & never.0 != 0 {
        return false;
    }
    let has_extents = inode.flags().contains(Flags::EXTENTS);
    if inode.flags().contains(Flags::INLINE_DATA) {
        let all = inline.map(|len| (ondisk::inode::BLOCK_AREA + len) as u64);
        return !has_extents && all == Some(size);
    }
    if size < ondisk::inode::BLOCK_AREA as u64 {
        let area = inode.block_area();
        let len = target_len(inode, area);
        return is_fast_symlink(inode) && len < area.len() && len as u64 == size;
    }
    let mut target = Target::default();
    walk(volume, ino, inode, &mut target);
    let bytes = target.block().and_then(|block| volume.block(block));
    bytes.is_some_and(|bytes| {
        let len = target_len(inode, &bytes);
        len < bytes.len() && len as u64 == size
    })
}

/// Stores the block of a map that has exactly one.
#[derive(Default)]
struct Target {
    first: Option<u64>,
    has_others: bool,
}

impl Target {
    fn block(&self) -> Option<u64> {
        self.first.filter(|_| !self.has_others)
    }
}

impl Sink for Target {
    fn run(&mut self, run: MapRun) {
        self.has_others |= self.first.is_some() || run.lblk != 0 || run.len != 1;
        self.first = Some(run.pblk);
    }

    fn node(&mut self, _block: u64) -> bool {
        // A target fits one block, so a map with a block of pointers is wrong.
        self.has_others = true;
        false
    }

    fn problem(&mut self, _problem: Problem) {
        self.has_others = true;
    }
}
