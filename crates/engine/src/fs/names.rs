//! Operations on names and attributes, by the directory's inode number, as a FUSE low-level server receives them.
//!
//! Each is one step: after a crash it is done as a whole or not at all; [`InodeFs::sync`] makes it durable. Any number
//! of threads may call them at once. An operation takes the locks of the inodes concerned and no others, except that
//! moving a directory to another parent takes the file system's rename lock too. It may block on I/O. The caller has
//! checked permissions; only the flags "immutable" and "append only" are checked here.

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

    /// Makes an inode with extended attributes (whole name and value) in one step, and returns its number. With a name,
    /// it makes what [`InodeFs::create`], or the function for the type of `content`, would make; without a name, what
    /// [`InodeFs::create_unnamed`] would.
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

    /// Makes an empty file; returns its number.
    ///
    /// # Errors
    /// `Exists`, `NotFound` for a parent that was removed, `NotDirectory`, `NameTooLong`, `InvalidArgument` for an
    /// invalid name; `NotPermitted` in an immutable directory; `NoSpace`, `DirectoryFull`; `ReadOnly`, `Aborted`,
    /// `Corrupt`, `Io`; `Unsupported` for kinds of directories that can't be changed yet. Every operation here can
    /// return these errors.
    pub fn create(&self, parent: Ino, name: &[u8], new: NewInode) -> Result<Ino, Error> {
        self.create_as(parent, name, new, NewContent::Empty)
    }

    /// Makes an empty directory; returns its number.
    ///
    /// # Errors
    /// As [`InodeFs::create`]; `LinkLimit` when the parent's link count is at its limit and the parent has no index.
    pub fn mkdir(&self, parent: Ino, name: &[u8], new: NewInode) -> Result<Ino, Error> {
        self.create_as(parent, name, new, NewContent::Directory)
    }

    /// Makes a symbolic link to `target`; returns its number. Linux uses 0777 for the permissions of `new`.
    ///
    /// # Errors
    /// As [`InodeFs::create`]; `NameTooLong` for a target of at least 4096 bytes or at least a block; `NotFound` for an
    /// empty target.
    pub fn symlink(
        &self,
        parent: Ino,
        name: &[u8],
        target: &[u8],
        new: NewInode,
    ) -> Result<Ino, Error> {
        self.create_as(parent, name, new, NewContent::Symlink(target))
    }

    /// Makes a file of any type except directory and symbolic link; returns its number. `rdev` is a device's major and
    /// minor number, of 12 and 20 bits; it is ignored for other types.
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
    /// `None` if the name is free. Returns `false`, and does nothing, if the name stands for another inode, because
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

    /// Removes a name; if it is the inode's last name, the inode is deleted.
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

    /// Renames `name` in `parent` to `new_name` in `new_parent`. If both are names of one inode, nothing changes.
    ///
    /// # Errors
    /// As [`InodeFs::create`]; `NotFound`; `Exists` (with `NoReplace`), `IsDirectory`, `NotDirectory`, `NotEmpty` if
    /// the target can't be replaced; `InvalidArgument` for a directory that would be moved into itself.
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

    /// Does what [`InodeFs::rename`] does, and leaves a whiteout under the old name in the same step: a character
    /// device 0:0 without permissions, which belongs to `owner` (user and group), as a new file does. To overlayfs it
    /// means that the name was deleted. If the rename changes nothing because both names are of one inode, no whiteout
    /// is made.
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

    /// Makes a file without a name (`O_TMPFILE`), which the caller holds as after [`InodeFs::hold`]; returns its
    /// number. If [`InodeFs::link`] does not name it, it is deleted when it is released, or after a crash.
    ///
    /// # Errors
    /// As [`InodeFs::create`].
    pub fn create_unnamed(&self, parent: Ino, new: NewInode) -> Result<Ino, Error> {
        self.change(|mounted| names::create_unnamed(mounted, parent, new, NewContent::Empty, &[]))
    }

    /// Does what [`InodeFs::create_unnamed`] does, for a symbolic link to `target`.
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

    /// Keeps an inode (for an open file or a server's reference) even if its last name is removed, until it is released
    /// once for each call.
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

    /// Does what [`InodeFs::lookup`] and [`InodeFs::hold`] do, at one moment: the inode that is held is the one with
    /// the name.
    ///
    /// # Errors
    /// As these; `Busy` if the name keeps changing between the lookup and the hold.
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

    /// Walks a path once and holds the inode at its end. Other threads may rename and delete meanwhile: the walk does
    /// not hold the directories on the way, and the inode at the end exists at the moment when it is held.
    ///
    /// # Errors
    /// `ReadOnly`; `NotFound`, `NotDirectory`, `TooManyLinks`, `NameTooLong`; `Busy` if other threads keep changing the
    /// directories on the way; `Corrupt`, `Io`.
    pub fn walk(&self, path: &[u8], intent: WalkIntent) -> Result<WalkEnd, Error> {
        self.walk_in(Ino::ROOT, path, intent)
    }

    /// Does what [`InodeFs::walk`] does, as if `root`, which the caller holds, were the root directory: see
    /// [`InodeFs::resolve_in`].
    ///
    /// # Errors
    /// As [`InodeFs::walk`].
    pub fn walk_in(&self, root: Ino, path: &[u8], intent: WalkIntent) -> Result<WalkEnd, Error> {
        let live = self.live()?;
        self.noting(names::walk(live, root, path, intent))
    }

    /// Releases an inode that was held. If it has no name, its last holder deletes it before this returns, and waits
    /// for that while the file system is frozen.
    ///
    /// # Errors
    /// `ReadOnly`, `Aborted`, `Corrupt`, `Io`: the inode is released even then, and the next mount deletes it.
    pub fn release(&self, ino: Ino) -> Result<(), Error> {
        self.forget(ino, 1)
    }

    /// Does what [`InodeFs::release`] does, `count` times at once; the caller held the inode at least `count` times.
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
            // Nothing is locked yet: a thread that waited for a thaw while it held locks could block others, including
            // the thread that freezes.
            let mounted = self.live()?;
            let _change = enter(mounted)?;
            self.noting(reap::delete_or_doom(mounted, ino))
        } else {
            Ok(())
        }
    }

    /// Releases an inode, as [`InodeFs::release`], for a caller that may neither wait nor fail, such as a destructor:
    /// it does no I/O. An inode without names is deleted by the reaper thread if one runs, otherwise by the next
    /// change, [`InodeFs::sync`] or [`InodeFs::close`], at the latest when the file system is opened next.
    pub fn let_go(&self, ino: Ino) {
        if let Ok(live) = self.live() {
            reap::let_go(live, ino);
        }
    }

    /// Announces that a caller will not write more to a file: the blocks that were kept so that the file grows in one
    /// piece are given back. The file may still be written to. Waits for no I/O; does nothing for an inode that is not
    /// in memory.
    pub fn closed(&self, ino: Ino) {
        self.mounted.closed(ino);
    }

    /// Sets an extended attribute, by its whole name, in one step: in the inode if it has room, else in a block, which
    /// inodes with the same attributes share. ACLs are passed in the form of system calls. The permission bits follow
    /// an access ACL; `flag` is ignored for ACLs.
    ///
    /// # Errors
    /// `Exists`, `NoAttribute` if `flag` asks for it; `NameLength`, `InvalidArgument` for an invalid name or ACL;
    /// `NotSupported` for an unknown prefix, and for ACLs of symbolic links; `ValueTooLarge` beyond 64 KiB; `NoSpace`
    /// if the value does not fit in addition to the inode's other attributes, or no block is free; `NotPermitted` for
    /// an immutable or append-only inode, or for `user.` on an inode that is neither file nor directory; `AccessDenied`
    /// for a default ACL on an inode that is not a directory; as [`InodeFs::create`].
    pub fn set_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flag: XattrFlag,
    ) -> Result<(), Error> {
        self.change(|mounted| xattr::change(mounted, ino, name, Some(value), flag))
    }

    /// Sets an access ACL as [`InodeFs::set_xattr`] does, and clears the set-group-ID bit, as Linux does for a caller
    /// that is neither privileged nor in the file's group.
    ///
    /// # Errors
    /// As [`InodeFs::set_xattr`].
    pub fn set_acl_without_set_gid(&self, ino: Ino, value: &[u8]) -> Result<(), Error> {
        let index = ondisk::xattr::INDEX_ACL_ACCESS;
        self.change(|mounted| xattr::set_acl(mounted, ino, index, Some(value), true))
    }

    /// Removes an extended attribute, by its whole name, in one step. Removing an ACL that does not exist is not an
    /// error.
    ///
    /// # Errors
    /// `NoAttribute`; as [`InodeFs::set_xattr`].
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<(), Error> {
        self.change(|mounted| xattr::change(mounted, ino, name, None, XattrFlag::Any))
    }
}
