//! Extraction into a directory of the host, in parallel.
//!
//! Directories are made when their entry is met, open to us only, and get their attributes at the very end, the deepest
//! first. The first name of a file with several is extracted; the others are linked to it when all files are there.
//! When it is called off, each thread ends at its next entry or MiB, and neither links nor attributes follow.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use rustix::fs::Mode;
use sync::{Arc, Mutex, Rank};

use super::super::{Options, Summary, Tally, is_unsafe_name};
use super::new_file::NewFile;
use super::pool::{Pool, Work};
use super::{failed_at, host};
use crate::{Error, FileType, Fs, Ino, InodeRef, Metadata, Xattr};

/// How many files a batch holds.
const BATCH: usize = 64;
/// How many names of one directory are remembered, to find those that it has twice.
const NAMES_KNOWN: usize = 4 << 20;
/// How many bytes are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// A directory to read: its inode, and its path below the destination (empty for the destination).
#[derive(Clone)]
struct Directory {
    ino: Ino,
    path: Vec<u8>,
    /// The mode that it gets when it is full, if that is not the image's and not the one it has now.
    mode: Option<Mode>,
}

/// Entries of one directory that are no directories.
struct Batch {
    parent: Arc<OwnedFd>,
    path: Arc<[u8]>,
    entries: Vec<(Ino, Vec<u8>)>,
}

/// One extraction.
pub struct Extraction<'a> {
    fs: &'a Fs,
    options: Options<'a>,
    /// The destination.
    root: OwnedFd,
    pool: Pool<Directory, Batch>,
    tally: Tally,
    /// Directories already met, since a hostile image may hold one twice. `[leaf]`
    met: Mutex<HashSet<Ino>>,
    /// Directories made, in order, parents first. `[leaf]`
    made: Mutex<Vec<Directory>>,
    /// The first path of each file with several names. `[leaf]`
    first_names: Mutex<HashMap<Ino, Vec<u8>>>,
    /// Names to link in the end. `[leaf]`
    links: Mutex<Vec<(Ino, Vec<u8>)>>,
}

impl<'a> Extraction<'a> {
    pub fn new(fs: &'a Fs, root: OwnedFd, options: &Options<'a>) -> Extraction<'a> {
        Extraction {
            fs,
            options: *options,
            root,
            pool: Pool::new(),
            tally: Tally::new(),
            met: Mutex::new(Rank::Leaf, HashSet::new()),
            made: Mutex::new(Rank::Leaf, Vec::new()),
            first_names: Mutex::new(Rank::Leaf, HashMap::new()),
            links: Mutex::new(Rank::Leaf, Vec::new()),
        }
    }

    /// Extracts what is below a directory into the destination, which gets the mode `last` in the end.
    pub fn tree(self, from: Ino, last: Option<Mode>) -> Result<Summary, Error> {
        drop(self.fs.list(from)?);
        self.met.lock().insert(from);
        self.meet(Directory {
            ino: from,
            path: Vec::new(),
            mode: last,
        });
        Ok(self.run())
    }

    /// Extracts one entry under a name in the destination.
    pub fn entry(self, from: Ino, name: &[u8]) -> Result<Summary, Error> {
        let root = self.root.try_clone();
        let root = root.map_err(|error| failed_at("opening", name, error))?;
        self.one(&root, name, from, name, &mut Vec::new());
        Ok(self.run())
    }

    fn run(self) -> Summary {
        self.pool.run(self.options.threads(), |work| match work {
            // What waits when it is called off is taken and dropped.
            _ if self.options.is_cancelled() => {}
            Work::Directory(directory) => self.read_directory(&directory),
            Work::Batch(batch) => self.batch(&batch),
        });
        let cancelled = self.options.is_cancelled();
        if !cancelled {
            self.make_links();
            self.finish_directories();
        }
        self.tally.finish(cancelled)
    }

    /// Counts a directory that exists now, and queues it to be read.
    fn meet(&self, directory: Directory) {
        self.tally.directories.add(1);
        self.made.lock().push(directory.clone());
        self.pool.add_directory(directory);
    }

    fn read_directory(&self, directory: &Directory) {
        if let Err(error) = self.try_read_directory(directory) {
            self.tally.fail(&directory.path, error);
        }
    }

    fn try_read_directory(&self, directory: &Directory) -> Result<(), Error> {
        let opened = host::open_beneath(&self.root, &directory.path);
        let opened = opened.map_err(|error| failed_at("opening", &directory.path, error))?;
        let parent = Arc::new(opened);
        let path: Arc<[u8]> = directory.path.as_slice().into();
        let batch = || Batch {
            parent: Arc::clone(&parent),
            path: Arc::clone(&path),
            entries: Vec::new(),
        };
        let mut waiting = batch();
        let mut names = Names::default();
        for entry in self.fs.list(directory.ino)? {
            if self.options.is_cancelled() {
                return Ok(());
            }
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.tally.fail(&path, error);
                    continue;
                }
            };
            if is_unsafe_name(&entry.name) {
                let place = join(&path, &entry.name);
                self.tally
                    .fail(&place, Error::invalid("a name that no file can have"));
                continue;
            }
            if !names.is_new(&entry.name) {
                self.tally.fail(&path, Error::name_twice(&entry.name));
                continue;
            }
            waiting.entries.push((entry.ino, entry.name));
            if waiting.entries.len() >= BATCH {
                self.hand_out(std::mem::replace(&mut waiting, batch()));
            }
        }
        self.hand_out(waiting);
        Ok(())
    }

    /// Leaves a batch to a free thread, or does it if no thread is free.
    fn hand_out(&self, batch: Batch) {
        if let Some(batch) = self.pool.add_batch(batch) {
            self.batch(&batch);
        }
    }

    fn batch(&self, batch: &Batch) {
        let mut buffer = Vec::new();
        for (ino, name) in &batch.entries {
            if self.options.is_cancelled() {
                return;
            }
            self.one(
                &batch.parent,
                name,
                *ino,
                &join(&batch.path, name),
                &mut buffer,
            );
        }
    }

    /// Extracts one entry.
    fn one(&self, parent: &OwnedFd, name: &[u8], ino: Ino, path: &[u8], buffer: &mut Vec<u8>) {
        if let Err(error) = self.try_one(parent, name, ino, path, buffer) {
            self.tally.fail(path, error);
        }
    }

    fn try_one(
        &self,
        parent: &OwnedFd,
        name: &[u8],
        ino: Ino,
        path: &[u8],
        buffer: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let name = CString::new(name).map_err(|_| Error::invalid("a name with a zero byte"))?;
        let inode = self.fs.inodes().inode(ino)?;
        let metadata = inode.metadata();
        let item = Item {
            parent,
            name: &name,
            path,
            inode: &inode,
            metadata: &metadata,
        };
        if metadata.file_type == FileType::Directory {
            return self.directory(&item);
        }
        let is_shared = metadata.nlink > 1 && self.options.keep.hard_links;
        if is_shared && !self.is_first_name(ino, path) {
            self.links.lock().push((ino, path.to_vec()));
            return Ok(());
        }
        match metadata.file_type {
            FileType::Regular => self.file(&item, buffer),
            FileType::Symlink => self.symlink(&item),
            _ => self.node(&item),
        }
    }

    fn is_first_name(&self, ino: Ino, path: &[u8]) -> bool {
        let mut names = self.first_names.lock();
        if names.contains_key(&ino) {
            return false;
        }
        names.insert(ino, path.to_vec());
        true
    }

    fn directory(&self, item: &Item<'_>) -> Result<(), Error> {
        let ino = item.metadata.ino;
        if !self.met.lock().insert(ino) {
            return Err(Error::invalid(
                "a directory that is also elsewhere in the tree",
            ));
        }
        if item.path.len() > crate::walk::MAX_PATH {
            return Err(Error::invalid("nested too deeply"));
        }
        if super::super::is_empty_lost_and_found(self.fs, item.path, item.metadata) {
            return Ok(());
        }
        let existing = self.options.existing;
        let umask = (!self.options.keep.mode).then_some(self.options.umask);
        let made = host::make_directory(item.parent, item.name, item.metadata, umask, existing);
        let mode = made.map_err(|error| item.failed("creating", error))?;
        self.meet(Directory {
            ino,
            path: item.path.to_vec(),
            mode,
        });
        Ok(())
    }

    fn file(&self, item: &Item<'_>, buffer: &mut Vec<u8>) -> Result<(), Error> {
        let keep = &self.options.keep;
        let mode = if keep.mode {
            0o600
        } else {
            u32::from(item.metadata.mode) & 0o777
        };
        let file = NewFile::create(item.parent, item.name, mode, self.options.existing);
        let Some(mut file) = file.map_err(|error| item.failed("creating", error))? else {
            self.keep_existing(item);
            return Ok(());
        };
        if !self.copy(item, file.handle(), buffer)? {
            return Ok(());
        }
        // From here on it stays: its data are whole.
        file.keep(keep)
            .map_err(|error| item.failed("creating", error))?;
        self.tally.files.add(1);
        let xattrs = self.xattrs(item.inode)?;
        host::set_open(
            file.handle(),
            item.metadata,
            &xattrs,
            keep,
            &self.tally.lost,
        )
        .map_err(|error| item.failed(ATTRIBUTES, error))
    }

    fn xattrs(&self, inode: &InodeRef<'_>) -> Result<Vec<Xattr>, Error> {
        let keep = &self.options.keep;
        if !keep.xattrs && !keep.acls {
            return Ok(Vec::new());
        }
        let mut xattrs = inode.xattrs()?;
        let acls = [host::ACCESS_ACL, host::DEFAULT_ACL].map(CStr::to_bytes);
        xattrs.retain(|xattr| {
            if acls.contains(&&*xattr.name) {
                keep.acls
            } else {
                keep.xattrs
            }
        });
        Ok(xattrs)
    }

    /// Copies a file's data, leaving holes where it has some. Whether all of it: not if the extraction was called off.
    fn copy(&self, item: &Item<'_>, file: &OwnedFd, buffer: &mut Vec<u8>) -> Result<bool, Error> {
        let size = item.metadata.size;
        // Small and full by its own account: one read is cheaper than asking where its data lies.
        if size <= COPY_BYTES as u64 && item.metadata.blocks.saturating_mul(512) >= size {
            return self.copy_range(item, 0..size, file, buffer);
        }
        rustix::fs::ftruncate(file, size).map_err(|error| item.failed("writing", error.into()))?;
        for range in super::super::data_ranges(self.fs, item.inode, size)? {
            if !self.copy_range(item, range?, file, buffer)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn copy_range(
        &self,
        item: &Item<'_>,
        range: Range<u64>,
        file: &OwnedFd,
        buffer: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        let mut at = range.start;
        while at < range.end {
            if self.options.is_cancelled() {
                return Ok(false);
            }
            let wanted =
                usize::try_from(range.end - at).map_or(COPY_BYTES, |left| left.min(COPY_BYTES));
            if buffer.len() < wanted {
                buffer.resize(wanted, 0);
            }
            let read = item.inode.read(at, &mut buffer[..wanted])?;
            if read == 0 {
                return Err(Error::invalid("the file ended early"));
            }
            write_all(file, &buffer[..read], at).map_err(|error| item.failed("writing", error))?;
            at += read as u64;
            self.tally.bytes.add(read as u64);
        }
        Ok(true)
    }

    fn symlink(&self, item: &Item<'_>) -> Result<(), Error> {
        let target = CString::new(item.inode.read_link()?);
        let target = target.map_err(|_| Error::invalid("a link's target with a zero byte"))?;
        let create = || rustix::fs::symlinkat(&*target, item.parent, item.name);
        let made = host::create(item.parent, item.name, self.options.existing, create)
            .map_err(|error| item.failed("creating", error))?;
        if made.is_none() {
            self.keep_existing(item);
            return Ok(());
        }
        self.set_named(item)?;
        self.tally.symlinks.add(1);
        Ok(())
    }

    fn node(&self, item: &Item<'_>) -> Result<(), Error> {
        let keep_mode = self.options.keep.mode;
        let create = || host::create_node(item.parent, item.name, item.metadata, keep_mode);
        match host::create(item.parent, item.name, self.options.existing, create) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.tally.lost.devices.add(1);
                return Ok(());
            }
            Ok(None) => {
                self.keep_existing(item);
                return Ok(());
            }
            other => other.map_err(|error| item.failed("creating", error))?,
        };
        self.set_named(item)?;
        self.tally.special.add(1);
        Ok(())
    }

    fn set_named(&self, item: &Item<'_>) -> Result<(), Error> {
        let (keep, lost) = (&self.options.keep, &self.tally.lost);
        let xattrs = self.xattrs(item.inode)?;
        host::set_named(item.parent, item.name, item.metadata, &xattrs, keep, lost)
            .map_err(|error| item.failed(ATTRIBUTES, error))
    }

    /// What has the name stays, so another name of the image's file can't be linked to it.
    fn keep_existing(&self, item: &Item<'_>) {
        let mut names = self.first_names.lock();
        if names
            .get(&item.metadata.ino)
            .is_some_and(|first| first == item.path)
        {
            names.remove(&item.metadata.ino);
        }
    }

    fn make_links(&self) {
        let links = std::mem::take(&mut *self.links.lock());
        let mut buffer = Vec::new();
        for (ino, path) in links {
            let first = self.first_names.lock().get(&ino).cloned();
            let Some(first) = first else {
                // Under the first name something else was kept.
                if let Err(error) = self.copy_name(ino, &path, &mut buffer) {
                    self.tally.fail(&path, error);
                }
                continue;
            };
            match self.link(&first, &path) {
                Ok(true) => self.tally.hard_links.add(1),
                Ok(false) => {}
                Err(error) => self.tally.fail(&path, failed_at("linking", &path, error)),
            }
        }
    }

    fn copy_name(&self, ino: Ino, path: &[u8], buffer: &mut Vec<u8>) -> Result<(), Error> {
        let (folder, name) = split(path);
        let parent = host::open_beneath(&self.root, folder)
            .map_err(|error| failed_at("creating", path, error))?;
        self.try_one(&parent, name, ino, path, buffer)
    }

    /// Whether the name was made.
    fn link(&self, first: &[u8], path: &[u8]) -> io::Result<bool> {
        let ((old_folder, old_name), (folder, name)) = (split(first), split(path));
        let old_parent = host::open_beneath(&self.root, old_folder)?;
        let parent = host::open_beneath(&self.root, folder)?;
        let name = CString::new(name)?;
        let link = || {
            rustix::fs::linkat(
                &old_parent,
                old_name,
                &parent,
                &*name,
                rustix::fs::AtFlags::empty(),
            )
        };
        match host::create(&parent, &name, self.options.existing, link) {
            // The first name is a device that this user may not make, and is counted as such.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            other => Ok(other?.is_some()),
        }
    }

    /// Sets the attributes of the directories, children before their parents.
    fn finish_directories(&self) {
        let made = std::mem::take(&mut *self.made.lock());
        for directory in made.iter().rev() {
            if let Err(error) = self.finish_directory(directory) {
                self.tally.fail(&directory.path, error);
            }
        }
    }

    fn finish_directory(&self, directory: &Directory) -> Result<(), Error> {
        let keep = &self.options.keep;
        let is_kept = keep.owner || keep.mode || keep.times || keep.xattrs || keep.acls;
        if !is_kept && directory.mode.is_none() {
            return Ok(());
        }
        let failed = |error| failed_at(ATTRIBUTES, &directory.path, error);
        let opened = host::open_beneath(&self.root, &directory.path).map_err(failed)?;
        if is_kept {
            let inode = self.fs.inodes().inode(directory.ino)?;
            let xattrs = self.xattrs(&inode)?;
            let lost = &self.tally.lost;
            host::set_open(&opened, &inode.metadata(), &xattrs, keep, lost).map_err(failed)?;
        }
        match directory.mode {
            Some(mode) => host::fchmod(&opened, mode).map_err(|error| failed(error.into())),
            None => Ok(()),
        }
    }
}

/// What is tried when attributes are set.
const ATTRIBUTES: &str = "setting the attributes of";

/// An entry to extract.
struct Item<'a> {
    parent: &'a OwnedFd,
    name: &'a CStr,
    /// Its path below the destination.
    path: &'a [u8],
    inode: &'a InodeRef<'a>,
    metadata: &'a Metadata,
}

impl Item<'_> {
    fn failed(&self, operation: &'static str, error: io::Error) -> Error {
        failed_at(operation, self.path, error)
    }
}

/// The names of one directory, as hashes with a key that no image knows.
#[derive(Default)]
struct Names {
    hasher: RandomState,
    hashes: HashSet<u64>,
}

impl Names {
    /// Whether a name was not asked for before; always, once the bound of names that are kept is reached.
    fn is_new(&mut self, name: &[u8]) -> bool {
        let hash = self.hasher.hash_one(name);
        if self.hashes.len() >= NAMES_KNOWN {
            return !self.hashes.contains(&hash);
        }
        self.hashes.insert(hash)
    }
}

/// A path and a name below it.
pub fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() {
        name.to_vec()
    } else {
        [path, b"/", name].concat()
    }
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                at += written as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
