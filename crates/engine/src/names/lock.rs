//! The locks of an operation on names: looked up without locks, then all inodes locked in ascending order of their
//! numbers, then looked at again.

use ondisk::dirent::{self, NAME_MAX};
use ondisk::inode::Inode;
use ondisk::{Feature, FileType, Flags, Ino, Timestamp};
use sync::Arc;

use crate::core::Error;
use crate::inode::{Exclusive, LiveInode, LoadedInode, MountedFs};

/// How often an operation begins again because other threads changed the names meanwhile.
pub(crate) const TRIES: usize = 1000;
/// Names that an inode may have, and subdirectories of a directory without an index, the parent's entries included.
pub(crate) const LINKS_MAX: u16 = 65_000;

/// The inodes with these numbers, each once, in the order in which they are locked.
pub(super) fn load(mounted: &MountedFs, inos: &[Ino]) -> Result<Vec<Arc<LiveInode>>, Error> {
    let mut inos = inos.to_vec();
    inos.sort_unstable();
    inos.dedup();
    inos.iter()
        .try_for_each(|ino| mounted.volume().check_ordinary(*ino))?;
    inos.into_iter().map(|ino| mounted.get(ino)).collect()
}

/// Exclusive locks on several inodes.
pub(super) struct Together<'a>(Vec<Exclusive<'a>>);

impl<'a> Together<'a> {
    /// Locks inodes that come in ascending order of their numbers.
    #[track_caller]
    pub(super) fn lock(inodes: &'a [Arc<LiveInode>]) -> Together<'a> {
        Together(inodes.iter().map(LiveInode::write_lock).collect())
    }

    /// The lock on one of them.
    pub(super) fn of(&self, ino: Ino) -> &Exclusive<'a> {
        let found = self.0.iter().find(|locked| locked.inode().ino() == ino);
        // Callers ask for what they locked.
        found.expect("an inode that is locked")
    }
}

/// Refuses what can't become a name.
pub(crate) fn verify_new_name(name: &[u8]) -> Result<(), Error> {
    if name.len() > NAME_MAX {
        Err(Error::NameTooLong)
    } else if dirent::is_dots(name) {
        Err(Error::Exists)
    } else if name.is_empty() {
        Err(Error::NotFound)
    } else if !dirent::is_valid_name(name) {
        Err(Error::InvalidArgument)
    } else {
        Ok(())
    }
}

/// Whether names may be added to a directory, as far as its flags say.
pub(super) fn may_add(directory: &LoadedInode) -> Result<(), Error> {
    if directory.flags().contains(Flags::IMMUTABLE) {
        Err(Error::NotPermitted)
    } else {
        Ok(())
    }
}

/// Whether a name of `victim` may be taken away, as far as flags say.
pub(super) fn may_remove(directory: &LoadedInode, victim: &LoadedInode) -> Result<(), Error> {
    if is_fixed(directory) || is_fixed(victim) {
        Err(Error::NotPermitted)
    } else {
        Ok(())
    }
}

/// Whether an inode is immutable or append only.
pub(super) fn is_fixed(inode: &LoadedInode) -> bool {
    let flags = inode.flags();
    flags.contains(Flags::IMMUTABLE) || flags.contains(Flags::APPEND)
}

/// Whether a directory may get one more subdirectory: with dir_nlink an indexed one always may.
pub(super) fn may_add_subdirectory(mounted: &MountedFs, parent: &LoadedInode) -> Result<(), Error> {
    let uncounted =
        mounted.volume().has(Feature::DIR_NLINK) && parent.flags().contains(Flags::INDEX);
    if parent.links_count() >= LINKS_MAX && !uncounted {
        Err(Error::LinkLimit)
    } else {
        Ok(())
    }
}

/// Whether an inode may get one more name.
pub(super) fn may_add_link(inode: &LoadedInode) -> Result<(), Error> {
    if inode.links_count() >= LINKS_MAX {
        Err(Error::LinkLimit)
    } else {
        Ok(())
    }
}

/// A directory's links when it gets a subdirectory: 1 once there are more than can be counted.
pub(crate) fn add_subdirectory(inode: &mut Inode) {
    let links = match inode.links_count() {
        links @ 2..LINKS_MAX => links + 1,
        _ => 1,
    };
    inode.set_links_count(links);
}

/// A directory's links when it loses a subdirectory: 1 stays, for it does not count.
pub(crate) fn drop_subdirectory(inode: &mut Inode) {
    if inode.links_count() > 2 {
        inode.set_links_count(inode.links_count() - 1);
    }
}

/// The names in a directory changed.
pub(crate) fn stamp_names(inode: &mut Inode, now: Timestamp) {
    inode.set_mtime(now);
    inode.stamp(now);
}

/// The type of an inode in use.
pub(super) fn type_of(inode: &LoadedInode) -> Result<FileType, Error> {
    match inode.file_type() {
        Some(file_type) if inode.links_count() > 0 => Ok(file_type),
        _ => Err(Error::NotFound),
    }
}
