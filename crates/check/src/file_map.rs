//! Which inodes have a map, and the walk through a map of either form.

use ondisk::{FileType, Flags, Ino, Inode};

use crate::extents;
use crate::indirect;
use crate::map::Sink;
use crate::volume::Volume;

/// Reads an inode's map in whichever form it has.
pub fn walk(volume: &Volume<'_>, ino: Ino, inode: &Inode, sink: &mut dyn Sink) {
    if inode.flags().contains(Flags::INLINE_DATA) || is_fast_symlink(inode) {
        return;
    }
    if !has_map(inode.file_type()) && ino != Ino::BAD {
        return;
    }
    if inode.flags().contains(Flags::EXTENTS) {
        let walk = extents::ExtentWalk {
            volume,
            ino,
            generation: inode.generation(),
            is_directory: inode.file_type() == Some(FileType::Directory),
        };
        walk.walk(inode.block_area(), sink);
    } else {
        indirect::walk(volume, ino, inode.block_area(), sink);
    }
}

/// Whether the inode is a symbolic link whose target is in the inode: as the kernel tells, by its having no blocks.
pub fn is_fast_symlink(inode: &Inode) -> bool {
    inode.file_type() == Some(FileType::Symlink)
        && inode.size_both_words() < 60
        && !inode.flags().contains(Flags::EXTENTS)
}

/// Whether inodes of this type have a map.
pub fn has_map(file_type: Option<FileType>) -> bool {
    matches!(
        file_type,
        Some(FileType::Regular | FileType::Directory | FileType::Symlink)
    )
}
