//! The operations on names, each in its own file, and what they share: [`look_at`].

mod create;
mod install;
mod link;
mod lock;
mod remove;
mod rename;
mod walk;

use ondisk::Ino;

use crate::core::Error;
use crate::dir;
use crate::inode::{LiveInode, LoadedInode, MountedFs};

pub(crate) use create::{FirstBlock, create, create_unnamed, first_block};
pub use create::{NewContent, NewInode};
pub(crate) use install::install;
pub(crate) use link::link;
use lock::TRIES;
pub(crate) use lock::{
    LINKS_MAX, add_subdirectory, drop_subdirectory, stamp_names, verify_new_name,
};
pub(crate) use remove::{rmdir, unlink};
pub use rename::RenameFlag;
pub(crate) use rename::rename;
pub use walk::{WalkEnd, WalkIntent};
pub(crate) use walk::{resolve, walk};

/// A directory and a name in it.
#[derive(Clone, Copy)]
pub(crate) struct NameIn<'a> {
    pub(crate) directory: Ino,
    pub(crate) name: &'a [u8],
}

/// Calls `see` with the inode that a name stands for, on a volume that is written to. `see` runs under the inode's
/// lock, shared, so the inode has the name until it returns.
pub(crate) fn look_at<T>(
    mounted: &MountedFs,
    directory: Ino,
    name: &[u8],
    see: impl Fn(&LiveInode, LoadedInode) -> Result<T, Error>,
) -> Result<T, Error> {
    let above = mounted.get(directory)?;
    for _ in 0..TRIES {
        let ino = dir::lookup_in(mounted, directory, name)?;
        let live = mounted.get(ino)?;
        // A thread that takes the name away or deletes the inode needs its lock for that. The directory's lock may come
        // before this one, so it is not waited for here.
        let _locked = live.read_lock();
        let now = dir::glance(mounted, &above, name);
        if now.is_some_and(|now| now.is_ok_and(|now| now == ino)) {
            return see(&live, mounted.load_used(ino)?);
        }
    }
    Err(Error::Busy)
}
