//! Block allocation: fallocate2's rates, and what files and free space look like on empty, fragmented and nearly full
//! images. Each cell of the second kind has an image of its own.

use device::{BlockDevice, MemoryDevice};
use engine::{Ino, MountOptions, Variants};
use lanefs::Error;
use sync::{Arc, Mutex, Rank, clock, thread};

use super::running::{Running, plain};
use super::{ProgressHook, Setup, label};
use crate::directory::HostDirectory;
use crate::in_process::{InProcess, said, unknown};
use crate::leavings;
use crate::measure::{Contender, by_operation};
use crate::regions::RegionSurvey;
use crate::table::{Column, Sample, Table, TableShape};
use crate::target::Target;
use crate::workload::Workload;
use model::Random;

/// Containers of the source's table.
const WORKERS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Those of the table without preallocation.
const UNKEPT_WORKERS: [usize; 4] = [1, 2, 8, 64];
/// What its columns are.
const MECHANISMS: [&str; 3] = ["group_lock", "stream_goal", "mb_optimize_scan"];
/// Bytes of an image whose files are looked at.
const IMAGE: usize = 1 << 30;
/// Files that grow at once in it, by steps in turn, and workers that share them.
const FILES: usize = 16;
const SHARERS: usize = 2;
/// Bytes of a step.
const STEP: u64 = 4096;
/// Bytes of an image that stay free when it is filled: for the directory of what fills it.
const LEFT: u64 = 256 << 10;
/// Bytes that all of them together grow to, at most.
const GROWTH: usize = 64 << 20;

/// What an image is like before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fill {
    Empty,
    /// Filled with files of up to 64 KiB, every second removed: half is free, in pieces of about a file.
    Fragmented,
    /// Filled with files of up to 256 KiB, one of 20 removed: a twentieth is free, in pieces of about a file.
    Full,
}

impl Fill {
    const ALL: [Fill; 3] = [Fill::Empty, Fill::Fragmented, Fill::Full];

    fn name(self) -> &'static str {
        match self {
            Fill::Empty => "empty",
            Fill::Fragmented => "fragmented",
            Fill::Full => "95% full",
        }
    }
}

/// Measures.
pub(super) fn tables(setup: &Setup, progress: &mut ProgressHook<'_>) -> Result<Vec<Table>, Error> {
    let contenders = setup.contenders(&MECHANISMS)?;
    let running = Running {
        key: "fallocate",
        title: "fallocate in steps, mean of a worker",
        workload: Workload::FallocateSteps,
        workers: &WORKERS,
        operations: None,
    };
    let sums = running.table(setup, &contenders, progress)?;
    let mut tables = vec![means(&sums)];
    tables.push(Table {
        key: "fallocate-sum".into(),
        title: "fallocate in steps, all workers".into(),
        ..sums
    });
    if let Some(first) = contenders.first() {
        let (first, others) = paired(setup, first, &contenders);
        tables.extend(running.pairs(setup, &first, &others, progress)?);
    }
    tables.extend(unkept(setup, &contenders, progress)?);
    drop(contenders);
    tables.push(fragmentation(setup, progress)?);
    Ok(tables)
}

/// What pairs compare: the first form with those that differ from it in one mechanism, preallocation among them, or in
/// all.
fn paired<'t>(
    setup: &Setup,
    first: &Contender<'t>,
    contenders: &[Contender<'t>],
) -> (Contender<'t>, Vec<Contender<'t>>) {
    let mut others = alone(setup, contenders);
    let Some(off) = without_preallocation(setup).filter(|_| !first.options().is_empty()) else {
        return (first.clone(), others);
    };
    // One file system serves all: each chooses it anew.
    let defaults = Variants::default().to_string();
    let is_it = |option: &&str| option.starts_with("prealloc=");
    let on: String = defaults.split(',').filter(is_it).collect();
    let with = |form: &Contender<'t>, label: String, option: &String| {
        let options = form.options().iter().cloned().chain([option.clone()]);
        form.with(label, options.collect())
    };
    for other in &mut others {
        *other = with(other, other.column.label.clone(), &on);
    }
    let label = first.column.label.clone();
    others.push(with(first, format!("{label}, {off}"), &off));
    (with(first, label, &on), others)
}

/// The same without blocks kept for files, where each step looks for its own: what the forms of the search cost those
/// who meet there. Of the default mechanisms only.
fn unkept(
    setup: &Setup,
    contenders: &[Contender<'_>],
    progress: &mut ProgressHook<'_>,
) -> Result<Option<Table>, Error> {
    let Some(off) = without_preallocation(setup) else {
        return Ok(None);
    };
    let mut forms: Vec<Contender<'_>> = contenders.first().into_iter().cloned().collect();
    forms.extend(alone(setup, contenders));
    forms.retain(|form| !form.options().is_empty());
    for form in &mut forms {
        let options = form.options().iter().cloned().chain([off.clone()]);
        *form = form.with(form.column.label.clone(), options.collect());
    }
    if forms.is_empty() {
        return Ok(None);
    }
    let running = Running {
        key: "fallocate-unkept",
        title: "fallocate in steps without preallocation, all workers",
        workload: Workload::FallocateSteps,
        workers: &UNKEPT_WORKERS,
        operations: None,
    };
    running.table(setup, &forms, progress).map(Some)
}

/// The plain form of preallocation, unless other mechanisms are measured than this bench's own.
fn without_preallocation(setup: &Setup) -> Option<String> {
    let mut plain = plain().into_iter();
    let off = plain.find(|option| option.starts_with("prealloc="));
    off.filter(|_| setup.mechanisms.is_none())
}

/// A worker's mean instead of the sum.
fn means(sums: &Table) -> Table {
    let mut means = sums.clone();
    means.unit = "operations/s of a worker";
    for (row, cells) in means.rows.iter().zip(&mut means.cells) {
        let workers: f64 = row.parse().unwrap_or(1.0);
        for sample in cells.iter_mut().flat_map(|cell| &mut cell.samples) {
            sample.value /= workers;
        }
    }
    means
}

/// The forms that differ from the first in one mechanism, or in all.
fn alone<'t>(setup: &Setup, contenders: &[Contender<'t>]) -> Vec<Contender<'t>> {
    let forms = setup.forms(&MECHANISMS);
    let Some(first) = forms.first() else {
        return Vec::new();
    };
    let all_plain = plain();
    let is_wanted = |form: &Vec<String>| {
        let differing = form.iter().filter(|option| !first.contains(option)).count();
        differing == 1 || (differing > 1 && form.iter().all(|option| all_plain.contains(option)))
    };
    let labels: Vec<String> = forms
        .iter()
        .filter(|form| is_wanted(form))
        .map(|form| label(form))
        .collect();
    let wanted = contenders
        .iter()
        .filter(|contender| labels.contains(&contender.column.label));
    wanted.cloned().collect()
}

/// The values, but a preallocation by its name.
fn piece_label(form: &[String]) -> String {
    let is_apart = |option: &&String| option.starts_with("prealloc=");
    let values: Vec<String> = form
        .iter()
        .filter(|option| !is_apart(option))
        .cloned()
        .collect();
    match (form.is_empty(), form.iter().find(is_apart)) {
        (true, _) => "in process".into(),
        (_, Some(apart)) => format!("{}, {apart}", label(&values)),
        (_, None) => label(&values),
    }
}

/// All forms of the mechanisms, and the first of them without preallocation.
fn forms_of_pieces(setup: &Setup) -> Vec<Vec<String>> {
    let mut forms = setup.forms(&MECHANISMS);
    let plain = without_preallocation(setup);
    if let (Some(first), Some(plain)) = (forms.first(), plain) {
        let without = first.iter().cloned().chain([plain]);
        forms.push(without.collect());
    }
    forms
}

/// How files and free space lie after growth by steps.
fn fragmentation(setup: &Setup, progress: &mut ProgressHook<'_>) -> Result<Table, Error> {
    let forms = if setup.engine {
        forms_of_pieces(setup)
    } else {
        Vec::new()
    };
    let ours = forms.iter().map(|form| Column {
        label: piece_label(form),
        way: setup.way(true).into(),
    });
    let mut columns: Vec<Column> = ours.collect();
    for path in &setup.on {
        columns.push(Column {
            label: path.display().to_string(),
            way: HostDirectory::open(path, false)?.way(),
        });
    }
    let rows = Fill::ALL.map(|fill| fill.name().to_owned()).to_vec();
    let about = format!(
        "{FILES} files grow in turn by steps of 4 KiB, {SHARERS} workers; pieces of a file in the mean. fragmented: \
         filled with files of up to 64 KiB, every second removed; 95% full: filled, one of 20 removed."
    );
    let mut table = Table::new(
        "fallocate-pieces",
        "Pieces of a file",
        &about,
        rows,
        columns,
    );
    (table.unit, table.rows_are, table.shape) = ("pieces of a file", "image", TableShape::Bars);
    table.less_is_better = true;
    if !setup.on.is_empty() {
        let note = "Directories of --on are measured in the first row only: they are not filled.";
        table.notes.push(note.into());
    }
    for round in 0..setup.rounds.min(3) {
        for (fill, cells) in Fill::ALL.into_iter().zip(&mut table.cells) {
            for (index, form) in forms.iter().enumerate() {
                progress(&format!(
                    "fallocate-pieces round {round}: {}, {}",
                    fill.name(),
                    label(form)
                ));
                let sample = on_image(setup, fill, form, round as u64)?;
                cells[index].samples.push(sample);
            }
            for (path, cell) in setup.on.iter().zip(&mut cells[forms.len()..]) {
                if fill == Fill::Empty {
                    let directory = HostDirectory::open(path, false)?;
                    cell.samples.extend(grow(&directory, growth(setup))?);
                }
            }
        }
    }
    Ok(table)
}

/// Bytes to which each file grows.
fn growth(setup: &Setup) -> u64 {
    (setup.scaled(GROWTH, 512 << 10) / FILES) as u64
}

/// Fills an image, has files grow in it, and looks at what is left.
fn on_image(setup: &Setup, fill: Fill, form: &[String], round: u64) -> Result<Sample, Error> {
    let mut variants = Variants::default();
    for option in form {
        variants.set(option).map_err(unknown)?;
    }
    let options = MountOptions {
        variants,
        ..MountOptions::default()
    };
    let size = setup.scaled(IMAGE, 16 << 20) as u64;
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(size));
    let target = image(&device, &options)?;
    prepare(&target, fill, setup.seed ^ round)?;
    let free = target.fs().statfs().map_err(said)?;
    // At most half of what is left.
    let most = free.available * free.block_size / 2 / FILES as u64 / STEP * STEP;
    let sample = grow(&target, growth(setup).min(most))?;
    target.close()?;
    let (runs, blocks, longest) = RegionSurvey::of(device)?.free_runs()?;
    let mut sample = sample.unwrap_or_default();
    sample.details.extend([
        ("free pieces", runs as f64),
        (
            "free KiB in a piece",
            4.0 * blocks as f64 / runs.max(1) as f64,
        ),
        ("longest free piece, KiB", 4.0 * longest as f64),
    ]);
    Ok(sample)
}

/// A file system on a fresh device, with no blocks kept for root: they would stay free in one piece.
fn image(device: &Arc<dyn BlockDevice>, options: &MountOptions) -> Result<InProcess, Error> {
    let make = lanefs::mkfs::Options {
        device_is_zero: true,
        reserved_percent: 0.0,
        ..lanefs::mkfs::Options::default()
    };
    InProcess::made(Arc::clone(device), &make, options)
}

/// Prepares the image: filled except [`LEFT`], with holes made in what fills it.
fn prepare(target: &InProcess, fill: Fill, seed: u64) -> Result<(), Error> {
    if fill == Fill::Empty {
        return Ok(());
    }
    let mut random = Random::new(seed);
    let directory = target.mkdir(target.root(), "filled")?;
    let most = if fill == Fill::Full { 64 } else { 16 };
    let names = filled(target, &directory, most, &mut random)?;
    for (number, name) in names.iter().enumerate() {
        let goes = match fill {
            Fill::Fragmented => number % 2 == 1,
            _ => random.index(20) == 0,
        };
        if goes {
            target.unlink(&directory, name)?;
        }
    }
    target.settle()
}

/// Makes files of up to `most` steps until only [`LEFT`] is free, or the last 2%, which are set aside for the maps of
/// files. Returns their names.
fn filled(
    target: &InProcess,
    directory: &Ino,
    most: usize,
    random: &mut Random,
) -> Result<Vec<String>, Error> {
    let room = || {
        let now = target.fs().statfs().map_err(said)?;
        let free = now.free * now.block_size;
        Ok::<_, Error>(free.checked_sub(LEFT).filter(|room| *room > 0))
    };
    let mut names = Vec::new();
    // Each file takes at least a block, so that it ends.
    while let Some(room) = room()? {
        let bytes = STEP * (1 + random.index(most) as u64);
        let name = format!("{:06}", names.len());
        // The directory needs a block now and then, which may be the first that is not there.
        let made = target.create(directory, &name).and_then(|file| {
            names.push(name);
            target.fallocate(&file, 0, bytes.min(room.next_multiple_of(STEP)))
        });
        match made {
            Err(Error::Fs {
                source: engine::Error::NoSpace,
                ..
            }) => break,
            made => made?,
        }
    }
    Ok(names)
}

/// Has files grow by steps in turn; nothing where their pieces can't be counted.
fn grow<T: Target>(target: &T, bytes: u64) -> Result<Option<Sample>, Error> {
    let name = leavings::name("grow");
    let directory = target.mkdir(target.root(), &name)?;
    let named = |number: usize| format!("file-{number:02}");
    let make = |number| target.creat(&directory, &named(number));
    let files = (0..FILES).map(make).collect::<Result<Vec<_>, Error>>()?;
    let mut shares: Vec<Vec<T::File>> = (0..SHARERS).map(|_| Vec::new()).collect();
    for (number, file) in files.into_iter().enumerate() {
        shares[number % SHARERS].push(file);
    }
    let before = target.counters();
    let begin = clock::now();
    let ended = Mutex::new(Rank::Leaf, Vec::new());
    thread::scope(|scope| {
        for share in shares {
            let ended = &ended;
            scope.spawn(move || {
                let result = steps(target, &share, bytes);
                ended.lock().push((share, result));
            });
        }
    });
    let seconds = begin.elapsed().as_secs_f64();
    let after = target.counters();
    let (mut pieces, mut known) = (0, true);
    for (share, result) in ended.into_inner() {
        result?;
        for file in share {
            let found = target.pieces(&file)?;
            known &= found.is_some();
            pieces += found.unwrap_or(0);
            target.close(file)?;
        }
    }
    for number in 0..FILES {
        target.unlink(&directory, &named(number))?;
    }
    target.rmdir(target.root(), &name)?;
    target.settle()?;
    let operations = FILES as u64 * (bytes / STEP);
    Ok(known.then(|| Sample {
        value: pieces as f64 / FILES as f64,
        details: vec![("operations/s", operations as f64 / seconds)],
        counters: by_operation(&before, &after, operations),
    }))
}

fn steps<T: Target>(target: &T, files: &[T::File], bytes: u64) -> Result<(), Error> {
    for step in 0..bytes / STEP {
        for file in files {
            target.fallocate(file, step * STEP, STEP)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Free runs of an image, their blocks, and the longest.
    fn free_runs(fill: Fill) -> (u64, u64, u64) {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(512 << 20));
        let target = image(&device, &MountOptions::default()).unwrap();
        prepare(&target, fill, 1).unwrap();
        target.close().unwrap();
        RegionSurvey::of(device).unwrap().free_runs().unwrap()
    }

    #[test]
    fn an_image_is_full_where_the_first_block_that_is_missing_is_the_directorys() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(16 << 20));
        let target = image(&device, &MountOptions::default()).unwrap();
        let directory = target.mkdir(target.root(), "filled").unwrap();
        let file = target.create(&directory, "large").unwrap();
        let grown = |step| target.fallocate(&file, step * STEP, STEP).is_ok();
        assert!(
            (0..4096).position(|step| !grown(step)).is_some(),
            "never full"
        );
        let made = |number| target.create(&directory, &format!("{number}")).is_ok();
        let names = (1_000_000..1_004_096).position(|number| !made(number));
        // What a block of the directory holds.
        assert!(names.is_some_and(|count| count > 10), "{names:?}");
        assert_eq!(target.fs().statfs().unwrap().available, 0);
        let names = filled(&target, &directory, 16, &mut Random::new(1)).unwrap();
        assert_eq!(names.len(), 0);
        target.close().unwrap();
    }

    #[test]
    fn fragmented_and_full_images_have_no_piece_in_which_the_workload_fits() {
        let (_, all, _) = free_runs(Fill::Empty);
        for (fill, of_twentieths, kib) in [(Fill::Fragmented, 9..=11, 64), (Fill::Full, 1..=1, 256)]
        {
            let (runs, free, longest) = free_runs(fill);
            let twentieths = (20 * free + all / 2) / all;
            assert!(
                of_twentieths.contains(&twentieths),
                "{}: {free} of {all}",
                fill.name()
            );
            assert!(4 * free <= kib * runs, "{}: {free} in {runs}", fill.name());
            assert!(
                longest * STEP <= GROWTH as u64 / 4,
                "{}: {longest}",
                fill.name()
            );
        }
    }
}
