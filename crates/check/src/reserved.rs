//! Checks that reserved inodes which nothing uses hold nothing.

use ondisk::{Feature, FileType, Flags, Ino, Inode};

use crate::problem::Code;
use crate::report::Problem;
use crate::special;
use crate::volume::Volume;
use crate::xattr::{self, Seen};

/// Decides whether a reserved inode is checked like a file; reports a mode or links that it must not have.
pub fn is_in_use(volume: &Volume<'_>, ino: Ino, inode: &Inode) -> bool {
    if ino == Ino::ROOT || special::is_special(volume, ino) {
        return true;
    }
    if ino == Ino::RESIZE && inode.links_count() != 0 {
        volume.inode_has(ino, Code::ResizeLeft);
        special::resize_inode(volume, inode);
        return false;
    }
    if ino == Ino::BAD {
        let is_odd = inode.mode() != 0
            || inode.size_both_words() != 0 && inode.blocks_lo() == 0
            || inode.links_count() != 0 && inode.mode() != 0;
        if is_odd {
            volume.inode_has(ino, Code::BadBlocksInode);
        }
        return inode.blocks_lo() != 0 || (0..15).any(|word| inode.block_word(word) != 0);
    }
    if left_code(ino).is_some() {
        return false;
    }
    if inode.mode() != 0 && ino.0 != 5 || inode.file_type() == Some(FileType::Directory) {
        let problem = Problem::new(Code::ReservedMode).ino(ino);
        volume.found(problem.found(inode.mode()));
    }
    inode.mode() != 0
}

/// The problem of the journal's inode, or of a quota file's, if it has contents but is not in use; `None` for other
/// inodes.
fn left_code(ino: Ino) -> Option<Code> {
    match ino {
        Ino::JOURNAL => Some(Code::JournalInodeLeft),
        Ino(3 | 4) => Some(Code::QuotaInodeLeft),
        _ => None,
    }
}

/// Checks a reserved inode that nothing uses. Fields that mean nothing without a mode may hold anything.
pub fn check_unused(volume: &Volume<'_>, ino: Ino, inode: &Inode, slot: &[u8]) {
    if let Some(code) = left_code(ino) {
        if inode.links_count() != 0 || inode.blocks_lo() != 0 || inode.block_word(0) != 0 {
            volume.inode_has(ino, code);
        }
        return;
    }
    if ino == Ino::BAD || inode.mode() != 0 {
        return;
    }
    // e2fsck reports an attribute block that does not exist only for an inode that a name refers to.
    let has_block = volume.contains(inode.xattr_block().0, 1);
    let seen = if has_block {
        xattr::check(volume, ino, inode, slot)
    } else {
        Seen::default()
    };
    let size = volume.geometry.block_size();
    let found = inode.sectors(volume.has(Feature::HUGE_FILE), size);
    let cluster = u64::from(volume.geometry.cluster_ratio()) << (size.bits() - 9);
    let expected = if seen.block { cluster } else { 0 };
    if found != expected && !(ino == Ino::RESIZE && inode.links_count() != 0) {
        let problem = Problem::new(Code::InodeBlocks).ino(ino).found(found);
        volume.found(problem.expected(expected));
    }
    if inode.flags().contains(Flags::INDEX) {
        volume.inode_has(ino, Code::DirectoryFeature);
    }
}
