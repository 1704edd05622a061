//! Mixed loads, each defined here: like dbench's, postmark's and mongo's in what they do and how often, not replays.

use lanefs::Error;

use super::{WorkerJob, WorkerPlace, numbered};
use crate::target::Target;

/// Bytes of a read or write.
const PIECE: usize = 4096;
const BYTES: [u8; 4 * PIECE] = [0x5a; 4 * PIECE];

/// Calls of a batch.
const CALLS: usize = 100;
/// Names that a client of `dbench` uses.
const NAMES: usize = 64;
/// Of 100 calls: files written (opened, emptied, 8 KiB, closed), read (opened, 4 KiB, closed), looked at, removed,
/// renamed, synced; the rest list the directory.
const WRITTEN: usize = 20;
const READ: usize = WRITTEN + 25;
const LOOKED_AT: usize = READ + 35;
const REMOVED: usize = LOOKED_AT + 10;
const RENAMED: usize = REMOVED + 3;
const SYNCED: usize = RENAMED + 2;

/// A file server's client.
pub(super) struct Dbench<'t, T: Target> {
    place: WorkerPlace<'t, T>,
    there: [bool; NAMES],
}

impl<'t, T: Target> Dbench<'t, T> {
    pub(super) fn new(place: WorkerPlace<'t, T>) -> Self {
        Dbench {
            place,
            there: [false; NAMES],
        }
    }

    fn write(&mut self, number: usize) -> Result<(), Error> {
        let (target, directory) = (self.place.target, &self.place.directory);
        let file = target.creat(directory, &numbered(number))?;
        self.there[number] = true;
        target.write(&file, 0, &BYTES[..PIECE])?;
        target.write(&file, PIECE as u64, &BYTES[..PIECE])?;
        target.close(file)
    }

    fn call(&mut self, number: usize, call: usize) -> Result<(), Error> {
        if call < WRITTEN || !self.there[number] {
            return self.write(number);
        }
        let (target, directory) = (self.place.target, &self.place.directory);
        let name = numbered(number);
        match call {
            WRITTEN..READ => {
                let file = target.open(directory, &name)?;
                target.read(&file, 0, &mut [0; PIECE])?;
                target.close(file)
            }
            READ..LOOKED_AT => target.stat(directory, &name).map(drop),
            LOOKED_AT..REMOVED => {
                self.there[number] = false;
                target.unlink(directory, &name)
            }
            REMOVED..RENAMED => {
                // To a name that is free, if the next one is.
                let next = (number + 1) % NAMES;
                if self.there[next] {
                    target.stat(directory, &name).map(drop)
                } else {
                    self.there.swap(number, next);
                    target.rename(directory, &name, &numbered(next))
                }
            }
            RENAMED..SYNCED => {
                let file = target.open(directory, &name)?;
                target.fsync(&file)?;
                target.close(file)
            }
            _ => target.read_dir(directory, &mut |_, _| ()),
        }
    }
}

impl<T: Target> WorkerJob for Dbench<'_, T> {
    fn batch(&mut self) -> Result<u64, Error> {
        for _ in 0..CALLS {
            let number = self.place.random.index(NAMES);
            let call = self.place.random.index(100);
            self.call(number, call)?;
        }
        Ok(CALLS as u64)
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        for number in (0..NAMES).filter(|number| self.there[*number]) {
            let name = numbered(number);
            self.place.target.unlink(&self.place.directory, &name)?;
        }
        self.place.remove()
    }
}

/// Files that postmark begins with.
const MAILS: usize = 500;
/// Their sizes in bytes: from, and how many more at most.
const MAIL: (usize, usize) = (500, 9270);
/// Names that it uses.
const MAIL_NAMES: usize = 2 * MAILS;
/// Bytes to which a mail is appended to.
const LONGEST_MAIL: u64 = 64 << 10;

/// A mail server: as postmark's defaults, transactions of one half that reads or appends and one that makes or removes.
pub(super) struct Postmark<'t, T: Target> {
    place: WorkerPlace<'t, T>,
    /// Sizes of the files that are there.
    sizes: Vec<Option<u64>>,
}

impl<'t, T: Target> Postmark<'t, T> {
    pub(super) fn new(place: WorkerPlace<'t, T>) -> Result<Self, Error> {
        let mut postmark = Postmark {
            place,
            sizes: vec![None; MAIL_NAMES],
        };
        for number in 0..MAILS {
            postmark.make(number)?;
        }
        Ok(postmark)
    }

    /// The next name from a random one on that is there, or is not.
    fn any(&mut self, there: bool) -> Option<usize> {
        let from = self.place.random.index(MAIL_NAMES);
        let mut numbers = (from..MAIL_NAMES).chain(0..from);
        numbers.find(|number| self.sizes[*number].is_some() == there)
    }

    fn make(&mut self, number: usize) -> Result<(), Error> {
        let size = MAIL.0 + self.place.random.index(MAIL.1);
        let (target, directory) = (self.place.target, &self.place.directory);
        let file = target.creat(directory, &numbered(number))?;
        target.write(&file, 0, &BYTES[..size])?;
        self.sizes[number] = Some(size as u64);
        target.close(file)
    }

    fn transaction(&mut self) -> Result<(), Error> {
        let (reads, makes) = (self.place.random.index(2), self.place.random.index(2));
        let more = MAIL.0 + self.place.random.index(MAIL.1);
        if let Some(number) = self.any(true) {
            let size = self.sizes[number].unwrap_or(0);
            let (target, directory) = (self.place.target, &self.place.directory);
            let file = target.open(directory, &numbered(number))?;
            if reads == 0 || size >= LONGEST_MAIL {
                let (mut bytes, mut at) = ([0; PIECE], 0);
                while at < size {
                    at += target.read(&file, at, &mut bytes)?.max(1) as u64;
                }
            } else {
                target.write(&file, size, &BYTES[..more])?;
                self.sizes[number] = Some(size + more as u64);
            }
            target.close(file)?;
        }
        match self.any(makes == 1) {
            Some(number) if makes == 0 => self.make(number),
            Some(number) => {
                self.sizes[number] = None;
                let name = numbered(number);
                self.place.target.unlink(&self.place.directory, &name)
            }
            None => Ok(()),
        }
    }
}

impl<T: Target> WorkerJob for Postmark<'_, T> {
    fn batch(&mut self) -> Result<u64, Error> {
        for _ in 0..CALLS {
            self.transaction()?;
        }
        Ok(CALLS as u64)
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        for number in (0..MAIL_NAMES).filter(|number| self.sizes[*number].is_some()) {
            let name = numbered(number);
            self.place.target.unlink(&self.place.directory, &name)?;
        }
        self.place.remove()
    }
}

/// Directories of `mongo`'s tree, and files in each.
const TREE: (usize, usize) = (4, 20);

/// A tree of small files, whole life in a batch: as mongo's phases, which are made, copied, appended to, renamed,
/// looked at, removed. Most files have 100 bytes or a few times that, few have up to 16 KiB.
pub(super) struct Mongo<'t, T: Target> {
    pub(super) place: WorkerPlace<'t, T>,
}

impl<T: Target> Mongo<'_, T> {
    fn directory(&mut self, name: &str) -> Result<u64, Error> {
        let WorkerPlace {
            target,
            directory,
            random,
            ..
        } = &mut self.place;
        let inner = target.mkdir(directory, name)?;
        let copy = |number: usize| format!("copy-{number:04}");
        for number in 0..TREE.1 {
            let size = (100 << random.doublings(7)) + random.index(100);
            let file = target.creat(&inner, &numbered(number))?;
            target.write(&file, 0, &BYTES[..size])?;
            target.close(file)?;
        }
        let mut bytes = BYTES;
        for number in 0..TREE.1 {
            let from = target.open(&inner, &numbered(number))?;
            let size = target.read(&from, 0, &mut bytes)?;
            target.close(from)?;
            let to = target.creat(&inner, &copy(number))?;
            target.write(&to, 0, &bytes[..size])?;
            target.write(&to, size as u64, &BYTES[..100])?;
            target.close(to)?;
        }
        for number in 0..TREE.1 {
            target.rename(&inner, &numbered(number), &format!("old-{number:04}"))?;
        }
        let mut names = Vec::new();
        target.read_dir(&inner, &mut |name, _| {
            names.push(String::from_utf8_lossy(name).into_owned());
        })?;
        for name in &names {
            target.stat(&inner, name)?;
        }
        for name in &names {
            target.unlink(&inner, name)?;
        }
        target.rmdir(directory, name)?;
        // Makes with write and close, copies of seven calls, renames, looks and removals, and the directory's own.
        Ok((TREE.1 * (3 + 7 + 1 + 2 + 2) + 3) as u64)
    }
}

impl<T: Target> WorkerJob for Mongo<'_, T> {
    fn batch(&mut self) -> Result<u64, Error> {
        let mut calls = 0;
        for number in 0..TREE.0 {
            calls += self.directory(&format!("dir-{number}"))?;
        }
        Ok(calls)
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        self.place.remove()
    }
}
