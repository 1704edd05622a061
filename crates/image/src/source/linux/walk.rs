//! A directory of this machine as a source.
//!
//! Threads take directories, and slices of big ones, from a common stack. What they find reaches the calling thread
//! through a short queue, and that thread alone adds it to the tree, so memory never holds the tree twice. A
//! directory's own entry is queued before its contents can be, so parents always come first. No file is opened during
//! the scan except to find holes.
//!
//! Nothing outside the source is ever looked at: names are asked for within an open directory and links not followed.
//! What vanishes while it is scanned is left out. Files that may not be read are collected, and reported in one error
//! at the end.

use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, OFlags, RawDir};
use rustix::io::Errno;
use sync::atomic::{AtomicU32, Ordering};
use sync::{Arc, Condvar, Mutex, Queue, Rank};

use super::super::batch::{Batch, Found};
use super::super::error::SourceError;
use super::super::exclude::Excludes;
use super::super::tree::{Attributes, DataKind, TreeNode, join};
use super::super::xattrs::Xattrs;
use super::beneath::{Root, open_beneath, open_directory};
use super::probe::{Prober, attributes, extents};

/// Entries of one slice of a directory, and of one batch.
const SLICE: usize = 2048;

/// Bytes from which on a file is asked for holes whatever space it takes: that may be set aside, within holes or beyond
/// the end.
const ASKED_FROM: u64 = 1 << 20;

/// Batches that wait for the collecting thread.
const QUEUED: usize = 16;

/// One directory, or a slice of a listed one.
struct Task {
    number: u32,
    path: Vec<u8>,
    listed: Option<(Arc<Listing>, std::ops::Range<usize>)>,
}

struct Listing {
    fd: OwnedFd,
    names: Vec<u8>,
    /// Start and length, the NUL included, of each name in order.
    places: Vec<(u32, u16)>,
}

impl Listing {
    fn name(&self, index: usize) -> Option<&CStr> {
        let (start, len) = self.places[index];
        CStr::from_bytes_with_nul(&self.names[start as usize..][..usize::from(len)]).ok()
    }
}

struct Stack {
    tasks: Vec<Task>,
    /// Tasks taken and not done.
    running: usize,
    failure: Option<SourceError>,
    unreadable: Vec<(PathBuf, Errno)>,
}

/// A scan of one directory.
pub(in super::super) struct Walk<'a> {
    root: BorrowedFd<'a>,
    path: &'a Path,
    excludes: &'a Excludes,
    /// Device and inode of files that are left out: the image itself.
    outputs: &'a [(u64, u64)],
    source: u16,
    stack: Mutex<Stack>,
    changed: Condvar,
    directories: AtomicU32,
}

/// The attributes and extended attributes of the source directory.
pub(in super::super) fn top(root: &Root) -> std::io::Result<(Attributes, Xattrs)> {
    let stat = rustix::fs::fstat(root)?;
    let xattrs = Prober::new().xattrs_of(root.as_fd())?;
    Ok((attributes(&stat), xattrs))
}

impl<'a> Walk<'a> {
    pub(in super::super) fn new(
        root: &'a Root,
        path: &'a Path,
        excludes: &'a Excludes,
        outputs: &'a [(u64, u64)],
        source: u16,
    ) -> Self {
        let first = Task {
            number: 0,
            path: Vec::new(),
            listed: None,
        };
        let stack = Stack {
            tasks: vec![first],
            running: 0,
            failure: None,
            unreadable: Vec::new(),
        };
        Self {
            root: root.as_fd(),
            path,
            excludes,
            outputs,
            source,
            stack: Mutex::new(Rank::Job, stack),
            changed: Condvar::new(),
            directories: AtomicU32::new(1),
        }
    }

    /// Walks with `threads` threads, and gives every batch to `collect` on this one.
    pub(in super::super) fn run(
        self,
        threads: usize,
        mut collect: impl FnMut(Batch) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let queue = Queue::new(QUEUED);
        let collected = sync::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads.max(1))
                .map(|_| scope.spawn(|| self.work(&queue)))
                .collect();
            let closer = scope.spawn(|| {
                for worker in workers {
                    // A panic is passed on by the scope when it ends.
                    let _ = worker.join();
                }
                queue.close();
            });
            let mut result = Ok(());
            while let Some(batch) = queue.pop() {
                result = collect(batch);
                if result.is_err() {
                    queue.cancel();
                    break;
                }
            }
            let _ = closer.join();
            result
        });
        collected?;
        let stack = self.stack.into_inner();
        if let Some(failure) = stack.failure {
            return Err(failure);
        }
        if stack.unreadable.is_empty() {
            return Ok(());
        }
        let mut unreadable = stack.unreadable;
        unreadable.sort_by(|a, b| a.0.cmp(&b.0));
        let unreadable = unreadable
            .into_iter()
            .map(|(path, errno)| (path, errno.into()));
        Err(SourceError::Unreadable(unreadable.collect()))
    }

    fn work(&self, queue: &Queue<Batch>) {
        let mut prober = Prober::for_own_thread();
        while let Some(task) = self.take() {
            let result = self.perform(task, &mut prober, queue);
            let mut stack = self.stack.lock();
            stack.running -= 1;
            match result {
                Ok(true) => {}
                Ok(false) => stack.tasks.clear(),
                Err(error) => {
                    stack.tasks.clear();
                    stack.failure.get_or_insert(error);
                }
            }
            if stack.running == 0 && stack.tasks.is_empty() {
                self.changed.notify_all();
            }
        }
    }

    fn take(&self) -> Option<Task> {
        let mut stack = self.stack.lock();
        loop {
            if stack.failure.is_some() {
                return None;
            }
            if let Some(task) = stack.tasks.pop() {
                stack.running += 1;
                return Some(task);
            }
            if stack.running == 0 {
                return None;
            }
            self.changed.wait(&mut stack);
        }
    }

    fn give(&self, mut tasks: Vec<Task>) {
        if tasks.is_empty() {
            return;
        }
        // The stack gives the last one first.
        tasks.reverse();
        self.stack.lock().tasks.append(&mut tasks);
        self.changed.notify_all();
    }

    /// Whether to continue: false when the collector is gone.
    fn perform(
        &self,
        task: Task,
        prober: &mut Prober,
        queue: &Queue<Batch>,
    ) -> Result<bool, SourceError> {
        let Task {
            number,
            path,
            listed,
        } = task;
        let (listing, range) = match listed {
            Some(listed) => listed,
            None => {
                let Some(listing) = self.list(&path)? else {
                    return Ok(true);
                };
                let listing = Arc::new(listing);
                let count = listing.places.len();
                let slices = (SLICE..count).step_by(SLICE).map(|start| Task {
                    number,
                    path: path.clone(),
                    listed: Some((Arc::clone(&listing), start..count.min(start + SLICE))),
                });
                self.give(slices.collect());
                (listing, 0..count.min(SLICE))
            }
        };
        prober.enter(listing.fd.as_fd());
        let mut batch = Batch {
            directory: number,
            found: Vec::with_capacity(range.len()),
            text: Vec::new(),
            xattrs: Vec::new(),
            extents: Vec::new(),
            linked: Vec::new(),
        };
        let mut below = Vec::new();
        for index in range {
            let Some(name) = listing.name(index) else {
                continue;
            };
            match self.look(&listing, name, &path, prober, &mut batch) {
                Ok(Some(directory)) => below.push(Task {
                    number: directory,
                    path: joined(&path, name.to_bytes()),
                    listed: None,
                }),
                Ok(None) | Err(Errno::NOENT) => {}
                Err(errno @ (Errno::ACCESS | Errno::PERM)) => {
                    self.refused(&joined(&path, name.to_bytes()), errno);
                }
                Err(errno) => {
                    return Err(self.io("look at", &joined(&path, name.to_bytes()), errno));
                }
            }
        }
        if !batch.found.is_empty() && queue.push(batch).is_err() {
            return Ok(false);
        }
        self.give(below);
        Ok(true)
    }

    /// The sorted names of a directory; `None` when it can't be read or has vanished.
    fn list(&self, path: &[u8]) -> Result<Option<Listing>, SourceError> {
        let directory: &[u8] = if path.is_empty() { b"." } else { path };
        let fd = match open_directory(self.root, directory) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if !path.is_empty() => return Ok(None),
            Err(errno @ (Errno::ACCESS | Errno::PERM)) => {
                self.refused(path, errno);
                return Ok(None);
            }
            Err(errno) => return Err(self.io("open", path, errno)),
        };
        let mut names: Vec<u8> = Vec::new();
        let mut places = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); 64 * 1024];
        let mut entries = RawDir::new(&fd, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|errno| self.io("list", path, errno))?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let start = u32::try_from(names.len());
            let start = start.map_err(|_| self.io("list", path, Errno::OVERFLOW))?;
            let name = name.to_bytes_with_nul();
            places.push((start, name.len() as u16));
            names.extend_from_slice(name);
        }
        let name = |(start, len): &(u32, u16)| &names[*start as usize..][..usize::from(*len)];
        // The NUL at each end sorts before all that can follow it.
        places.sort_unstable_by(|a, b| name(a).cmp(name(b)));
        // A directory that changes while it is listed may give a name twice.
        places.dedup_by(|a, b| name(a) == name(b));
        Ok(Some(Listing { fd, names, places }))
    }

    /// Adds `name` to the batch. The number it got when it is a directory.
    fn look(
        &self,
        listing: &Listing,
        name: &CStr,
        path: &[u8],
        prober: &mut Prober,
        batch: &mut Batch,
    ) -> Result<Option<u32>, Errno> {
        let fd = listing.fd.as_fd();
        let stat = rustix::fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_directory = kind == FileType::Directory;
        if !self.excludes.is_empty()
            && self
                .excludes
                .matches(&joined(path, name.to_bytes()), is_directory)
            || self.outputs.contains(&(stat.st_dev, stat.st_ino))
        {
            return Ok(None);
        }
        let mut node = TreeNode::new((stat.st_mode & 0o170_000) as u16, self.source);
        node.set_attributes(&attributes(&stat));
        let index = batch.found.len() as u32;
        let mut target = Vec::new();
        let mut number = 0;
        let xattrs = prober.xattrs(name)?;
        match kind {
            FileType::RegularFile => {
                prober.readable(fd, name, &stat, &xattrs)?;
                node.size = stat.st_size.cast_unsigned();
                if node.size > 0 {
                    node.data = DataKind::Path;
                    if may_have_holes(&stat) {
                        let file = open_beneath(fd, name.to_bytes(), OFlags::empty())?;
                        if let Some(extents) = extents(&file, node.size)? {
                            batch.extents.push((index, extents));
                        }
                    }
                }
            }
            FileType::Symlink => {
                let read = rustix::fs::readlinkat(fd, name, Vec::with_capacity(256))?;
                target = read.into_bytes();
            }
            FileType::CharacterDevice | FileType::BlockDevice => {
                let device = stat.st_rdev;
                node.key = join(rustix::fs::major(device), rustix::fs::minor(device));
            }
            FileType::Directory => {
                // Relaxed: the number only has to be unique.
                number = self.directories.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
        if !xattrs.is_empty() {
            batch.xattrs.push((index, xattrs));
        }
        if stat.st_nlink > 1 && !is_directory {
            batch.linked.push((index, (stat.st_dev, stat.st_ino)));
        }
        batch.found.push(Found {
            node,
            name: batch.text.len() as u32,
            name_len: name.to_bytes().len() as u16,
            target_len: target.len() as u16,
            number,
        });
        batch.text.extend_from_slice(name.to_bytes());
        batch.text.extend_from_slice(&target);
        Ok(is_directory.then_some(number))
    }

    fn refused(&self, path: &[u8], errno: Errno) {
        self.stack.lock().unreadable.push((self.full(path), errno));
    }

    fn full(&self, path: &[u8]) -> PathBuf {
        if path.is_empty() {
            return self.path.to_path_buf();
        }
        self.path.join(OsStr::from_bytes(path))
    }

    fn io(&self, operation: &'static str, path: &[u8], errno: Errno) -> SourceError {
        SourceError::Io {
            operation,
            path: self.full(path),
            error: errno.into(),
        }
    }
}

/// Whether the file system is to be asked for holes.
fn may_have_holes(stat: &rustix::fs::Stat) -> bool {
    let held = stat.st_blocks.cast_unsigned().saturating_mul(512);
    let size = stat.st_size.cast_unsigned();
    held < size || size >= ASKED_FROM
}

fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut joined = Vec::with_capacity(path.len() + 1 + name.len());
    if !path.is_empty() {
        joined.extend_from_slice(path);
        joined.push(b'/');
    }
    joined.extend_from_slice(name);
    joined
}
