//! Directories' inode numbers: many directories, then a few small files in each, alternately or one directory at a
//! time, then mounted anew and all removed. On a model of a disk, where what lies together counts; with what it costs
//! e2fsck.

use std::ffi::OsStr;

use device::{BlockDevice, FileDevice};
use engine::{MountOptions, Variants};
use lanefs::Error;
use sync::Arc;

use super::running::{Running, forms};
use super::tree::{remove, small_file};
use super::{ProgressHook, Setup, label};
use crate::directory::HostDirectory;
use crate::in_process::{InProcess, unknown};
use crate::leavings;
use crate::machine::{cpu_time, time_of};
use crate::measure::Turns;
use crate::regions::RegionSurvey;
use crate::spindle::{Account, MODEL, Spindle};
use crate::table::{Cell, Column, Sample, Table};
use crate::target::{Remount, Target};
use crate::workload::Workload;

/// Directories, and files in each of them.
const DIRECTORIES: usize = 2000;
const FILES: [usize; 5] = [1, 15, 16, 40, 200];
/// Bytes of a file.
const BYTES: usize = 1024;
/// Bytes of the disk as in 2007. A scaled run has a smaller disk, of at least `LEAST_DISK` bytes.
const DISK: u64 = 50 << 30;
const LEAST_DISK: u64 = 1 << 30;
/// What was measured in 2007, in seconds: directories made, files made, all removed; without and with 16 numbers
/// reserved for each directory.
const OF_2007: [(&str, [f64; 3]); 2] = [
    ("2007, normal", [49.101, 1457.962, 1483.788]),
    ("2007, reserved", [179.703, 1268.161, 1049.862]),
];
/// Its directories and files in each.
const SIZE_OF_2007: (usize, usize) = (50_000, 15);
/// What is done.
const PHASES: [&str; 3] = ["make directories", "make files", "remove all"];

/// A load: how many, and in which order, and on how large a disk.
#[derive(Clone, Copy)]
struct Load {
    disk: u64,
    directories: usize,
    files: usize,
    alternately: bool,
}

impl Load {
    fn inodes(&self) -> u64 {
        (self.directories * (self.files + 1)) as u64
    }
}

/// The disk's size: less where there is less to put on it.
fn disk(setup: &Setup) -> u64 {
    let size = (DISK as f64 * setup.scale) as u64;
    size.clamp(LEAST_DISK, DISK).next_multiple_of(1 << 20)
}

/// A file system on a model of a disk, with these forms chosen and `inodes` inodes or mke2fs's share.
pub(super) fn on_spindle(
    size: u64,
    inodes: Option<u64>,
    form: &[String],
) -> Result<(InProcess, Arc<Spindle>), Error> {
    let mut variants = Variants::default();
    for option in form {
        variants.set(option).map_err(unknown)?;
    }
    let options = MountOptions {
        variants,
        ..MountOptions::default()
    };
    let disk = Arc::new(Spindle::new(size));
    InProcess::on(Arc::clone(&disk) as Arc<_>, inodes, &options)?.close()?;
    let survey = RegionSurvey::of(Arc::clone(&disk) as Arc<_>)?;
    disk.set_regions(survey.regions()?);
    let target = InProcess::open(Arc::clone(&disk) as Arc<_>, options)?;
    Ok((target, disk))
}

/// What the disk did, by name.
pub(super) fn details(account: &Account) -> Vec<(&'static str, f64)> {
    let [table, bitmap, _, journal, other] = [0, 1, 2, 3, 4].map(|index| {
        let (read, written) = (account.read[index], account.written[index]);
        (read as f64, written as f64)
    });
    vec![
        ("seeks", account.seeks as f64),
        ("table blocks read", table.0),
        ("table blocks written", table.1),
        ("bitmaps read", bitmap.0),
        ("bitmaps written", bitmap.1),
        ("journal blocks written", journal.1),
        ("other blocks read", other.0),
        ("other blocks written", other.1),
    ]
}

/// Measures.
pub(super) fn tables(setup: &Setup, progress: &mut ProgressHook<'_>) -> Result<Vec<Table>, Error> {
    let forms = if setup.engine {
        setup.forms(&["dir_ireserve"])
    } else {
        Vec::new()
    };
    let columns = forms.iter().map(|form| Column {
        label: label(form),
        way: "functions in process, by inode number; disk model".into(),
    });
    let columns: Vec<Column> = columns.collect();
    let mut tables = Vec::new();
    if !forms.is_empty() {
        for alternately in [true, false] {
            tables.extend(by_files(setup, &forms, &columns, alternately, progress)?);
        }
        tables.push(as_in_2007(setup, &forms, columns, progress)?);
    }
    tables.extend(empty_directories(setup, progress)?);
    tables.push(by_clock(setup, &forms, progress)?);
    Ok(tables)
}

/// A table a phase; rows are files in each directory.
fn by_files(
    setup: &Setup,
    forms: &[Vec<String>],
    columns: &[Column],
    alternately: bool,
    progress: &mut ProgressHook<'_>,
) -> Result<Vec<Table>, Error> {
    let directories = setup.scaled(DIRECTORIES, 4);
    let (key, order) = if alternately {
        ("alternately", "a file in each directory in turn")
    } else {
        ("in-turn", "one directory after the other")
    };
    let rows: Vec<String> = FILES.iter().map(ToString::to_string).collect();
    let about = format!(
        "{directories} directories with files of 1 KiB, {order}; mounted anew before all is removed, written home \
         within each phase. {MODEL}."
    );
    let mut tables = PHASES.map(|phase| {
        let key = format!("dir-reserve-{key}-{}", phase.replace(' ', "-"));
        let title = format!("Directories' inodes, {order}: {phase}");
        Table::new(&key, &title, &about, rows.clone(), columns.to_vec()).in_seconds("files in each")
    });
    // Once: the clock is virtual.
    for (row, files) in FILES.into_iter().enumerate() {
        let load = Load {
            disk: disk(setup),
            directories,
            files,
            alternately,
        };
        let is_judged = alternately && [15, 200].contains(&files);
        for (column, form) in forms.iter().enumerate() {
            progress(&format!(
                "dir-reserve {key}: {files} files, {}",
                label(form)
            ));
            let samples = on_model(load, form, is_judged)?;
            for (table, sample) in tables.iter_mut().zip(samples) {
                table.cells[row][column].samples.push(sample);
            }
        }
    }
    Ok(tables.to_vec())
}

/// The load of 2007, beside its figures.
fn as_in_2007(
    setup: &Setup,
    forms: &[Vec<String>],
    columns: Vec<Column>,
    progress: &mut ProgressHook<'_>,
) -> Result<Table, Error> {
    let (directories, files) = SIZE_OF_2007;
    let load = Load {
        disk: disk(setup),
        directories: setup.scaled(directories, 10),
        files,
        alternately: true,
    };
    let published = OF_2007.map(|(label, _)| Column {
        label: label.into(),
        way: "published: ext4 of 2.6.24-rc, a 7200 rpm disk, 50,000 directories".into(),
    });
    let all = published.into_iter().chain(columns).collect();
    let about = format!(
        "{} directories with {files} files of 1 KiB each, a file in each directory in turn. {MODEL}. The published \
         columns are of a machine of its time with 50,000 directories, data=writeback: compare ratios.",
        load.directories
    );
    let rows = PHASES.map(str::to_owned).to_vec();
    let mut table = Table::new(
        "dir-reserve-2007",
        "Directories' inodes: the load of 2007",
        &about,
        rows,
        all,
    )
    .in_seconds("phase");
    for (row, cells) in table.cells.iter_mut().enumerate() {
        for (cell, (_, seconds)) in cells.iter_mut().zip(OF_2007) {
            *cell = Cell::of(seconds[row]);
        }
    }
    for (column, form) in forms.iter().enumerate() {
        progress(&format!("dir-reserve as in 2007: {}", label(form)));
        let samples = on_model(load, form, true)?;
        for (row, sample) in samples.into_iter().enumerate() {
            table.cells[row][OF_2007.len() + column]
                .samples
                .push(sample);
        }
    }
    Ok(table)
}

/// The three phases on the model of a disk; `is_judged`: e2fsck looks at the image that is full.
fn on_model(load: Load, form: &[String], is_judged: bool) -> Result<[Sample; 3], Error> {
    // Inode numbers to spare, as mke2fs's share of such a disk.
    let inodes = (load.inodes() * 4).max(load.disk / 16_384);
    let (mut target, disk) = on_spindle(load.disk, Some(inodes), form)?;
    let mut samples: [Sample; 3] = Default::default();
    for (phase, sample) in samples.iter_mut().enumerate() {
        let (before, cpu) = (disk.account(), cpu_time());
        step(&target, load, phase)?;
        target = target.remount(None, &[])?.target;
        let account = disk.account().since(&before);
        sample.value = account.seconds;
        sample.details = vec![("CPU s", cpu_time() - cpu)];
        sample.details.extend(details(&account));
        if phase == 1 {
            target.close()?;
            let survey = RegionSurvey::of(Arc::clone(&disk) as Arc<_>)?;
            let (groups, scanned) = survey.initialised();
            sample.details.push(("groups initialised", groups as f64));
            sample
                .details
                .push(("inodes scanned by e2fsck", scanned as f64));
            if is_judged {
                sample
                    .details
                    .extend(e2fsck(&disk)?.map(|time| ("e2fsck s", time)));
            }
            target = InProcess::open(Arc::clone(&disk) as Arc<_>, options_of(form)?)?;
        }
    }
    target.close()?;
    Ok(samples)
}

fn options_of(form: &[String]) -> Result<MountOptions, Error> {
    let mut options = MountOptions::default();
    for option in form {
        options.variants.set(option).map_err(unknown)?;
    }
    Ok(options)
}

/// What e2fsck needs for a copy of the image; nothing where it is not there.
fn e2fsck(disk: &Spindle) -> Result<Option<f64>, Error> {
    let path = leavings::scratch().join(leavings::name("img"));
    let copied = FileDevice::create_new(&path, disk.memory().size())
        .and_then(|file| disk.memory().copy_to(&file))
        .map_err(|error| Error::from(lanefs::make::MakeError::from(error)));
    let timed = copied.and_then(|()| time_of("e2fsck", &[OsStr::new("-fn"), path.as_os_str()]));
    // The copy goes, whatever came of it.
    let _ = std::fs::remove_file(&path);
    timed
}

fn directory(number: usize) -> String {
    format!("dir-{number:05}")
}

fn base() -> String {
    leavings::name("dirs")
}

/// A phase, synced.
fn step<T: Target>(target: &T, load: Load, phase: usize) -> Result<(), Error> {
    let name = base();
    match phase {
        0 => {
            let base = target.mkdir(target.root(), &name)?;
            for number in 0..load.directories {
                target.mkdir(&base, &directory(number))?;
            }
        }
        1 => {
            let base = target.open_dir(target.root(), &name)?;
            let make = |number: usize, file: usize| {
                let directory = target.open_dir(&base, &directory(number))?;
                small_file(target, &directory, &format!("file-{file:03}"), BYTES)
            };
            if load.alternately {
                for file in 0..load.files {
                    (0..load.directories).try_for_each(|number| make(number, file))?;
                }
            } else {
                for number in 0..load.directories {
                    (0..load.files).try_for_each(|file| make(number, file))?;
                }
            }
        }
        _ => remove(target, target.root(), &name)?,
    }
    target.settle()
}

/// Empty directories made, beside the form that reserves nothing.
fn empty_directories(setup: &Setup, progress: &mut ProgressHook<'_>) -> Result<Vec<Table>, Error> {
    let contenders = setup.contenders(&["dir_ireserve"])?;
    let running = Running {
        key: "dir-reserve-empty",
        title: "Empty directories made",
        workload: Workload::MakeDirs,
        workers: &[1, 2],
        operations: None,
    };
    let mut tables = vec![running.table(setup, &contenders, progress)?];
    let off = contenders
        .iter()
        .find(|contender| contender.column.label == "off");
    if let Some(off) = off.filter(|_| setup.engine) {
        let first = contenders.iter().take(1);
        let others = first.chain(forms(setup, &contenders));
        let others: Vec<_> = others
            .filter(|other| other.column.label != "off")
            .cloned()
            .collect();
        tables.extend(running.pairs(setup, off, &others, progress)?);
    }
    Ok(tables)
}

/// The same phases by the clock, on devices in memory and on directories.
fn by_clock(
    setup: &Setup,
    forms: &[Vec<String>],
    progress: &mut ProgressHook<'_>,
) -> Result<Table, Error> {
    let load = Load {
        disk: disk(setup),
        directories: setup.scaled(DIRECTORIES, 4),
        files: 15,
        alternately: true,
    };
    let ours = forms.iter().map(|form| Column {
        label: label(form),
        way: setup.way(true).into(),
    });
    let mut columns: Vec<Column> = ours.collect();
    for path in &setup.on {
        columns.push(Column {
            label: path.display().to_string(),
            way: HostDirectory::open(path, false)?.way(),
        });
    }
    let about = format!(
        "{} directories, then 15 files of 1 KiB in each in turn, mounted anew where that may be, and all removed. Wall \
         time in memory: what the search for inode numbers costs, not what a disk gains.",
        load.directories
    );
    let rows = PHASES.map(str::to_owned).to_vec();
    let mut table = Table::new(
        "dir-reserve-clock",
        "Directories' inodes, by the clock",
        &about,
        rows,
        columns,
    )
    .in_seconds("phase");
    let mut turns = Turns::new(forms.len() + setup.on.len(), setup.seed);
    for round in 0..setup.rounds {
        for column in turns.next() {
            let form = forms.get(column);
            let what = match form {
                Some(form) => label(form),
                None => setup.on[column - forms.len()].display().to_string(),
            };
            progress(&format!("dir-reserve by the clock round {round}: {what}"));
            let samples = match form {
                Some(form) => {
                    let memory = Arc::new(device::MemoryDevice::new(4 << 30));
                    let inodes = load.inodes() * 4 + 1000;
                    let target = InProcess::on(memory, Some(inodes), &options_of(form)?)?;
                    clocked(target, load)?
                }
                None => {
                    let path = &setup.on[column - forms.len()];
                    clocked(HostDirectory::open(path, setup.remount)?, load)?
                }
            };
            for (row, sample) in samples.into_iter().enumerate() {
                table.cells[row][column].samples.push(sample);
            }
        }
    }
    Ok(table)
}

fn clocked<T: Remount>(target: T, load: Load) -> Result<[Sample; 3], Error> {
    let mut samples: [Sample; 3] = Default::default();
    let mut target = target;
    for (phase, sample) in samples.iter_mut().enumerate() {
        let (begin, cpu) = (sync::clock::now(), cpu_time());
        step(&target, load, phase)?;
        sample.value = begin.elapsed().as_secs_f64();
        sample.details = vec![("CPU s", cpu_time() - cpu)];
        target = target.remount(None, &[])?.target;
    }
    Ok(samples)
}
