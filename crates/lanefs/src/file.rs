//! Regular files of an image, open, in the manner of `std::fs::File`.
//!
//! An open file stays until it is closed or dropped, although its last name may go. Any number may be open, of one file
//! too, and be used from any number of threads: each method of the engine beneath is whole by itself. What a crash
//! leaves of what was written is a prefix of it; [`File::sync_all`] makes it durable.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sync::atomic::{AtomicU32, Ordering};

use engine::{Allocate, FileType, Ino, InodeRef, Mapping, Metadata, NewInode, SetAttributes};

use crate::contents::FILE;
use crate::names::NameInParent;
use crate::reach::TRIES;
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
    /// Nothing is asked for yet.
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

    /// To read it.
    pub fn read(&mut self, read: bool) -> &mut OpenOptions {
        self.read = read;
        self
    }

    /// To write to it.
    pub fn write(&mut self, write: bool) -> &mut OpenOptions {
        self.write = write;
        self
    }

    /// To write to its end, wherever that is by then.
    pub fn append(&mut self, append: bool) -> &mut OpenOptions {
        self.append = append;
        self
    }

    /// To take all bytes from it that it has.
    pub fn truncate(&mut self, truncate: bool) -> &mut OpenOptions {
        self.truncate = truncate;
        self
    }

    /// To make it if it is not there.
    pub fn create(&mut self, create: bool) -> &mut OpenOptions {
        self.create = create;
        self
    }

    /// To make it; nothing may have the name, not even a link that leads nowhere.
    pub fn create_new(&mut self, create_new: bool) -> &mut OpenOptions {
        self.create_new = create_new;
        self
    }

    /// Owner and permissions of a file that is made: root's and 0644 without this.
    pub fn new_inode(&mut self, new: NewInode) -> &mut OpenOptions {
        self.new = new;
        self
    }

    /// Opens a regular file; symbolic links are followed.
    ///
    /// # Errors
    /// When it is not there and not to be made, or there and to be new; when it is not a regular file; for choices that
    /// contradict each other; as [`Fs::create_dir`] for one that is made, as [`Fs::set_len`] for one that is truncated.
    pub fn open<'fs>(&self, fs: &'fs Fs, path: impl AsRef<Path>) -> Result<File<'fs>, Error> {
        let path = path.as_ref();
        let writes = self.write || self.append;
        let only_reads = self.read && !self.truncate && !self.create && !self.create_new;
        let is_sensible =
            (writes || only_reads) && !(self.append && self.truncate && !self.create_new);
        if !is_sensible {
            return fs.named(path, Err(engine::Error::InvalidArgument));
        }
        let ino = self.hold(fs, path)?;
        let inode = fs.named(path, fs.0.inode(ino));
        let mut file = File {
            fs,
            ino,
            inode: match inode {
                Ok(inode) => inode,
                Err(error) => {
                    let _ = fs.0.release(ino);
                    return Err(error);
                }
            },
            is_held: fs.0.is_opened_for_writing(),
            told: AtomicU32::new(fs.0.write_failures(ino).unwrap_or(0)),
            options: *self,
            position: 0,
            path: path.to_path_buf(),
        };
        file.verify()?;
        if self.truncate && !self.create_new {
            file.set_len(0)?;
        }
        if writes && !fs.is_writable() {
            return fs.named(path, Err(engine::Error::ReadOnly));
        }
        file.position = 0;
        Ok(file)
    }

    /// The file at a path, held where files can go; made if that is asked for.
    fn hold(&self, fs: &Fs, path: &Path) -> Result<Ino, Error> {
        if !fs.0.is_opened_for_writing() {
            return fs.find(path, true);
        }
        fs.refuse_slash(
            path,
            match self.create || self.create_new {
                true => engine::Error::IsDirectory,
                false => engine::Error::NotFound,
            },
        )?;
        let new = NewInode {
            held: true,
            ..self.new
        };
        for _ in 0..TRIES {
            let place = match self.create_new {
                true => OpenOptions::new_place(fs, path)?,
                false => {
                    let (place, found) = fs.reach_place(path)?;
                    match found {
                        Some(found) => return Ok(found.keep()),
                        None if self.create => place,
                        None => return fs.named(path, Err(engine::Error::NotFound)),
                    }
                }
            };
            match fs.0.create(place.parent, &place.name, new) {
                // Others made one since.
                Err(engine::Error::Exists) if !self.create_new => {}
                made => return fs.named(path, made),
            }
        }
        fs.named(path, Err(engine::Error::Busy))
    }

    /// The place of a file that is to be new.
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
/// Two `File`s, also of one file, can be used at once. Dropping it closes it without waiting for anything: if it has no
/// names by then, it is deleted by the reaper thread or the next change. [`File::close`] deletes it, and says what went
/// wrong.
pub struct File<'fs> {
    fs: &'fs Fs,
    ino: Ino,
    inode: InodeRef<'fs>,
    /// Whether the engine keeps it for us.
    is_held: bool,
    options: OpenOptions,
    position: u64,
    /// For messages.
    path: PathBuf,
    /// How many writes that failed behind their callers' backs it was told of. [atomic: Relaxed]
    told: AtomicU32,
}

impl File<'_> {
    fn verify(&self) -> Result<(), Error> {
        let wrong = match self.inode.metadata().file_type {
            FileType::Regular => return Ok(()),
            FileType::Directory => engine::Error::IsDirectory,
            _ => engine::Error::NotRegular,
        };
        self.named(Err(wrong))
    }

    fn named<T>(&self, result: Result<T, engine::Error>) -> Result<T, Error> {
        self.fs.named(&self.path, result)
    }

    fn may(&self, may: bool) -> Result<(), Error> {
        match may {
            true => Ok(()),
            false => self.named(Err(engine::Error::NotOpenedSo)),
        }
    }

    fn may_write(&self) -> Result<(), Error> {
        self.may(self.options.write || self.options.append)
    }

    /// Its number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// What `fstat` tells.
    ///
    /// # Errors
    /// When the inode can't be read any more.
    pub fn metadata(&self) -> Result<Metadata, Error> {
        match self.is_held {
            true => self.named(self.fs.0.metadata(self.ino)),
            false => Ok(self.inode.metadata()),
        }
    }

    /// Fills `buf` from byte `offset`; fewer bytes only at the end of the file. The position stays.
    ///
    /// # Errors
    /// When it was not opened to be read, the file's map is broken, or the device fails.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        self.may(self.options.read)?;
        self.named(self.inode.read(offset, buf))
    }

    /// Writes at byte `offset`, and says how many bytes: fewer only where an error stopped it. The position stays. The
    /// file grows to hold them; a gap is a hole.
    ///
    /// # Errors
    /// When it was not opened to be written; no space; as [`Fs::sync`].
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<usize, Error> {
        self.may_write()?;
        self.named(self.fs.0.write(self.ino, offset, bytes))
    }

    /// Sets its size: what is behind it goes, or a hole is added.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn set_len(&self, size: u64) -> Result<(), Error> {
        self.may_write()?;
        self.named(self.fs.0.truncate(self.ino, size))
    }

    /// Reserves, frees, zeroes or moves a part of it (`fallocate`).
    ///
    /// # Errors
    /// As [`File::write_at`]; for ranges that can't be, and what files without extents can't.
    pub fn allocate(&self, how: Allocate, offset: u64, len: u64) -> Result<(), Error> {
        self.may_write()?;
        self.named(self.fs.0.allocate(self.ino, how, offset, len))
    }

    /// The first byte at or behind `offset` that is data (`SEEK_DATA`); `None` if no such byte exists.
    ///
    /// # Errors
    /// When the file's map is broken, or the device fails.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>, Error> {
        self.named(self.fs.0.seek_data(self.ino, offset))
    }

    /// The first byte at or behind `offset` that is in a hole, which is also what follows the end (`SEEK_HOLE`);
    /// `None` from the end on.
    ///
    /// # Errors
    /// As [`File::seek_data`].
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>, Error> {
        self.named(self.fs.0.seek_hole(self.ino, offset))
    }

    /// Where its blocks lie, holes included, all as they were at one moment (`FIEMAP`).
    ///
    /// # Errors
    /// As [`File::seek_data`].
    pub fn mappings(&self) -> Result<Vec<Mapping>, Error> {
        self.named(self.fs.0.mappings_in(self.ino, 0..1 << 32))
    }

    /// Makes its bytes and attributes durable.
    ///
    /// # Errors
    /// As [`Fs::sync`].
    pub fn sync_all(&self) -> Result<(), Error> {
        self.sync_as(false)
    }

    /// Makes its bytes durable, and what it takes to read them.
    ///
    /// # Errors
    /// As [`Fs::sync`].
    pub fn sync_data(&self) -> Result<(), Error> {
        self.sync_as(true)
    }

    fn sync_as(&self, data_only: bool) -> Result<(), Error> {
        // Relaxed: a count of this handle alone; of two calls at once both may tell the same failure.
        let mut told = self.told.load(Ordering::Relaxed);
        let synced = self.fs.0.fsync_of(self.ino, data_only, &mut told);
        // Relaxed: as above.
        self.told.store(told, Ordering::Relaxed);
        self.named(synced)
    }

    /// Changes its permissions, owner or times.
    ///
    /// # Errors
    /// As [`Fs::set_attributes`].
    pub fn set_attributes(&self, attributes: &SetAttributes) -> Result<(), Error> {
        self.named(self.fs.0.set_attributes(self.ino, attributes))
    }

    /// Closes it. Without names by now, it is deleted.
    ///
    /// # Errors
    /// When that fails: then it is deleted when the file system is opened next.
    pub fn close(mut self) -> Result<(), Error> {
        self.let_go()
    }

    fn let_go(&mut self) -> Result<(), Error> {
        match std::mem::take(&mut self.is_held) {
            true => self.named(self.fs.0.release(self.ino)),
            false => Ok(()),
        }
    }

    fn read_all(&self, bytes: &mut Vec<u8>) -> Result<(), Error> {
        /// How many bytes are added at once: the size on disk alone decides no allocation.
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
            let read = self.read_at(at as u64, &mut bytes[at..])?;
            bytes.truncate(at + read);
            if read == 0 {
                return Ok(());
            }
        }
    }
}

impl Drop for File<'_> {
    fn drop(&mut self) {
        if self.is_held {
            self.fs.0.let_go(self.ino);
        }
    }
}

impl Read for File<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.read_at(self.position, buf)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Write for File<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.options.append {
            self.may_write()?;
            let (at, written) = self.named(self.fs.0.append(self.ino, bytes))?;
            self.position = at + written as u64;
            return Ok(written);
        }
        let written = self.write_at(self.position, bytes)?;
        self.position += written as u64;
        Ok(written)
    }

    /// Nothing waits in between; [`File::sync_all`] makes durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.metadata()?.size.checked_add_signed(by),
        };
        let before = "seeking before the beginning of the file";
        let before = || io::Error::new(io::ErrorKind::InvalidInput, before);
        self.position = target.ok_or_else(before)?;
        Ok(self.position)
    }
}

impl Fs {
    /// A regular file, to be read.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn file(&self, path: impl AsRef<Path>) -> Result<File<'_>, Error> {
        OpenOptions::new().read(true).open(self, path)
    }

    /// An empty regular file, to be written: a new one, or one that loses its bytes. [`Fs::write`] replaces a file as a
    /// whole instead.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File<'_>, Error> {
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

    /// All of a regular file, as text.
    ///
    /// # Errors
    /// As [`Fs::read`], and when it is not UTF-8.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String, Error> {
        let bytes = self.read(path)?;
        String::from_utf8(bytes).map_err(|_| Error::invalid("the file is not UTF-8 text"))
    }

    /// Copies a regular file's bytes and permissions to another path of the image, which is replaced as a whole if it
    /// is there (see [`Fs::write`]); says how many bytes.
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
