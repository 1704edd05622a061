//! Benches: the tables that the mechanisms' sources show, and others, each with its rows and columns.
//!
//! Columns of ours are the forms of the mechanisms that a bench is about, whatever forms there are
//! ([`engine::Variants::choices`]): all on one file system, which is switched before each sample, so that none has the
//! better place in memory. A bench that needs a fresh image for each sample makes one.

mod core;
mod dir_reserve;
mod fallocate;
mod fsync;
mod fxmark;
mod lookup;
mod mounts;
mod running;
mod source_tree;
mod tree;

use std::path::PathBuf;
use std::time::Duration;

use engine::{MountOptions, Variants};
use lanefs::Error;

use crate::directory::HostDirectory;
use crate::in_process::InProcess;
use crate::leavings;
use crate::measure::Contender;
use crate::table::Table;
use crate::workload::Workload;

/// Hears how far a run is.
pub type ProgressHook<'p> = dyn FnMut(&str) + 'p;

/// How a bench is run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Whether the engine is measured in process.
    pub engine: bool,
    /// Where its file system is made as a new file, which is removed afterwards; `None`: in memory.
    pub image: Option<PathBuf>,
    /// Bytes of its file system.
    pub size: u64,
    /// Directories that are measured too.
    pub on: Vec<PathBuf>,
    /// Whether these may be unmounted and mounted again.
    pub remount: bool,
    /// Numbers of workers, instead of the bench's own.
    pub workers: Option<Vec<usize>>,
    /// Rounds that count.
    pub rounds: usize,
    /// How long a sample takes.
    pub time: Duration,
    /// Pairs at one worker that say how far the default form is from the others; 0 for none.
    pub pairs: usize,
    /// How long a flush of the image's and the directories' devices takes, where that is known.
    pub flush: Option<Duration>,
    /// How much work, where a sample is not limited by time: 1 is the bench's own.
    pub scale: f64,
    /// What random choices follow from.
    pub seed: u64,
    /// Mechanisms whose forms are columns, instead of the bench's own.
    pub mechanisms: Option<Vec<String>>,
}

impl Setup {
    /// A number scaled, at least `least`.
    fn scaled(&self, number: usize, least: usize) -> usize {
        ((number as f64 * self.scale) as usize).max(least)
    }

    fn workers(&self, own: &[usize]) -> Vec<usize> {
        self.workers.clone().unwrap_or_else(|| own.to_vec())
    }

    /// All combinations of the forms of these mechanisms, the defaults first.
    fn forms(&self, own: &[&str]) -> Vec<Vec<String>> {
        let own = own.iter().map(|name| (*name).to_owned()).collect();
        let names: Vec<String> = self.mechanisms.clone().unwrap_or(own);
        let mut forms = vec![Vec::new()];
        for (name, values) in Variants::choices() {
            if names.iter().any(|wanted| wanted == name) {
                let with = |form: &Vec<String>, value: &str| {
                    let mut form = form.clone();
                    form.push(format!("{name}={value}"));
                    form
                };
                forms = forms
                    .iter()
                    .flat_map(|form| values.iter().map(|value| with(form, value)))
                    .collect();
            }
        }
        forms
    }

    /// The engine's file system, in memory or in its file.
    fn open(&self, in_memory: bool, variants: Variants) -> Result<InProcess, Error> {
        let options = MountOptions {
            variants,
            ..MountOptions::default()
        };
        match &self.image {
            Some(path) if !in_memory => InProcess::in_file(path, self.size, &options),
            _ => InProcess::in_memory(self.size, &options),
        }
    }

    fn way(&self, in_memory: bool) -> &'static str {
        if self.image.is_some() && !in_memory {
            "functions in process, by inode number; a file"
        } else {
            "functions in process, by inode number; memory"
        }
    }

    /// One contender for each form of these mechanisms, then one for each directory.
    fn contenders(&self, mechanisms: &[&str]) -> Result<Vec<Contender<'static>>, Error> {
        self.contenders_in(self.image.is_none(), mechanisms)
    }

    /// The same with the engine's file system in memory, or where it is to be.
    fn contenders_in(
        &self,
        in_memory: bool,
        mechanisms: &[&str],
    ) -> Result<Vec<Contender<'static>>, Error> {
        let mut contenders = Vec::new();
        if self.engine {
            let base = self.open(in_memory, Variants::default())?;
            let base = Contender::new("in process", self.way(in_memory), base);
            for form in self.forms(mechanisms) {
                contenders.push(if form.is_empty() {
                    base.clone()
                } else {
                    base.with(label(&form), form)
                });
            }
        }
        contenders.extend(self.directories()?);
        Ok(contenders)
    }

    /// The names of the mechanisms whose values are the columns' names, where these are more than one.
    fn named(&self, contenders: &[Contender<'_>]) -> Option<String> {
        let first = contenders.first()?.options();
        let names = first.iter().filter_map(|option| option.split('=').next());
        let names: Vec<&str> = names.collect();
        let is_told = contenders[0].column.label == label(first) && names.len() > 1;
        is_told.then(|| names.join(" "))
    }

    fn directories(&self) -> Result<Vec<Contender<'static>>, Error> {
        let open = |path: &PathBuf| {
            let directory = HostDirectory::open(path, self.remount)?;
            let way = directory.way();
            Ok(Contender::new(path.display().to_string(), way, directory))
        };
        self.on.iter().map(open).collect()
    }
}

/// The values alone.
fn label(form: &[String]) -> String {
    let values = form.iter().filter_map(|option| option.split('=').nth(1));
    values.collect::<Vec<_>>().join(" ")
}

/// The mechanisms that have forms to choose from, with these.
pub fn mechanisms() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    Variants::choices()
}

/// How a bench is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// One workload, all workers.
    Single(Workload),
    Core,
    Orphan,
    CreateClose,
    Fallocate,
    Lookup,
    DirReserve,
    SourceTree,
    Mix,
    Fsync,
    FxMark,
    Mounts,
}

/// A bench.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suite {
    /// As the command line names it.
    pub name: &'static str,
    /// What it measures, in a clause.
    pub about: &'static str,
    kind: Kind,
}

const fn single(name: &'static str, about: &'static str, workload: Workload) -> Suite {
    Suite {
        name,
        about,
        kind: Kind::Single(workload),
    }
}

const fn suite(name: &'static str, about: &'static str, kind: Kind) -> Suite {
    Suite { name, about, kind }
}

impl Suite {
    /// All benches.
    pub const ALL: &'static [Suite] = &[
        suite(
            "core",
            "create, unlink, rename, truncate, fallocate, stat, readdir, append, overwrite; beside directories",
            Kind::Core,
        ),
        suite(
            "orphan",
            "truncates byte by byte, and files deleted while open",
            Kind::Orphan,
        ),
        suite(
            "create-close",
            "creat and close, then unlink",
            Kind::CreateClose,
        ),
        suite(
            "fallocate",
            "8 KiB steps to 1 MiB, truncated, again; on empty, fragmented and nearly full images",
            Kind::Fallocate,
        ),
        suite(
            "lookup",
            "trees walked with stat: cold, repeated and warm; inodes found by handle",
            Kind::Lookup,
        ),
        suite(
            "dir-reserve",
            "many directories with few files: made, remounted, removed, on a model of a disk",
            Kind::DirReserve,
        ),
        suite(
            "source-tree",
            "a tree like the kernel's sources: unpacked, looked at, removed",
            Kind::SourceTree,
        ),
        suite(
            "mix",
            "loads like dbench's, postmark's and mongo's",
            Kind::Mix,
        ),
        suite(
            "fsync",
            "4 KiB written and the file synced: by the fsync log and by full commits",
            Kind::Fsync,
        ),
        suite(
            "fxmark",
            "FxMark's 19 workloads: blocks and names, private and shared",
            Kind::FxMark,
        ),
        suite(
            "mounts",
            "lanefs, a FUSE server without a file system, fuse2fs and the kernel's ext4, mounted",
            Kind::Mounts,
        ),
        single(
            "create-unlink",
            "256 files made, then removed",
            Workload::CreateUnlink,
        ),
        single(
            "write-truncate",
            "4 KiB appended 64 times, then truncated",
            Workload::WriteTruncate,
        ),
        single(
            "stat",
            "one of 1,000 names looked up and its inode read",
            Workload::Stat,
        ),
        single("readdir", "1,000 names listed", Workload::ReadDir),
        single(
            "rename",
            "files renamed in their directory",
            Workload::Rename,
        ),
        single("append", "4 KiB appended", Workload::Append),
        single("overwrite", "4 KiB overwritten", Workload::Overwrite),
        single("mkdir", "empty directories made", Workload::MakeDirs),
    ];

    /// The benches of a report: those whose figures no other has.
    pub fn of_report() -> impl Iterator<Item = Suite> {
        // Mounts are none of the engine's.
        let is_in = |suite: &Suite| !matches!(suite.kind, Kind::Single(_) | Kind::Mounts);
        Suite::ALL.iter().copied().filter(is_in)
    }

    /// The bench with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Suite> {
        Suite::ALL.iter().copied().find(|suite| suite.name == name)
    }

    /// Block devices and files that are there and that it makes file systems on.
    pub(crate) fn used_as_it_is(self, setup: &Setup) -> Vec<PathBuf> {
        match self.kind {
            Kind::Fsync => fsync::used_as_it_is(setup),
            _ => Vec::new(),
        }
    }

    /// Whether the image is a new file for it.
    pub(crate) fn makes_image(self, setup: &Setup) -> bool {
        match self.kind {
            Kind::Fsync => fsync::makes_image(setup),
            _ => setup.image.is_some(),
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// The first error of any file system; what was made by then in the setup's directories is removed, if it can be.
    pub fn measure(
        self,
        setup: &Setup,
        progress: &mut ProgressHook<'_>,
    ) -> Result<Vec<Table>, Error> {
        if let Some(path) = setup.image.as_ref().filter(|path| path.exists()) {
            return Err(Error::Host {
                operation: "making",
                path: path.clone(),
                source: std::io::ErrorKind::AlreadyExists.into(),
            });
        }
        let _scratch = setup.image.as_deref().map(Scratch);
        let outcome = match self.kind {
            Kind::Single(workload) => running::single(self, workload, setup, progress),
            Kind::Core => core::tables(setup, progress),
            Kind::Orphan => running::orphan(setup, progress),
            Kind::CreateClose => running::create_close(setup, progress),
            Kind::Fallocate => fallocate::tables(setup, progress),
            Kind::Lookup => lookup::tables(setup, progress),
            Kind::DirReserve => dir_reserve::tables(setup, progress),
            Kind::SourceTree => source_tree::tables(setup, progress),
            Kind::Mix => running::mix(setup, progress),
            Kind::Fsync => fsync::tables(setup, progress),
            Kind::FxMark => fxmark::tables(setup, progress),
            Kind::Mounts => mounts::tables(setup, progress),
        };
        if outcome.is_err() {
            // The error says more than what can't be removed would.
            let _ = leavings::clear(&setup.on);
        }
        outcome
    }
}

/// A file that goes when this does.
struct Scratch<'p>(&'p std::path::Path);

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        // A file that can't be removed, or was never made, must not hide the figures.
        let _ = std::fs::remove_file(self.0);
    }
}
