//! A server without an image: names and attributes in memory, no contents. The time of a workload on it is the cost of
//! the kernel, the protocol and the transport; the rest of a real mount's time is the file system's.
//!
//! It uses the same transports and flags as a mount of an image. Reads return zeros up to the size that was written.
//! Operations that no measurement needs, such as hard links, extended attributes and ioctls, are refused.
//!
//! # Locking
//!
//! Inodes are in shards with a lock each ([`Rank::Leaf`]), which is held for one access; an operation takes several one
//! after the other. The kernel never sends two changes of one directory at once.
//!
//! # Crash
//!
//! Nothing is on disk, so a crash leaves nothing.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
#[cfg(feature = "null")]
use std::path::Path;

use lanefs::{
    Acting, FileType, Flags, Generation, Ino, Metadata, RenameFlag, SetAttributes, SetTime, StatFs,
    Stopped, Timestamp,
};
use rustix::io::Errno;
use sync::atomic::{AtomicU32, Ordering};
use sync::{Arc, CachePadded, Mutex, Rank};

#[cfg(feature = "null")]
use crate::connect::MountError;
use crate::extension::Extension;
use crate::messages::Messages;
#[cfg(feature = "null")]
use crate::mount::{Linked, Mounted, Options};
use crate::operations::{
    Allocation, Answer, Caller, CopyRange, Kind, ListedName, Named, New, Opening, Operations,
    ServedFs, Setting, WriteOrigin,
};
use crate::stale::LateReply;
use crate::volume::Agreed;

const SHARDS: usize = 64;
/// The first inode number that ext4 does not reserve.
const FIRST: u32 = 12;
const BLOCK_BYTES: u64 = 4096;
/// What statfs(2) reports: more than any workload uses.
const BLOCKS: u64 = 1 << 28;
const FILES: u64 = 1 << 30;
const SECTOR: u64 = 512;
const PERMISSIONS: u16 = 0o7777;
/// The most names in one answer to a listing.
const LISTED: usize = 1024;
const TYPE: u16 = 0o170_000;

/// One inode.
struct Node {
    metadata: Metadata,
    lookups: u64,
    target: Vec<u8>,
    names: HashMap<Box<[u8]>, u32>,
    /// The names by inode number, which is the cookie of a listing.
    listing: BTreeMap<u32, (FileType, Box<[u8]>)>,
}

impl Node {
    fn new(ino: Ino, file_type: FileType, kind: u16, new: New<'_>) -> Node {
        let now = lanefs::now();
        let metadata = Metadata {
            ino,
            file_type,
            mode: kind | new.mode & !new.umask & PERMISSIONS,
            uid: new.caller.uid,
            gid: new.caller.gid,
            size: 0,
            blocks: 0,
            nlink: if file_type == FileType::Directory {
                2
            } else {
                1
            },
            atime: now,
            mtime: now,
            ctime: now,
            crtime: None,
            flags: Flags(0),
            generation: Generation(0),
            rdev: (0, 0),
            project: 0,
            version: 0,
        };
        Node {
            metadata,
            lookups: 0,
            target: Vec::new(),
            names: HashMap::new(),
            listing: BTreeMap::new(),
        }
    }

    fn set_size(&mut self, size: u64) {
        self.metadata.size = size;
        self.metadata.blocks = size.div_ceil(BLOCK_BYTES) * (BLOCK_BYTES / SECTOR);
    }

    fn add(&mut self, name: &[u8], file_type: FileType, ino: u32) {
        self.names.insert(name.into(), ino);
        self.listing.insert(ino, (file_type, name.into()));
        self.metadata.nlink += u32::from(file_type == FileType::Directory);
    }

    fn remove(&mut self, name: &[u8]) -> Option<u32> {
        let ino = self.names.remove(name)?;
        if let Some((FileType::Directory, _)) = self.listing.remove(&ino) {
            self.metadata.nlink = self.metadata.nlink.saturating_sub(1);
        }
        Some(ino)
    }
}

static NO_EXTENSION: Extension<'static> = Extension {
    labels: Vec::new(),
    groups: &[],
};

/// What belongs to the user who mounts.
fn mounter() -> New<'static> {
    New {
        mode: 0o755,
        umask: 0,
        caller: Caller {
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            pid: 0,
        },
        extension: &NO_EXTENSION,
    }
}

/// The type bits of a mode.
fn type_bits(file_type: FileType) -> u16 {
    match file_type {
        FileType::Directory => 0o040_000,
        FileType::Symlink => 0o120_000,
        FileType::CharDevice => 0o020_000,
        FileType::BlockDevice => 0o060_000,
        FileType::Fifo => 0o010_000,
        FileType::Socket => 0o140_000,
        FileType::Regular => 0o100_000,
    }
}

/// The inodes of a server without an image.
pub(crate) struct Null {
    /// By inode number. [leaf]
    shards: Vec<CachePadded<Mutex<HashMap<u32, Node>>>>,
    /// The number of the next inode. [atomic: Relaxed]
    next: AtomicU32,
    messages: Arc<Messages>,
    agreed: Agreed,
}

/// The tree that a server without an image begins with: directories `d0`, `d1`, ..., each with files `f0`, `f1`, ...,
/// and a file `stream`.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullTree {
    /// Number of directories.
    pub directories: usize,
    /// Number of files in each.
    pub files: usize,
    /// Size of each file in bytes.
    pub file_bytes: u64,
    /// Size of the file `stream` in bytes, if there should be one.
    pub stream_bytes: Option<u64>,
}

/// Mounts a server without an image at a directory.
///
/// # Errors
/// As [`crate::mount`]; also when the tree is too large.
#[cfg(feature = "null")]
pub fn mount_null(
    directory: &Path,
    options: &Options,
    tree: NullTree,
) -> Result<Mounted, MountError> {
    let planted = Null::planted(tree).map_err(|error| MountError::System {
        operation: "making the files of",
        path: directory.to_owned(),
        source: error.into(),
    });
    let mut null = planted?;
    let linked = Linked::new(directory, options)?;
    null.agreed = linked.agreed(options);
    linked.mounted(Box::new(null), options, None)
}

impl Null {
    /// A server of this tree.
    ///
    /// # Errors
    /// `NOSPC` when there are not enough numbers for its inodes.
    pub(crate) fn planted(tree: NullTree) -> Answer<Null> {
        let shard = || CachePadded::new(Mutex::new(Rank::Leaf, HashMap::new()));
        let null = Null {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            next: AtomicU32::new(FIRST),
            messages: Arc::default(),
            agreed: Agreed::default(),
        };
        let kind = FileType::Directory;
        let root = Node::new(Ino::ROOT, kind, type_bits(kind), mounter());
        null.shard(Ino::ROOT.0).lock().insert(Ino::ROOT.0, root);
        null.plant(tree)?;
        Ok(null)
    }

    fn plant(&self, tree: NullTree) -> Answer<()> {
        let make = |directory: Ino, name: String, kind: FileType, size: u64| {
            let name = name.as_bytes();
            let made = self.make_node(Named { directory, name }, kind, mounter())?;
            // The kernel has not looked it up.
            self.with(made.ino, |node| {
                node.lookups = 0;
                node.set_size(size);
            })?;
            Ok(made.ino)
        };
        for number in 0..tree.directories {
            let directory = make(Ino::ROOT, format!("d{number}"), FileType::Directory, 0)?;
            for file in 0..tree.files {
                make(
                    directory,
                    format!("f{file}"),
                    FileType::Regular,
                    tree.file_bytes,
                )?;
            }
        }
        if let Some(bytes) = tree.stream_bytes {
            make(Ino::ROOT, "stream".into(), FileType::Regular, bytes)?;
        }
        Ok(())
    }

    fn shard(&self, ino: u32) -> &Mutex<HashMap<u32, Node>> {
        &self.shards[ino as usize % SHARDS]
    }

    fn with<T>(&self, ino: Ino, look: impl FnOnce(&mut Node) -> T) -> Answer<T> {
        let mut shard = self.shard(ino.0).lock();
        shard.get_mut(&ino.0).map(look).ok_or(Errno::NOENT)
    }

    fn found(&self, at: Named<'_>) -> Answer<Ino> {
        let found = self.with(at.directory, |node| node.names.get(at.name).copied())?;
        found.map(Ino).ok_or(Errno::NOENT)
    }

    /// Counts a lookup of an inode, and returns its metadata for the answer.
    fn enter(&self, ino: Ino) -> Answer<Metadata> {
        self.with(ino, |node| {
            node.lookups += 1;
            node.metadata
        })
    }

    fn make_node(&self, at: Named<'_>, kind: FileType, new: New<'_>) -> Answer<Metadata> {
        if self.with(at.directory, |node| node.names.contains_key(at.name))? {
            return Err(Errno::EXIST);
        }
        // Relaxed: only uniqueness matters; no data is published with the number.
        let ino = self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
                next.checked_add(1)
            });
        let ino = ino.map_err(|_| Errno::NOSPC)?;
        let mut node = Node::new(Ino(ino), kind, type_bits(kind), new);
        node.lookups = 1;
        let metadata = node.metadata;
        self.shard(ino).lock().insert(ino, node);
        self.with(at.directory, |directory| directory.add(at.name, kind, ino))?;
        Ok(metadata)
    }

    fn remove(&self, at: Named<'_>) -> Answer<()> {
        let ino = self.with(at.directory, |directory| directory.remove(at.name))?;
        let ino = ino.ok_or(Errno::NOENT)?;
        let mut shard = self.shard(ino).lock();
        if let Some(node) = shard.get_mut(&ino) {
            node.metadata.nlink = 0;
            if node.lookups == 0 {
                shard.remove(&ino);
            }
        }
        Ok(())
    }
}

impl ServedFs for Null {
    fn messages(&self) -> &Arc<Messages> {
        &self.messages
    }

    fn on_stop(&self, _hook: Box<dyn Fn(&Stopped) + Send + Sync>) {}

    fn close_image(self: Box<Self>) -> Result<(), lanefs::Error> {
        Ok(())
    }

    fn abandon(self: Box<Self>) {}
}

impl Operations for Null {
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

    fn act_for(&self, _caller: Caller) -> Option<Acting<'_>> {
        None
    }

    fn act_for_process(&self, _caller: Caller) -> Option<Acting<'_>> {
        None
    }

    fn lookup(&self, at: Named<'_>) -> Answer<Metadata> {
        self.enter(self.found(at)?)
    }

    fn forget(&self, ino: Ino, times: u64) {
        let mut shard = self.shard(ino.0).lock();
        if let Some(node) = shard.get_mut(&ino.0) {
            node.lookups = node.lookups.saturating_sub(times);
            if node.lookups == 0 && node.metadata.nlink == 0 {
                shard.remove(&ino.0);
            }
        }
    }

    fn attributes(&self, ino: Ino) -> Answer<Metadata> {
        self.with(ino, |node| node.metadata)
    }

    fn change(
        &self,
        ino: Ino,
        change: &SetAttributes,
        _caller: Caller,
        _unprivileged: bool,
    ) -> Answer<Metadata> {
        let time = |set: SetTime| match set {
            SetTime::Now => lanefs::now(),
            SetTime::At(time) => time,
        };
        let changed: Timestamp = lanefs::now();
        self.with(ino, |node| {
            if let Some(size) = change.size {
                node.set_size(size);
            }
            let metadata = &mut node.metadata;
            if let Some(mode) = change.mode {
                metadata.mode = metadata.mode & TYPE | mode & PERMISSIONS;
            }
            metadata.uid = change.uid.unwrap_or(metadata.uid);
            metadata.gid = change.gid.unwrap_or(metadata.gid);
            metadata.atime = change.atime.map_or(metadata.atime, time);
            metadata.mtime = change.mtime.map_or(metadata.mtime, time);
            metadata.ctime = change.ctime.unwrap_or(changed);
            *metadata
        })
    }

    fn read_link(&self, ino: Ino) -> Answer<Vec<u8>> {
        self.with(ino, |node| node.target.clone())
    }

    fn make(&self, at: Named<'_>, kind: Kind<'_>, new: New<'_>) -> Answer<Metadata> {
        let metadata = match kind {
            Kind::Directory => self.make_node(at, FileType::Directory, new)?,
            Kind::Symlink(_) => self.make_node(at, FileType::Symlink, new)?,
            Kind::Node(file_type, _) => self.make_node(at, file_type, new)?,
        };
        let Kind::Symlink(target) = kind else {
            return Ok(metadata);
        };
        self.with(metadata.ino, |node| {
            node.target = target.to_vec();
            node.metadata.size = target.len() as u64;
            node.metadata
        })
    }

    fn create(&self, at: Named<'_>, new: New<'_>, how: Opening) -> Answer<Metadata> {
        match self.make_node(at, FileType::Regular, new) {
            Err(Errno::EXIST) if !how.exclusive => self.lookup(at),
            made => made,
        }
    }

    fn make_unnamed(&self, _directory: Ino, _new: New<'_>) -> Answer<Metadata> {
        Err(Errno::OPNOTSUPP)
    }

    fn link(&self, _ino: Ino, _at: Named<'_>) -> Answer<Metadata> {
        Err(Errno::MLINK)
    }

    fn unlink(&self, at: Named<'_>) -> Answer<()> {
        self.remove(at)
    }

    fn rmdir(&self, at: Named<'_>) -> Answer<()> {
        let ino = self.found(at)?;
        if self.with(ino, |node| node.names.is_empty())? {
            self.remove(at)
        } else {
            Err(Errno::NOTEMPTY)
        }
    }

    fn rename(
        &self,
        from: Named<'_>,
        to: Named<'_>,
        flag: RenameFlag,
        whiteout: Option<(u32, u32)>,
    ) -> Answer<()> {
        let ino = self.found(from)?;
        let there = self.with(to.directory, |node| node.names.get(to.name).copied())?;
        match flag {
            RenameFlag::Exchange => return Err(Errno::INVAL),
            RenameFlag::NoReplace if there.is_some() => return Err(Errno::EXIST),
            _ if whiteout.is_some() => return Err(Errno::INVAL),
            _ => {}
        }
        if there == Some(ino.0) {
            return Ok(());
        }
        if there.is_some() {
            self.remove(to)?;
        }
        let file_type = self.with(ino, |node| node.metadata.file_type)?;
        self.with(from.directory, |directory| directory.remove(from.name))?;
        self.with(to.directory, |directory| {
            directory.add(to.name, file_type, ino.0)
        })
    }

    fn open(&self, _ino: Ino, _how: Opening) -> Answer<()> {
        Ok(())
    }

    fn handle(&self, _ino: Ino, _how: Opening) -> u64 {
        0
    }

    fn close(&self, _ino: Ino, _handle: u64, _writes: bool) {}

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8], _keeps_atime: bool) -> Answer<usize> {
        let size = self.with(ino, |node| node.metadata.size)?;
        let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = left.min(buf.len());
        buf[..len].fill(0);
        Ok(len)
    }

    fn keeps_writes(&self) -> bool {
        self.agreed.writeback
    }

    fn unwritten_over(&self, _: Named<'_>, _: Named<'_>, _: RenameFlag) -> Vec<Ino> {
        Vec::new()
    }

    fn hold_commits(&self, _files: &[Ino]) {}

    fn write(&self, ino: Ino, offset: u64, bytes: &[u8], _origin: WriteOrigin) -> Answer<usize> {
        let end = offset.saturating_add(bytes.len() as u64);
        self.with(ino, |node| {
            if end > node.metadata.size {
                node.set_size(end);
            }
        })?;
        Ok(bytes.len())
    }

    fn sync(&self, _ino: Ino, _handle: Option<u64>, _data_only: bool) -> Answer<()> {
        Ok(())
    }

    fn changed(&self) {}

    fn sync_all(&self) -> Answer<()> {
        Ok(())
    }

    fn list(
        &self,
        ino: Ino,
        cookie: u64,
        with_metadata: bool,
        take: &mut dyn FnMut(ListedName<'_>) -> bool,
    ) -> Answer<()> {
        let behind = u32::try_from(cookie).unwrap_or(u32::MAX);
        let rest = self.with(ino, |node| {
            let rest = node.listing.range(behind.saturating_add(1)..);
            rest.take(LISTED)
                .map(|(ino, (file_type, name))| (*ino, *file_type, name.clone()))
                .collect::<Vec<_>>()
        })?;
        for (number, file_type, name) in rest {
            let child = Ino(number);
            // A file that was removed meanwhile is left out.
            let metadata = match with_metadata.then(|| self.enter(child)).transpose() {
                Err(Errno::NOENT) => continue,
                entered => entered?,
            };
            let is_counted = metadata.is_some();
            let listed = ListedName {
                name: &name,
                ino: child,
                file_type,
                cookie: number.into(),
                metadata,
            };
            if !take(listed) {
                if is_counted {
                    self.forget(child, 1);
                }
                break;
            }
        }
        Ok(())
    }

    fn statfs(&self) -> Answer<StatFs> {
        Ok(StatFs {
            block_size: BLOCK_BYTES,
            blocks: BLOCKS,
            overhead: 0,
            free: BLOCKS,
            available: BLOCKS,
            files: FILES,
            free_files: FILES,
            is_read_only: false,
        })
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Answer<Vec<u8>> {
        match (ino, name) {
            (Ino::ROOT, b"lanefs.counters") => Ok(self
                .messages
                .counter_lines()
                .collect::<String>()
                .into_bytes()),
            _ => Err(Errno::NODATA),
        }
    }

    fn xattr_names(&self, _ino: Ino, _caller: Caller) -> Answer<Vec<u8>> {
        Ok(Vec::new())
    }

    fn set_xattr(&self, _ino: Ino, _what: Setting<'_>, _caller: Caller) -> Answer<()> {
        Err(Errno::OPNOTSUPP)
    }

    fn remove_xattr(&self, _ino: Ino, _name: &[u8]) -> Answer<()> {
        Err(Errno::NODATA)
    }

    fn allocate(&self, _: Ino, _: u64, _: Allocation, _: Caller) -> Answer<()> {
        Err(Errno::OPNOTSUPP)
    }

    fn seek(&self, _ino: Ino, _offset: u64, _is_hole: bool) -> Answer<u64> {
        Err(Errno::NOSYS)
    }

    fn copy(&self, _what: CopyRange, _caller: Caller) -> Answer<u64> {
        Err(Errno::OPNOTSUPP)
    }

    fn failed(&self, _ino: Ino, _range: Range<u64>, reply: Option<LateReply>) {
        if let Some(reply) = reply {
            reply();
        }
    }

    fn flags(&self, _ino: Ino) -> Answer<u32> {
        Err(Errno::NOTTY)
    }

    fn set_flags(&self, _ino: Ino, _flags: u32) -> Answer<()> {
        Err(Errno::NOTTY)
    }

    fn label(&self) -> Answer<Vec<u8>> {
        Err(Errno::NOTTY)
    }

    fn set_label(&self, _label: &[u8]) -> Answer<()> {
        Err(Errno::NOTTY)
    }

    fn shut_down(&self) -> Answer<()> {
        Err(Errno::NOTTY)
    }

    fn trim(&self, _range: Range<u64>, _least: u64) -> Answer<u64> {
        Err(Errno::NOTTY)
    }
}
