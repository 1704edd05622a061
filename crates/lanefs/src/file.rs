//! Open regular files of an image, in the manner of `std::fs::File`.
//!
//! An open file exists until it is closed or dropped, even if it has no name. A file may be opened any number of times,
//! and any number of threads may use a handle: every method of the engine takes effect as a whole. A lock
//! ([`Rank::FilePosition`]) guards a handle's position; it is held across the read or write that moves the position. A
//! crash leaves a prefix of what was written; [`File::sync_all`] makes it durable.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sync::{Hint, Mutex, Rank};

use engine::{
    Allocate, FoundInode, Ino, Mapping, Metadata, NewInode, SetAttributes, SetTime, Timestamp,
};

use crate::contents::{FILE, verify_regular};
use crate::reach::{HeldInode, NameInParent, OwnedInode, TRIES};
use crate::{Error, Fs};

/// The most bytes of a file that [`Fs::read`] takes into memory.
const MAX_READ: u64 = 1 << 40;

/// How to open a file, as `std::fs::OpenOptions`.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let image = folder.path().join("disk.img");
/// # lanefs::make::make(&image, Some(8 << 20), &Default::default(), false)?;
/// use std::io::{Read, Seek, Write};
/// use lanefs::{Fs, OpenOptions};
///
/// let fs = Fs::open_for_writing(&image)?;
/// let mut log = OpenOptions::new().create(true).append(true).read(true).open(&fs, "/log")?;
/// writeln!(log, "first")?;
/// writeln!(log, "second")?;
/// log.sync_all()?;
///
/// log.rewind()?;
/// let mut text = String::new();
/// log.read_to_string(&mut text)?;
/// assert_eq!(text, "first\nsecond\n");
///
/// let refused = OpenOptions::new().write(true).create_new(true).open(&fs, "/log");
/// assert_eq!(std::io::Error::from(refused.err().unwrap()).kind(), std::io::ErrorKind::AlreadyExists);
/// log.close()?;
/// fs.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    new: NewInode,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// Options in which nothing is chosen yet.
    #[must_use]
    pub fn new() -> OpenOptions {
        OpenOptions {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            new: FILE,
        }
    }

    /// Whether the file is opened for reading.
    pub fn read(&mut self, read: bool) -> &mut OpenOptions {
        self.read = read;
        self
    }

    /// Whether the file is opened for writing.
    pub fn write(&mut self, write: bool) -> &mut OpenOptions {
        self.write = write;
        self
    }

    /// Whether every write is appended at the end that the file has at that moment.
    pub fn append(&mut self, append: bool) -> &mut OpenOptions {
        self.append = append;
        self
    }

    /// Whether the file is truncated to 0 bytes when it is opened.
    pub fn truncate(&mut self, truncate: bool) -> &mut OpenOptions {
        self.truncate = truncate;
        self
    }

    /// Whether the file is created if it does not exist.
    pub fn create(&mut self, create: bool) -> &mut OpenOptions {
        self.create = create;
        self
    }

    /// Whether a new file is created. Opening then fails if anything has the name, even a link that leads nowhere.
    pub fn create_new(&mut self, create_new: bool) -> &mut OpenOptions {
        self.create_new = create_new;
        self
    }

    /// Sets owner and permissions of a file that is created; the default is root's and 0644.
    pub fn new_inode(&mut self, new: NewInode) -> &mut OpenOptions {
        self.new = new;
        self
    }

    /// Opens a regular file; symbolic links are followed.
    ///
    /// # Errors
    /// When the file does not exist and is not to be created, or exists and must be new; when it is not a regular file;
    /// for options that contradict each other; as [`Fs::create_dir`] if it is created, as [`Fs::set_len`] if it is
    /// truncated.
    pub fn open(&self, fs: &Fs, path: impl AsRef<Path>) -> Result<File, Error> {
        let path = path.as_ref();
        let writes = self.write || self.append;
        let only_reads = self.read && !self.truncate && !self.create && !self.create_new;
        let is_sensible =
            (writes || only_reads) && !(self.append && self.truncate && !self.create_new);
        if !is_sensible {
            return fs.named(path, Err(engine::Error::InvalidArgument));
        }
        let held = self.hold(fs, path)?.into_owned();
        let inode = fs.named(path, fs.engine.inode(held.ino))?;
        verify_regular(inode.metadata().file_type).or_else(|error| fs.named(path, Err(error)))?;
        let file = File {
            inode: inode.found(),
            told: Hint::new(fs.engine.write_failures(held.ino).unwrap_or(0)),
            held,
            options: *self,
            position: Mutex::new(Rank::FilePosition, 0),
            path: path.to_path_buf(),
        };
        if self.truncate && !self.create_new {
            file.set_len(0)?;
        }
        if writes && !fs.is_writable() {
            return fs.named(path, Err(engine::Error::ReadOnly));
        }
        Ok(file)
    }

    /// The file at a path, held; it is created if the options ask for that.
    fn hold<'fs>(&self, fs: &'fs Fs, path: &Path) -> Result<HeldInode<'fs>, Error> {
        if !fs.engine.is_opened_for_writing() {
            return fs.reach(path, true);
        }
        fs.refuse_slash(
            path,
            if self.create || self.create_new {
                engine::Error::IsDirectory
            } else {
                engine::Error::NotFound
            },
        )?;
        let new = NewInode {
            held: true,
            ..self.new
        };
        for _ in 0..TRIES {
            let place = if self.create_new {
                OpenOptions::new_place(fs, path)?
            } else {
                let (place, found) = fs.reach_place(path)?;
                match found {
                    Some(found) => return Ok(found),
                    None if self.create => place,
                    None => return fs.named(path, Err(engine::Error::NotFound)),
                }
            };
            match fs.engine.create(place.parent, &place.name, new) {
                // Another thread made a file of this name meanwhile.
                Err(engine::Error::Exists) if !self.create_new => {}
                made => return Ok(fs.held(fs.named(path, made)?, true)),
            }
        }
        fs.named(path, Err(engine::Error::Busy))
    }

    /// The directory and the name of a file that must not exist yet.
    fn new_place<'a>(fs: &'a Fs, path: &'a Path) -> Result<NameInParent<'a>, Error> {
        match fs.place(path) {
            // The root has no name, and is not a file.
            Err(_) if fs.find(path, true).is_ok() => {
                fs.named(path, Err(engine::Error::IsDirectory))
            }
            place => place,
        }
    }
}

/// A regular file of an image, with a position as in `std::fs::File`.
///
/// A `File` is `Send`, `Sync` and `'static`, and keeps the file system open. [`Read`], [`Write`] and [`Seek`] are
/// implemented for `&File` too: threads that share a `File` share its position, and each read or write moves it in one
/// step. Every `File` has its own position, also when several are open on one file.
///
/// Dropping a `File` closes it without waiting for anything; a file that has no names by then is deleted by the reaper
/// thread or by the next change. [`File::close`] deletes it before it returns, and returns errors. If every [`Fs`] was
/// dropped before, the last `File`, `Dir`, `ReadDir` or `DirEntry` that is dropped closes the file system as the last
/// `Fs` would: it may wait for the device, and reports an error through `tracing` only.
pub struct File {
    held: OwnedInode,
    inode: FoundInode,
    options: OpenOptions,
    /// The byte at which the next `Read` or `Write` begins. [file position]
    position: Mutex<u64>,
    /// The path that messages name.
    path: PathBuf,
    /// How many failed background writes of the file this handle has reported.
    told: Hint<u32>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("path", &self.path)
            .field("ino", &self.held.ino.0)
            .field("read", &self.options.read)
            .field("write", &(self.options.write || self.options.append))
            .finish()
    }
}

impl File {
    fn named<T>(&self, result: Result<T, engine::Error>) -> Result<T, Error> {
        self.held.fs.named(&self.path, result)
    }

    fn engine(&self) -> &engine::InodeFs {
        &self.held.fs.engine
    }

    fn may(&self, may: bool) -> Result<(), Error> {
        if may {
            Ok(())
        } else {
            self.named(Err(engine::Error::NotOpenedSo))
        }
    }

    fn may_write(&self) -> Result<(), Error> {
        self.may(self.options.write || self.options.append)
    }

    /// The number of the file's inode.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.held.ino
    }

    /// The file system of the file. If a [`crate::Dir`] opened the file, paths begin at that directory.
    #[must_use]
    pub fn fs(&self) -> &Fs {
        &self.held.fs
    }

    /// What `fstat` reports.
    ///
    /// # Errors
    /// When the inode can't be read any more.
    pub fn metadata(&self) -> Result<Metadata, Error> {
        self.named(self.inode.metadata(self.engine()))
    }

    /// Fills `buf` from byte `offset`; reads fewer bytes only at the end of the file. The position does not change.
    ///
    /// # Errors
    /// When the file was not opened for reading, its map is broken, or the device fails.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        self.may(self.options.read)?;
        self.named(self.inode.read(self.engine(), offset, buf))
    }

    /// Fills all of `buf` from byte `offset`. The position does not change.
    ///
    /// # Errors
    /// As [`File::read_at`]; `UnexpectedEof` when the file ends before `buf` is full.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read_at(buf, offset)? < buf.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// Writes at byte `offset`, and returns how many bytes were written: fewer than all only if an error stopped the
    /// write. The position does not change. The file grows to hold the bytes; a gap before them is a hole.
    ///
    /// # Errors
    /// When the file was not opened for writing; when no space is left; as [`Fs::sync`].
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize, Error> {
        self.may_write()?;
        self.named(self.engine().write(self.held.ino, offset, bytes))
    }

    /// Writes all bytes at byte `offset`. The position does not change.
    ///
    /// # Errors
    /// As [`File::write_at`]; bytes that were written before the error stay in the file.
    pub fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> Result<(), Error> {
        while !bytes.is_empty() {
            let written = self.write_at(bytes, offset)?;
            if written == 0 {
                return self.named(Err(engine::Error::NoSpace));
            }
            bytes = &bytes[written..];
            offset += written as u64;
        }
        Ok(())
    }

    /// Sets the file's size: bytes after it are removed, or a hole is added.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn set_len(&self, size: u64) -> Result<(), Error> {
        self.may_write()?;
        self.named(self.engine().truncate(self.held.ino, size))
    }

    /// Reserves, frees, zeroes or moves a part of the file (`fallocate`).
    ///
    /// # Errors
    /// As [`File::write_at`]; for impossible ranges, and for operations that a file without extents does not support.
    pub fn allocate(&self, how: Allocate, offset: u64, len: u64) -> Result<(), Error> {
        self.may_write()?;
        self.named(self.engine().allocate(self.held.ino, how, offset, len))
    }

    /// The first byte at or after `offset` that is data (`SEEK_DATA`); `None` if no such byte exists.
    ///
    /// # Errors
    /// When the file's map is broken, or the device fails.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>, Error> {
        self.named(self.engine().seek_data(self.held.ino, offset))
    }

    /// The first byte at or after `offset` that is in a hole (`SEEK_HOLE`); the end of the file counts as a hole.
    /// `None` if `offset` is not before the end.
    ///
    /// # Errors
    /// As [`File::seek_data`].
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>, Error> {
        self.named(self.engine().seek_hole(self.held.ino, offset))
    }

    /// The runs of the file's blocks, holes included, all as they were at one moment (`FIEMAP`).
    ///
    /// # Errors
    /// As [`File::seek_data`].
    pub fn mappings(&self) -> Result<Vec<Mapping>, Error> {
        self.named(self.engine().mappings_in(self.held.ino, 0..1 << 32))
    }

    /// Makes the file's bytes and attributes durable.
    ///
    /// # Errors
    /// As [`Fs::sync`].
    pub fn sync_all(&self) -> Result<(), Error> {
        self.sync_as(false)
    }

    /// Makes the file's bytes durable, and what it takes to read them.
    ///
    /// # Errors
    /// As [`Fs::sync`].
    pub fn sync_data(&self) -> Result<(), Error> {
        self.sync_as(true)
    }

    fn sync_as(&self, data_only: bool) -> Result<(), Error> {
        // Two calls at once may both report the same failure.
        let mut told = self.told.get();
        let synced = self.engine().fsync_of(self.held.ino, data_only, &mut told);
        self.told.set(told);
        self.named(synced)
    }

    /// Changes the file's permissions, owner or times.
    ///
    /// # Errors
    /// As [`Fs::set_attributes`].
    pub fn set_attributes(&self, attributes: &SetAttributes) -> Result<(), Error> {
        self.named(self.engine().set_attributes(self.held.ino, attributes))
    }

    /// Sets the file's modification time, to a [`std::time::SystemTime`] or a [`Timestamp`].
    ///
    /// # Errors
    /// As [`Fs::set_attributes`].
    pub fn set_modified(&self, time: impl Into<Timestamp>) -> Result<(), Error> {
        self.set_attributes(&SetAttributes {
            mtime: Some(SetTime::At(time.into())),
            ..SetAttributes::default()
        })
    }

    /// Closes the file, and deletes it if it has no name any more.
    ///
    /// # Errors
    /// When the deletion fails: then the file is deleted when the file system is opened next.
    pub fn close(self) -> Result<(), Error> {
        let File { held, path, .. } = self;
        let fs = held.fs.clone();
        fs.named(&path, held.release())
    }

    fn read_all(&self, bytes: &mut Vec<u8>) -> Result<(), Error> {
        /// The buffer grows by this number of bytes, so that the size on disk alone decides no allocation.
        const STEP: usize = 8 << 20;
        let size = self.metadata()?.size;
        if size > MAX_READ {
            let what = engine::Error::Unsupported("a file of more than 1 TiB in memory");
            return self.named(Err(what));
        }
        loop {
            let at = bytes.len();
            let left = usize::try_from(size.saturating_sub(at as u64)).unwrap_or(STEP);
            if left == 0 {
                return Ok(());
            }
            bytes.resize(at + left.min(STEP), 0);
            let read = self.read_at(&mut bytes[at..], at as u64)?;
            bytes.truncate(at + read);
            if read == 0 {
                return Ok(());
            }
        }
    }
}

impl Read for &File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut position = self.position.lock();
        let read = self.read_at(buf, *position)?;
        *position += read as u64;
        Ok(read)
    }
}

impl Write for &File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut position = self.position.lock();
        if self.options.append {
            self.may_write()?;
            let (at, written) = self.named(self.engine().append(self.held.ino, bytes))?;
            *position = at + written as u64;
            return Ok(written);
        }
        let written = self.write_at(bytes, *position)?;
        *position += written as u64;
        Ok(written)
    }

    /// Does nothing, because writes are not buffered; [`File::sync_all`] makes them durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let mut position = self.position.lock();
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => position.checked_add_signed(by),
            SeekFrom::End(by) => self.metadata()?.size.checked_add_signed(by),
        };
        let before = "seeking before the beginning of the file";
        let before = || io::Error::new(io::ErrorKind::InvalidInput, before);
        *position = target.ok_or_else(before)?;
        Ok(*position)
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}

impl Fs {
    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn file(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        OpenOptions::new().read(true).open(self, path)
    }

    /// Creates an empty regular file and opens it for writing; a file that exists loses its bytes. To replace a file as
    /// a whole, use [`Fs::write`].
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(self, path)
    }

    /// All bytes of a regular file.
    ///
    /// # Errors
    /// As [`Fs::metadata`], and when it is not a regular file or its map is broken.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.file(&path)?.read_all(&mut bytes)?;
        Ok(bytes)
    }

    /// The contents of a regular file as text.
    ///
    /// # Errors
    /// As [`Fs::read`], and when it is not UTF-8.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String, Error> {
        let bytes = self.read(path)?;
        String::from_utf8(bytes).map_err(|_| Error::invalid("the file is not UTF-8 text"))
    }

    /// Copies a regular file's bytes and permissions to another path of the image, and returns the number of bytes. A
    /// file at that path is replaced as a whole (see [`Fs::write`]).
    ///
    /// # Errors
    /// As [`Fs::file`] and [`Fs::write`].
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64, Error> {
        let mut source = self.file(from)?;
        let to = to.as_ref();
        let new = NewInode {
            mode: source.metadata()?.mode & 0o7777,
            ..FILE
        };
        let taken = crate::contents::TakenAttributes {
            mode: true,
            owner: false,
            xattrs: false,
        };
        let mut copied = 0;
        self.put(to, new, taken, |ino| {
            copied = self.fill(ino, 0, &mut source, to)?;
            Ok(())
        })?;
        Ok(copied)
    }
}
