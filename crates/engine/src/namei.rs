//! From a path to an inode, as Linux does it; and the operations that change names, each in its own file.
//!
//! A path is taken from the root directory, with or without a leading slash. Symbolic links on the way are followed,
//! at most 40 of them. A slash at the end asks for a directory. No recursion: a link's target is put before what is
//! left of the path, which so has a bound of 40 times 4096 bytes.

mod create;
mod install;
mod link;
mod lock;
mod remove;
mod rename;
mod replay;

use ondisk::{FileType, Ino};

use crate::data;
use crate::dir;
use crate::error::Error;
use crate::icache::{LiveInode, LoadedInode, MountedFs};
use crate::limits;

pub use create::NewInode;
pub(crate) use create::{NewContent, create, create_unnamed};
pub(crate) use install::install;
pub(crate) use link::link;
use lock::TRIES;
pub(crate) use remove::{rmdir, unlink};
pub use rename::RenameFlag;
pub(crate) use rename::{NameIn, rename};
pub(crate) use replay::replay;

/// The inode that a path leads to. `follow_last` says whether a symbolic link at its end is followed.
pub(crate) fn resolve(mounted: &MountedFs, path: &[u8], follow_last: bool) -> Result<Ino, Error> {
    if path.is_empty() {
        return Err(Error::NotFound);
    }
    if path.len() > limits::PATH_BYTES {
        return Err(Error::NameTooLong);
    }
    let mut rest = path.to_vec();
    let mut here = Ino::ROOT;
    let mut links = 0;
    loop {
        let begin = rest.iter().position(|byte| *byte != b'/');
        let Some(begin) = begin else {
            return Ok(here);
        };
        let end = rest[begin..].iter().position(|byte| *byte == b'/');
        let end = end.map_or(rest.len(), |len| begin + len);
        let directory = mounted.load_used(here)?;
        // The root is its own parent, whatever its entry says.
        let is_above_root =
            &rest[begin..end] == b".." && here == Ino::ROOT && directory.is(FileType::Directory);
        let name = match is_above_root {
            true => b".",
            false => &rest[begin..end],
        };
        if !follow_last && end == rest.len() {
            return dir::lookup_in(mounted, here, name);
        }
        let (inode, target) = step(mounted, here, name)?;
        let found = inode.ino();
        rest.drain(..end);
        if let Some(mut target) = target {
            links += 1;
            if links > limits::SYMLINKS {
                return Err(Error::TooManyLinks);
            }
            if target.is_empty() {
                return Err(Error::NotFound);
            }
            if target[0] == b'/' {
                here = Ino::ROOT;
            }
            target.append(&mut rest);
            rest = target;
        } else if rest.is_empty() || inode.is(FileType::Directory) {
            here = found;
        } else {
            return Err(Error::NotDirectory);
        }
    }
}

/// What a name stands for, and where that leads if it is a symbolic link: both from one moment at which it had the
/// name, though others may rename and delete meanwhile.
fn step(
    mounted: &MountedFs,
    directory: Ino,
    name: &[u8],
) -> Result<(LoadedInode, Option<Vec<u8>>), Error> {
    let volume = mounted.volume();
    let with_target = |inode: LoadedInode| {
        let target = match inode.is(FileType::Symlink) {
            true => Some(data::read_link(volume, &inode)?),
            false => None,
        };
        Ok((inode, target))
    };
    let ino = dir::lookup_in(mounted, directory, name)?;
    let loaded = mounted.load_used(ino);
    if !volume.is_writable() {
        return with_target(loaded?);
    }
    if let Ok(inode) = loaded
        && !inode.is(FileType::Symlink)
        && dir::lookup_in(mounted, directory, name).is_ok_and(|now| now == ino)
    {
        return Ok((inode, None));
    }
    look_at(mounted, directory, name, |_, inode| with_target(inode))
}

/// What `see` makes of the inode that a name stands for, on a volume that is written to. It is called under the inode's
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
        // Who takes the name away or deletes the inode needs its lock for that. The directory's lock may come before
        // this one, so nobody waits for it here.
        let _locked = live.read_lock();
        let now = dir::glance(mounted, &above, name);
        if now.is_some_and(|now| now.is_ok_and(|now| now == ino)) {
            return see(&live, mounted.load_used(ino)?);
        }
    }
    Err(Error::Busy)
}
