//! The inode cache: trees of each worker's own, walked with a stat of every file: with an empty cache that has room for
//! three quarters of them, once more, and with room for all, warm. And inodes found by handle, without names. The forms
//! in pairs at one worker, warm.

use device::MemoryDevice;
use engine::MountOptions;
use lanefs::Error;
use sync::clock::{Duration, Instant};
use sync::{Arc, Barrier, OnceLock, clock, thread};

use super::running::ratios;
use super::{ProgressHook, Setup, label};
use crate::directory::HostDirectory;
use crate::in_process::{InProcess, unknown};
use crate::leavings;
use crate::machine::{cpu_time, user_and_system};
use crate::measure::{Turns, by_operation, in_pairs};
use crate::table::{Column, Sample, Table};
use crate::target::{FileHandle, Remount, Target};

/// Workers that walk; the source has 20.
const WORKERS: [usize; 5] = [1, 2, 4, 10, 20];
/// Directories of each tree, and files of each directory; the source has 1000 of each.
const DIRECTORIES: usize = 100;
const FILES: usize = 200;

/// The tables.
const KINDS: [(&str, &str); 4] = [
    (
        "cold",
        "cold: nothing in memory, room for three quarters of the inodes",
    ),
    (
        "repeated",
        "repeated: as the walk before left it, room for three quarters",
    ),
    ("warm", "warm: everything in memory"),
    ("handle", "inodes found by handle, all in memory"),
];

/// The trees of a walk.
#[derive(Clone)]
struct Trees {
    workers: usize,
    directories: Vec<String>,
    files: Vec<String>,
}

impl Trees {
    /// A tree for each worker, scaled by its directories; tiny ones have fewer files too.
    fn new(setup: &Setup, workers: usize) -> Trees {
        let files = if setup.scale < 0.01 {
            FILES / 10
        } else {
            FILES
        };
        Trees {
            workers,
            directories: names("dir", setup.scaled(DIRECTORIES, 2)),
            files: names("file", files),
        }
    }

    fn stats(&self) -> usize {
        self.workers * self.directories.len() * self.files.len()
    }

    fn inodes(&self) -> usize {
        self.stats() + self.workers * (self.directories.len() + 1)
    }
}

/// Measures.
pub(super) fn tables(setup: &Setup, progress: &mut ProgressHook<'_>) -> Result<Vec<Table>, Error> {
    let rows = setup.workers(&WORKERS);
    let trees = Trees::new(setup, rows.iter().copied().max().unwrap_or(1));
    let forms = if setup.engine {
        setup.forms(&["inode_lookup"])
    } else {
        Vec::new()
    };
    let mut tables = empty_tables(setup, &trees, &rows, &forms)?;
    let mut engine = if setup.engine {
        Some(engine_of(&trees)?)
    } else {
        None
    };
    let open = |path| HostDirectory::open(path, setup.remount);
    let opened: Result<Vec<_>, Error> = setup.on.iter().map(|path| open(path).map(Some)).collect();
    let mut directories = opened?;
    let base = leavings::name("trees");
    if let Some(engine) = &engine {
        make(engine, &base, &trees)?;
    }
    for directory in directories.iter().flatten() {
        make(directory, &base, &trees)?;
    }
    let columns = forms.len() + directories.len();
    let mut turns = Turns::of_rows(rows.len(), columns, setup.seed);
    for round in 0..=setup.rounds {
        for (row, workers) in rows.iter().enumerate() {
            let trees = Trees {
                workers: *workers,
                ..trees.clone()
            };
            let mut keep = |column: usize, samples: [Option<Sample>; 4]| {
                for (table, sample) in tables.iter_mut().zip(samples) {
                    if round > 0 {
                        table.cells[row][column].samples.extend(sample);
                    }
                }
            };
            for column in turns[row].next() {
                let form = forms.get(column);
                let what = form.map_or("a directory".into(), |form| label(form));
                progress(&format!("lookup round {round}: {workers} workers, {what}"));
                if let Some(form) = form {
                    if let Some(target) = engine.take() {
                        let (target, samples) = walks(target, &base, &trees, form)?;
                        keep(column, samples);
                        engine = Some(target);
                    }
                    continue;
                }
                let directory = &mut directories[column - forms.len()];
                if let Some(target) = directory.take() {
                    let (target, samples) = walks(target, &base, &trees, &[])?;
                    keep(column, samples);
                    *directory = Some(target);
                }
            }
        }
    }
    for directory in directories.iter().flatten() {
        remove(directory, &base, &trees)?;
    }
    if let Some(target) = engine {
        tables.extend(pairs(setup, target, &base, &trees, &forms, progress)?);
    }
    Ok(tables)
}

/// Pairs at one worker, everything in memory: how far the first form is from each other one.
fn pairs(
    setup: &Setup,
    target: InProcess,
    base: &str,
    trees: &Trees,
    forms: &[Vec<String>],
    progress: &mut ProgressHook<'_>,
) -> Result<Option<Table>, Error> {
    let [first, others @ ..] = forms else {
        return Ok(None);
    };
    if setup.pairs == 0 || others.is_empty() {
        return Ok(None);
    }
    let trees = Trees {
        workers: 1,
        ..trees.clone()
    };
    let target = target.remount(None, first)?.target;
    let mut rows = Vec::new();
    for is_walk in [true, false] {
        let kind = if is_walk { "warm" } else { "by handle" };
        for other in others {
            progress(&format!("lookup-pairs: {kind}, {}", label(other)));
            let pairs = in_pairs(setup.pairs, |is_first| {
                for option in if is_first { first } else { other } {
                    target.fs().choose(option).map_err(unknown)?;
                }
                let sample = if is_walk {
                    walk(&target, base, &trees)?
                } else {
                    // The engine's all have one.
                    find(&target, base, &trees)?.unwrap_or_default()
                };
                Ok(sample.value)
            })?;
            rows.push((format!("{kind}, {}", label(other)), pairs));
        }
    }
    let first = label(first);
    let about = format!(
        "Files a second of {first} by those of each other form, one worker, everything in memory, in pairs that take \
         turns; geometric mean, and the interval that a bootstrap gives. Warm: a walk of the tree; by handle: its \
         inodes found by handle."
    );
    let title = format!("Lookup: {first} by others, one worker");
    let said = ["lookup-pairs", &title, &about];
    Ok(Some(ratios(said, &rows, setup.seed)))
}

fn names(word: &str, count: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("{word}-{number:04}"))
        .collect()
}

fn empty_tables(
    setup: &Setup,
    trees: &Trees,
    rows: &[usize],
    forms: &[Vec<String>],
) -> Result<Vec<Table>, Error> {
    let ours = forms.iter().map(|form| Column {
        label: if form.is_empty() {
            "in process".into()
        } else {
            label(form)
        },
        way: setup.way(true).into(),
    });
    let mut columns: Vec<Column> = ours.collect();
    for path in &setup.on {
        columns.push(Column {
            label: path.display().to_string(),
            way: HostDirectory::open(path, false)?.way(),
        });
    }
    let cores = thread::available_parallelism();
    let about = format!(
        "Each worker looks at every file of its own tree of {} directories with {} files.",
        trees.directories.len(),
        trees.files.len()
    );
    let rows: Vec<String> = rows.iter().map(ToString::to_string).collect();
    let table = |(key, title): (&str, &str)| {
        let key = format!("lookup-{key}");
        let mut table = Table::new(
            &key,
            &format!("Lookup, {title}"),
            &about,
            rows.clone(),
            columns.clone(),
        );
        table.unit = if key.ends_with("handle") {
            "inodes/s"
        } else {
            "files/s"
        };
        table.notes.push(format!(
            "Of {cores} cores: rows with more workers show how well they wait, not how the work scales. Directories \
             are walked cold only where they may be mounted anew."
        ));
        table
    };
    Ok(KINDS.map(table).to_vec())
}

/// A file system in memory that has the inodes.
fn engine_of(trees: &Trees) -> Result<InProcess, Error> {
    let inodes = trees.inodes() as u64 * 5 / 4 + 1000;
    let options = MountOptions {
        live_inodes: 2 * trees.inodes() + 1000,
        ..MountOptions::default()
    };
    // Tables of 256 bytes an inode, and a block for each directory and some more.
    let size = (inodes * 1024).max(64 << 20).next_multiple_of(1 << 20);
    InProcess::on(Arc::new(MemoryDevice::new(size)), Some(inodes), &options)
}

fn make<T: Target>(target: &T, base: &str, trees: &Trees) -> Result<(), Error> {
    let base = target.mkdir(target.root(), base)?;
    for worker in 0..trees.workers {
        let own = target.mkdir(&base, &worker.to_string())?;
        for directory in &trees.directories {
            let directory = target.mkdir(&own, directory)?;
            for file in &trees.files {
                target.create(&directory, file)?;
            }
        }
    }
    target.settle()
}

fn remove<T: Target>(target: &T, name: &str, trees: &Trees) -> Result<(), Error> {
    let base = target.open_dir(target.root(), name)?;
    for worker in 0..trees.workers {
        let own = target.open_dir(&base, &worker.to_string())?;
        for directory in &trees.directories {
            let inner = target.open_dir(&own, directory)?;
            for file in &trees.files {
                target.unlink(&inner, file)?;
            }
            target.rmdir(&own, directory)?;
        }
        target.rmdir(&base, &worker.to_string())?;
    }
    target.rmdir(target.root(), name)
}

/// The four samples of [`KINDS`]; `None` for each that this target can't give.
fn walks<T: Remount>(
    target: T,
    base: &str,
    trees: &Trees,
    form: &[String],
) -> Result<(T, [Option<Sample>; 4]), Error> {
    let room = trees.inodes() * 3 / 4;
    let mounted = target.remount(Some(room), form)?;
    let mut target = mounted.target;
    let walk = |target: &T| walk(target, base, trees);
    let cold = if mounted.is_fresh {
        Some(walk(&target)?)
    } else {
        None
    };
    let mut repeated = None;
    if mounted.is_bounded {
        repeated = Some(walk(&target)?);
        target = target.remount(None, &[])?.target;
    }
    walk(&target)?;
    let warm = walk(&target)?;
    let by_handle = find(&target, base, trees)?;
    Ok((target, [cold, repeated, Some(warm), by_handle]))
}

/// All workers at once; `work` gets each one's number.
fn timed<T: Target>(
    target: &T,
    trees: &Trees,
    work: &(dyn Fn(usize) -> Result<(), Error> + Sync),
) -> Result<Sample, Error> {
    let start = Barrier::new(trees.workers);
    // The first worker's.
    let begin: OnceLock<Instant> = OnceLock::new();
    let before = target.counters();
    let (cpu, cpu_before) = (user_and_system(), cpu_time());
    let results: Vec<Result<Duration, Error>> = thread::scope(|scope| {
        let running: Vec<_> = (0..trees.workers)
            .map(|worker| {
                let (start, begin) = (&start, &begin);
                scope.spawn(move || {
                    start.wait();
                    let begin = *begin.get_or_init(clock::now);
                    work(worker)?;
                    Ok(begin.elapsed())
                })
            })
            .collect();
        let join = |handle: thread::ScopedJoinHandle<'_, _>| match handle.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        running.into_iter().map(join).collect()
    });
    let spent = cpu_time() - cpu_before;
    let spans = results.into_iter().collect::<Result<Vec<_>, Error>>()?;
    let seconds = spans
        .into_iter()
        .max()
        .unwrap_or_default()
        .as_secs_f64()
        .max(1e-9);
    let after = user_and_system();
    Ok(Sample {
        value: trees.stats() as f64 / seconds,
        details: vec![
            ("seconds", seconds),
            ("CPU s", spent),
            ("user s", after.0 - cpu.0),
            ("system s", after.1 - cpu.1),
        ],
        counters: by_operation(&before, &target.counters(), trees.stats() as u64),
    })
}

/// Every worker looks at every file of its tree.
fn walk<T: Target>(target: &T, base: &str, trees: &Trees) -> Result<Sample, Error> {
    let base = target.open_dir(target.root(), base)?;
    timed(target, trees, &|worker| {
        let own = target.open_dir(&base, &worker.to_string())?;
        for directory in &trees.directories {
            let directory = target.open_dir(&own, directory)?;
            for file in &trees.files {
                target.stat(&directory, file)?;
            }
        }
        Ok(())
    })
}

/// Every worker finds every file of its tree by its handle; nothing where there are none.
fn find<T: Target>(target: &T, base: &str, trees: &Trees) -> Result<Option<Sample>, Error> {
    let base = target.open_dir(target.root(), base)?;
    let mut handles: Vec<Vec<FileHandle>> = Vec::new();
    for worker in 0..trees.workers {
        let own = target.open_dir(&base, &worker.to_string())?;
        let mut list = Vec::new();
        for directory in &trees.directories {
            let directory = target.open_dir(&own, directory)?;
            for file in &trees.files {
                let Some(handle) = target.handle(&directory, file)? else {
                    return Ok(None);
                };
                list.push(handle);
            }
        }
        handles.push(list);
    }
    let sample = timed(target, trees, &|worker| {
        for handle in &handles[worker] {
            if !target.find_by_handle(*handle)? {
                return Err(Error::Host {
                    operation: "finding by handle",
                    path: format!("inode {}", handle.0).into(),
                    source: std::io::ErrorKind::NotFound.into(),
                });
            }
        }
        Ok(())
    })?;
    Ok(Some(sample))
}
