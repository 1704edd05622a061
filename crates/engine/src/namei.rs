//! From a path to an inode, as Linux does it; and the operations that change names, each in its own file.
//!
//! A path is taken from the root directory, with or without a leading slash. Symbolic links on the way are followed,
//! at most 40 of them. A slash at the end asks for a directory. No recursion: a link's target is put before what is
//! left of the path, which so has a bound of 40 times 4096 bytes.

mod create;
mod link;
mod lock;
mod remove;
mod rename;

use ondisk::{FileType, Ino};

use crate::data;
use crate::dir;
use crate::error::Error;
use crate::icache::Icache;
use crate::limits;

pub use create::NewInode;
pub(crate) use create::{Content, create, create_unnamed};
pub(crate) use link::link;
pub(crate) use lock::TRIES;
pub(crate) use remove::{rmdir, unlink};
pub use rename::RenameFlag;
pub(crate) use rename::{Named, rename};

/// The inode that a path leads to. `follow_last` says whether a symbolic link at its end is followed.
pub(crate) fn resolve(icache: &Icache, path: &[u8], follow_last: bool) -> Result<Ino, Error> {
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
        let directory = icache.load_used(here)?;
        let found = match &rest[begin..end] {
            // The root is its own parent, whatever its entry says.
            b".." if here == Ino::ROOT && directory.is(FileType::Directory) => here,
            name => dir::lookup_in(icache, here, name)?,
        };
        rest.drain(..end);
        if rest.is_empty() && !follow_last {
            return Ok(found);
        }
        let inode = icache.load_used(found)?;
        if inode.is(FileType::Symlink) {
            links += 1;
            if links > limits::SYMLINKS {
                return Err(Error::TooManyLinks);
            }
            let mut target = data::read_link(icache.volume(), &inode)?;
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
