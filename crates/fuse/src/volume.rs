//! An image as [`Operations`]: the library's inode-level file system, and which of its inodes the kernel knows.
//!
//! Every operation is one of the engine's, which says what a crash leaves of it. No lock is held across an operation.

mod known;
mod privileges;
mod writeback;

use self::writeback::HeldFiles;

use std::ops::Range;

use lanefs::{
    Acting, Allocate, FileType, Flags, Fs, FsError, Ino, Metadata, NewContent, NewInode,
    RenameFlag, SetAttributes, StatFs, Stopped, XattrFlag,
};
use rustix::fs::{FallocateFlags, XattrFlags};
use rustix::io::Errno;
use sync::Arc;

use crate::abi;
use crate::callers::{self, SET_GID};
use crate::handles::Handles;
use crate::idle::Idle;
use crate::lookups::Lookups;
use crate::messages::Messages;
use crate::operations::{
    Allocation, Answer, Caller, CopyRange, Kind, ListedName, Named, New, Opening, Operations,
    ServedFs, Setting, WriteOrigin,
};
use crate::stale::{Invalidations, LateReply};
use crate::tuning::{self, Reports};

/// Bytes copied at once from file to file.
const COPY_BYTES: usize = 1 << 20;
/// The most bytes that one request copies, so that it ends soon; the kernel then sends another for the rest.
const COPY_MOST: u64 = 64 << 20;

/// A mounted image.
pub(crate) struct MountedImage {
    fs: Fs,
    /// Whether it is open for writing. Inodes are held only then, because otherwise no inode is deleted.
    is_writable: bool,
    lookups: Lookups,
    handles: Handles,
    reports: Reports,
    /// Told of changes, where they are committed when nothing follows them.
    idle: Option<Arc<Idle>>,
    stale: Invalidations,
    messages: Arc<Messages>,
    agreed: Agreed,
    /// The files whose renames hold commits back.
    held: HeldFiles,
}

/// What this mount negotiated with the kernel, as far as operations depend on it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Agreed {
    /// A change of a file takes set-user-ID and set-group-ID off here, not in the kernel.
    pub(crate) takes_privileges: bool,
    /// The kernel opens files without a message, so handles do not record how a file was opened.
    pub(crate) no_open: bool,
    /// The kernel opens directories without a message.
    pub(crate) no_open_dir: bool,
    /// Mounts of the connection may map users (Linux 6.12). A request that makes an inode then has the owner that this
    /// inode gets, others have no user; [`callers::identified`] finds the caller's.
    pub(crate) maps_ids: bool,
    /// The kernel says with each ACL whether it takes set-group-ID off.
    pub(crate) checks_acls: bool,
    /// The kernel keeps what programs write, and the sizes and times of files, and writes them later.
    pub(crate) writeback: bool,
}

/// The number for an error of the library.
fn errno(error: FsError) -> Errno {
    lanefs::errno::of(&error.into())
}

impl MountedImage {
    pub(crate) fn new(
        fs: Fs,
        is_writable: bool,
        reports: Reports,
        idle: Option<Arc<Idle>>,
        agreed: Agreed,
    ) -> MountedImage {
        MountedImage {
            fs,
            is_writable,
            lookups: Lookups::new(),
            handles: Handles::new(),
            reports,
            idle,
            stale: Invalidations::new(),
            messages: Arc::default(),
            agreed,
            held: HeldFiles::new(),
        }
    }

    /// Reports to the kernel attributes and contents that changed without its knowledge.
    pub(crate) fn stale(&self) -> &Invalidations {
        &self.stale
    }

    /// The file system, when the kernel knows no inode any more: those without names are deleted.
    pub(crate) fn into_fs(mut self) -> Fs {
        // Nothing more is reported to the kernel; the thread that reports may keep the connection open.
        self.stale = Invalidations::new();
        for ino in self.lookups.forget_all() {
            self.let_go(ino);
        }
        self.fs
    }

    /// What the kernel sees to behind a write to a file that was opened to be written synchronously.
    fn sync_if_so_opened(&self, ino: Ino, handle: u64) -> Answer<()> {
        // If no handle says how the file was opened, it may have been synchronously.
        if self.agreed.no_open || Handles::is_synchronous(handle) {
            self.sync(ino, Some(handle), false)
        } else {
            Ok(())
        }
    }

    fn make_inode(
        &self,
        directory: Ino,
        name: Option<&[u8]>,
        content: NewContent<'_>,
        new: New<'_>,
    ) -> Result<Ino, FsError> {
        let mut inode = new_inode(new);
        if !matches!(content, NewContent::Directory) && self.set_gid_goes(directory, new)? {
            inode.mode &= !SET_GID;
        }
        let fs = self.fs.inodes();
        fs.make(directory, name, inode, content, &new.extension.labels)
    }

    /// The caller with its user and group, whether they were in its request or not.
    fn identified(&self, caller: Caller) -> Caller {
        if self.agreed.maps_ids {
            callers::identified(caller)
        } else {
            caller
        }
    }

    fn claim_for(&self, uid: u32, gids: &[u32]) -> Option<Acting<'_>> {
        let claimant = lanefs::BlockClaimant { uid, gids };
        self.fs.inodes().act_for(claimant).ok()
    }

    /// The user and the group for whom the superblock reserves blocks; group 0 stands for none.
    fn reserve_owner(&self) -> (u32, u32) {
        let superblock = self.fs.inodes().superblock();
        (
            superblock.reserve_uid().into(),
            superblock.reserve_gid().into(),
        )
    }

    /// Whether the engine gives reserved blocks to a user with these groups; see [`lanefs::InodeFs::act_for`].
    fn may_take_reserve(&self, uid: u32, gids: &[u32]) -> bool {
        let (owner, group) = self.reserve_owner();
        uid == 0 || uid == owner || group != 0 && gids.contains(&group)
    }

    fn write_bytes(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Answer<usize> {
        self.fs.inodes().write(ino, offset, bytes).map_err(errno)
    }
}

/// The engine's parameters for an inode that is made: it is held from the start.
fn new_inode(new: New<'_>) -> NewInode {
    NewInode {
        mode: new.mode & 0o7777,
        umask: new.umask,
        uid: new.caller.uid,
        gid: new.caller.gid,
        held: true,
    }
}

/// Whether a file with these flags may be opened in this way, by the rules of ext4.
fn may_open(flags: Flags, how: Opening) -> Answer<()> {
    let is_refused = how.writes
        && (flags.contains(Flags::IMMUTABLE) || flags.contains(Flags::APPEND) && !how.appends);
    if is_refused { Err(Errno::PERM) } else { Ok(()) }
}

/// What the engine calls a mode of fallocate.
fn allocation(mode: u32) -> Answer<Allocate> {
    let keep = FallocateFlags::KEEP_SIZE;
    let flags = FallocateFlags::from_bits(mode).ok_or(Errno::OPNOTSUPP)?;
    let known = [
        (FallocateFlags::empty(), Allocate::Grow),
        (keep, Allocate::KeepSize),
        (FallocateFlags::PUNCH_HOLE | keep, Allocate::Punch),
        (FallocateFlags::ZERO_RANGE, Allocate::Zero),
        (FallocateFlags::ZERO_RANGE | keep, Allocate::ZeroKeepSize),
        (FallocateFlags::COLLAPSE_RANGE, Allocate::Collapse),
        (FallocateFlags::INSERT_RANGE, Allocate::Insert),
    ];
    let found = known.into_iter().find(|(known, _)| *known == flags);
    found.map(|(_, how)| how).ok_or(Errno::OPNOTSUPP)
}

impl ServedFs for MountedImage {
    fn messages(&self) -> &Arc<Messages> {
        &self.messages
    }

    fn on_stop(&self, hook: Box<dyn Fn(&Stopped) + Send + Sync>) {
        self.fs.inodes().on_stop(hook);
    }

    fn close_image(self: Box<Self>) -> Result<(), lanefs::Error> {
        self.into_fs().close()
    }

    fn abandon(self: Box<Self>) {
        self.into_fs().abandon();
    }
}

impl Operations for MountedImage {
    fn count(&self, opcode: u32) {
        self.messages.count(opcode);
    }

    fn opens_unasked(&self, is_directory: bool) -> bool {
        if is_directory {
            self.agreed.no_open_dir
        } else {
            self.agreed.no_open
        }
    }

    fn act_for(&self, caller: Caller) -> Option<Acting<'_>> {
        if self.agreed.maps_ids {
            return self.claim_for(abi::NO_ID, &[]);
        }
        self.claim_for(caller.uid, &[caller.gid])
    }

    fn act_for_process(&self, caller: Caller) -> Option<Acting<'_>> {
        let is_named = !self.agreed.maps_ids;
        let (_, reserve_gid) = self.reserve_owner();
        // Of a caller with a name the process adds groups alone.
        if is_named && (reserve_gid == 0 || self.may_take_reserve(caller.uid, &[caller.gid])) {
            return None;
        }
        let (found, gids) = callers::with_groups(caller, is_named);
        if !self.may_take_reserve(found.uid, &gids) {
            return None;
        }
        self.claim_for(found.uid, &gids)
    }

    fn lookup(&self, at: Named<'_>) -> Answer<Metadata> {
        let fs = self.fs.inodes();
        if at.name == b"." {
            return self.by_number(at.directory).map_err(errno);
        }
        let found = if self.is_writable {
            fs.lookup_held(at.directory, at.name)
        } else {
            fs.lookup(at.directory, at.name)
        };
        found.and_then(|ino| self.enter_held(ino)).map_err(errno)
    }

    fn forget(&self, ino: Ino, times: u64) {
        if self.lookups.forget(ino, times) {
            self.let_go(ino);
        }
    }

    fn attributes(&self, ino: Ino) -> Answer<Metadata> {
        self.lookups.show(ino);
        self.fs.inodes().metadata(ino).map_err(errno)
    }

    fn change(
        &self,
        ino: Ino,
        change: &SetAttributes,
        caller: Caller,
        unprivileged: bool,
    ) -> Answer<Metadata> {
        let changed = match self.set_attributes(ino, change, caller, unprivileged) {
            Err(FsError::NotPermitted) if self.are_times_of_writes(change) => Ok(()),
            changed => changed,
        };
        if changed.is_err() {
            // Some of it may be done.
            self.attributes_changed(ino);
        }
        changed.map_err(errno)?;
        self.attributes(ino)
    }

    fn read_link(&self, ino: Ino) -> Answer<Vec<u8>> {
        self.fs.inodes().read_link(ino).map_err(errno)
    }

    fn make(&self, at: Named<'_>, kind: Kind<'_>, new: New<'_>) -> Answer<Metadata> {
        let content = match kind {
            Kind::Directory => NewContent::Directory,
            Kind::Symlink(target) => NewContent::Symlink(target),
            Kind::Node(FileType::Regular, _) => NewContent::Empty,
            Kind::Node(device @ (FileType::CharDevice | FileType::BlockDevice), rdev) => {
                NewContent::Device(device, rdev.0, rdev.1)
            }
            Kind::Node(file_type, _) => NewContent::Special(file_type),
        };
        let ino = self.make_inode(at.directory, Some(at.name), content, new);
        let ino = self.after(ino, &[at.directory]);
        ino.and_then(|ino| self.enter_held(ino)).map_err(errno)
    }

    fn create(&self, at: Named<'_>, new: New<'_>, how: Opening) -> Answer<Metadata> {
        let created = self.make_inode(at.directory, Some(at.name), NewContent::Empty, new);
        match self.after(created, &[at.directory]) {
            Ok(ino) => self.enter_held(ino).map_err(errno),
            Err(FsError::Exists) if !how.exclusive => {
                let metadata = self.lookup(at)?;
                let opened = self.open(metadata.ino, how);
                if opened.is_err() {
                    self.forget(metadata.ino, 1);
                }
                opened.map(|()| metadata)
            }
            Err(error) => Err(errno(error)),
        }
    }

    fn make_unnamed(&self, directory: Ino, new: New<'_>) -> Answer<Metadata> {
        let made = self.make_inode(directory, None, NewContent::Empty, new);
        made.and_then(|ino| self.enter_held(ino)).map_err(errno)
    }

    fn link(&self, ino: Ino, at: Named<'_>) -> Answer<Metadata> {
        let linked = self.fs.inodes().link(ino, at.directory, at.name);
        let linked = self.after(linked, &[at.directory, ino]);
        linked.and_then(|()| self.enter(ino)).map_err(errno)
    }

    fn unlink(&self, at: Named<'_>) -> Answer<()> {
        let gone = self.fs.inodes().unlink(at.directory, at.name);
        self.after(gone, &[at.directory]).map_err(errno)
    }

    fn rmdir(&self, at: Named<'_>) -> Answer<()> {
        let gone = self.fs.inodes().rmdir(at.directory, at.name);
        self.after(gone, &[at.directory]).map_err(errno)
    }

    fn rename(
        &self,
        from: Named<'_>,
        to: Named<'_>,
        flag: RenameFlag,
        whiteout: Option<(u32, u32)>,
    ) -> Answer<()> {
        let fs = self.fs.inodes();
        let (old, new) = ((from.directory, from.name), (to.directory, to.name));
        let renamed = match whiteout {
            Some(owner) => fs.rename_with_whiteout(old, new, flag, owner),
            None => fs.rename(old.0, old.1, new.0, new.1, flag),
        };
        renamed.map_err(errno)?;
        self.marked_by_kernel(&[from.directory, to.directory]);
        // What moved has a new time of change. The kernel lets nobody change these names until it has the answer.
        for at in [from, to] {
            if let Ok(moved) = fs.lookup(at.directory, at.name) {
                self.marked_by_kernel(&[moved]);
                if from.directory != to.directory {
                    self.parent_changed(moved);
                }
            }
        }
        Ok(())
    }

    fn open(&self, ino: Ino, how: Opening) -> Answer<()> {
        may_open(self.attributes(ino)?.flags, how)
    }

    fn handle(&self, ino: Ino, how: Opening) -> u64 {
        if self.agreed.no_open {
            return 0;
        }
        if self.agreed.writeback && how.writes {
            self.lookups.opened_to_write(ino);
        }
        // A failed write-out of an inode is reported when the inode is used; a read-only mount has no writes that fail.
        let seen = if self.is_writable {
            self.fs.inodes().write_failures(ino).unwrap_or(0)
        } else {
            0
        };
        self.handles.open(seen, how.synchronous)
    }

    fn close(&self, ino: Ino, handle: u64, writes: bool) {
        self.handles.close(handle);
        if writes {
            if self.agreed.writeback {
                self.lookups.closed_to_write(ino);
                self.held.end(self.fs.inodes(), ino);
            }
            self.fs.inodes().closed(ino);
        }
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8], keeps_atime: bool) -> Answer<usize> {
        let fs = self.fs.inodes();
        let read = if keeps_atime {
            fs.read_noatime(ino, offset, buf)
        } else {
            fs.read(ino, offset, buf)
        };
        read.map_err(errno)
    }

    fn write(&self, ino: Ino, offset: u64, bytes: &[u8], origin: WriteOrigin) -> Answer<usize> {
        // Older kernels do not say it.
        let unprivileged = if self.agreed.takes_privileges {
            origin.unprivileged
        } else {
            origin.caller.uid != 0
        };
        if unprivileged {
            self.take_bits(ino, origin.caller).map_err(errno)?;
        }
        if !origin.from_cache {
            return self.write_bytes(ino, offset, bytes);
        }
        let written = self.write_back(ino, offset, bytes);
        // Nobody waits for the answer: after it the kernel only marks the attributes, and with the writeback cache it
        // does not even mark the blocks.
        self.marked_by_kernel(&[ino]);
        written
    }

    fn keeps_writes(&self) -> bool {
        self.agreed.writeback
    }

    fn unwritten_over(&self, from: Named<'_>, to: Named<'_>, flag: RenameFlag) -> Vec<Ino> {
        self.moved_unwritten(from, to, flag)
    }

    fn hold_commits(&self, files: &[Ino]) {
        self.held.begin(self.fs.inodes(), files);
        self.messages.held();
    }

    fn sync(&self, ino: Ino, handle: Option<u64>, data_only: bool) -> Answer<()> {
        if !self.is_writable {
            return Ok(());
        }
        let fs = self.fs.inodes();
        if self.agreed.writeback {
            self.held.end(fs, ino);
            // An fsync log may record names that a held rename changes.
            fs.await_delays();
        }
        let Some(handle) = handle.filter(|_| !self.agreed.no_open) else {
            let synced = if data_only {
                fs.fdatasync(ino)
            } else {
                fs.fsync(ino)
            };
            return synced.map_err(errno);
        };
        let before = self.handles.seen(handle);
        let mut seen = before;
        let synced = fs.fsync_of(ino, data_only, &mut seen);
        if seen != before {
            self.handles.set_seen(handle, seen);
        }
        synced.map_err(errno)
    }

    fn changed(&self) {
        if let Some(idle) = &self.idle {
            idle.changed();
        }
    }

    fn sync_all(&self) -> Answer<()> {
        if self.is_writable {
            self.fs.inodes().sync().map_err(errno)
        } else {
            Ok(())
        }
    }

    fn list(
        &self,
        ino: Ino,
        cookie: u64,
        with_metadata: bool,
        take: &mut dyn FnMut(ListedName<'_>) -> bool,
    ) -> Answer<()> {
        for entry in self.fs.inodes().read_dir_from(ino, cookie).map_err(errno)? {
            let entry = entry.map_err(errno)?;
            let is_dots = entry.name == b"." || entry.name == b"..";
            let mut is_counted = with_metadata && !is_dots;
            // One whose inode is broken is listed too, as by other file systems.
            let metadata = if is_counted {
                self.enter(entry.ino).ok()
            } else {
                None
            };
            if is_counted && metadata.is_none() {
                // The kernel will forget it once, so it must be known once more if it is known at all.
                is_counted = self.lookups.again(entry.ino);
            }
            let said = metadata.map(|metadata| metadata.file_type);
            let listed = ListedName {
                name: &entry.name,
                ino: entry.ino,
                file_type: said.or(entry.file_type).unwrap_or(FileType::Regular),
                cookie: entry.cookie,
                metadata,
            };
            if !take(listed) {
                if is_counted {
                    self.forget(entry.ino, 1);
                }
                break;
            }
        }
        Ok(())
    }

    fn statfs(&self) -> Answer<StatFs> {
        self.fs.inodes().statfs().map_err(errno)
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Answer<Vec<u8>> {
        if let Some(name) = tuning::name(name).filter(|_| ino == Ino::ROOT) {
            return tuning::read(self.fs.inodes(), name, &self.reports, &self.messages);
        }
        self.fs.inodes().xattr(ino, name).map_err(errno)
    }

    fn xattr_names(&self, ino: Ino, caller: Caller) -> Answer<Vec<u8>> {
        let mut names = Vec::new();
        let xattrs = self.fs.inodes().xattrs(ino).map_err(errno)?;
        let is_trusted = |name: &[u8]| name.starts_with(b"trusted.");
        // An overlay copies a file with all attributes, also if an ordinary user changes it.
        let for_root = xattrs.iter().any(|xattr| is_trusted(&xattr.name))
            && (self.identified(caller).uid == 0
                || self.agreed.maps_ids && callers::may_be_overlay(caller));
        for xattr in xattrs {
            if for_root || !is_trusted(&xattr.name) {
                names.extend_from_slice(&xattr.name);
                names.push(0);
            }
        }
        Ok(names)
    }

    fn set_xattr(&self, ino: Ino, what: Setting<'_>, caller: Caller) -> Answer<()> {
        let fs = self.fs.inodes();
        if let Some(name) = tuning::name(what.name).filter(|_| ino == Ino::ROOT) {
            return tuning::write(fs, name, what.value, self.identified(caller));
        }
        let flag = match XattrFlags::from_bits(what.flags) {
            Some(flags) if flags.is_empty() => XattrFlag::Any,
            Some(XattrFlags::CREATE) => XattrFlag::Create,
            Some(XattrFlags::REPLACE) => XattrFlag::Replace,
            _ => return Err(Errno::INVAL),
        };
        let set = if self.acl_costs_set_gid(ino, what, caller)? {
            fs.set_acl_without_set_gid(ino, what.value)
        } else {
            fs.set_xattr(ino, what.name, what.value, flag)
        };
        // The kernel knows of the new time of change, but not of an ACL's mode, nor of blocks.
        self.attributes_changed(ino);
        set.map_err(errno)
    }

    fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Answer<()> {
        let removed = self.fs.inodes().remove_xattr(ino, name);
        self.attributes_changed(ino);
        removed.map_err(errno)
    }

    fn allocate(&self, ino: Ino, handle: u64, what: Allocation, caller: Caller) -> Answer<()> {
        let how = allocation(what.mode)?;
        self.before_changing_content(ino, caller).map_err(errno)?;
        let fs = self.fs.inodes();
        let allocated = fs.allocate(ino, how, what.offset, what.len);
        // Also where it failed: some blocks may be there.
        self.attributes_changed(ino);
        allocated.map_err(errno)?;
        self.sync_if_so_opened(ino, handle)
    }

    fn seek(&self, ino: Ino, offset: u64, is_hole: bool) -> Answer<u64> {
        let fs = self.fs.inodes();
        let found = if is_hole {
            fs.seek_hole(ino, offset)
        } else {
            fs.seek_data(ino, offset)
        };
        found.map_err(errno)?.ok_or(Errno::NXIO)
    }

    fn copy(&self, what: CopyRange, caller: Caller) -> Answer<u64> {
        self.before_changing_content(what.to, caller)
            .map_err(errno)?;
        let len = what.len.min(COPY_MOST);
        let mut buf = vec![0; COPY_BYTES.min(usize::try_from(len).unwrap_or(COPY_BYTES))];
        let mut done = 0;
        while done < len {
            // No more than the buffer holds.
            let want = (len - done).min(buf.len() as u64) as usize;
            let copied = self
                .read(what.from, what.from_offset + done, &mut buf[..want], false)
                .and_then(|found| self.write_bytes(what.to, what.to_offset + done, &buf[..found]));
            match copied {
                Ok(copied) => {
                    done += copied as u64;
                    if copied < want {
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        self.sync_if_so_opened(what.to, what.to_handle)?;
        Ok(done)
    }

    fn failed(&self, ino: Ino, range: Range<u64>, reply: Option<LateReply>) {
        self.stale.pages(ino, range, reply);
    }

    fn flags(&self, ino: Ino) -> Answer<u32> {
        Ok(self.attributes(ino)?.flags.0)
    }

    fn set_flags(&self, ino: Ino, flags: u32) -> Answer<()> {
        let fs = self.fs.inodes();
        let set = fs.set_flags(ino, Flags(flags));
        self.attributes_changed(ino);
        set.map_err(errno)
    }

    fn label(&self) -> Answer<Vec<u8>> {
        Ok(self.fs.inodes().label())
    }

    fn set_label(&self, label: &[u8]) -> Answer<()> {
        self.fs.inodes().set_label(label).map_err(errno)
    }

    fn shut_down(&self) -> Answer<()> {
        if self.is_writable {
            self.fs.inodes().shut_down().map_err(errno)
        } else {
            Ok(())
        }
    }

    fn trim(&self, range: Range<u64>, least: u64) -> Answer<u64> {
        self.fs.inodes().trim(range, least).map_err(errno)
    }
}
