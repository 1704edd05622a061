//! Open directories of an image, in the manner of cap-std's `Dir`, and their entries.
//!
//! An open directory is kept until it is dropped, even without a name. Locks: none. Crash: nothing of this is on disk.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use device::host;
use engine::{FileType, Ino, Metadata};
use sync::Arc;

use crate::reach::OwnedInode;
use crate::{Error, File, Fs, OpenOptions};

/// How many entries [`ReadDir`] reads from a directory at once.
const BATCH: usize = 512;
/// Broken blocks in a row after which [`ReadDir`] ends.
const MAX_BROKEN: usize = 4096;

/// An open directory, which is the root of all paths that are given to it. A path leaves it neither by `..` nor by a
/// symbolic link, and an absolute path begins at it. The one exception: if another thread moves a subdirectory out of
/// it while a path is followed through that, the path may end outside.
///
/// A `Dir` has all methods of [`Fs`], with paths relative to it, and stays the same directory when it is renamed. It
/// is `Send`, `Sync` and `'static`; clones are the same directory. Paths of the [`Fs`] that it derefs to, and of clones
/// of that, begin at the directory too.
///
/// ```
/// use lanefs::Fs;
///
/// let fs = Fs::in_memory(8 << 20)?;
/// fs.create_dir_all("/srv/www")?;
/// let www = fs.open_dir("/srv/www")?;
/// www.write("index.html", "<p>hello</p>")?;
/// www.symlink("/index.html", "start")?;
/// fs.rename("/srv/www", "/srv/site")?;
/// assert_eq!(www.read_to_string("start")?, "<p>hello</p>");
/// assert!(www.metadata("../../lost+found").is_err());
/// assert_eq!(fs.read_to_string("/srv/site/index.html")?, "<p>hello</p>");
/// # Ok::<(), lanefs::Error>(())
/// ```
#[derive(Clone)]
pub struct Dir {
    /// Its paths begin at the directory, which it keeps.
    fs: Fs,
    /// For error messages.
    path: PathBuf,
}

impl fmt::Debug for Dir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dir")
            .field("path", &self.path)
            .field("ino", &self.fs.root.0)
            .finish_non_exhaustive()
    }
}

impl Deref for Dir {
    type Target = Fs;

    fn deref(&self) -> &Fs {
        &self.fs
    }
}

impl Dir {
    pub(crate) fn open_at(fs: &Fs, path: &Path) -> Result<Dir, Error> {
        let held = fs.reach(path, true)?.into_owned();
        if !fs.named(path, fs.engine.metadata(held.ino))?.is_dir() {
            return fs.named(path, Err(engine::Error::NotDirectory));
        }
        Ok(Dir {
            fs: Fs {
                engine: Arc::clone(&fs.engine),
                root: held.ino,
                _held_root: Some(Arc::new(held)),
            },
            path: path.to_path_buf(),
        })
    }

    /// The directory's inode number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.fs.root
    }

    /// The directory's metadata, as `fstat` returns it.
    ///
    /// # Errors
    /// When the inode can't be read any more.
    pub fn dir_metadata(&self) -> Result<Metadata, Error> {
        self.fs
            .named(&self.path, self.fs.engine.metadata(self.fs.root))
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        self.fs.file(path)
    }

    /// Opens or makes a regular file according to the options.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open_with(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File, Error> {
        options.open(&self.fs, path)
    }

    /// The directory's entries, without `.` and `..`; their paths are relative to the directory.
    ///
    /// # Errors
    /// As [`Fs::read_dir`].
    pub fn entries(&self) -> Result<ReadDir, Error> {
        ReadDir::of(
            self.fs.reach(Path::new("/"), true)?.into_owned(),
            Path::new(""),
        )
    }
}

/// An iterator over the entries of a directory, in the order of the disk. A broken block is returned as an error, and
/// the entries of the next blocks follow. A name that exists all the time is returned once, whatever other threads
/// change meanwhile.
pub struct ReadDir {
    directory: Arc<OwnedInode>,
    /// The directory's path, as the caller gave it.
    path: Arc<Path>,
    /// Entries that were read but not yet returned.
    batch: VecDeque<Result<engine::ListedEntry, engine::Error>>,
    /// The cookie of the first entry after the batch; `None` when the directory was read to its end.
    next: Option<u64>,
}

impl fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadDir").field(&self.path).finish()
    }
}

impl ReadDir {
    pub(crate) fn new(fs: &Fs, path: &Path) -> Result<ReadDir, Error> {
        ReadDir::of(fs.reach(path, true)?.into_owned(), path)
    }

    fn of(directory: OwnedInode, path: &Path) -> Result<ReadDir, Error> {
        let mut entries = ReadDir {
            directory: Arc::new(directory),
            path: path.into(),
            batch: VecDeque::new(),
            next: Some(0),
        };
        entries.fill(0).map_err(|error| entries.at(error))?;
        Ok(entries)
    }

    fn at(&self, error: engine::Error) -> Error {
        Error::at(&host::path_bytes(&self.path), error)
    }

    /// Reads the next batch from the directory. It never ends with an error, because the next batch, which begins
    /// behind the last sound entry, would repeat it.
    fn fill(&mut self, from: u64) -> Result<(), engine::Error> {
        let OwnedInode { fs, ino, .. } = &*self.directory;
        self.next = None;
        let mut broken = 0;
        for entry in fs.engine.read_dir_from(*ino, from)? {
            match &entry {
                Ok(entry) if matches!(&entry.name[..], b"." | b"..") => continue,
                Ok(entry) => {
                    broken = 0;
                    self.next = Some(entry.cookie);
                }
                Err(_) => broken += 1,
            }
            let is_full = self.batch.len() >= BATCH && entry.is_ok();
            self.batch.push_back(entry);
            if is_full {
                return Ok(());
            }
            if broken == MAX_BROKEN {
                break;
            }
        }
        self.next = None;
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.batch.is_empty()
            && let Some(from) = self.next
            && let Err(error) = self.fill(from)
        {
            return Some(Err(self.at(error)));
        }
        let entry = self.batch.pop_front()?;
        Some(match entry {
            Ok(entry) => Ok(DirEntry {
                directory: Arc::clone(&self.directory),
                parent: Arc::clone(&self.path),
                entry,
            }),
            Err(error) => Err(self.at(error)),
        })
    }
}

/// An entry of a directory. It keeps the directory open.
#[derive(Clone)]
pub struct DirEntry {
    directory: Arc<OwnedInode>,
    /// The directory's path, as it was given to [`Fs::read_dir`].
    parent: Arc<Path>,
    entry: engine::ListedEntry,
}

impl fmt::Debug for DirEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DirEntry").field(&self.path()).finish()
    }
}

impl DirEntry {
    /// The name, as the operating system writes names.
    #[must_use]
    pub fn file_name(&self) -> OsString {
        host::name(&self.entry.name).into_owned()
    }

    /// The name, as the bytes on the disk.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.entry.name
    }

    /// The entry's path: the directory's, as it was given to [`Fs::read_dir`], and the name.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.parent.join(self.file_name())
    }

    /// The entry's inode number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.entry.ino
    }

    /// The entry's file type: from the directory if it records types, otherwise from the inode.
    ///
    /// # Errors
    /// As [`DirEntry::metadata`].
    pub fn file_type(&self) -> Result<FileType, Error> {
        match self.entry.file_type {
            Some(file_type) => Ok(file_type),
            None => Ok(self.metadata()?.file_type),
        }
    }

    /// The metadata of the inode that has the name now, as `lstat` returns it: a symbolic link is not followed.
    ///
    /// # Errors
    /// When nothing has the name any more, or the inode is broken.
    pub fn metadata(&self) -> Result<Metadata, Error> {
        let OwnedInode { fs, ino, .. } = &*self.directory;
        let found = if fs.engine.is_opened_for_writing() {
            fs.reach_in(*ino, &self.entry.name)
                .and_then(|held| fs.engine.metadata(held.ino()))
        } else {
            fs.engine.metadata(self.entry.ino)
        };
        fs.named(&self.path(), found)
    }
}
