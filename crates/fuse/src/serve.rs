//! What each request does to the image: one call of [`Operations`], and its answer as one reply.
//!
//! Knows no transport: a worker of any transport hands over a request, where to answer it, and a buffer of its own.
//! Runs on all workers at once and keeps nothing except the threads that wait for the disk in their place
//! ([`crate::waiters`]): an fsync, fsyncdir, syncfs, fallocate or copy_file_range may be answered by another thread
//! than the one that read it. Requests that are answered with `ENOSYS` here (locks, polling, block maps) the kernel
//! then handles itself. INTERRUPT is answered with `ENOSYS`, too: a signal ends no request before its answer.

use std::ops::Range;

use lanefs::{Ino, Metadata, SetAttributes};
use rustix::io::Errno;
use sync::{Arc, Hint};

mod convert;
mod ioctl;
mod names;
mod renames;
#[cfg(test)]
mod tests;

use crate::abi;
use crate::extension::Extension;
use crate::operations::{Allocation, Answer, BoxedFs, Caller, CopyRange, Setting, WriteOrigin};
use crate::reply::{Listing, Reply};
use crate::request::{FuseOperation, Request, ino};
use crate::waiters::Waiters;
use convert::{
    attr_out, entry_of_listed, entry_of_nothing, entry_out, keeps_atime, opening, set_attributes,
    statx_out, type_bits,
};

/// Bytes of one read or write at most.
pub(crate) const MAX_IO: u32 = 1 << 20;
/// Bytes of a page, in which the kernel counts a request's data.
const PAGE: u32 = 4096;
/// Requests in the background (read-ahead, writing back) at once.
const BACKGROUND: u16 = 64;
/// From this many on the kernel takes the device for congested.
const CONGESTED: u16 = BACKGROUND / 4 * 3;
/// Bytes of a name.
const NAME_MAX: u32 = 255;
/// Values of lseek(2)'s `whence`.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
/// Flags of renameat2(2).
const RENAME_NOREPLACE: u32 = 1 << 0;
const RENAME_EXCHANGE: u32 = 1 << 1;
const RENAME_WHITEOUT: u32 = 1 << 2;

/// What is wished for of every kernel; an older one does without what it does not offer.
const WISHES: u64 = abi::init::ASYNC_READ
    | abi::init::BIG_WRITES
    | abi::init::MAX_PAGES
    | abi::init::PARALLEL_DIROPS
    | abi::init::DO_READDIRPLUS
    | abi::init::READDIRPLUS_AUTO
    | abi::init::CACHE_SYMLINKS
    | abi::init::HAS_IOCTL_DIR
    | abi::init::EXPLICIT_INVAL_DATA
    // The kernel then asks once for a file's capabilities, not at each write.
    | abi::init::HANDLE_KILLPRIV_V2
    // With it, the kernel reports whether an ACL clears set-group-ID.
    | abi::init::SETXATTR_EXT
    // Handles mean what they meant also when the inode left the kernel's memory, or on a later mount.
    | abi::init::EXPORT_SUPPORT
    // A default ACL takes the umask's place, and the engine knows whether a directory has one.
    | abi::init::DONT_MASK
    // A new inode gets its security label, and the kernel tells whether the caller is in the directory's group.
    | abi::init::SECURITY_CTX
    | abi::init::CREATE_SUPP_GROUP
    | abi::init::EXTENDED;

/// What becomes of the connection after a request.
#[must_use]
pub(crate) enum ServeOutcome {
    /// The next request can be read.
    Next,
    /// The kernel waits for this answer until the image is closed, and asks for nothing after it.
    Destroy(Reply),
}

/// What a mount asks the kernel for in addition.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wanted {
    /// That it checks permissions and ACLs.
    pub(crate) checks: bool,
    /// That it lets users be mapped; only with `checks`.
    pub(crate) maps_ids: bool,
    /// That it keeps what programs write, and writes it later.
    pub(crate) writeback: bool,
    /// FUSE over io_uring, and the number of bytes that one read or write may have there.
    pub(crate) ring_io: Option<u32>,
}

/// The answer to INIT, from what the kernel offers.
///
/// # Errors
/// `PROTO` when the kernel's version is too old to be served.
pub(crate) fn init(
    offer: &abi::InitIn,
    offered: u64,
    wanted: Wanted,
) -> Result<abi::InitOut, Errno> {
    if offer.major < abi::MAJOR || offer.major == abi::MAJOR && offer.minor < abi::MINOR_OLDEST {
        return Err(Errno::PROTO);
    }
    let mut wishes = WISHES;
    if wanted.checks {
        wishes |= abi::init::POSIX_ACL;
    }
    if wanted.maps_ids {
        wishes |= abi::init::ALLOW_IDMAP;
    }
    if wanted.writeback {
        wishes |= abi::init::WRITEBACK_CACHE;
    }
    if wanted.ring_io.is_some() {
        wishes |= abi::init::OVER_IO_URING;
    }
    let agreed = wishes & offered;
    let max_io = match wanted.ring_io {
        Some(bytes) if agreed & abi::init::OVER_IO_URING != 0 => bytes,
        _ => MAX_IO,
    };
    Ok(abi::InitOut {
        major: abi::MAJOR,
        minor: abi::MINOR.min(match offer.major {
            abi::MAJOR => offer.minor,
            // A newer kernel asks once more, in our version.
            _ => abi::MINOR,
        }),
        max_readahead: offer.max_readahead,
        // Each half of the flags is a word of its own.
        flags: (agreed & u64::from(u32::MAX)) as u32,
        flags2: (agreed >> 32) as u32,
        max_background: BACKGROUND,
        congestion_threshold: CONGESTED,
        max_write: max_io,
        time_granularity: 1,
        // Neither transport takes more than `MAX_IO`, which is 256 pages.
        max_pages: (max_io / PAGE) as u16,
        ..abi::InitOut::default()
    })
}

/// Answers requests; see the module.
pub(crate) struct Server {
    waiters: Arc<Waiters>,
    /// An ioctl asked for that: every request is refused. [set once]
    is_shut_down: Hint<bool>,
}

/// One request on its way to an answer.
struct Asked<'a> {
    operations: &'a Arc<BoxedFs>,
    node: u64,
    caller: Caller,
    extension: Extension<'a>,
    reply: Reply,
}

fn reply_entry(answer: Answer<Metadata>, reply: Reply) {
    match answer {
        Ok(metadata) => reply.structure(&entry_out(&metadata)),
        Err(error) => reply.error(error),
    }
}

fn reply_attr(answer: Answer<Metadata>, reply: Reply) {
    match answer {
        Ok(metadata) => reply.structure(&attr_out(&metadata)),
        Err(error) => reply.error(error),
    }
}

fn reply_written(answer: Answer<u64>, reply: Reply) {
    match answer {
        Ok(written) => reply.structure(&abi::WriteOut {
            // A request has fewer bytes.
            size: u32::try_from(written).unwrap_or(u32::MAX),
            padding: 0,
        }),
        Err(error) => reply.error(error),
    }
}

/// Does work for a caller, who may not have the blocks that are reserved for others. If only these are left, does it
/// once more if they are for the user or a group of the caller's process, which the request does not have.
fn for_caller<T>(operations: &BoxedFs, caller: Caller, work: impl Fn() -> Answer<T>) -> Answer<T> {
    let done = {
        let _acting = operations.act_for(caller);
        work()
    };
    if !matches!(done, Err(Errno::NOSPC)) {
        return done;
    }
    match operations.act_for_process(caller) {
        Some(_acting) => work(),
        None => done,
    }
}

/// An offset or a length as the kernel sends it: never more than a signed number holds.
fn checked(offset: u64) -> Answer<u64> {
    match i64::try_from(offset) {
        Ok(_) => Ok(offset),
        Err(_) => Err(Errno::INVAL),
    }
}

/// Answers a request that failed and may have changed a range of a file, once the kernel has dropped its pages.
fn failed(operations: &BoxedFs, ino: Ino, range: Range<u64>, error: Errno, reply: Reply) {
    operations.failed(ino, range, Some(Box::new(move || reply.error(error))));
}

/// A value, or its length when the caller has no room and asks for that.
fn reply_xattr(answer: Answer<Vec<u8>>, size: u32, reply: Reply) {
    match answer {
        Ok(value) if size == 0 => reply.structure(&abi::GetXattrOut {
            // Values have at most as many bytes as the engine's limit, far below 2^32.
            size: value.len() as u32,
            padding: 0,
        }),
        Ok(value) if value.len() as u64 <= size.into() => reply.parts(&[&value]),
        Ok(_) => reply.error(Errno::RANGE),
        Err(error) => reply.error(error),
    }
}

impl Server {
    pub(crate) fn new(waiters: Arc<Waiters>) -> Server {
        Server {
            waiters,
            is_shut_down: Hint::new(false),
        }
    }

    /// Answers one request. A read returns at most `buf.len()` bytes; what `buf` holds before does not matter.
    pub(crate) fn answer(
        &self,
        operations: &Arc<BoxedFs>,
        request: Request<'_>,
        reply: Reply,
        buf: &mut [u8],
    ) -> ServeOutcome {
        use FuseOperation as Op;
        let is_change = request.operation.is_change();
        operations.count(request.opcode);
        let asked = Asked {
            operations,
            node: request.node,
            caller: request.caller,
            extension: request.extension,
            reply,
        };
        match request.operation {
            // As ext4: what the kernel knows already can still be looked at, and `lanefs.state` says why.
            ref other if self.is_shut_down.get() && !other.works_after_shut_down() => {
                asked.reply.error(Errno::IO);
            }
            Op::Destroy => return ServeOutcome::Destroy(asked.reply),
            Op::Interrupt => asked.interrupt(),
            Op::Unknown => asked.reply.error(Errno::NOSYS),
            // A second one.
            Op::Init(..) => asked.reply.error(Errno::IO),
            Op::Forget(lookups) => asked.forget(lookups),
            Op::BatchForget(forgotten) => {
                for one in forgotten.iter() {
                    if let Ok(ino) = ino(one.node) {
                        operations.forget(ino, one.lookups);
                    }
                }
                asked.reply.none();
            }
            Op::Fsync(sync) => self.fsync(asked, Some(sync.handle), sync.flags),
            Op::FsyncDir(sync) => self.fsync(asked, None, sync.flags),
            Op::SyncFs => self.sync_all(asked),
            Op::Fallocate(what) => self.fallocate(asked, &what),
            Op::Copy(what) => self.copy(asked, what),
            Op::GetAttr => asked.get_attr(),
            Op::Statx => asked.statx(),
            Op::SetAttr(change) => asked.set_attr(&change),
            Op::Open(_) if operations.opens_unasked(false) => asked.reply.error(Errno::NOSYS),
            Op::Open(how) => asked.open(how.flags),
            // No directory needs a handle. After this answer the kernel asks for none, and keeps listings.
            Op::OpenDir if operations.opens_unasked(true) => asked.reply.error(Errno::NOSYS),
            Op::OpenDir => asked.reply.structure(&abi::OpenOut::default()),
            Op::ReleaseDir => asked.reply.done(),
            Op::Release(how) => asked.release(&how),
            Op::Read(read) => asked.read(&read, buf),
            Op::Write(write, bytes) => asked.write(&write, bytes),
            Op::StatFs => asked.statfs(),
            Op::ReadDir(read) => asked.list(&read, false, buf),
            Op::ReadDirPlus(read) => asked.list(&read, true, buf),
            Op::SetXattr(setting) => asked.set_xattr(setting),
            Op::GetXattr(get, name) => asked.get_xattr(name, get.size),
            Op::ListXattr(get) => asked.list_xattr(get.size),
            Op::RemoveXattr(name) => asked.remove_xattr(name),
            Op::Ioctl(ioctl, input) => self.ioctl(asked, ioctl.command, input),
            Op::Seek(seek) => asked.seek(&seek),
            rename @ Op::Rename { .. } => self.rename(asked, rename),
            other => asked.name(other),
        }
        if is_change {
            operations.changed();
        }
        ServeOutcome::Next
    }

    /// Does work that syncs: where commits may be held back until another request has come, never in this thread.
    fn run_sync(&self, operations: &Arc<BoxedFs>, work: impl FnOnce(&BoxedFs) + Send + 'static) {
        if operations.keeps_writes() {
            self.waiters.hand_over(operations, work)
        } else {
            self.waiters.run(operations, work)
        }
    }

    fn sync_all(&self, asked: Asked<'_>) {
        let reply = asked.reply;
        self.run_sync(asked.operations, move |operations| {
            reply.empty(operations.sync_all());
        });
    }

    fn fsync(&self, asked: Asked<'_>, handle: Option<u64>, flags: u32) {
        let Asked { node, reply, .. } = asked;
        let data_only = flags & abi::DATA_ONLY != 0;
        self.run_sync(asked.operations, move |operations| {
            reply.empty(ino(node).and_then(|ino| operations.sync(ino, handle, data_only)));
        });
    }

    fn fallocate(&self, asked: Asked<'_>, what: &abi::FallocateIn) {
        let Asked {
            node,
            caller,
            reply,
            ..
        } = asked;
        let handle = what.handle;
        let what = Allocation {
            mode: what.mode,
            offset: what.offset,
            len: what.len,
        };
        // It may wait for the disk.
        self.waiters.run(asked.operations, move |operations| {
            let allocated = for_caller(operations, caller, || {
                let ino = ino(node)?;
                checked(what.offset)?;
                checked(what.len)?;
                operations.allocate(ino, handle, what, caller)
            });
            operations.changed();
            match (allocated, ino(node)) {
                (Err(error), Ok(ino)) => {
                    let range = what.offset..what.offset.saturating_add(what.len);
                    failed(operations, ino, range, error, reply);
                }
                (allocated, _) => reply.empty(allocated),
            }
        });
    }

    fn copy(&self, asked: Asked<'_>, what: abi::CopyIn) {
        let Asked {
            node,
            caller,
            reply,
            ..
        } = asked;
        self.waiters.run(asked.operations, move |operations| {
            let copied = for_caller(operations, caller, || {
                let what = CopyRange {
                    from: ino(node)?,
                    from_offset: checked(what.from_offset)?,
                    to: ino(what.to_node)?,
                    to_handle: what.to_handle,
                    to_offset: checked(what.to_offset)?,
                    len: what.len,
                };
                operations.copy(what, caller)
            });
            operations.changed();
            match (copied, ino(what.to_node)) {
                (Err(error), Ok(to)) => {
                    let range = what.to_offset..what.to_offset.saturating_add(what.len);
                    failed(operations, to, range, error, reply);
                }
                (copied, _) => reply_written(copied, reply),
            }
        });
    }
}

impl Asked<'_> {
    /// See [`for_caller`].
    fn for_caller<T>(&self, work: impl Fn(&BoxedFs) -> Answer<T>) -> Answer<T> {
        for_caller(self.operations, self.caller, || work(self.operations))
    }

    /// Answers that interrupts are not implemented: as on ext4, a signal ends no request before its answer, and the
    /// kernel, which waits for that answer in any case, sends no more messages for signals.
    ///
    /// The kernel (`fuse_dev_do_write`) only heeds this answer if the interrupted request was read from the same
    /// channel and is not answered yet, which is never so over io_uring. Otherwise it sends another INTERRUPT with the
    /// next signal that meets a request.
    fn interrupt(self) {
        self.reply.error(Errno::NOSYS);
    }

    fn forget(self, lookups: u64) {
        if let Ok(ino) = ino(self.node) {
            self.operations.forget(ino, lookups);
        }
        self.reply.none();
    }

    fn get_attr(self) {
        let answer = ino(self.node).and_then(|ino| self.operations.attributes(ino));
        reply_attr(answer, self.reply);
    }

    fn statx(self) {
        match ino(self.node).and_then(|ino| self.operations.attributes(ino)) {
            Ok(metadata) => self.reply.structure(&statx_out(&metadata)),
            Err(error) => self.reply.error(error),
        }
    }

    fn set_attr(self, change: &abi::SetAttrIn) {
        let unprivileged = change.valid & abi::valid::KILL_SUIDGID != 0;
        let change: SetAttributes = set_attributes(change);
        let answer = self.for_caller(|operations| {
            operations.change(ino(self.node)?, &change, self.caller, unprivileged)
        });
        match (answer, ino(self.node)) {
            // The file may be shorter, whatever failed then.
            (Err(error), Ok(ino)) if change.size.is_some() => {
                failed(self.operations, ino, 0..u64::MAX, error, self.reply);
            }
            (answer, _) => reply_attr(answer, self.reply),
        }
    }

    fn open(self, flags: u32) {
        let opened = ino(self.node).and_then(|ino| {
            let how = opening(flags);
            self.operations.open(ino, how)?;
            Ok(self.operations.handle(ino, how))
        });
        match opened {
            Ok(handle) => self.reply.structure(&abi::OpenOut {
                handle,
                open_flags: abi::KEEP_CACHE,
                padding: 0,
            }),
            Err(error) => self.reply.error(error),
        }
    }

    fn release(self, how: &abi::ReleaseIn) {
        if let Ok(ino) = ino(self.node) {
            let writes = opening(how.flags).writes;
            self.operations.close(ino, how.handle, writes);
        }
        self.reply.done();
    }

    fn read(self, read: &abi::ReadIn, buf: &mut [u8]) {
        let size = buf.len().min(read.size as usize);
        let found = ino(self.node).and_then(|ino| {
            let offset = checked(read.offset)?;
            let keeps_atime = keeps_atime(read.flags);
            self.operations
                .read(ino, offset, &mut buf[..size], keeps_atime)
        });
        match found {
            Ok(found) => self.reply.parts(&[&buf[..found]]),
            Err(error) => self.reply.error(error),
        }
    }

    fn write(self, write: &abi::WriteIn, bytes: &[u8]) {
        let offset = write.offset;
        let origin = WriteOrigin {
            caller: self.caller,
            unprivileged: write.write_flags & abi::WRITE_KILL_SUIDGID != 0,
            from_cache: write.write_flags & abi::WRITE_CACHE != 0,
        };
        let write = |operations: &BoxedFs| {
            operations.write(ino(self.node)?, checked(offset)?, bytes, origin)
        };
        let written = if origin.from_cache {
            // For no caller in particular.
            write(self.operations)
        } else {
            self.for_caller(write)
        };
        let has_failed = written.is_err();
        reply_written(written.map(|written| written as u64), self.reply);
        if let Ok(ino) = ino(self.node)
            && has_failed
        {
            // After the answer, because until then the writer may hold the pages. Of a direct write the kernel keeps
            // pages that were read meanwhile.
            let range = offset..offset.saturating_add(bytes.len() as u64);
            self.operations.failed(ino, range, None);
        }
    }

    fn statfs(self) {
        match self.operations.statfs() {
            Ok(space) => {
                // Blocks have at most 64 KiB.
                let block_size = space.block_size as u32;
                self.reply.structure(&abi::StatFsOut {
                    blocks: space.blocks,
                    free: space.free,
                    available: space.available,
                    files: space.files,
                    free_files: space.free_files,
                    block_size,
                    name_max: NAME_MAX,
                    fragment_size: block_size,
                    ..abi::StatFsOut::default()
                });
            }
            Err(error) => self.reply.error(error),
        }
    }

    fn list(self, read: &abi::ReadIn, with_metadata: bool, buf: &mut [u8]) {
        let size = buf.len().min(read.size as usize);
        let mut listing = Listing::new(&mut buf[..size]);
        let listed = ino(self.node).and_then(|ino| {
            self.operations
                .list(ino, read.offset, with_metadata, &mut |entry| {
                    // Without attributes the name is listed, but the kernel does not take the inode from here.
                    let plus = match &entry.metadata {
                        Some(metadata) => entry_out(metadata),
                        None => entry_of_listed(entry.ino, entry.file_type),
                    };
                    let head = abi::DirEntry {
                        ino: entry.ino.0.into(),
                        offset: entry.cookie,
                        // Names have at most 255 bytes.
                        name_len: entry.name.len() as u32,
                        kind: type_bits(entry.file_type) >> 12,
                    };
                    listing.add(with_metadata.then_some(&plus), &head, entry.name)
                })
        });
        match listed {
            Ok(()) => self.reply.parts(&[listing.bytes()]),
            Err(error) => self.reply.error(error),
        }
    }

    fn set_xattr(self, setting: Setting<'_>) {
        let set = self
            .for_caller(|operations| operations.set_xattr(ino(self.node)?, setting, self.caller));
        self.reply.empty(set);
    }

    fn get_xattr(self, name: &[u8], size: u32) {
        let value = ino(self.node).and_then(|ino| self.operations.xattr(ino, name));
        reply_xattr(value, size, self.reply);
    }

    fn list_xattr(self, size: u32) {
        let names = ino(self.node).and_then(|ino| self.operations.xattr_names(ino, self.caller));
        reply_xattr(names, size, self.reply);
    }

    fn remove_xattr(self, name: &[u8]) {
        let removed = ino(self.node).and_then(|ino| self.operations.remove_xattr(ino, name));
        self.reply.empty(removed);
    }

    fn seek(self, seek: &abi::SeekIn) {
        // The image does not have the changes that the kernel holds. After this answer the kernel takes all of a file
        // for data.
        if self.operations.keeps_writes() {
            return self.reply.error(Errno::NOSYS);
        }
        let found = ino(self.node).and_then(|ino| {
            // The kernel's offsets are signed.
            let offset = i64::try_from(seek.offset).map_err(|_| Errno::NXIO)?;
            match seek.whence {
                SEEK_DATA => self.operations.seek(ino, offset.unsigned_abs(), false),
                SEEK_HOLE => self.operations.seek(ino, offset.unsigned_abs(), true),
                _ => Err(Errno::INVAL),
            }
        });
        match found {
            Ok(offset) => self.reply.structure(&abi::SeekOut { offset }),
            Err(error) => self.reply.error(error),
        }
    }
}
