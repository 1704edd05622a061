//! The workloads. Each worker has a directory of its own, so everything that workers share belongs to the file system.

mod data;
mod fxmark;
mod mix;
mod names;
mod synced;

use lanefs::Error;

use sync::clock;

use crate::leavings;
use crate::target::Target;
use model::Random;

macro_rules! workloads {
    ($($(#[$doc:meta])* $workload:ident = $name:literal, $about:literal;)*) => {
        /// A kind of work on a file system.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Workload {
            $($(#[$doc])* $workload,)*
        }

        impl Workload {
            /// All of them.
            pub const ALL: &'static [Workload] = &[$(Workload::$workload),*];

            /// The name on the command line and in figures.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Workload::$workload => $name,)*
                }
            }

            /// What the workload does, in a clause.
            #[must_use]
            pub fn about(self) -> &'static str {
                match self {
                    $(Workload::$workload => $about,)*
                }
            }
        }
    };
}

workloads! {
    /// Makes and removes files.
    CreateUnlink = "create-unlink", "256 empty files made, then removed; each is an operation";
    /// Appends and truncates.
    WriteTruncate = "write-truncate", "4 KiB appended 64 times, then truncated to nothing";
    /// Looks up names.
    Stat = "stat", "one of 1,000 names looked up and its inode read";
    /// Syncs.
    Fsync = "fsync", "4 KiB appended and the file synced";
    /// Overwrites and syncs.
    FsyncOverwrite = "fsync-overwrite", "4 KiB written over a place of a file of 4 MiB, and the file synced";
    /// Overwrites and syncs now and then.
    FsyncFourth = "fsync-fourth", "4 KiB written over a place of a file of 4 MiB, which is synced after every fourth";
    /// Writes where nothing was and syncs.
    FsyncSparse = "fsync-sparse",
        "4 KiB written to a place of a sparse file of 256 MiB where nothing was, and the file synced";
    /// Writes where nothing was and syncs now and then.
    FsyncSparseFourth = "fsync-sparse-fourth",
        "4 KiB written to a place of a sparse file of 256 MiB where nothing was; it is synced after every fourth";
    /// Like filebench's varmail.
    Varmail = "varmail",
        "a step of a mail server: a file removed; made, written, synced; read, appended to, synced; read";
    /// Like SQLite with a rollback journal.
    SqliteRollback = "sqlite-rollback",
        "a transaction of three pages in a database of 4 MiB, with a rollback journal: three fsyncs";
    /// Like SQLite with a write-ahead log.
    SqliteWal = "sqlite-wal",
        "a transaction of three pages in a database of 4 MiB, with a log that is written home at 1,000: one fsync";
    /// Like a mail spool.
    MailSpool = "mail-spool",
        "a mail taken in (written under a passing name, synced, renamed), and an older one read and removed";
    /// Makes files.
    Create = "create", "an empty file made, of 256 in each of up to 8 directories";
    /// Removes files.
    Unlink = "unlink", "an empty file removed, of 256 in each of up to 8 directories";
    /// Renames files.
    Rename = "rename", "one of 256 files given another name in its directory";
    /// Empties files.
    Truncate = "truncate", "a file of one allocated block truncated to nothing";
    /// Reserves blocks.
    Fallocate = "fallocate-8k", "8 KiB reserved at the end of a file of up to 1 MiB, up to 8 files in turn";
    /// Lists a directory.
    ReadDir = "readdir", "a name listed, of 1,000 in a directory";
    /// Appends.
    Append = "append", "4 KiB written to the end of a file of up to 1 MiB, up to 8 files in turn";
    /// Overwrites.
    Overwrite = "overwrite", "4 KiB written over what a file of 1 MiB had";
    /// Makes directories.
    MakeDirs = "mkdir", "an empty directory made, of 256 in each of up to 8 directories";
    /// Truncates byte by byte.
    ByteTruncate = "byte-truncate", "a file of 4 KiB truncated by one byte";
    /// Deletes open files.
    OpenUnlink = "open-unlink", "a file made, opened and unlinked, 4 KiB written to it, and closed";
    /// `creat`, `close`, `unlink`.
    CreateClose = "creat-close-unlink", "creat and close of a private name, then its unlink";
    /// `creat` and `close` of one name.
    Recreate = "creat-close", "creat and close of one private name, 1,000 times, then its unlink";
    /// fallocate2 of will-it-scale.
    FallocateSteps = "fallocate-steps",
        "8 KiB reserved at the end of an unlinked file, which is truncated to nothing at 1 MiB";
    /// Like dbench.
    Dbench = "dbench", "a call of a file server's client: open, stat, read, write, list, rename, remove, flush";
    /// Like postmark.
    Postmark = "postmark", "a transaction of a mail server: a file read or appended to, and one made or removed";
    /// Like mongo.
    Mongo = "mongo", "a call in a tree of small files: made, copied, appended to, renamed, looked at, removed";
    /// FxMark's DRBL.
    FxDrbl = "fxmark-drbl", "a block of a private file read";
    /// FxMark's DRBM.
    FxDrbm = "fxmark-drbm", "a private block of a shared file read";
    /// FxMark's DRBH.
    FxDrbh = "fxmark-drbh", "a shared block of a shared file read";
    /// FxMark's DWOL.
    FxDwol = "fxmark-dwol", "a block of a private file overwritten";
    /// FxMark's DWOM.
    FxDwom = "fxmark-dwom", "a private block of a shared file overwritten";
    /// FxMark's DWAL.
    FxDwal = "fxmark-dwal", "a block appended to a private file";
    /// FxMark's DWTL.
    FxDwtl = "fxmark-dwtl", "a private file truncated by a block";
    /// FxMark's DWSL.
    FxDwsl = "fxmark-dwsl", "a block of a private file overwritten, and the file synced";
    /// FxMark's MRPL.
    FxMrpl = "fxmark-mrpl", "a private file opened by a path of five names, and closed";
    /// FxMark's MRPM.
    FxMrpm = "fxmark-mrpm", "one of 512 files of a shared directory opened by a path of five names, and closed";
    /// FxMark's MRPH.
    FxMrph = "fxmark-mrph", "the same file opened by all by a path of five names, and closed";
    /// FxMark's MRDL.
    FxMrdl = "fxmark-mrdl", "a name listed, of 512 in a private directory";
    /// FxMark's MRDM.
    FxMrdm = "fxmark-mrdm", "a name listed, of 512 in a shared directory";
    /// FxMark's MWCL.
    FxMwcl = "fxmark-mwcl", "an empty file made in a private directory";
    /// FxMark's MWCM.
    FxMwcm = "fxmark-mwcm", "an empty file made in a shared directory";
    /// FxMark's MWUL.
    FxMwul = "fxmark-mwul", "an empty file removed from a private directory";
    /// FxMark's MWUM.
    FxMwum = "fxmark-mwum", "an empty file removed from a shared directory";
    /// FxMark's MWRL.
    FxMwrl = "fxmark-mwrl", "a private file renamed in a private directory";
    /// FxMark's MWRM.
    FxMwrm = "fxmark-mwrm", "a private file moved to a shared directory";
}

impl Workload {
    /// The workloads of FxMark.
    pub(crate) const FXMARK: [Workload; 19] = [
        Workload::FxDrbl,
        Workload::FxDrbm,
        Workload::FxDrbh,
        Workload::FxDwol,
        Workload::FxDwom,
        Workload::FxDwal,
        Workload::FxDwtl,
        Workload::FxDwsl,
        Workload::FxMrpl,
        Workload::FxMrpm,
        Workload::FxMrph,
        Workload::FxMrdl,
        Workload::FxMrdm,
        Workload::FxMwcl,
        Workload::FxMwcm,
        Workload::FxMwul,
        Workload::FxMwum,
        Workload::FxMwrl,
        Workload::FxMwrm,
    ];
}

/// The number of directories or files in the batches of all workers together, in workloads whose workers wait for each
/// other after each batch. A batch must take longer than a commit, which one of two workers makes while the other
/// continues. A worker's batch has at most half of them.
const SEVERAL: usize = 16;

/// The place of one worker, and its numbers.
pub(crate) struct WorkerPlace<'t, T: Target> {
    target: &'t T,
    name: String,
    directory: T::Dir,
    /// How many directories or files a batch uses if the workers wait for each other after each batch.
    several: usize,
    random: Random,
    /// How long each fsync took, in nanoseconds.
    waits: Vec<u64>,
}

/// The job of one worker.
pub(crate) trait WorkerJob: Send {
    /// Does some operations, which are timed; returns their number.
    fn batch(&mut self) -> Result<u64, Error>;

    /// Whether the work between batches is so frequent that it must not be timed.
    fn pauses(&self) -> bool {
        false
    }

    /// Does the work before the next batch; it is timed only if it is rare.
    fn between(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// How long each fsync took, in nanoseconds, if that is recorded.
    fn waits(&mut self) -> Vec<u64> {
        Vec::new()
    }

    /// Removes the files that the worker made.
    fn finish(self: Box<Self>) -> Result<(), Error>;
}

impl<'t, T: Target> WorkerPlace<'t, T> {
    fn new(target: &'t T, number: usize, workers: usize, seed: u64) -> Result<Self, Error> {
        let name = leavings::name(number);
        let directory = target.mkdir(target.root(), &name)?;
        Ok(WorkerPlace {
            target,
            name,
            directory,
            several: (SEVERAL / workers.max(1)).clamp(1, SEVERAL / 2),
            random: Random::new(seed ^ number as u64),
            waits: Vec::new(),
        })
    }

    /// Syncs a file and records how long that took.
    fn fsync(&mut self, file: &T::File) -> Result<(), Error> {
        let begin = clock::now();
        self.target.fsync(file)?;
        // 64 bits of nanoseconds are 584 years.
        self.waits.push(begin.elapsed().as_nanos() as u64);
        Ok(())
    }

    fn remove(self) -> Result<(), Error> {
        self.target.rmdir(self.target.root(), &self.name)
    }
}

/// Prepares a worker's job before the clock starts.
pub(crate) fn job<'t, T: Target>(
    target: &'t T,
    workload: Workload,
    number: usize,
    workers: usize,
    seed: u64,
) -> Result<Box<dyn WorkerJob + 't>, Error> {
    let place = WorkerPlace::new(target, number, workers, seed)?;
    if Workload::FXMARK.contains(&workload) {
        let fxmark = fxmark::FxMark::new(place, workload, number, workers)?;
        return Ok(Box::new(fxmark));
    }
    Ok(match workload {
        Workload::CreateUnlink | Workload::Create | Workload::Unlink | Workload::MakeDirs => {
            Box::new(names::Making::new(place, workload)?)
        }
        Workload::Stat | Workload::ReadDir | Workload::Rename => {
            Box::new(names::Looking::new(place, workload)?)
        }
        Workload::OpenUnlink | Workload::CreateClose | Workload::Recreate => {
            Box::new(names::Opening { place, workload })
        }
        Workload::Fsync
        | Workload::FsyncOverwrite
        | Workload::FsyncFourth
        | Workload::FsyncSparse
        | Workload::FsyncSparseFourth => Box::new(synced::Writing::new(place, workload)?),
        Workload::WriteTruncate
        | Workload::Append
        | Workload::Overwrite
        | Workload::Fallocate
        | Workload::ByteTruncate => Box::new(data::Growing::new(place, workload)?),
        Workload::Truncate => Box::new(data::Emptying::new(place)?),
        Workload::FallocateSteps => Box::new(data::Reserving::new(place)?),
        Workload::Dbench => Box::new(mix::Dbench::new(place)),
        Workload::Postmark => Box::new(mix::Postmark::new(place)?),
        Workload::Mongo => Box::new(mix::Mongo { place }),
        Workload::Varmail => Box::new(synced::Varmail::new(place)?),
        Workload::SqliteRollback | Workload::SqliteWal => {
            Box::new(synced::Sqlite::new(place, workload)?)
        }
        // `MailSpool`: those of FxMark were handled above.
        _ => Box::new(synced::Spool::new(place)?),
    })
}

/// A file's name.
fn numbered(number: usize) -> String {
    format!("file-{number:04}")
}
