//! Operations on names and attributes, by the directory's inode number: as a FUSE low-level server gets them.
//!
//! Each is one step: after a crash it was done, or it was not; [`InodeFs::sync`] makes it durable. Each may be called
//! from any number of threads at once, takes the locks of the inodes concerned and nothing else (a move of a directory
//! to another parent: the file system's rename lock too), and may block on I/O. The caller has checked permissions;
//! only the flags "immutable" and "append only" are respected here.

use ondisk::{FileType, Ino};

use crate::core::Error;
use crate::fs::{InodeFs, enter};
use crate::names::{self, NameIn, NewContent, NewInode, RenameFlag, WalkEnd, WalkIntent};
use crate::reap;
use crate::xattr::{self, XattrFlag};

impl InodeFs {
    fn create_as(
        &self,
        parent: Ino,
        name: &[u8],
        new: NewInode,
        content: NewContent<'_>,
    ) -> Result<Ino, Error> {
        self.make(parent, Some(name), new, content, &[])
    }

    /// Makes a change of names durable at once, if the directory's flags ask for that.
    fn settle_names(&self, directory: Ino) -> Result<(), Error> {
        let flags = self.mounted.load(directory)?.flags();
        self.live()?.settle_names(directory, flags)
    }

    /// Makes an inode with extended attributes (whole name and value) in one step, and returns its number. With a name
    /// it does what [`InodeFs::create`] does, or the function for the type of `content`; without a name, what
    /// [`InodeFs::create_unnamed`] does.
    ///
    /// # Errors
    /// Those of these functions; those of [`InodeFs::set_xattr`] for the attributes; `NotSupported` for an ACL.
    pub fn make(
        &self,
        parent: Ino,
        name: Option<&[u8]>,
        new: NewInode,
        content: NewContent<'_>,
        attributes: &[(&[u8], &[u8])],
    ) -> Result<Ino, Error> {
        let Some(name) = name else {
            return self.change(|mounted| {
                names::create_unnamed(mounted, parent, new, content, attributes)
            });
        };
        let ino =
            self.change(|mounted| names::create(mounted, parent, name, new, content, attributes))?;
        self.settle_names(parent)?;
        Ok(ino)
    }

    /// Makes an empty file; gives its number.
    ///
    /// # Errors
    /// `Exists`, `NotFound` for a parent that is gone, `NotDirectory`, `NameTooLong`, `InvalidArgument` for a name
    /// that can't be;
    /// `NotPermitted` in an immutable directory; `NoSpace`, `DirectoryFull`; `ReadOnly`, `Aborted`, `Corrupt`, `Io`;
    /// `Unsupported` for kinds of directories that can't be changed yet. These are possible for every operation here.
    pub fn create(&self, parent: Ino, name: &[u8], new: NewInode) -> Result<Ino, Error> {
        self.create_as(parent, name, new, NewContent::Empty)
    }

    /// Makes an empty directory; gives its number.
    ///
    /// # Errors
    /// As [`InodeFs::create`]; `LinkLimit` when the parent has as many as can be counted and no index.
    pub fn mkdir(&self, parent: Ino, name: &[u8], new: NewInode) -> Result<Ino, Error> {
        self.create_as(parent, name, new, NewContent::Directory)
    }

    /// Makes a symbolic link to `target`; gives its number. Of `new`, Linux takes the permissions to be 0777.
    ///
    /// # Errors
    /// As [`InodeFs::create`]; `NameTooLong` for a target of 4096 bytes, or as many as a block has; `NotFound` for an
    /// empty one.
    pub fn symlink(
        &self,
        parent: Ino,
        name: &[u8],
        target: &[u8],
        new: NewInode,
    ) -> Result<Ino, Error> {
        self.create_as(parent, name, new, NewContent::Symlink(target))
    }

    /// Makes a file of any type but directory and symbolic link; gives its number. `rdev` is a device's major and
    /// minor number, of 12 and 20 bits, and does not count for other types.
    ///
    /// # Errors
    /// As [`InodeFs::create`]; `NotPermitted` for a directory or symbolic link.
    pub fn mknod(
        &self,
        parent: Ino,
        name: &[u8],
        file_type: FileType,
        rdev: (u32, u32),
        new: NewInode,
    ) -> Result<Ino, Error> {
        let content = match file_type {
            FileType::Regular => NewContent::Empty,
            FileType::CharDevice | FileType::BlockDevice => {
                NewContent::Device(file_type, rdev.0, rdev.1)
            }
            FileType::Fifo | FileType::Socket => NewContent::Special(file_type),
            FileType::Directory | FileType::Symlink => return Err(Error::NotPermitted),
        };
        self.create_as(parent, name, new, content)
    }

    /// Gives an inode one more name.
    ///
    /// # Errors
    /// As [`InodeFs::create`]; `NotPermitted` for a directory, or an inode that is immutable or append only;
    /// `LinkLimit` for the 65,001st name.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<(), Error> {
        self.change(|mounted| names::link(mounted, ino, parent, name))?;
        self.settle_names(parent)
    }

    /// Gives an inode one more name in one step; it is not a directory, and may be a finished file of
    /// [`InodeFs::create_unnamed`]. `replaced` is the inode that has the name and loses it, as by [`InodeFs::unlink`];
    /// `None` if the name is free. Returns `false`, with nothing done, if the name stands for something else, as when
    /// another thread changed it.
    ///
    /// # Errors
    /// As [`InodeFs::link`]; `IsDirectory` if `replaced` is a directory.
    pub fn install(
        &self,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        replaced: Option<Ino>,
    ) -> Result<bool, Error> {
        let installed =
            self.change(|mounted| names::install(mounted, ino, parent, name, replaced))?;
        self.settle_names(parent)?;
        Ok(installed)
    }

    /// Takes a name away; with its last one the inode is deleted.
    ///
    /// # Errors
    /// As [`InodeFs::create`]; `NotFound`; `IsDirectory`; `NotPermitted` where a flag forbids it.
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<(), Error> {
        self.change(|mounted| names::unlink(mounted, parent, name))?;
        self.settle_names(parent)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`InodeFs::unlink`]; `NotDirectory`, `NotEmpty`; `InvalidArgument` for `.`.
    pub fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<(), Error> {
        self.change(|mounted| names::rmdir(mounted, parent, name))?;
        self.settle_names(parent)
    }

    /// Gives what is named `name` in `parent` the name `new_name` in `new_parent`. Two names of one inode stay as
    /// they are.
    ///
    /// # Errors
    /// As [`InodeFs::create`]; `NotFound`; `Exists` (with `NoReplace`), `IsDirectory`, `NotDirectory`, `NotEmpty`
    /// for what can't be replaced; `InvalidArgument` for a directory that would lie in itself.
    pub fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flag: RenameFlag,
    ) -> Result<(), Error> {
        let (old, new) = ((parent, name), (new_parent, new_name));
        self.rename_and_leave(old, new, flag, None)
    }

    /// As [`InodeFs::rename`], and leaves a whiteout under the old name in the same step: a character device 0:0
    /// without permissions, which belongs to this user and group, as a new file does. Overlayfs takes it for the mark
    /// that the name was deleted. Where the rename changes nothing because both names are of one inode, no whiteout is
    /// made.
    ///
    /// # Errors
    /// As [`InodeFs::rename`]; `InvalidArgument` with [`RenameFlag::Exchange`]; `NoSpace` when no inode is free.
    pub fn rename_with_whiteout(
        &self,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        flag: RenameFlag,
        owner: (u32, u32),
    ) -> Result<(), Error> {
        let (old, new) = ((parent, name), (new_parent, new_name));
        self.rename_and_leave(old, new, flag, Some(owner))
    }

    fn rename_and_leave(
        &self,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        flag: RenameFlag,
        whiteout: Option<(u32, u32)>,
    ) -> Result<(), Error> {
        let old = NameIn {
            directory: parent,
            name,
        };
        let new = NameIn {
            directory: new_parent,
            name: new_name,
        };
        self.change(|mounted| names::rename(mounted, old, new, flag, whiteout))?;
        self.settle_names(parent)?;
        self.settle_names(new_parent)
    }

    /// Makes a file without a name (`O_TMPFILE`), held by the caller as by [`InodeFs::hold`]; gives its number.
    /// [`InodeFs::link`] can name it; else it is deleted when it is released, or after a crash.
    ///
    /// # Errors
    /// As [`InodeFs::create`].
    pub fn create_unnamed(&self, parent: Ino, new: NewInode) -> Result<Ino, Error> {
        self.change(|mounted| names::create_unnamed(mounted, parent, new, NewContent::Empty, &[]))
    }

    /// As [`InodeFs::create_unnamed`], for a symbolic link to `target`.
    ///
    /// # Errors
    /// As [`InodeFs::symlink`].
    pub fn create_unnamed_symlink(
        &self,
        parent: Ino,
        target: &[u8],
        new: NewInode,
    ) -> Result<Ino, Error> {
        let content = NewContent::Symlink(target);
        self.change(|mounted| names::create_unnamed(mounted, parent, new, content, &[]))
    }

    /// Keeps an inode (an open file, a server's reference) although its last name may go, until it is released as
    /// often.
    ///
    /// # Errors
    /// `ReadOnly`; as [`InodeFs::inode`].
    pub fn hold(&self, ino: Ino) -> Result<(), Error> {
        let live = self.mounted.get(ino)?;
        let _locked = live.read_lock();
        self.mounted.load_used(ino)?;
        live.life.hold();
        Ok(())
    }

    /// As [`InodeFs::lookup`] and [`InodeFs::hold`] at one moment: what is held is what has the name.
    ///
    /// # Errors
    /// As these; `Busy` if the name never stays the same between two looks.
    pub fn lookup_held(&self, directory: Ino, name: &[u8]) -> Result<Ino, Error> {
        self.noting(names::look_at(
            &self.mounted,
            directory,
            name,
            |live, inode| {
                live.life.hold();
                Ok(inode.ino())
            },
        ))
    }

    /// Walks a path once and holds what it ends at. Other threads may rename and delete meanwhile: the walk does not
    /// hold the directories that it only passes, and what it ends at exists at the moment it is held.
    ///
    /// # Errors
    /// `ReadOnly`; `NotFound`, `NotDirectory`, `TooManyLinks`, `NameTooLong`; `Busy` if other threads keep changing the
    /// directories on the way; `Corrupt`, `Io`.
    pub fn walk(&self, path: &[u8], intent: WalkIntent) -> Result<WalkEnd, Error> {
        self.walk_in(Ino::ROOT, path, intent)
    }

    /// As [`InodeFs::walk`], as if `root`, which the caller holds, were the root directory: see
    /// [`InodeFs::resolve_in`].
    ///
    /// # Errors
    /// As [`InodeFs::walk`].
    pub fn walk_in(&self, root: Ino, path: &[u8], intent: WalkIntent) -> Result<WalkEnd, Error> {
        let live = self.live()?;
        self.noting(names::walk(live, root, path, intent))
    }

    /// Releases an inode that was held. One without names is deleted by its last holder before this returns; that waits
    /// while the file system is frozen.
    ///
    /// # Errors
    /// `ReadOnly`, `Aborted`, `Corrupt`, `Io`: the inode is released all the same, and the next mount deletes it.
    pub fn release(&self, ino: Ino) -> Result<(), Error> {
        self.forget(ino, 1)
    }

    /// As [`InodeFs::release`], `count` times at once; the caller held it at least as often.
    ///
    /// # Errors
    /// As [`InodeFs::release`].
    pub fn forget(&self, ino: Ino, count: u32) -> Result<(), Error> {
        if self.mounted.release_absent(ino, count) {
            return Ok(());
        }
        let live = self.mounted.get(ino)?;
        if !live.life.release(count) {
            return Ok(());
        }
        self.mounted.give_back_kept(&live);
        if live.is_released_for_good() {
            // Here nothing is held yet: a thread that waited for a thaw with locks could block others,
            // including the thread that freezes.
            let mounted = self.live()?;
            let _change = enter(mounted)?;
            self.noting(reap::delete_or_doom(mounted, ino))
        } else {
            Ok(())
        }
    }

    /// As [`InodeFs::release`], for a caller that may neither wait nor fail, such as a destructor: it does no I/O. An
    /// inode without names is deleted by the reaper thread if one runs, otherwise by the next change, [`InodeFs::sync`]
    /// or [`InodeFs::close`]; without these, when the file system is opened next.
    pub fn let_go(&self, ino: Ino) {
        if let Ok(live) = self.live() {
            reap::let_go(live, ino);
        }
    }

    /// Announces that a caller that wrote to a file will not write more: blocks that were kept for it, so that it grows
    /// in one piece, are given back. The file may still be written to. Waits for no I/O; does nothing for an inode that
    /// is not in memory.
    pub fn closed(&self, ino: Ino) {
        self.mounted.closed(ino);
    }

    /// Sets an extended attribute, by its whole name: in the inode if there is room, else in a block, which inodes with
    /// the same attributes share. One step. ACLs are taken in the form of system calls, and the permission bits follow
    /// an access ACL; `flag` does not count for them.
    ///
    /// # Errors
    /// `Exists`, `NoAttribute` where `flag` says so; `NameLength`, `InvalidArgument` for a name or an ACL that can't
    /// be; `NotSupported` for an unknown prefix, and for ACLs of symbolic links; `ValueTooLarge` beyond 64 KiB;
    /// `NoSpace` for what does not fit beside the inode's other attributes, or when no block is free; `NotPermitted`
    /// for an immutable or append-only inode, or `user.` on what is neither file nor directory; `AccessDenied` for a
    /// default ACL on an inode that is not a directory; as [`InodeFs::create`].
    pub fn set_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flag: XattrFlag,
    ) -> Result<(), Error> {
        self.change(|mounted| xattr::change(mounted, ino, name, Some(value), flag))
    }

    /// Sets an access ACL as [`InodeFs::set_xattr`] does, and takes set-group-ID off, as Linux does for a caller that
    /// is neither privileged nor in the file's group.
    ///
    /// # Errors
    /// As [`InodeFs::set_xattr`].
    pub fn set_acl_without_set_gid(&self, ino: Ino, value: &[u8]) -> Result<(), Error> {
        let index = ondisk::xattr::INDEX_ACL_ACCESS;
        self.change(|mounted| xattr::set_acl(mounted, ino, index, Some(value), true))
    }

    /// Removes an extended attribute, by its whole name. One step. An ACL need not be there.
    ///
    /// # Errors
    /// `NoAttribute`; as [`InodeFs::set_xattr`].
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<(), Error> {
        self.change(|mounted| xattr::change(mounted, ino, name, None, XattrFlag::Any))
    }
}
