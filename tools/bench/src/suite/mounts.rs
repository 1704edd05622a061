//! Mounts beside each other: lanefs, the server without an image over the same transport, fuse2fs and the kernel's
//! ext4, each with an image of its own in memory. In each round every mount has its turn of all rows, in an order that
//! is drawn for the round.
//!
//! Needs root, /dev/fuse and loop devices; what is not there (fuse2fs, FUSE over io_uring) is left out, and a note says
//! so. fuse2fs, which is slow, has its turn in the first round only. No thread of a server or of a client is pinned,
//! but those of io_uring's queues. Processor time is that of the clients and of the server's threads, without that
//! of kernel threads (writing back, loop devices).

mod goals;
mod servers;
mod work;

use lanefs::Error;
use sync::clock;

use self::servers::{ALL, Contestant, Kind, Mounted, Place};
use self::work::{OPERATIONS, Scene, Sizes, TREES, Turn};
use super::{ProgressHook, Setup};
use crate::measure::Turns;
use crate::table::{Cell, Column, Sample, Table, TableShape};

/// The detail that is compared in the goals.
const CPU: &str = "CPU us/operation";

/// The row of mounting a large image, and how many files that has.
const LARGE: &str = "mount 1 TiB";
const LARGE_FILES: usize = 2_000_000;

fn sizes(setup: &Setup) -> Sizes {
    Sizes {
        many: setup.scaled(50_000, 100),
        stream: (setup.scaled(512, 4) as u64) << 20,
        names: setup.scaled(4000, 20),
        stats: setup.scaled(work::DIRECTORIES * work::FILES, 100),
        blocks: setup.scaled(16_000, 100),
        appends: setup.scaled(100_000, 100),
        tree: setup.scaled(5000, 100),
    }
}

/// Bytes of memory that the images and the tree take.
fn room(setup: &Setup) -> u64 {
    const LEAST: u64 = 2 << 30;
    const FULL: f64 = 13.0 * (1 << 30) as f64;
    LEAST + (FULL * setup.scale) as u64
}

/// Measures.
pub(super) fn tables(setup: &Setup, progress: &mut ProgressHook<'_>) -> Result<Vec<Table>, Error> {
    let place = Place::new(room(setup))?;
    let sizes = sizes(setup);
    let scene = Scene::new(&place, sizes, setup.seed)?;
    let base = servers::base(&place, |root| work::fill(root, &sizes))?;
    let mut notes = Vec::new();
    let mut mounts = Vec::new();
    for (number, contestant) in ALL.iter().enumerate() {
        progress(&format!("mounts: {} is made ready", contestant.label));
        match start(contestant, number, &base, &place, &sizes) {
            Ok(mounted) => mounts.push((contestant, mounted)),
            Err(error) => notes.push(format!("Left out: {}: {error}.", contestant.label)),
        }
    }
    let mut tables = empty(&mounts, notes);
    let mut turns = Turns::new(mounts.len(), setup.seed);
    for round in 0..=setup.rounds {
        for index in turns.next() {
            let (contestant, mounted) = &mounts[index];
            if contestant.kind == Kind::Fuse2fs && round != 1 {
                continue;
            }
            progress(&format!("mounts round {round}: {}", contestant.label));
            let turn = Turn::new(&scene, mounted, contestant.kind, setup.seed + round as u64);
            let found = turn.run()?;
            if round > 0 {
                keep(&mut tables, index, found);
            }
        }
    }
    for (_, mounted) in mounts {
        mounted.end()?;
    }
    progress("mounts: a large image");
    large(setup, &place, &mut tables[1])?;
    let goals = goals::table(&tables);
    Ok(tables.into_iter().chain([goals]).collect())
}

fn start(
    contestant: &Contestant,
    number: usize,
    base: &std::path::Path,
    place: &Place,
    sizes: &Sizes,
) -> Result<Mounted, Error> {
    let (directories, files) = (work::DIRECTORIES, work::FILES);
    let tree = format!("{directories},{files},0");
    let stream = sizes.stream.to_string();
    let null = ["--tree", &tree, "--stream", &stream];
    let mounted = Mounted::start(contestant, number, base, place, &null)?;
    if contestant.kind == Kind::Null {
        work::fill(&mounted.directory, sizes)?;
    }
    Ok(mounted)
}

/// How long `lanefs mount` takes until a large image can be used.
fn large(setup: &Setup, place: &Place, table: &mut Table) -> Result<(), Error> {
    let is_ours = |column: &Column| column.label == "lanefs";
    let Some(column) = table.columns.iter().position(is_ours) else {
        return Ok(());
    };
    let files = setup.scaled(LARGE_FILES, 1000);
    let (image, directory) = (place.0.join("large.img"), place.0.join("large"));
    work::large_image(&image, files)?;
    let made = std::fs::create_dir(&directory);
    made.map_err(|error| servers::failed("making", &directory, error))?;
    let mut cells = vec![Cell::default(); table.columns.len()];
    for _ in 0..setup.rounds {
        let begin = clock::now();
        servers::run(servers::lanefs().arg("mount").arg(&image).arg(&directory))?;
        let value = begin.elapsed().as_secs_f64();
        servers::run(servers::lanefs().arg("umount").arg(&directory))?;
        cells[column].samples.push(Sample {
            value,
            ..Sample::default()
        });
    }
    table.rows.push(LARGE.into());
    table.cells.push(cells);
    let note = format!(
        "{LARGE}: `lanefs mount` of a clean image of 1 TiB with {files} files, until it returns."
    );
    table.notes.push(note);
    Ok(())
}

fn keep(tables: &mut [Table; 2], column: usize, found: Vec<Option<Sample>>) {
    for (row, sample) in found.into_iter().enumerate() {
        let (table, row) = match row.checked_sub(OPERATIONS.len()) {
            None => (0, row),
            Some(row) => (1, row),
        };
        tables[table].cells[row][column].samples.extend(sample);
    }
}

/// The tables without figures.
fn empty(mounts: &[(&Contestant, Mounted)], notes: Vec<String>) -> [Table; 2] {
    let column = |(contestant, _): &(&Contestant, Mounted)| {
        let way = match (contestant.kind, contestant.options) {
            (Kind::Kernel, _) => "a loop device".to_owned(),
            (Kind::Fuse2fs, _) => "FUSE; one round".to_owned(),
            (_, options) => format!("FUSE; -o {options}"),
        };
        Column {
            label: contestant.label.into(),
            way,
        }
    };
    let table = |key, title, about, rows: &[&str]| {
        let columns = mounts.iter().map(column).collect();
        let rows = rows.iter().map(|row| (*row).to_owned()).collect();
        let mut table = Table::new(key, title, about, rows, columns);
        table.less_is_better = true;
        (table.rows_are, table.shape) = ("work", TableShape::Bars);
        table
    };
    let mut operations = table(
        "mounts",
        "Operations on mounts",
        "By system calls of one client, or of two in directories of their own, not pinned. Cold: the kernel was told \
         to forget names and attributes. Reads and writes are in random order, reads of what the kernel does not have.",
        &OPERATIONS,
    );
    operations.unit = "us an operation";
    operations.notes = notes;
    let mut trees = table(
        "mounts-trees",
        "Trees and streams on mounts",
        "By tar, find, du, cp, rm and git as root, on files of 10 KiB in directories of 100; find and du warm. Streams \
         are read without what the kernel has of them.",
        &TREES,
    );
    trees.unit = "s";
    [operations, trees]
}
