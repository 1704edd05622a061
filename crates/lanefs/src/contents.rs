//! Contents of files, written by path.
//!
//! A file is first written as a whole without a name. When it is complete it takes its name in one step, also from
//! another file. A cut leaves the file as it was before (or no file), or the whole new one.

use std::io::Read;
use std::path::Path;

use engine::{FileType, Ino, Metadata, NewInode, SetAttributes, SetTime, Xattr, XattrFlag};

use crate::reach::{HeldInode, NameInParent, TRIES};
use crate::{Error, Fs};

/// A new file's owner and permissions by default: root's, 0644.
pub(crate) const FILE: NewInode = NewInode {
    mode: 0o644,
    uid: 0,
    gid: 0,
    umask: 0,
    held: false,
};

/// Refuses every type except a regular file.
pub(crate) fn verify_regular(file_type: FileType) -> Result<(), engine::Error> {
    match file_type {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(engine::Error::IsDirectory),
        _ => Err(engine::Error::NotRegular),
    }
}
/// What a file that replaces another takes from its own source, and not from the other.
#[derive(Clone, Copy, Default)]
pub(crate) struct TakenAttributes {
    pub(crate) mode: bool,
    pub(crate) owner: bool,
    pub(crate) xattrs: bool,
}

/// The name of the ACL that says who may access a file.
pub(crate) const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// The name of the ACL that new entries of a directory get.
pub(crate) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// Bytes that are read and written at once.
const CHUNK: usize = 1 << 20;

impl Fs {
    /// Writes a file as a whole: a new one belongs to root and has permissions 0644, one that is replaced keeps its
    /// owner, permissions, ACL and extended attributes (and other names of it keep its old contents). Symbolic links
    /// are followed.
    ///
    /// # Errors
    /// As [`Fs::create_dir`]; when there is something else than a file, or no space; as [`Fs::sync`].
    pub fn write(&self, path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> Result<(), Error> {
        self.write_from(path, &mut bytes.as_ref())
    }

    /// As [`Fs::write`], with all that a reader gives.
    ///
    /// # Errors
    /// As [`Fs::write`]; when reading fails.
    pub fn write_from(&self, path: impl AsRef<Path>, bytes: &mut dyn Read) -> Result<(), Error> {
        let path = path.as_ref();
        self.put(path, FILE, TakenAttributes::default(), |ino| {
            self.fill(ino, 0, bytes, path)?;
            Ok(())
        })
    }

    /// Sets the size of a regular file: what is behind it goes, or a hole is added.
    ///
    /// # Errors
    /// As [`Fs::metadata`]; when it is not a regular file, the size is too large, or as [`Fs::sync`].
    pub fn set_len(&self, path: impl AsRef<Path>, size: u64) -> Result<(), Error> {
        let held = self.reach(path.as_ref(), true)?;
        self.named(path.as_ref(), self.engine.truncate(held.ino(), size))
    }

    /// Sets the access and modification time of what a path leads to, as touch(1) does; `None` leaves a time as it is.
    /// If nothing is there and `create` is set, an empty file is made as by [`Fs::write`]; the clock gives its other
    /// times.
    ///
    /// # Errors
    /// As [`Fs::create_dir`] and [`Fs::set_attributes`]; when nothing is there and `create` is not set.
    pub fn touch(
        &self,
        path: impl AsRef<Path>,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
        create: bool,
    ) -> Result<(), Error> {
        let path = path.as_ref();
        for _ in 0..TRIES {
            let (place, found) = self.reach_place(path)?;
            let times = SetAttributes {
                atime,
                mtime,
                ..SetAttributes::default()
            };
            if let Some(found) = found {
                if times == SetAttributes::default() {
                    return Ok(());
                }
                return self.named(path, self.engine.set_attributes(found.ino(), &times));
            }
            if !create {
                return self.named(path, Err(engine::Error::NotFound));
            }
            self.refuse_slash(path, engine::Error::IsDirectory)?;
            if self.make_touched(path, &place, &times)? {
                return Ok(());
            }
            // Another thread made a file of this name meanwhile.
        }
        self.named(path, Err(engine::Error::Busy))
    }

    /// Makes an empty file with these times; returns `false` if another thread used the name meanwhile. A cut leaves
    /// the file with its times, or no file.
    fn make_touched(
        &self,
        path: &Path,
        place: &NameInParent<'_>,
        times: &SetAttributes,
    ) -> Result<bool, Error> {
        let is_now = |time: Option<SetTime>| time.is_none_or(|time| time == SetTime::Now);
        if is_now(times.atime) && is_now(times.mtime) {
            return match self.engine.create(place.parent, &place.name, FILE) {
                Ok(_) => Ok(true),
                Err(engine::Error::Exists) => Ok(false),
                Err(error) => self.named(path, Err(error)),
            };
        }
        let made = self.engine.create_unnamed(place.parent, FILE);
        self.with_unnamed(path, made, |ino| {
            self.named(path, self.engine.set_attributes(ino, times))?;
            let installed = self.engine.install(ino, place.parent, &place.name, None);
            self.named(path, installed)
        })
    }

    /// Runs `work` on a new inode without a name, then releases the inode, which deletes it if `work` gave it no name.
    /// Of two errors the one of `work` is returned.
    pub(crate) fn with_unnamed<T>(
        &self,
        path: &Path,
        made: Result<Ino, engine::Error>,
        work: impl FnOnce(Ino) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let ino = self.named(path, made)?;
        let done = work(ino);
        let released = self.named(path, self.engine.release(ino));
        done.and_then(|value| released.map(|()| value))
    }

    /// Makes a file at a path, or replaces one, with what `fill` puts into it.
    pub(crate) fn put(
        &self,
        path: &Path,
        new: NewInode,
        taken: TakenAttributes,
        fill: impl FnOnce(Ino) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.refuse_slash(path, engine::Error::IsDirectory)?;
        let (place, found) = self.reach_place(path)?;
        if let Some(found) = found {
            self.named(path, self.verify_regular(found.ino()))?;
        }
        let made = self.engine.create_unnamed(place.parent, new);
        self.with_unnamed(path, made, |ino| {
            fill(ino)?;
            self.named(path, self.give_name(ino, &place, taken))
        })
    }

    /// The file that has a name, held; `None` if the name does not exist. Anything except a regular file is an error.
    fn replaceable(
        &self,
        place: &NameInParent<'_>,
    ) -> Result<Option<HeldInode<'_>>, engine::Error> {
        let held = match self.reach_in(place.parent, &place.name) {
            Ok(held) => held,
            Err(engine::Error::NotFound) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.verify_regular(held.ino())?;
        Ok(Some(held))
    }

    fn verify_regular(&self, ino: Ino) -> Result<(), engine::Error> {
        verify_regular(self.engine.metadata(ino)?.file_type)
    }

    /// Gives a complete file without a name its name. A file that has the name by then is replaced.
    fn give_name(
        &self,
        ino: Ino,
        place: &NameInParent<'_>,
        taken: TakenAttributes,
    ) -> Result<(), engine::Error> {
        // The file's own attributes, while it has those of a file that it is to replace.
        let mut own: Option<(Metadata, Vec<Xattr>)> = None;
        for _ in 0..TRIES {
            if let Some((metadata, xattrs)) = own.take() {
                self.take_back(ino, &metadata, &xattrs)?;
            }
            let old = self.replaceable(place)?;
            let replaced = old.as_ref().map(HeldInode::ino);
            if let Some(replaced) = replaced {
                own = Some((self.engine.metadata(ino)?, self.engine.xattrs(ino)?));
                let metadata = self.engine.metadata(replaced)?;
                self.keep(ino, &metadata, taken)?;
            }
            // Not held any more, so that `install` itself deletes it and returns what fails.
            drop(old);
            if self
                .engine
                .install(ino, place.parent, &place.name, replaced)?
            {
                return Ok(());
            }
        }
        Err(engine::Error::Busy)
    }

    /// Gives a file that is about to replace another one what it keeps of that: attributes, permissions with their
    /// ACL, owner.
    fn keep(&self, ino: Ino, old: &Metadata, taken: TakenAttributes) -> Result<(), engine::Error> {
        if !taken.mode {
            // It may have one from its directory.
            self.engine.remove_xattr(ino, ACCESS_ACL)?;
        }
        let kept = if taken.xattrs {
            Vec::new()
        } else {
            self.engine.xattrs(old.ino)?
        };
        for xattr in kept {
            if xattr.name != ACCESS_ACL || !taken.mode {
                let any = XattrFlag::Any;
                self.engine.set_xattr(ino, &xattr.name, &xattr.value, any)?;
            }
        }
        let attributes = SetAttributes {
            mode: Some(old.mode & 0o7777).filter(|_| !taken.mode),
            uid: Some(old.uid).filter(|_| !taken.owner),
            gid: Some(old.gid).filter(|_| !taken.owner),
            ..SetAttributes::default()
        };
        if attributes == SetAttributes::default() {
            return Ok(());
        }
        self.engine.set_attributes(ino, &attributes)
    }

    /// Restores a file's own attributes, permissions and owner, after the file whose attributes it was given lost the
    /// name.
    fn take_back(&self, ino: Ino, had: &Metadata, xattrs: &[Xattr]) -> Result<(), engine::Error> {
        for xattr in self.engine.xattrs(ino)? {
            self.engine.remove_xattr(ino, &xattr.name)?;
        }
        let attributes = SetAttributes {
            mode: Some(had.mode & 0o7777),
            uid: Some(had.uid),
            gid: Some(had.gid),
            ..SetAttributes::default()
        };
        self.engine.set_attributes(ino, &attributes)?;
        for xattr in xattrs {
            let any = XattrFlag::Any;
            self.engine.set_xattr(ino, &xattr.name, &xattr.value, any)?;
        }
        Ok(())
    }

    /// Writes what a reader gives from byte `offset` on; says where it ended.
    pub(crate) fn fill(
        &self,
        ino: Ino,
        offset: u64,
        bytes: &mut dyn Read,
        path: &Path,
    ) -> Result<u64, Error> {
        let mut chunk = vec![0; CHUNK];
        let mut at = offset;
        loop {
            let read = match bytes.read(&mut chunk) {
                Ok(0) => return Ok(at),
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::host("reading what is written to", path, error)),
            };
            let mut rest = &chunk[..read];
            while !rest.is_empty() {
                let written = self.named(path, self.engine.write(ino, at, rest))?;
                at += written as u64;
                rest = &rest[written..];
            }
        }
    }
}
