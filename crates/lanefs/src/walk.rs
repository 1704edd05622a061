//! Walking a tree: every entry once, parents first, names in byte order; without recursion.
//!
//! A directory that a hostile image holds twice, or within itself, is entered once and reported the second time; of
//! entries with one name the first is given and the others are reported; paths have a bound. Memory is that of the
//! names of the directories on the way down.

use std::collections::HashSet;

use engine::ListedEntry;

use crate::{Error, FileType, Fs, Ino, Metadata};

/// The most bytes of a path below the start of a walk.
pub const MAX_PATH: usize = 16 << 10;

/// An entry of a tree.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Entry {
    /// Its path below the start of the walk, without a leading `/`.
    pub path: Vec<u8>,
    /// Its inode.
    pub ino: Ino,
    /// Its attributes.
    pub metadata: Metadata,
    /// How many directories lie between it and the start: 1 for the start's own entries.
    pub depth: usize,
    /// Whether it is the last of its directory.
    pub is_last: bool,
}

impl Entry {
    /// The last part of the path.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.path
            .rsplit(|byte| *byte == b'/')
            .next()
            .unwrap_or_default()
    }
}

/// What a walk gives.
#[derive(Clone, Debug)]
pub enum Step {
    /// An entry; what is in it follows, if it is a directory.
    Enter(Entry),
    /// All that is in this directory was given.
    Leave(Entry),
}

struct Level {
    /// The directory; none for the start.
    entry: Option<Entry>,
    /// What is left of its entries, the last first.
    rest: Vec<(Vec<u8>, Ino)>,
}

/// A walk through a tree; an iterator whose errors name the path and do not end it.
pub struct Walk<'a> {
    fs: &'a Fs,
    levels: Vec<Level>,
    /// A directory that was just given, and is read by the next step.
    entered: Option<Entry>,
    /// The start, until it is read.
    start: Option<Ino>,
    met: HashSet<Ino>,
    filter: Option<Filter<'a>>,
}

/// Says of a name and its attributes whether the walk gives it.
type Filter<'a> = Box<dyn Fn(&[u8], &Metadata) -> bool + 'a>;

impl<'a> Walk<'a> {
    /// A walk of what is below a directory.
    #[must_use]
    pub fn new(fs: &'a Fs, start: Ino) -> Walk<'a> {
        Walk {
            fs,
            levels: Vec::new(),
            entered: None,
            start: Some(start),
            met: HashSet::from([start]),
            filter: None,
        }
    }

    /// Leaves out, with all below it, what `filter` says no to.
    pub fn set_filter(&mut self, filter: impl Fn(&[u8], &Metadata) -> bool + 'a) {
        self.filter = Some(Box::new(filter));
    }

    /// Leaves out what is in the directory that was given last.
    pub fn prune(&mut self) {
        self.entered = None;
    }

    /// Reads a directory's names, in their order but reversed; and what went wrong, since its other names count still.
    fn names(&self, ino: Ino) -> (Vec<(Vec<u8>, Ino)>, Option<Error>) {
        let entries = match self.fs.list(ino) {
            Ok(entries) => entries,
            Err(error) => return (Vec::new(), Some(error.into())),
        };
        let mut names = Vec::new();
        let mut first_error = None;
        for entry in entries {
            match entry {
                Ok(entry) if self.is_wanted(&entry) => names.push((entry.name, entry.ino)),
                Ok(_) => {}
                Err(error) => {
                    first_error.get_or_insert(Error::from(error));
                }
            }
        }
        names.sort_by(|a, b| b.0.cmp(&a.0));
        // Only a damaged directory has a name twice: the first counts, in the order of the disk.
        names.dedup_by(|later, first| {
            let is_twin = later.0 == first.0;
            if is_twin {
                first_error.get_or_insert_with(|| Error::name_twice(&later.0));
            }
            is_twin
        });
        (names, first_error)
    }

    /// Whether the filter accepts an entry. One that can't be read is accepted, so that the walk returns the error.
    fn is_wanted(&self, entry: &ListedEntry) -> bool {
        let Some(filter) = &self.filter else {
            return true;
        };
        let metadata = self.fs.inodes().metadata(entry.ino);
        metadata.map_or(true, |metadata| filter(&entry.name, &metadata))
    }

    fn descend(&mut self, entry: Option<Entry>, ino: Ino) -> Result<(), (Vec<u8>, Error)> {
        let (rest, error) = self.names(ino);
        let path = entry
            .as_ref()
            .map(|entry| entry.path.clone())
            .unwrap_or_default();
        self.levels.push(Level { entry, rest });
        error.map_or(Ok(()), |error| Err((path, error)))
    }

    fn enter(&mut self, name: &[u8], ino: Ino, is_last: bool) -> Result<Entry, (Vec<u8>, Error)> {
        let depth = self.levels.len();
        let mut path = Vec::new();
        if let Some(Level {
            entry: Some(parent),
            ..
        }) = self.levels.last()
        {
            path.extend(&parent.path);
            path.push(b'/');
        }
        path.extend(name);
        if path.len() > MAX_PATH {
            return Err((path, Error::invalid("nested too deeply")));
        }
        let metadata = match self.fs.inodes().metadata(ino) {
            Ok(metadata) => metadata,
            Err(error) => return Err((path, error.into())),
        };
        let entry = Entry {
            path,
            ino,
            metadata,
            depth,
            is_last,
        };
        if entry.metadata.file_type == FileType::Directory {
            if !self.met.insert(ino) {
                return Err((
                    entry.path,
                    Error::invalid("a directory that is also elsewhere in the tree"),
                ));
            }
            self.entered = Some(entry.clone());
        }
        Ok(entry)
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<Step, (Vec<u8>, Error)>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(ino) = self.start.take()
            && let Err(error) = self.descend(None, ino)
        {
            return Some(Err(error));
        }
        if let Some(entry) = self.entered.take() {
            let ino = entry.ino;
            if let Err(error) = self.descend(Some(entry), ino) {
                return Some(Err(error));
            }
        }
        let level = self.levels.last_mut()?;
        if let Some((name, ino)) = level.rest.pop() {
            let is_last = level.rest.is_empty();
            return Some(self.enter(&name, ino, is_last).map(Step::Enter));
        }
        let level = self.levels.pop()?;
        level.entry.map(|entry| Ok(Step::Leave(entry)))
    }
}
