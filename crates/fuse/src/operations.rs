//! What a kernel asks of a file system, in lanefs's types: the boundary between the protocol and the image.
//!
//! All methods may be called from any number of threads and may block. Inodes are named by their numbers; each that a
//! method returns is known to the kernel once more, until [`Operations::forget`] takes that back. The kernel has
//! checked permissions, if the mount asked it to; a method has the caller as a parameter where that decides what is
//! done.

use std::ops::Range;

use lanefs::{Acting, FileType, Ino, Metadata, RenameFlag, SetAttributes, StatFs, Stopped};
use rustix::io::Errno;
use sync::Arc;

#[cfg(doc)]
use crate::abi;
use crate::extension::Extension;
use crate::messages::Messages;
use crate::stale::LateReply;

/// An answer, or the number of an error.
pub(crate) type Answer<T> = Result<T, Errno>;

/// The owner and the mode of something that is made.
#[derive(Clone, Copy)]
pub(crate) struct New<'a> {
    /// Permissions, as they were asked for.
    pub(crate) mode: u16,
    /// Permissions to be taken off.
    pub(crate) umask: u16,
    /// The owner, and the group if the directory does not decide.
    pub(crate) caller: Caller,
    pub(crate) extension: &'a Extension<'a>,
}

/// What kind of thing is made.
#[derive(Clone, Copy)]
pub(crate) enum Kind<'a> {
    Directory,
    Symlink(&'a [u8]),
    /// Anything else, with a device's major and minor number.
    Node(FileType, (u32, u32)),
}

/// How a file is opened.
#[derive(Clone, Copy)]
pub(crate) struct Opening {
    pub(crate) writes: bool,
    pub(crate) appends: bool,
    /// Fail if there is one already, when it is created.
    pub(crate) exclusive: bool,
    /// What is written is durable when that returns.
    pub(crate) synchronous: bool,
}

/// The process that sent a request. If mounts may map users ([`crate::volume::Agreed::maps_ids`]), user and group are
/// those of the inode that a request makes, and [`abi::NO_ID`] in other requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The process, or its thread; 0 if it has no number here, or no process waits for the answer.
    pub(crate) pid: u32,
}

/// Where the bytes of a write come from.
#[derive(Clone, Copy)]
pub(crate) struct WriteOrigin {
    pub(crate) caller: Caller,
    /// Whether the kernel reports that the file loses set-user-ID and set-group-ID.
    pub(crate) unprivileged: bool,
    /// The kernel writes pages back that programs changed before. It does not look at how many bytes were written.
    pub(crate) from_cache: bool,
}

/// An extended attribute to be set; `flags` as setxattr(2) has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) flags: u32,
    /// It is an ACL that takes set-group-ID off, if the kernel reports that.
    pub(crate) takes_set_gid: bool,
}

/// A directory and a name in it.
#[derive(Clone, Copy)]
pub(crate) struct Named<'a> {
    pub(crate) directory: Ino,
    pub(crate) name: &'a [u8],
}

/// What fallocate may do to a range.
#[derive(Clone, Copy)]
pub(crate) struct Allocation {
    /// The flags of fallocate(2).
    pub(crate) mode: u32,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// A part of one file to be copied to another.
#[derive(Clone, Copy)]
pub(crate) struct CopyRange {
    pub(crate) from: Ino,
    pub(crate) from_offset: u64,
    pub(crate) to: Ino,
    /// By this handle.
    pub(crate) to_handle: u64,
    pub(crate) to_offset: u64,
    pub(crate) len: u64,
}

/// An entry of a directory as it is listed.
pub(crate) struct ListedName<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) ino: Ino,
    pub(crate) file_type: FileType,
    /// Where to go on behind it.
    pub(crate) cookie: u64,
    /// Its attributes, where they were asked for and its inode is now known once more.
    pub(crate) metadata: Option<Metadata>,
}

/// A file system as a kernel sees it.
pub(crate) trait Operations: Send + Sync + 'static {
    /// A request of this kind has come.
    fn count(&self, opcode: u32);
    /// Whether the kernel may open files, or directories, without a request.
    fn opens_unasked(&self, is_directory: bool) -> bool;
    /// Until this is dropped, what the thread does is done for the caller, who may not have what is reserved for
    /// others.
    fn act_for(&self, caller: Caller) -> Option<Acting<'_>>;
    /// The same for the user, if it is not in the request, and all groups of the caller's process; `None` if these may
    /// take no more than [`Operations::act_for`] allows.
    fn act_for_process(&self, caller: Caller) -> Option<Acting<'_>>;
    fn lookup(&self, at: Named<'_>) -> Answer<Metadata>;
    fn forget(&self, ino: Ino, times: u64);
    fn attributes(&self, ino: Ino) -> Answer<Metadata>;
    /// `unprivileged`: see [`WriteOrigin`].
    fn change(
        &self,
        ino: Ino,
        change: &SetAttributes,
        caller: Caller,
        unprivileged: bool,
    ) -> Answer<Metadata>;
    fn read_link(&self, ino: Ino) -> Answer<Vec<u8>>;
    fn make(&self, at: Named<'_>, kind: Kind<'_>, new: New<'_>) -> Answer<Metadata>;
    fn create(&self, at: Named<'_>, new: New<'_>, how: Opening) -> Answer<Metadata>;
    /// Makes a file without a name, for a directory of which it inherits what a new file does.
    fn make_unnamed(&self, directory: Ino, new: New<'_>) -> Answer<Metadata>;
    fn link(&self, ino: Ino, at: Named<'_>) -> Answer<Metadata>;
    fn unlink(&self, at: Named<'_>) -> Answer<()>;
    fn rmdir(&self, at: Named<'_>) -> Answer<()>;
    /// If a user and a group are given, a whiteout of theirs gets the old name.
    fn rename(
        &self,
        from: Named<'_>,
        to: Named<'_>,
        flag: RenameFlag,
        whiteout: Option<(u32, u32)>,
    ) -> Answer<()>;
    fn open(&self, ino: Ino, how: Opening) -> Answer<()>;
    /// A number for a file that was just opened, by which the calls that take a handle know it.
    fn handle(&self, ino: Ino, how: Opening) -> u64;
    /// A handle was closed; whether it was open to write.
    fn close(&self, ino: Ino, handle: u64, writes: bool);
    /// Fills `buf`; fewer bytes only at the end of the file. The time of access may stay as it is.
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8], keeps_atime: bool) -> Answer<usize>;
    /// Says how many bytes were written: all of them if they come from the kernel's cache.
    fn write(&self, ino: Ino, offset: u64, bytes: &[u8], origin: WriteOrigin) -> Answer<usize>;
    /// Whether the kernel keeps what programs write, and writes it later.
    fn keeps_writes(&self) -> bool;
    /// The files that a rename would move over another name, if the kernel may hold changes of them.
    fn unwritten_over(&self, from: Named<'_>, to: Named<'_>, flag: RenameFlag) -> Vec<Ino>;
    /// Holds commits back until each of these files is synced or closed, or a second has passed. Waits for a commit
    /// that is under way.
    fn hold_commits(&self, files: &[Ino]);
    /// Makes a file durable, and reports a write-out that failed before once to each handle; a directory has no handle.
    fn sync(&self, ino: Ino, handle: Option<u64>, data_only: bool) -> Answer<()>;
    /// Notes that something may have been changed.
    fn changed(&self);
    /// Makes all that was changed before durable.
    fn sync_all(&self) -> Answer<()>;
    /// Lists a directory from a cookie on, until `take` accepts no more; the entry that it refused counts as not
    /// listed.
    fn list(
        &self,
        ino: Ino,
        cookie: u64,
        with_metadata: bool,
        take: &mut dyn FnMut(ListedName<'_>) -> bool,
    ) -> Answer<()>;
    fn statfs(&self) -> Answer<StatFs>;
    fn xattr(&self, ino: Ino, name: &[u8]) -> Answer<Vec<u8>>;
    /// All names, each with a NUL behind it; those of `trusted.` only for root and for what may be overlayfs.
    fn xattr_names(&self, ino: Ino, caller: Caller) -> Answer<Vec<u8>>;
    fn set_xattr(&self, ino: Ino, what: Setting<'_>, caller: Caller) -> Answer<()>;
    fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Answer<()>;
    /// Durable when it returns, if the handle is synchronous: the kernel asks for that behind a write only. So `copy`.
    fn allocate(&self, ino: Ino, handle: u64, what: Allocation, caller: Caller) -> Answer<()>;
    /// The next data or hole from `offset` on.
    fn seek(&self, ino: Ino, offset: u64, is_hole: bool) -> Answer<u64>;
    fn copy(&self, what: CopyRange, caller: Caller) -> Answer<u64>;
    /// A request that failed may have changed bytes of a file: has the kernel drop its pages of them, and then the
    /// request answered, if it is not yet. Returns before that.
    fn failed(&self, ino: Ino, range: Range<u64>, reply: Option<LateReply>);
    /// The flags that lsattr shows.
    fn flags(&self, ino: Ino) -> Answer<u32>;
    fn set_flags(&self, ino: Ino, flags: u32) -> Answer<()>;
    /// The file system's label, of at most 16 bytes.
    fn label(&self) -> Answer<Vec<u8>>;
    fn set_label(&self, label: &[u8]) -> Answer<()>;
    /// Stops all changes as a power cut would.
    fn shut_down(&self) -> Answer<()>;
    /// Commits, then has the device release the free blocks in a range of bytes, except for runs of fewer bytes than
    /// `least`; how many bytes that were.
    fn trim(&self, range: Range<u64>, least: u64) -> Answer<u64>;
}

/// What a session serves: a mounted image, or the file system in memory with which benches compare it.
pub(crate) trait ServedFs: Operations {
    /// The counters of the kernel's requests.
    fn messages(&self) -> &Arc<Messages>;
    /// Sets the function that is called when changes stop; see [`crate::Mounted::on_stop`].
    fn on_stop(&self, hook: Box<dyn Fn(&Stopped) + Send + Sync>);
    /// Closes it. No request comes after this.
    fn close_image(self: Box<Self>) -> Result<(), lanefs::Error>;
    /// Drops the image without writing anything. No request comes after this.
    fn abandon(self: Box<Self>);
}

/// An owned [`ServedFs`].
pub(crate) type BoxedFs = Box<dyn ServedFs>;
