//! A tree like the kernel's sources: unpacked, listed with a look at everything, removed; each with nothing in memory
//! before. On the model of a disk for every form, and by the clock in memory and on directories.

use lanefs::Error;

use super::tree::{self, Tree};
use super::{ProgressHook, Setup, label};
use crate::directory::HostDirectory;
use crate::machine::cpu_time;
use crate::measure::Turns;
use crate::spindle::{Account, MODEL};
use crate::suite::dir_reserve::{details, on_spindle};
use crate::table::{Column, Sample, Table};
use crate::target::Remount;

/// Directories and files.
const DIRECTORIES: usize = 3000;
const FILES: usize = 40_000;
/// What is done.
const PHASES: [&str; 3] = ["unpack", "find and stat", "remove"];

/// Measures.
pub(super) fn tables(setup: &Setup, progress: &mut ProgressHook<'_>) -> Result<Vec<Table>, Error> {
    let files = setup.scaled(FILES, 100);
    let tree = Tree::like_sources(setup.scaled(DIRECTORIES, 10), files, setup.seed);
    let forms = if setup.engine {
        setup.forms(&["dir_ireserve"])
    } else {
        Vec::new()
    };
    let (mut on_disk, mut by_clock) = empty(setup, &tree, &forms)?;
    let mut turns = Turns::new(forms.len() + setup.on.len(), setup.seed);
    for round in 0..setup.rounds.min(3) {
        for index in turns.next() {
            let Some(form) = forms.get(index) else {
                let path = &setup.on[index - forms.len()];
                progress(&format!("source-tree round {round}: {}", path.display()));
                let target = HostDirectory::open(path, setup.remount)?;
                let (samples, _) = phases(target, &tree, &Account::default)?;
                for (row, (wall, _)) in samples.into_iter().enumerate() {
                    by_clock.cells[row][index].samples.push(wall);
                }
                continue;
            };
            progress(&format!("source-tree round {round}: {}", label(form)));
            let (target, disk) = on_spindle(size_for(&tree), None, form)?;
            let (samples, target) = phases(target, &tree, &|| disk.account())?;
            target.close()?;
            for (row, (wall, account)) in samples.into_iter().enumerate() {
                let seconds = account.seconds;
                let cpu = wall.details.clone();
                let mut details = details(&account);
                details.extend(cpu);
                by_clock.cells[row][index].samples.push(wall);
                on_disk.cells[row][index].samples.push(Sample {
                    value: seconds,
                    details,
                    counters: Vec::new(),
                });
            }
        }
    }
    let mut tables = vec![by_clock];
    if !forms.is_empty() {
        tables.insert(0, on_disk);
    }
    Ok(tables)
}

/// The tables to be filled: on the model of a disk, and by the clock.
fn empty(setup: &Setup, tree: &Tree, forms: &[Vec<String>]) -> Result<(Table, Table), Error> {
    let columns = forms.iter().map(|form| Column {
        label: label(form),
        way: setup.way(true).into(),
    });
    let columns: Vec<Column> = columns.collect();
    let rows = PHASES.map(str::to_owned).to_vec();
    let about = format!(
        "{} names, {} MB, as the kernel's sources are nested and sized; mounted anew before each phase, written home \
         within it. {MODEL}.",
        tree.count(),
        tree.bytes() / 1_000_000
    );
    let on_disk = Table::new(
        "source-tree-disk",
        "A tree of sources on a disk (model)",
        &about,
        rows.clone(),
        columns.clone(),
    )
    .in_seconds("phase");
    let mut wall_columns = columns;
    for path in &setup.on {
        wall_columns.push(Column {
            label: path.display().to_string(),
            way: HostDirectory::open(path, false)?.way(),
        });
    }
    let by_clock = Table::new(
        "source-tree",
        "A tree of sources, by the clock",
        "The same work: seconds of wall time, all in memory. Directories are mounted anew only where they may be.",
        rows,
        wall_columns,
    )
    .in_seconds("phase");
    Ok((on_disk, by_clock))
}

/// Bytes of an image for it.
fn size_for(tree: &Tree) -> u64 {
    (3 * tree.bytes() + 32_768 * tree.count() as u64)
        .max(256 << 20)
        .next_multiple_of(1 << 20)
}

/// All phases: each one's wall time with its processor time, and what the disk did.
fn phases<T: Remount>(
    target: T,
    tree: &Tree,
    account: &dyn Fn() -> Account,
) -> Result<(Vec<(Sample, Account)>, T), Error> {
    let mut samples = Vec::new();
    let mut target = target;
    for phase in 0..PHASES.len() {
        let (begin, cpu, before) = (sync::clock::now(), cpu_time(), account());
        match phase {
            0 => tree.unpack(&target)?,
            1 => drop(tree::find(&target, target.root(), tree.name())?),
            _ => tree::remove(&target, target.root(), tree.name())?,
        }
        target.settle()?;
        target = target.remount(None, &[])?.target;
        let wall = Sample {
            value: begin.elapsed().as_secs_f64(),
            details: vec![("CPU s", cpu_time() - cpu)],
            counters: Vec::new(),
        };
        samples.push((wall, account().since(&before)));
    }
    Ok((samples, target))
}
