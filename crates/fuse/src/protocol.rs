//! The protocol, by the fuser library: each request becomes one call of [`Operations`], its answer one reply.
//!
//! Runs on all of the library's threads at once and keeps nothing but the operations and who waits for them: an fsync
//! may be answered by another thread than the one that read it, all else is answered by that one. The root is node 1
//! for the kernel and inode 2 in the image; every other node has its inode's number. Requests that are not answered
//! here (locks, polling, block maps) the kernel handles itself or refuses.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileHandle, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, Request, TimeOrNow, WriteFlags,
};
use fuser::{
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};
use lanefs::{FileType, Metadata, RenameFlag, SetAttributes, SetTime};
use rustix::io::Errno;
use sync::Arc;
use sync::clock::HostTime;

pub(crate) mod convert;

use crate::operations::{Allocation, Answer, Copy, Kind, Operations, Setting};
use crate::times;
use crate::waiters::Waiters;
use convert::{
    BLOCK_SIZE, Entry, KEPT, attr, attr_of_listed, attr_of_nothing, caller, entry, errno, ino,
    kind, named, new, opening, shared_flags, unpacked,
};

/// Bytes of one read or write: what the kernel takes by default.
const MAX_IO: u32 = 1 << 20;
/// Requests in the background (read-ahead, writing back) at once.
const BACKGROUND: u16 = 64;
/// Bytes of a name.
const NAME_MAX: u32 = 255;
/// The ioctl that asks for the flags of lsattr, as 64-bit and as 32-bit programs number it.
const GET_FLAGS: [u32; 2] = [0x8008_6601, 0x8004_6601];
/// The ioctl that asks for them in the form that all file systems share: the kernel asks so before it sets any.
const GET_SHARED_FLAGS: u32 = 0x801c_581f;
/// The ioctl that sets them.
const SET_FLAGS: [u32; 2] = [0x4008_6602, 0x4004_6602];
/// Values of lseek(2)'s `whence`.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// What the library calls; see the module.
pub(crate) struct Protocol<O> {
    operations: Arc<O>,
    waiters: Arc<Waiters>,
    /// Whether the kernel asks ACLs who may do what, and leaves the umask to them.
    with_acls: bool,
}

impl<O> Protocol<O> {
    pub(crate) fn new(operations: Arc<O>, waiters: Arc<Waiters>, with_acls: bool) -> Protocol<O> {
        Protocol {
            operations,
            waiters,
            with_acls,
        }
    }
}

fn reply_entry(answer: Answer<Metadata>, reply: ReplyEntry) {
    match answer {
        Ok(metadata) => {
            let Entry {
                attr,
                generation,
                kept,
            } = entry(&metadata);
            reply.entry_with_ttls(&kept, &KEPT, &attr, generation);
        }
        Err(error) => reply.error(errno(error)),
    }
}

fn reply_attr(answer: Answer<Metadata>, reply: ReplyAttr) {
    match answer {
        Ok(metadata) => reply.attr(&KEPT, &attr(&metadata, BLOCK_SIZE)),
        Err(error) => reply.error(errno(error)),
    }
}

fn reply_empty(answer: Answer<()>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

fn reply_data(answer: Answer<Vec<u8>>, reply: ReplyData) {
    match answer {
        Ok(bytes) => reply.data(&bytes),
        Err(error) => reply.error(errno(error)),
    }
}

fn reply_written(answer: Answer<u64>, reply: ReplyWrite) {
    match answer {
        // A request has fewer bytes.
        Ok(written) => reply.written(u32::try_from(written).unwrap_or(u32::MAX)),
        Err(error) => reply.error(errno(error)),
    }
}

/// A value, or its length when the caller has no room and asks for that.
fn reply_xattr(answer: Answer<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match answer {
        // Values have at most as many bytes as the engine's limit says, far below 2^32.
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() as u64 <= size.into() => reply.data(&value),
        Ok(_) => reply.error(fuser::Errno::ERANGE),
        Err(error) => reply.error(errno(error)),
    }
}

impl<O: Operations> fuser::Filesystem for Protocol<O> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Each is a wish: an older kernel does without.
        for wish in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_HAS_IOCTL_DIR,
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
            // Handles mean what they meant also when the inode left the kernel's memory, or on a later mount.
            InitFlags::FUSE_EXPORT_SUPPORT,
            // A default ACL takes the umask's place, and the engine knows whether there is one.
            InitFlags::FUSE_DONT_MASK,
        ] {
            let _ = config.add_capabilities(wish);
        }
        if self.with_acls {
            let _ = config.add_capabilities(InitFlags::FUSE_POSIX_ACL);
        }
        let _ = config.set_max_write(MAX_IO);
        let _ = config.set_max_background(BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match named(parent, name).and_then(|at| self.operations.lookup(at)) {
            // Node 0 says that there is nothing, and that this may be kept too.
            Err(Errno::NOENT) => reply.entry(&KEPT, &attr_of_nothing(), Generation(0)),
            answer => reply_entry(answer, reply),
        }
    }

    fn forget(&self, _: &Request, node: INodeNo, times: u64) {
        if let Ok(ino) = ino(node) {
            self.operations.forget(ino, times);
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply_attr(
            ino(node).and_then(|ino| self.operations.attributes(ino)),
            reply,
        );
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<HostTime>,
        _: Option<FileHandle>,
        _crtime: Option<HostTime>,
        _chgtime: Option<HostTime>,
        _bkuptime: Option<HostTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let _acting = self.operations.act_for(caller(request));
        let time = |time| match time {
            TimeOrNow::Now => SetTime::Now,
            TimeOrNow::SpecificTime(time) => SetTime::At(times::incoming(time)),
        };
        let change = SetAttributes {
            // Permissions have 12 bits.
            mode: mode.map(|mode| (mode & 0o7777) as u16),
            uid,
            gid,
            size,
            atime: atime.map(time),
            mtime: mtime.map(time),
        };
        reply_attr(
            ino(node).and_then(|ino| self.operations.change(ino, &change, caller(request))),
            reply,
        );
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        reply_data(
            ino(node).and_then(|ino| self.operations.read_link(ino)),
            reply,
        );
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let _acting = self.operations.act_for(caller(request));
        let file_type = match rustix::fs::FileType::from_raw_mode(mode) {
            rustix::fs::FileType::RegularFile => Ok(FileType::Regular),
            rustix::fs::FileType::CharacterDevice => Ok(FileType::CharDevice),
            rustix::fs::FileType::BlockDevice => Ok(FileType::BlockDevice),
            rustix::fs::FileType::Fifo => Ok(FileType::Fifo),
            rustix::fs::FileType::Socket => Ok(FileType::Socket),
            _ => Err(Errno::INVAL),
        };
        let made = file_type.and_then(|file_type| {
            let kind = Kind::Node(file_type, unpacked(rdev));
            self.operations
                .make(named(parent, name)?, kind, new(request, mode, umask))
        });
        reply_entry(made, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let _acting = self.operations.act_for(caller(request));
        let made = named(parent, name).and_then(|at| {
            self.operations
                .make(at, Kind::Directory, new(request, mode, umask))
        });
        reply_entry(made, reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let gone = named(parent, name).and_then(|at| self.operations.unlink(at));
        reply_empty(gone, reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let gone = named(parent, name).and_then(|at| self.operations.rmdir(at));
        reply_empty(gone, reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let _acting = self.operations.act_for(caller(request));
        let kind = Kind::Symlink(target.as_os_str().as_bytes());
        let made = named(parent, name)
            .and_then(|at| self.operations.make(at, kind, new(request, 0o777, 0)));
        reply_entry(made, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _acting = self.operations.act_for(caller(request));
        let flag = match flags {
            RenameFlags::RENAME_NOREPLACE => Ok(RenameFlag::NoReplace),
            RenameFlags::RENAME_EXCHANGE => Ok(RenameFlag::Exchange),
            flags if flags.is_empty() => Ok(RenameFlag::Replace),
            _ => Err(Errno::INVAL),
        };
        let renamed = flag.and_then(|flag| {
            let (from, to) = (named(parent, name)?, named(new_parent, new_name)?);
            self.operations.rename(from, to, flag)
        });
        reply_empty(renamed, reply);
    }

    fn link(
        &self,
        request: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let _acting = self.operations.act_for(caller(request));
        let linked =
            ino(node).and_then(|ino| self.operations.link(ino, named(new_parent, new_name)?));
        reply_entry(linked, reply);
    }

    fn open(&self, _: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = ino(node).and_then(|ino| {
            let how = opening(flags.0);
            self.operations.open(ino, how)?;
            Ok(self.operations.handle(ino, how))
        });
        match opened {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_KEEP_CACHE),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn release(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        flags: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        if let Ok(ino) = ino(node) {
            let writes = opening(flags.0).writes;
            self.operations.close(ino, handle.0, writes);
        }
        reply.ok();
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let _acting = self.operations.act_for(caller(request));
        let created = named(parent, name).and_then(|at| {
            self.operations
                .create(at, new(request, mode, umask), opening(flags))
        });
        match created {
            Ok(metadata) => {
                let created = entry(&metadata);
                reply.created(
                    &created.kept,
                    &created.attr,
                    created.generation,
                    FileHandle(self.operations.handle(metadata.ino, opening(flags))),
                    FopenFlags::FOPEN_KEEP_CACHE,
                );
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = ino(node).and_then(|ino| {
            let mut buf = vec![0; size.min(MAX_IO) as usize];
            let found = self.operations.read(ino, offset, &mut buf)?;
            buf.truncate(found);
            Ok(buf)
        });
        reply_data(read, reply);
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _acting = self.operations.act_for(caller(request));
        let written =
            ino(node).and_then(|ino| self.operations.write(ino, offset, bytes, caller(request)));
        reply_written(written.map(|written| written as u64), reply);
    }

    fn fsync(&self, _: &Request, node: INodeNo, of: FileHandle, data: bool, reply: ReplyEmpty) {
        self.waiters.run(&self.operations, move |operations| {
            let synced = ino(node).and_then(|ino| operations.sync(ino, Some(of.0), data));
            reply_empty(synced, reply);
        });
    }

    fn fsyncdir(&self, _: &Request, node: INodeNo, _: FileHandle, data: bool, reply: ReplyEmpty) {
        self.waiters.run(&self.operations, move |operations| {
            let synced = ino(node).and_then(|ino| operations.sync(ino, None, data));
            reply_empty(synced, reply);
        });
    }

    fn readdir(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = ino(node).and_then(|ino| {
            self.operations.list(ino, offset, false, &mut |entry| {
                let node = INodeNo(entry.ino.0.into());
                let name = OsStr::from_bytes(entry.name);
                !reply.add(node, entry.cookie, kind(entry.file_type), name)
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = ino(node).and_then(|ino| {
            self.operations.list(ino, offset, true, &mut |entry| {
                let name = OsStr::from_bytes(entry.name);
                // Without attributes it is listed, but the kernel does not take the inode from here.
                let (node, generation, attr) = match &entry.metadata {
                    Some(metadata) => {
                        let found = self::entry(metadata);
                        (found.attr.ino, found.generation, found.attr)
                    }
                    None => (
                        INodeNo(entry.ino.0.into()),
                        Generation(0),
                        attr_of_listed(entry.ino, entry.file_type),
                    ),
                };
                !reply.add(node, entry.cookie, name, &KEPT, &attr, generation)
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.operations.statfs() {
            Ok(space) => {
                // Blocks have at most 64 KiB.
                let block_size = space.block_size as u32;
                reply.statfs(
                    space.blocks,
                    space.free,
                    space.available,
                    space.files,
                    space.free_files,
                    block_size,
                    NAME_MAX,
                    block_size,
                );
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let _acting = self.operations.act_for(caller(request));
        let setting = Setting {
            name: name.as_bytes(),
            value,
            flags: flags.cast_unsigned(),
        };
        let set =
            ino(node).and_then(|ino| self.operations.set_xattr(ino, setting, caller(request)));
        reply_empty(set, reply);
    }

    fn getxattr(&self, _: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = ino(node).and_then(|ino| self.operations.xattr(ino, name.as_bytes()));
        reply_xattr(value, size, reply);
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let names = ino(node).and_then(|ino| self.operations.xattr_names(ino, request.uid() == 0));
        reply_xattr(names, size, reply);
    }

    fn removexattr(&self, _: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = ino(node).and_then(|ino| self.operations.remove_xattr(ino, name.as_bytes()));
        reply_empty(removed, reply);
    }

    fn ioctl(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        command: u32,
        input: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        let answer = ino(node).and_then(|ino| match command {
            command if GET_FLAGS.contains(&command) => {
                let flags = self.operations.flags(ino)?;
                Ok(flags.to_ne_bytes().to_vec())
            }
            GET_SHARED_FLAGS => {
                let flags = self.operations.flags(ino)?;
                Ok(shared_flags(flags).to_vec())
            }
            command if SET_FLAGS.contains(&command) => {
                let flags = input.first_chunk().ok_or(Errno::INVAL)?;
                let set = self.operations.set_flags(ino, u32::from_ne_bytes(*flags));
                set.map(|()| Vec::new())
            }
            _ => Err(Errno::NOTTY),
        });
        match answer {
            Ok(output) => reply.ioctl(0, &output),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        node: INodeNo,
        by: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let caller = caller(request);
        let what = Allocation {
            mode: mode.cast_unsigned(),
            offset,
            len,
        };
        // Either may wait for the disk.
        self.waiters.run(&self.operations, move |operations| {
            let _acting = operations.act_for(caller);
            let done = ino(node).and_then(|ino| operations.allocate(ino, by.0, what, caller));
            reply_empty(done, reply);
        });
    }

    fn lseek(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let found = ino(node).and_then(|ino| {
            let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
            match whence {
                SEEK_DATA => self.operations.seek(ino, offset, false),
                SEEK_HOLE => self.operations.seek(ino, offset, true),
                _ => Err(Errno::INVAL),
            }
        });
        match found {
            // Files have fewer bytes.
            Ok(offset) => reply.offset(i64::try_from(offset).unwrap_or(i64::MAX)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: INodeNo,
        _: FileHandle,
        from_offset: u64,
        to: INodeNo,
        by: FileHandle,
        to_offset: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let caller = caller(request);
        self.waiters.run(&self.operations, move |operations| {
            let _acting = operations.act_for(caller);
            let copied = ino(from).and_then(|from| {
                let what = Copy {
                    from,
                    from_offset,
                    to: ino(to)?,
                    to_handle: by.0,
                    to_offset,
                    len,
                };
                operations.copy(what, caller)
            });
            reply_written(copied, reply);
        });
    }
}
