//! Workloads that wait for the device: small writes with fsyncs, and the loads of programs that live by fsync. Each
//! load is defined here from what is known of the program, not replayed; directories are not synced, because no target
//! has a call for it.

use lanefs::Error;

use super::{WorkerJob, WorkerPlace, Workload, numbered};
use crate::target::Target;

/// Bytes of a write, and of a database's page.
const WRITE: usize = 4096;
static BYTES: [u8; 8 * WRITE] = [0x5a; 8 * WRITE];
/// Writes of a batch: no sample is longer than it must be.
const WRITES: usize = 8;
/// Bytes of a file that is overwritten, and of one that is written where nothing was.
const WRITTEN: u64 = 4 << 20;
const SPARSE: u64 = 256 << 20;

/// A file that is written and synced.
pub(super) struct Writing<'t, T: Target> {
    place: WorkerPlace<'t, T>,
    workload: Workload,
    file: T::File,
    /// Writes so far.
    count: u64,
    /// Where it was written last, in writes.
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

    /// The next place: each has its turn before one has its second.
    fn next(&mut self) -> u64 {
        self.count += 1;
        match self.workload {
            Workload::Fsync => return (self.count - 1) % WRITES as u64 * WRITE as u64,
            // These and the numbers of places have no divisor in common.
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

/// Mails of a worker: with 16 workers as many as varmail's 1,000.
const MAILS: usize = 60;
/// The mails that exist at the start: 80 percent.
const MAILS_THERE: usize = 48;
/// Bytes of a mail at most; 16 KiB on the average.
const MAIL: usize = 8 * WRITE;
/// A mail is not appended to beyond this.
const LONGEST_MAIL: u64 = 64 << 10;

/// filebench's varmail: a mail removed; one made, written, synced, closed; one opened, read, appended to, synced,
/// closed; one opened, read, closed.
pub(super) struct Varmail<'t, T: Target> {
    place: WorkerPlace<'t, T>,
    /// Sizes of the mails that are there.
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

    /// The next name from a random one on that is there, or is not.
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

/// Pages of the database, and of a transaction.
const PAGES: usize = 1024;
const CHANGED: usize = 3;
/// Bytes of a rollback journal's header and of what is around a page in it; of what is before a page in the other log,
/// and pages of that log at which it is written home.
const HEADER: usize = 512;
const AROUND: usize = 8;
const FRAME: usize = 24;
const WAL_PAGES: u64 = 1000;

/// SQLite with `synchronous=FULL`. Rollback journal, deleted at the end: old pages into the journal, fsync; its header,
/// fsync; new pages into the database, fsync; journal removed. Write-ahead log: new pages to its end, fsync; at 1,000
/// pages into the database, fsync, and the log is written from its beginning.
pub(super) struct Sqlite<'t, T: Target> {
    place: WorkerPlace<'t, T>,
    database: T::File,
    /// The write-ahead log and its pages.
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

/// Mails that wait in a worker's spool.
const SPOOLED: usize = 32;

/// A mail spool: each mail is written under a passing name, synced, renamed; the oldest is read and removed.
pub(super) struct Spool<'t, T: Target> {
    place: WorkerPlace<'t, T>,
    /// Sizes of the mails that wait, by name.
    waiting: Vec<Option<u64>>,
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
