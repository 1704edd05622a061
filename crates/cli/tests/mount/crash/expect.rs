//! What may be found after a cut: for each name, file and attribute of a client the values that it may have, the
//! promised one first.
//!
//! An operation that has begun adds what it may leave. A sync that has returned leaves only the newest value of what it
//! promises:
//!
//! | sync | promises |
//! |---|---|
//! | fdatasync, msync | the contents and the size; that the file exists, under one of its names |
//! | fsync, O_SYNC | that, the attributes, and which names the file has |
//! | fsync of a directory | its own name, and the names in it |
//! | syncfs, where it reaches the server | everything |
//!
//! Of overwrites that were not promised, any part may be found. Of data that were added behind the promised size, a
//! part from their beginning on may be found; zeros are allowed only where a hole or a truncation left them. Two things
//! are never allowed: bytes that no process wrote to the file, and a file without a name in the middle of a rename.

use std::collections::BTreeMap;
use std::ops::Range;

use super::tree::{Found, FoundTree};
use super::work::{How, Op, SHARED, Sync, home};

/// One file or directory.
struct File {
    is_directory: bool,
    promised: Vec<u8>,
    now: Vec<u8>,
    /// What was written since the promise.
    later: Vec<(usize, Vec<u8>)>,
    /// The smallest and the largest size since the promise.
    sizes: Range<usize>,
    xattrs: BTreeMap<String, Vec<Option<Vec<u8>>>>,
    /// Whether a sync has promised that it exists.
    is_durable: bool,
    /// Whether its last name has gone since that promise.
    may_be_nameless: bool,
}

impl File {
    fn new(is_directory: bool) -> File {
        File {
            is_directory,
            promised: Vec::new(),
            now: Vec::new(),
            later: Vec::new(),
            sizes: 0..0,
            xattrs: BTreeMap::new(),
            is_durable: false,
            may_be_nameless: false,
        }
    }

    fn write(&mut self, offset: usize, bytes: Vec<u8>) {
        let end = offset + bytes.len();
        if self.now.len() < offset {
            let zeros = vec![0; offset - self.now.len()];
            self.later.push((self.now.len(), zeros));
        }
        if self.now.len() < end {
            self.now.resize(end, 0);
        }
        self.now[offset..end].copy_from_slice(&bytes);
        self.later.push((offset, bytes));
        self.sizes.end = self.sizes.end.max(self.now.len());
    }

    fn truncate(&mut self, len: usize) {
        let cut = len.min(self.now.len());
        let zeros = vec![0; len.max(self.now.len()) - cut];
        self.later.push((cut, zeros));
        self.now.resize(len, 0);
        self.sizes.start = self.sizes.start.min(len);
        self.sizes.end = self.sizes.end.max(len);
    }

    fn promise_data(&mut self) {
        self.promised.clone_from(&self.now);
        self.later.clear();
        self.sizes = self.now.len()..self.now.len();
        self.is_durable = true;
    }

    fn promise_xattrs(&mut self) {
        for values in self.xattrs.values_mut() {
            values.drain(..values.len() - 1);
        }
    }

    /// Whether this file may look so.
    fn check(&self, found: &Found) -> Result<(), String> {
        if self.is_directory != found.is_directory {
            return Err("is of another type".into());
        }
        for (key, values) in &self.xattrs {
            let value = found.xattrs.get(key);
            if !values.iter().any(|allowed| allowed.as_ref() == value) {
                let len = value.map(Vec::len);
                return Err(format!("attribute {key} has a value of {len:?} bytes"));
            }
        }
        if let Some(key) = found
            .xattrs
            .keys()
            .find(|key| !self.xattrs.contains_key(*key))
        {
            return Err(format!("has an attribute {key}"));
        }
        if found.bytes == self.now {
            return Ok(());
        }
        let Range { start, end } = self.sizes;
        if found.bytes.len() < start || found.bytes.len() > end {
            let len = found.bytes.len();
            return Err(format!("has {len} bytes instead of {start} to {end}"));
        }
        let wrong = (0..found.bytes.len()).find(|at| !self.may_have(*at, found.bytes[*at]));
        wrong.map_or(Ok(()), |at| Err(format!("byte {at} is wrong")))
    }

    fn may_have(&self, at: usize, byte: u8) -> bool {
        self.promised.get(at) == Some(&byte)
            || self.later.iter().any(|(offset, bytes)| {
                let within = at.checked_sub(*offset);
                within.and_then(|within| bytes.get(within)) == Some(&byte)
            })
    }
}

/// What one client may leave.
pub struct Expect {
    client: u64,
    /// Whether syncfs reaches the server.
    is_sync_a_promise: bool,
    files: Vec<File>,
    /// By name: the files that it may stand for, or nothing.
    names: BTreeMap<String, Vec<Option<usize>>>,
}

impl Expect {
    /// Before the client's first operation.
    pub fn new(client: u64, is_sync_a_promise: bool) -> Expect {
        Expect {
            client,
            is_sync_a_promise,
            files: Vec::new(),
            names: BTreeMap::new(),
        }
    }

    /// Whether a name in the image is one of this client's.
    pub fn owns(&self, name: &str) -> bool {
        let of = |start: String| name.starts_with(&start);
        of(format!("{}/", home(self.client))) || of(format!("{SHARED}/c{}-", self.client))
    }

    fn file_at(&self, name: &str) -> usize {
        let values = &self.names[name];
        values.last().copied().flatten().unwrap()
    }

    fn set_name(&mut self, name: &str, file: Option<usize>) {
        let values = self.names.entry(name.to_owned());
        let values = values.or_insert_with(|| vec![None]);
        let former = values.last().copied().flatten();
        values.push(file);
        if let Some(former) = former
            && !self.has_name(former)
        {
            self.files[former].may_be_nameless = true;
        }
    }

    fn has_name(&self, file: usize) -> bool {
        let mut names = self.names.values();
        names.any(|values| values.last() == Some(&Some(file)))
    }

    fn create(&mut self, name: &str, is_directory: bool) {
        self.files.push(File::new(is_directory));
        self.set_name(name, Some(self.files.len() - 1));
    }

    /// An operation begins.
    pub fn begin(&mut self, op: &Op) {
        match op {
            Op::Create { name } => self.create(name, false),
            Op::Mkdir { name } => self.create(name, true),
            Op::Write {
                name,
                offset,
                bytes,
                ..
            } => {
                let file = self.file_at(name);
                self.files[file].write(*offset as usize, bytes.clone());
            }
            Op::Truncate { name, len } => {
                let file = self.file_at(name);
                self.files[file].truncate(*len as usize);
            }
            Op::Rename { from, to } => {
                let file = self.file_at(from);
                self.set_name(to, Some(file));
                self.set_name(from, None);
            }
            Op::Link { from, to } => {
                let file = self.file_at(from);
                self.set_name(to, Some(file));
            }
            Op::Unlink { name } => self.set_name(name, None),
            Op::Xattr { name, key, value } => {
                let file = self.file_at(name);
                let values = self.files[file].xattrs.entry(key.clone());
                values.or_insert_with(|| vec![None]).push(value.clone());
            }
            Op::Sync { .. } => {}
        }
    }

    /// An operation has returned.
    pub fn end(&mut self, op: &Op) {
        match op {
            Op::Write { name, how, .. } => match how {
                How::Buffered | How::Direct => {}
                How::Mapped => self.promise_data(name),
                How::Synchronous => self.promise_inode(name),
            },
            Op::Sync { name, what } => match what {
                Sync::Fsync => self.promise_inode(name),
                Sync::Fdatasync => self.promise_data(name),
                Sync::Directory => self.promise_directory(name),
                Sync::All if self.is_sync_a_promise => self.promise_all(),
                Sync::All => {}
            },
            _ => {}
        }
    }

    fn promise_data(&mut self, name: &str) {
        let file = self.file_at(name);
        self.files[file].promise_data();
    }

    fn promise_inode(&mut self, name: &str) {
        let file = self.file_at(name);
        self.files[file].promise_data();
        self.files[file].promise_xattrs();
        self.files[file].may_be_nameless = false;
        for values in self.names.values_mut() {
            if values.last() == Some(&Some(file)) {
                *values = vec![Some(file)]
            } else {
                values.retain(|value| *value != Some(file))
            }
        }
    }

    fn promise_directory(&mut self, directory: &str) {
        if self.names.contains_key(directory) {
            self.promise_inode(directory);
        }
        for (name, values) in &mut self.names {
            if name
                .rsplit_once('/')
                .is_some_and(|(parent, _)| parent == directory)
            {
                values.drain(..values.len() - 1);
                if let Some(file) = values[0] {
                    self.files[file].is_durable = true;
                }
            }
        }
    }

    fn promise_all(&mut self) {
        for values in self.names.values_mut() {
            values.drain(..values.len() - 1);
        }
        for number in 0..self.files.len() {
            let is_nameless = !self.has_name(number);
            let file = &mut self.files[number];
            file.promise_data();
            file.promise_xattrs();
            file.may_be_nameless = is_nameless;
        }
    }

    /// Compares with what was found; gives the number of names that were promised.
    pub fn check(&self, found: &FoundTree) -> Result<usize, String> {
        let mut promised = 0;
        let mut inodes = BTreeMap::new();
        for (name, values) in &self.names {
            let Some(there) = found.get(name) else {
                if !values.contains(&None) {
                    return Err(format!("{name} is gone"));
                }
                continue;
            };
            let mut why = format!("{name} should not exist");
            let fits = values.iter().flatten().any(|file| {
                let checked = self.files[*file].check(there);
                checked
                    .map_err(|reason| why = format!("{name} {reason}"))
                    .is_ok()
            });
            if !fits {
                return Err(why);
            }
            if let [Some(file)] = values[..] {
                promised += 1;
                let inode = *inodes.entry(file).or_insert(there.inode);
                if inode != there.inode {
                    return Err(format!(
                        "{name} is not a link of the other names of its file"
                    ));
                }
            }
        }
        self.check_reachable(found)?;
        Ok(promised)
    }

    /// A file that was promised, and always had a name since then, has one.
    fn check_reachable(&self, found: &FoundTree) -> Result<(), String> {
        for (number, file) in self.files.iter().enumerate() {
            if !file.is_durable || file.may_be_nameless {
                continue;
            }
            let names = self.names.iter();
            let mut names = names.filter(|(_, values)| values.contains(&Some(number)));
            let mut tried = Vec::new();
            let is_there = names.any(|(name, _)| {
                tried.push(name.clone());
                found
                    .get(name)
                    .is_some_and(|there| file.check(there).is_ok())
            });
            if !is_there {
                return Err(format!("a file is under none of its names {tried:?}"));
            }
        }
        Ok(())
    }
}
