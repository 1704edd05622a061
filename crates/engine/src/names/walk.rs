//! From a path to an inode, as Linux does it.
//!
//! A path is taken from the root directory, with or without a leading slash. Symbolic links on the way are followed,
//! at most 40 of them. A slash at the end asks for a directory. No recursion: a link's target is put before what is
//! left of the path, which so has a bound of 40 times 4096 bytes.
//!
//! On a volume that is written to, other threads may rename and delete meanwhile, and a deleted inode's number may soon
//! be another inode's. [`walk`] holds what it ends at, but not the directories on its way. It knows each of those by
//! its generation, which it checks after it found the next name there. So at some moment each directory was the one
//! that the path names, and held the next name; the last directory held the last name when the walk took its hold.

use ondisk::{FileType, Generation, Ino};

use super::lock::TRIES;
use super::look_at;
use crate::core::Error;
use crate::core::limits;
use crate::data;
use crate::dir;
use crate::inode::{LoadedInode, MountedFs};
use crate::reap;
use crate::token::LiveFs;

/// What a walk is to find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WalkIntent {
    /// The inode that the path leads to; it must exist.
    Find,
    /// As `Find`, but a symbolic link at the end is not followed, unless a slash follows it.
    FindLink,
    /// The place of a name, whether something has the name or not. A symbolic link at the end is followed.
    Place,
}

/// Where a walk ended. The inodes that it names are held as by [`crate::InodeFs::hold`]; the caller releases them.
#[derive(PartialEq, Eq, Debug)]
pub struct WalkEnd {
    /// For [`WalkIntent::Place`]: the directory that the last name is in. `None` if the path leads to the root, and for
    /// the other intents.
    pub directory: Option<Ino>,
    /// The last name; empty if the path leads to the root.
    pub name: Vec<u8>,
    /// The inode that has the name; only for [`WalkIntent::Place`] it may be missing.
    pub found: Option<Ino>,
}

/// The inode that a path leads to from `root`, which it does not leave. With `follow_last` a symbolic link at its end
/// is followed.
pub(crate) fn resolve(
    mounted: &MountedFs,
    root: Ino,
    path: &[u8],
    follow_last: bool,
) -> Result<Ino, Error> {
    verify_path(path)?;
    let mut rest = Rest::new(root, path);
    loop {
        let Some(name) = rest.next() else {
            return Ok(rest.here);
        };
        let looked_up = rest.shown_name(&rest.path[name.clone()]);
        if !follow_last && name.end == rest.path.len() {
            return dir::lookup_in(mounted, rest.here, looked_up);
        }
        match step(mounted, rest.here, looked_up)? {
            (_, Some(target)) => rest.follow(target, name.end)?,
            (inode, None) => {
                rest.path.drain(..name.end);
                if !rest.path.is_empty() && !inode.is(FileType::Directory) {
                    return Err(Error::NotDirectory);
                }
                rest.here = inode.ino();
            }
        }
    }
}

/// Refuses a path that no inode can have.
fn verify_path(path: &[u8]) -> Result<(), Error> {
    if path.is_empty() {
        Err(Error::NotFound)
    } else if path.len() > limits::PATH_BYTES {
        Err(Error::NameTooLong)
    } else {
        Ok(())
    }
}

/// The rest of a path, and the directory where it begins.
struct Rest {
    path: Vec<u8>,
    /// The directory where absolute paths begin, and which no path leaves.
    root: Ino,
    here: Ino,
    /// The generation of `here` when [`walk`] came to it; `None` for the root, which stays, and for [`resolve`].
    generation: Option<Generation>,
    links: u32,
}

impl Rest {
    fn new(root: Ino, path: &[u8]) -> Rest {
        Rest {
            path: path.to_vec(),
            root,
            here: root,
            generation: None,
            links: 0,
        }
    }

    /// The range of the next name; `None` if no name is left.
    fn next(&self) -> Option<std::ops::Range<usize>> {
        let begin = self.path.iter().position(|byte| *byte != b'/')?;
        let end = self.path[begin..].iter().position(|byte| *byte == b'/');
        Some(begin..end.map_or(self.path.len(), |len| begin + len))
    }

    /// Puts a link's target in the place of what is before byte `end`.
    fn follow(&mut self, mut target: Vec<u8>, end: usize) -> Result<(), Error> {
        self.links += 1;
        if self.links > limits::SYMLINKS {
            return Err(Error::TooManyLinks);
        }
        match target.first() {
            None => return Err(Error::NotFound),
            Some(b'/') => (self.here, self.generation) = (self.root, None),
            Some(_) => {}
        }
        target.extend_from_slice(&self.path[end..]);
        self.path = target;
        Ok(())
    }

    /// A name as it is looked up in `here`: the root is its own parent, whatever its `..` entry holds.
    fn shown_name<'a>(&self, name: &'a [u8]) -> &'a [u8] {
        match name {
            b".." if self.here == self.root => b".",
            name => name,
        }
    }

    /// Whether `here` is still the directory that the path led to.
    fn is_still(&self, mounted: &MountedFs) -> Result<bool, Error> {
        match self.generation {
            Some(generation) => {
                let now = mounted.load(self.here)?;
                Ok(now.generation() == generation && now.links_count() > 0)
            }
            None => Ok(true),
        }
    }
}

/// Walks a path once from `root`, which it does not leave and which stays meanwhile, on a volume that is written to,
/// and holds what it ends at.
///
/// # Errors
/// `NotFound`, `NotDirectory`, `TooManyLinks`, `NameTooLong`; `Busy` if other threads keep changing the directories on
/// the way; `Corrupt`, `Io`.
pub(crate) fn walk(
    mounted: &LiveFs,
    root: Ino,
    path: &[u8],
    intent: WalkIntent,
) -> Result<WalkEnd, Error> {
    verify_path(path)?;
    for _ in 0..TRIES {
        if let Some(end) = try_walk(mounted, root, path, intent)? {
            return Ok(end);
        }
    }
    Err(Error::Busy)
}

/// One walk; `None` if a directory was deleted while the walk was in it.
fn try_walk(
    mounted: &LiveFs,
    root: Ino,
    path: &[u8],
    intent: WalkIntent,
) -> Result<Option<WalkEnd>, Error> {
    let mut rest = Rest::new(root, path);
    loop {
        let Some(name) = rest.next() else {
            // Only the root has no name.
            return hold_root(mounted, root).map(Some);
        };
        let is_last = rest.path[name.end..].iter().all(|byte| *byte == b'/');
        if is_last {
            let has_slash = name.end < rest.path.len();
            let asked = (&rest.path[name.clone()], intent, has_slash);
            match finish(mounted, &rest, asked)? {
                Finish::Done(end) => return Ok(Some(end)),
                Finish::Link(target) => rest.follow(target, name.end)?,
                Finish::Again => return Ok(None),
            }
            continue;
        }
        let stepped = step(
            mounted,
            rest.here,
            rest.shown_name(&rest.path[name.clone()]),
        );
        if !rest.is_still(mounted)? {
            return Ok(None);
        }
        match stepped? {
            (_, Some(target)) => rest.follow(target, name.end)?,
            (inode, None) if inode.is(FileType::Directory) => {
                rest.path.drain(..name.end);
                let is_root = inode.ino() == root;
                rest.here = inode.ino();
                rest.generation = (!is_root).then(|| inode.generation());
            }
            _ => return Err(Error::NotDirectory),
        }
    }
}

fn hold_root(mounted: &LiveFs, root: Ino) -> Result<WalkEnd, Error> {
    mounted.get(root)?.life.hold();
    Ok(WalkEnd {
        directory: None,
        name: Vec::new(),
        found: Some(root),
    })
}

/// The result of looking at a path's last name.
enum Finish {
    Done(WalkEnd),
    /// A symbolic link that is followed, with its target.
    Link(Vec<u8>),
    /// A directory was deleted meanwhile.
    Again,
}

/// Looks at the last name, and holds what the walk ends at.
fn finish(
    mounted: &LiveFs,
    rest: &Rest,
    (name, intent, has_slash): (&[u8], WalkIntent, bool),
) -> Result<Finish, Error> {
    let above = match intent {
        WalkIntent::Place => {
            let above = mounted.get(rest.here)?;
            let _locked = above.read_lock();
            if !rest.is_still(mounted)? {
                return Ok(Finish::Again);
            }
            if !mounted.load_used(rest.here)?.is(FileType::Directory) {
                return Err(Error::NotDirectory);
            }
            above.life.hold();
            Some(Held(mounted, rest.here))
        }
        _ => None,
    };
    let follows = intent != WalkIntent::FindLink || has_slash;
    let volume = mounted.volume();
    let looked_up = rest.shown_name(name);
    let looked = look_at(mounted, rest.here, looked_up, |live, inode| {
        if follows && inode.is(FileType::Symlink) {
            return Ok(Err(data::read_link(volume, &inode)?));
        }
        if has_slash && !inode.is(FileType::Directory) {
            return Err(Error::NotDirectory);
        }
        live.life.hold();
        Ok(Ok(Held(mounted, inode.ino())))
    });
    // If `here` is another directory by now, what was found in it does not count.
    if !rest.is_still(mounted)? {
        return Ok(Finish::Again);
    }
    let found = match looked {
        Ok(Ok(found)) => Some(found.keep()),
        Ok(Err(target)) => return Ok(Finish::Link(target)),
        // As in Linux, no file can be created through a link to a missing directory.
        Err(Error::NotFound) if above.is_some() && has_slash && rest.links > 0 => {
            return Err(Error::IsDirectory);
        }
        Err(Error::NotFound) if above.is_some() => None,
        Err(error) => return Err(error),
    };
    Ok(Finish::Done(WalkEnd {
        directory: above.map(Held::keep),
        name: name.to_vec(),
        found,
    }))
}

/// An inode that the walk holds, and releases when this is dropped.
struct Held<'a>(&'a LiveFs, Ino);

impl Held<'_> {
    /// Keeps it held, for the caller to release.
    fn keep(self) -> Ino {
        let ino = self.1;
        std::mem::forget(self);
        ino
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        reap::let_go(self.0, self.1);
    }
}

/// The inode that a name stands for, and the target if that is a symbolic link: both from one moment at which the inode
/// had the name, though other threads may rename and delete meanwhile.
fn step(
    mounted: &MountedFs,
    directory: Ino,
    name: &[u8],
) -> Result<(LoadedInode, Option<Vec<u8>>), Error> {
    let volume = mounted.volume();
    let with_target = |inode: LoadedInode| {
        let target = if inode.is(FileType::Symlink) {
            Some(data::read_link(volume, &inode)?)
        } else {
            None
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
