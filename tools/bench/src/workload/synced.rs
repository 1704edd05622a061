//! Workloads that wait for the device: small writes with fsyncs, and the calls of programs that fsync often.
//!
//! The calls are written down here from what is known of each program; no trace of the program is replayed. Directories
//! are not synced, because [`Target`] has no call for that.

use lanefs::Error;

use super::{WorkerJob, WorkerPlace, Workload, numbered};
use crate::target::Target;

/// Bytes of a write, and of a page of the database.
const WRITE: usize = 4096;
/// The bytes that all writes take their data from.
static BYTES: [u8; 8 * WRITE] = [0x5a; 8 * WRITE];
/// Writes in a batch. A sample ends only after a whole batch, so a batch is short.
const WRITES: usize = 8;
/// Bytes of the file that is overwritten.
const WRITTEN: u64 = 4 << 20;
/// Bytes of the sparse file.
const SPARSE: u64 = 256 << 20;

/// Writes to one file and syncs it, after each write or after every fourth.
pub(super) struct Writing<'t, T: Target> {
    place: WorkerPlace<'t, T>,
    workload: Workload,
    file: T::File,
    /// Writes so far.
    count: u64,
    /// The index of the place that was written last.
    at: u64,
}

impl<'t, T: Target> Writing<'t, T> {
    pub(super) fn new(place: WorkerPlace<'t, T>, workload: Workload) -> Result<Self, Error> {
        let file = place.target.create(&place.directory, "file")?;
        let (count, at) = (0, 0);
        let writing = Writing {
            place,
            workload,
            file,
            count,
            at,
        };
        match workload {
            Workload::FsyncOverwrite | Workload::FsyncFourth => {
                for piece in 0..WRITTEN / BYTES.len() as u64 {
                    let at = piece * BYTES.len() as u64;
                    writing.place.target.write(&writing.file, at, &BYTES)?;
                }
            }
            Workload::FsyncSparse | Workload::FsyncSparseFourth => {
                writing.place.target.truncate(&writing.file, SPARSE)?;
            }
            _ => {}
        }
        Ok(writing)
    }

    /// The offset of the next write, in bytes. Every place of the file is written once before any is written again.
    fn next(&mut self) -> u64 {
        self.count += 1;
        match self.workload {
            Workload::Fsync => return (self.count - 1) % WRITES as u64 * WRITE as u64,
            // Each of these steps has no common divisor with the number of places, so it reaches all of them.
            Workload::FsyncOverwrite | Workload::FsyncFourth => {
                self.at = (self.at + 1009) % (WRITTEN / WRITE as u64);
            }
            _ => self.at = (self.at + 40_503) % (SPARSE / WRITE as u64),
        }
        self.at * WRITE as u64
    }
}

impl<T: Target> WorkerJob for Writing<'_, T> {
    fn batch(&mut self) -> Result<u64, Error> {
        let every = match self.workload {
            Workload::FsyncFourth | Workload::FsyncSparseFourth => 4,
            _ => 1,
        };
        for number in 1..=WRITES {
            let at = self.next();
            self.place.target.write(&self.file, at, &BYTES[..WRITE])?;
            if number % every == 0 {
                self.place.fsync(&self.file)?;
            }
        }
        if self.workload == Workload::Fsync {
            self.place.target.truncate(&self.file, 0)?;
        }
        Ok(WRITES as u64)
    }

    fn between(&mut self) -> Result<(), Error> {
        let is_sparse = matches!(
            self.workload,
            Workload::FsyncSparse | Workload::FsyncSparseFourth
        );
        if is_sparse && self.count.is_multiple_of(SPARSE / WRITE as u64) {
            self.place.target.truncate(&self.file, 0)?;
            self.place.target.truncate(&self.file, SPARSE)?;
        }
        Ok(())
    }

    fn waits(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.place.waits)
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        let Writing { place, file, .. } = *self;
        place.target.close(file)?;
        place.target.unlink(&place.directory, "file")?;
        place.remove()
    }
}

/// The most mails of a worker. Those of 16 workers are about varmail's 1,000 files.
const MAILS: usize = 60;
/// Mails that exist at the start: 80 percent.
const MAILS_THERE: usize = 48;
/// The most bytes of a new mail, and of an addition to one; 16 KiB on average.
const MAIL: usize = 8 * WRITE;
/// A mail of this many bytes is no longer appended to, but overwritten from its start.
const LONGEST_MAIL: u64 = 64 << 10;

/// filebench's varmail. A batch is four operations: remove a mail; make, write, sync and close one; open, read, append
/// to, sync and close one; open, read and close one.
pub(super) struct Varmail<'t, T: Target> {
    place: WorkerPlace<'t, T>,
    /// By number, the size of each mail that exists.
    sizes: Vec<Option<u64>>,
}

impl<'t, T: Target> Varmail<'t, T> {
    pub(super) fn new(place: WorkerPlace<'t, T>) -> Result<Self, Error> {
        let mut varmail = Varmail {
            place,
            sizes: vec![None; MAILS],
        };
        for number in 0..MAILS_THERE {
            varmail.make(number, false)?;
        }
        Ok(varmail)
    }

    /// The number of a mail that exists, or of one that does not: the next one from a random number on.
    fn any(&mut self, there: bool) -> Option<usize> {
        let from = self.place.random.index(MAILS);
        let mut numbers = (from..MAILS).chain(0..from);
        numbers.find(|number| self.sizes[*number].is_some() == there)
    }

    fn make(&mut self, number: usize, is_synced: bool) -> Result<(), Error> {
        let size = 1 + self.place.random.index(MAIL);
        let target = self.place.target;
        let file = target.creat(&self.place.directory, &numbered(number))?;
        target.write(&file, 0, &BYTES[..size])?;
        self.sizes[number] = Some(size as u64);
        if is_synced {
            self.place.fsync(&file)?;
        }
        target.close(file)
    }

    fn read(&mut self, number: usize, appends: bool) -> Result<(), Error> {
        let target = self.place.target;
        let size = self.sizes[number].unwrap_or(0);
        let file = target.open(&self.place.directory, &numbered(number))?;
        read_all(target, &file, size)?;
        if appends {
            let from = if size >= LONGEST_MAIL { 0 } else { size };
            let more = 1 + self.place.random.index(MAIL);
            target.write(&file, from, &BYTES[..more])?;
            self.sizes[number] = Some(size.max(from + more as u64));
            self.place.fsync(&file)?;
        }
        target.close(file)
    }
}

fn read_all<T: Target>(target: &T, file: &T::File, size: u64) -> Result<(), Error> {
    let (mut bytes, mut at) = ([0; MAIL], 0);
    while at < size {
        at += target.read(file, at, &mut bytes)?.max(1) as u64;
    }
    Ok(())
}

impl<T: Target> WorkerJob for Varmail<'_, T> {
    fn batch(&mut self) -> Result<u64, Error> {
        if let Some(number) = self.any(true) {
            self.sizes[number] = None;
            let name = numbered(number);
            self.place.target.unlink(&self.place.directory, &name)?;
        }
        if let Some(number) = self.any(false) {
            self.make(number, true)?;
        }
        for appends in [true, false] {
            if let Some(number) = self.any(true) {
                self.read(number, appends)?;
            }
        }
        Ok(4)
    }

    fn waits(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.place.waits)
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        for number in (0..MAILS).filter(|number| self.sizes[*number].is_some()) {
            let name = numbered(number);
            self.place.target.unlink(&self.place.directory, &name)?;
        }
        self.place.remove()
    }
}

/// Pages of the database.
const PAGES: usize = 1024;
/// Pages that a transaction changes.
const CHANGED: usize = 3;
/// Bytes of the header of a rollback journal.
const HEADER: usize = 512;
/// Bytes that a rollback journal holds for each page in addition to the page.
const AROUND: usize = 8;
/// Bytes in front of each page in a write-ahead log.
const FRAME: usize = 24;
/// The number of pages at which a write-ahead log is copied into the database.
const WAL_PAGES: u64 = 1000;

/// SQLite with `synchronous=FULL`. A batch is one transaction.
///
/// With a rollback journal: write the old pages to the journal, fsync; write its header again, fsync; write the new
/// pages to the database, fsync; remove the journal.
///
/// With a write-ahead log: append the new pages to the log, fsync. Once the log has [`WAL_PAGES`] pages, write half
/// that number of pages to the database (the log has many pages more than once), fsync, and start the log again from
/// its beginning.
pub(super) struct Sqlite<'t, T: Target> {
    place: WorkerPlace<'t, T>,
    database: T::File,
    /// The write-ahead log and the number of pages in it; `None` with a rollback journal.
    wal: Option<(T::File, u64)>,
}

impl<'t, T: Target> Sqlite<'t, T> {
    pub(super) fn new(place: WorkerPlace<'t, T>, workload: Workload) -> Result<Self, Error> {
        let target = place.target;
        let database = target.create(&place.directory, "database")?;
        for page in 0..PAGES {
            target.write(&database, (page * WRITE) as u64, &BYTES[..WRITE])?;
        }
        target.fsync(&database)?;
        let wal = match workload {
            Workload::SqliteWal => Some((target.create(&place.directory, "database-wal")?, 0)),
            _ => None,
        };
        Ok(Sqlite {
            place,
            database,
            wal,
        })
    }

    fn change(&mut self, pages: usize) -> Result<(), Error> {
        for _ in 0..pages {
            let at = (self.place.random.index(PAGES) * WRITE) as u64;
            self.place
                .target
                .write(&self.database, at, &BYTES[..WRITE])?;
        }
        self.place.fsync(&self.database)
    }

    fn with_rollback(&mut self) -> Result<(), Error> {
        let target = self.place.target;
        let journal = target.creat(&self.place.directory, "database-journal")?;
        target.write(&journal, 0, &BYTES[..HEADER])?;
        for page in 0..CHANGED {
            let at = HEADER + page * (WRITE + AROUND);
            target.write(&journal, at as u64, &BYTES[..WRITE + AROUND])?;
        }
        self.place.fsync(&journal)?;
        target.write(&journal, 0, &BYTES[..HEADER])?;
        self.place.fsync(&journal)?;
        self.change(CHANGED)?;
        target.close(journal)?;
        target.unlink(&self.place.directory, "database-journal")
    }
}

impl<T: Target> WorkerJob for Sqlite<'_, T> {
    fn batch(&mut self) -> Result<u64, Error> {
        let Some((wal, pages)) = &mut self.wal else {
            self.with_rollback()?;
            return Ok(1);
        };
        for _ in 0..CHANGED {
            let at = *pages * (WRITE + FRAME) as u64;
            self.place.target.write(wal, at, &BYTES[..WRITE + FRAME])?;
            *pages += 1;
        }
        self.place.fsync(wal)?;
        if *pages >= WAL_PAGES {
            *pages = 0;
            self.change(WAL_PAGES as usize / 2)?;
        }
        Ok(1)
    }

    fn waits(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.place.waits)
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        let Sqlite {
            place,
            database,
            wal,
        } = *self;
        if let Some((wal, _)) = wal {
            place.target.close(wal)?;
            place.target.unlink(&place.directory, "database-wal")?;
        }
        place.target.close(database)?;
        place.target.unlink(&place.directory, "database")?;
        place.remove()
    }
}

/// The most mails that wait in a worker's spool.
const SPOOLED: usize = 32;

/// A mail spool. A batch reads and removes the oldest mail, if the spool is full; then it writes a new one under a
/// temporary name, syncs it and renames it.
pub(super) struct Spool<'t, T: Target> {
    place: WorkerPlace<'t, T>,
    /// By number, the size of each mail that waits.
    waiting: Vec<Option<u64>>,
    /// The number of the next mail, and of the oldest one if the spool is full.
    next: usize,
}

impl<'t, T: Target> Spool<'t, T> {
    pub(super) fn new(place: WorkerPlace<'t, T>) -> Result<Self, Error> {
        Ok(Spool {
            place,
            waiting: vec![None; SPOOLED],
            next: 0,
        })
    }
}

impl<T: Target> WorkerJob for Spool<'_, T> {
    fn batch(&mut self) -> Result<u64, Error> {
        let name = numbered(self.next);
        let target = self.place.target;
        if let Some(size) = self.waiting[self.next].take() {
            let file = target.open(&self.place.directory, &name)?;
            read_all(target, &file, size)?;
            target.close(file)?;
            target.unlink(&self.place.directory, &name)?;
        }
        let size = 1 + self.place.random.index(MAIL / 2);
        let file = target.creat(&self.place.directory, "incoming")?;
        target.write(&file, 0, &BYTES[..size])?;
        self.place.fsync(&file)?;
        target.close(file)?;
        target.rename(&self.place.directory, "incoming", &name)?;
        self.waiting[self.next] = Some(size as u64);
        self.next = (self.next + 1) % SPOOLED;
        Ok(1)
    }

    fn waits(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.place.waits)
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        for number in (0..SPOOLED).filter(|number| self.waiting[*number].is_some()) {
            let name = numbered(number);
            self.place.target.unlink(&self.place.directory, &name)?;
        }
        self.place.remove()
    }
}
