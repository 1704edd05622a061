//! `slow-disk FILES MOUNTPOINT MICROSECONDS`: the files of a directory once more, with fsyncs that take so long.
//!
//! A loop device on such a file is a disk whose flushes take their time: the kernel's file systems can be measured on
//! it beside ours. Reads and writes go to the file beneath without a detour through this process (FUSE passthrough); an
//! fsync comes here and waits. The kernel lets no write to a file begin while its fsync is under way.
//!
//! Runs until it is unmounted. Needs root. No lock but the table's of open files; a crash leaves the files as they are.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackingId, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyOpen,
    Request,
};
use sync::{Mutex, Rank, clock, thread};

/// How long the kernel may believe what it was told of a file: its size does not change.
const VALID: Duration = Duration::from_secs(3600);

/// Files that are open: how often, and what the kernel knows the one beneath by.
type Open = HashMap<u64, (u64, BackingId)>;

struct SlowDisk {
    /// In the order of their inode numbers, from 2.
    files: Vec<PathBuf>,
    /// By inode number. [leaf]
    open: Mutex<Open>,
    flush: Duration,
}

impl SlowDisk {
    fn file(&self, ino: INodeNo) -> Result<&PathBuf, Errno> {
        let index = usize::try_from(ino.0.wrapping_sub(2)).map_err(|_| Errno::ENOENT)?;
        self.files.get(index).ok_or(Errno::ENOENT)
    }

    fn attributes(&self, ino: INodeNo) -> Result<FileAttr, Errno> {
        let (kind, size) = match ino {
            INodeNo::ROOT => (FileType::Directory, 0),
            _ => (FileType::RegularFile, self.file(ino)?.metadata()?.size()),
        };
        Ok(FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    /// The kernel wants a file's descriptor once, however often it is open.
    fn open(&self, ino: INodeNo, reply: &ReplyOpen) -> Result<(), Errno> {
        let mut open = self.open.lock();
        if let Some((count, _)) = open.get_mut(&ino.0) {
            *count += 1;
            return Ok(());
        }
        let file = File::options()
            .read(true)
            .write(true)
            .open(self.file(ino)?)?;
        open.insert(ino.0, (1, reply.open_backing(file)?));
        Ok(())
    }
}

impl Filesystem for SlowDisk {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let has = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH);
        has.map_err(|_| std::io::Error::other("this kernel's FUSE has no passthrough"))?;
        let depth = config.set_max_stack_depth(1);
        depth
            .map(drop)
            .map_err(|_| std::io::Error::other("no stacking"))
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let is_it = |path: &PathBuf| path.file_name() == Some(name);
        let found = self.files.iter().position(is_it);
        let found = found.filter(|_| parent == INodeNo::ROOT);
        match found.map(|index| self.attributes(INodeNo(index as u64 + 2))) {
            Some(Ok(attributes)) => reply.entry(&VALID, &attributes, Generation(0)),
            Some(Err(errno)) => reply.error(errno),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Ok(attributes) => reply.attr(&VALID, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if let Err(errno) = self.open(ino, &reply) {
            return reply.error(errno);
        }
        let open = self.open.lock();
        match open.get(&ino.0) {
            Some((_, id)) => {
                reply.opened_passthrough(FileHandle(ino.0), FopenFlags::empty(), id);
            }
            None => reply.error(Errno::EIO),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let begin = clock::now();
        // Sleeping takes a few microseconds more than asked for.
        thread::sleep(self.flush.saturating_sub(Duration::from_micros(5)));
        while begin.elapsed() < self.flush {
            thread::yield_now();
        }
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let mut open = self.open.lock();
        if let Some((count, _)) = open.get_mut(&ino.0) {
            *count -= 1;
            if *count == 0 {
                open.remove(&ino.0);
            }
        }
        reply.ok();
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [files, mountpoint, micros] = &arguments[..] else {
        return Err("usage: slow-disk FILES MOUNTPOINT MICROSECONDS".into());
    };
    // A thread that wakes when it should, not within the usual 50 microseconds after; threads begin with their maker's.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(files)? {
        found.push(entry?.path());
    }
    let disk = SlowDisk {
        files: found,
        open: Mutex::new(Rank::Leaf, HashMap::new()),
        flush: Duration::from_micros(micros.parse()?),
    };
    let mut config = fuser::Config::default();
    config.n_threads = Some(4);
    fuser::mount(disk, mountpoint, &config)?;
    Ok(())
}
