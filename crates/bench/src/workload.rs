//! The workloads. Each worker has a directory of its own, so that what they share is the file system's, not theirs.

use lanefs::Error;

use crate::target::Target;

/// Files of a batch of `create-unlink`.
const BATCH: usize = 256;
/// A write of `write-truncate`, in bytes.
const WRITE: usize = 4096;
/// Writes between truncations.
const WRITES: usize = 64;
/// The same for `fsync`, whose writes take longer: no round is longer than it must be.
const SYNCED_WRITES: usize = 8;
/// Files that a worker of `stat` looks at.
const FILES: usize = 1000;

/// What is done to a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// Makes 256 empty files, then removes them. An operation is one of either.
    CreateUnlink,
    /// Appends 4 KiB 64 times, then truncates to nothing. An operation is a write.
    WriteTruncate,
    /// Looks up one of 1,000 names and reads its inode.
    Stat,
    /// Appends 4 KiB and syncs the file; truncated to nothing after 8. An operation is a write with its sync.
    Fsync,
}

impl Workload {
    /// All of them.
    pub const ALL: [Workload; 4] = [
        Workload::CreateUnlink,
        Workload::WriteTruncate,
        Workload::Stat,
        Workload::Fsync,
    ];

    /// As the command line names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Workload::CreateUnlink => "create-unlink",
            Workload::WriteTruncate => "write-truncate",
            Workload::Stat => "stat",
            Workload::Fsync => "fsync",
        }
    }

    /// What it does, in a clause.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Workload::CreateUnlink => "256 empty files made, then removed; each is an operation",
            Workload::WriteTruncate => "4 KiB appended 64 times, then truncated to nothing",
            Workload::Stat => "one of 1,000 names looked up and its inode read",
            Workload::Fsync => "4 KiB appended and the file synced",
        }
    }
}

/// One worker's place, and what it keeps in hand from batch to batch.
pub(crate) struct Worker<'t, T: Target> {
    target: &'t T,
    workload: Workload,
    name: String,
    directory: T::Dir,
    file: Option<T::File>,
    /// For `stat`: which name comes next.
    next: usize,
}

impl<'t, T: Target> Worker<'t, T> {
    /// Makes what the workload needs before the clock runs.
    pub(crate) fn new(target: &'t T, workload: Workload, number: usize) -> Result<Self, Error> {
        let name = format!("lanefs-bench.{}.{number}", std::process::id());
        let directory = target.mkdir(target.root(), &name)?;
        let mut worker = Worker {
            target,
            workload,
            name,
            directory,
            file: None,
            next: 0,
        };
        match workload {
            Workload::CreateUnlink => {}
            Workload::WriteTruncate | Workload::Fsync => {
                worker.file = Some(target.create(&worker.directory, "file")?);
            }
            Workload::Stat => {
                for number in 0..FILES {
                    target.create(&worker.directory, &numbered(number))?;
                }
            }
        }
        Ok(worker)
    }

    /// Some operations; says how many.
    pub(crate) fn batch(&mut self) -> Result<u64, Error> {
        match (self.workload, &self.file) {
            (Workload::CreateUnlink, _) => {
                for number in 0..BATCH {
                    self.target.create(&self.directory, &numbered(number))?;
                }
                for number in 0..BATCH {
                    self.target.unlink(&self.directory, &numbered(number))?;
                }
                Ok(2 * BATCH as u64)
            }
            (Workload::Stat, _) => {
                for _ in 0..BATCH {
                    // 37 and 1,000 have no divisor in common: every name has its turn, neighbours apart.
                    self.next = (self.next + 37) % FILES;
                    self.target.stat(&self.directory, &numbered(self.next))?;
                }
                Ok(BATCH as u64)
            }
            (workload, Some(file)) => {
                let bytes = [0x5a; WRITE];
                let writes = match workload {
                    Workload::Fsync => SYNCED_WRITES,
                    _ => WRITES,
                };
                for number in 0..writes {
                    self.target.write(file, (number * WRITE) as u64, &bytes)?;
                    if workload == Workload::Fsync {
                        self.target.fsync(file)?;
                    }
                }
                self.target.truncate(file, 0)?;
                Ok(writes as u64)
            }
            (_, None) => Ok(0),
        }
    }

    /// Removes what the worker made.
    pub(crate) fn finish(mut self) -> Result<(), Error> {
        if self.file.take().is_some() {
            self.target.unlink(&self.directory, "file")?;
        }
        if self.workload == Workload::Stat {
            for number in 0..FILES {
                self.target.unlink(&self.directory, &numbered(number))?;
            }
        }
        self.target.rmdir(self.target.root(), &self.name)
    }
}

fn numbered(number: usize) -> String {
    format!("file-{number:04}")
}
