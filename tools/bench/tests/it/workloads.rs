//! Every workload on the engine and on a directory: it counts what it does and leaves nothing behind. Every bench,
//! tiny: all its rows, columns and samples are there.

use std::path::Path;
use std::time::Duration;

use engine::MountOptions;
use lanefs_bench::{
    Contender, HostDirectory, InProcess, MeasurePlan, Setup, Stop, Suite, Table, Workload,
    mechanisms, run, speeds,
};

#[test]
fn every_workload_runs_on_both_targets_and_removes_what_it_made() {
    let (directory, image) = (directory(), directory());
    let image = image.path().join("image");
    let engine = InProcess::in_file(&image, 64 << 20, &MountOptions::default()).unwrap();
    let contenders = [
        Contender::new("engine", "functions", engine),
        Contender::new(
            "directory",
            "system calls",
            HostDirectory::open(directory.path(), false).unwrap(),
        ),
    ];
    for workload in Workload::ALL {
        let plan = MeasurePlan {
            workload: *workload,
            workers: vec![1, 2],
            rounds: 1,
            stop: Stop::Time(Duration::from_millis(2)),
            seed: 1,
        };
        let mut heard = 0;
        let cells = run(&plan, &contenders, &mut |_| heard += 1).unwrap();
        assert_eq!(heard, 2 * 2 * 2);
        for cell in cells.iter().flatten() {
            let [sample] = &cell.samples[..] else {
                panic!("{cell:?}");
            };
            assert!(sample.value > 0.0, "{workload:?}: {sample:?}");
            assert!(cell.detail("operations").unwrap().least >= 1.0);
            assert!(cell.detail("CPU us/operation").unwrap().least > 0.0);
        }
        assert!(cells[0][0].samples[0].counters.len() > 3);
        assert_eq!(directory.path().read_dir().unwrap().count(), 0);
    }
    drop(contenders);
    let fs = lanefs::Fs::open(&image).unwrap();
    let names = fs.read_dir("/").unwrap().map(|entry| entry.unwrap());
    let names: Vec<_> = names.map(|entry| entry.file_name().to_owned()).collect();
    assert_eq!(names, ["lost+found"]);
    if !e2fsck_replays(&image) {
        testkit::skip("needs e2fsck");
    }
}

/// e2fsck replays the journal of the file system that was dropped without a close, and finds nothing else to do.
fn e2fsck_replays(image: &Path) -> bool {
    testkit::have("e2fsck") && {
        let replay = testkit::e2fsck_with(&["-fy"], image);
        let text = String::from_utf8_lossy(&replay.stdout).into_owned();
        assert!(matches!(replay.status.code(), Some(0 | 1)), "{text}");
        assert!(!text.contains("Fix? yes"), "{text}");
        true
    }
}

#[test]
fn more_workers_than_cores_do_no_more_than_the_cores_can() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let engine = InProcess::in_memory(64 << 20, &MountOptions::default()).unwrap();
    let contenders = [Contender::new("engine", "functions", engine)];
    for workload in [
        Workload::ByteTruncate,
        Workload::Create,
        Workload::CreateClose,
    ] {
        let plan = MeasurePlan {
            workload,
            workers: vec![8 * cores],
            rounds: 1,
            stop: Stop::Time(Duration::from_millis(100)),
            seed: 1,
        };
        let cells = run(&plan, &contenders, &mut |_| {}).unwrap();
        let used = cells[0][0].detail("CPU us/operation").unwrap().median / 1e6;
        let busy = cells[0][0].samples[0].value * used;
        // What reads the clocks is counted with one and not with the other.
        assert!(busy <= 1.2 * cores as f64, "{workload:?}: {busy} cores");
    }
}

#[test]
fn an_error_of_the_file_system_ends_the_run_and_is_told() {
    let engine = InProcess::in_memory(2 << 20, &MountOptions::default()).unwrap();
    let plan = MeasurePlan {
        workload: Workload::Stat,
        workers: vec![2],
        rounds: 1,
        stop: Stop::Operations(1),
        seed: 1,
    };
    let small = [Contender::new("small", "functions", engine)];
    let error = run(&plan, &small, &mut |_| ()).unwrap_err();
    let error = std::io::Error::from(error);
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
}

/// A directory that goes when it is dropped: in memory where there is such a place, since every sample syncs it.
fn directory() -> tempfile::TempDir {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() {
        tempfile::tempdir_in(shared).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

fn tiny(on: &Path) -> Setup {
    Setup {
        engine: true,
        image: None,
        size: 64 << 20,
        on: vec![on.to_owned()],
        remount: false,
        workers: Some(vec![1, 2]),
        rounds: 1,
        time: Duration::from_millis(1),
        pairs: 2,
        flush: None,
        scale: 0.001,
        seed: 1,
        mechanisms: None,
    }
}

/// Runs a bench, tiny, and looks at what all have in common.
fn measure(name: &str) -> Vec<Table> {
    let directory = directory();
    let suite = Suite::named(name).unwrap();
    let tables = suite.measure(&tiny(directory.path()), &mut |_| ()).unwrap();
    assert!(!tables.is_empty());
    for table in &tables {
        assert_eq!(table.cells.len(), table.rows.len(), "{}", table.key);
        for row in &table.cells {
            assert_eq!(row.len(), table.columns.len(), "{}", table.key);
        }
        let mut samples = table.cells.iter().flatten().flat_map(|cell| &cell.samples);
        assert!(
            samples.all(|sample| sample.value.is_finite()),
            "{}",
            table.key
        );
        let first = &table.cells[0][0].samples;
        assert_eq!(first.len(), 1, "{}: {first:?}", table.key);
    }
    let left = directory.path().read_dir().unwrap().count();
    assert_eq!(left, 0, "{name} leaves something behind");
    tables
}

/// The table with this key.
fn table<'t>(tables: &'t [Table], key: &str) -> &'t Table {
    let keys: Vec<&str> = tables.iter().map(|table| &*table.key).collect();
    let found = tables.iter().find(|table| table.key == key);
    found.unwrap_or_else(|| panic!("{key} is not among {keys:?}"))
}

/// Every form of a mechanism is a column.
fn has_forms(table: &Table, mechanism: &str) {
    let (_, values) = mechanisms().find(|(name, _)| *name == mechanism).unwrap();
    let labels: Vec<&str> = table.columns.iter().map(|column| &*column.label).collect();
    for value in values {
        assert!(labels.contains(&value), "{value} is not among {labels:?}");
    }
}

#[test]
fn everyday_operations_stand_beside_workers_with_a_file_system_each() {
    let cores = std::thread::available_parallelism().unwrap().get();
    if cores < 2 {
        testkit::skip("needs two cores");
        return;
    }
    let tables = measure("core");
    for key in ["core", "core-scaling"] {
        let table = table(&tables, key);
        let last = table.columns.last().unwrap();
        assert_eq!(last.label, "apart", "{key}");
        for (row, cells) in table.rows.iter().zip(&table.cells) {
            let sample = &cells.last().unwrap().samples[0];
            assert!(sample.value > 0.0, "{key}, {row}");
        }
    }
    let columns = &table(&tables, "core-ratios").columns;
    let labels: Vec<&str> = columns.iter().map(|column| &*column.label).collect();
    assert_eq!(labels, ["memory, 1 worker", "memory, 2 workers", "goal"]);
}

#[test]
fn workers_apart_each_have_a_file_system() {
    let options = MountOptions::default();
    let places = [directory(), directory()];
    let images = [0, 1].map(|number: usize| places[number].path().join("image"));
    let engines = images.iter();
    let engines = engines.map(|image| InProcess::in_file(image, 16 << 20, &options).unwrap());
    let apart = Contender::apart("apart", "functions", engines.collect());
    let before = images.each_ref().map(|image| std::fs::read(image).unwrap());
    let plan = MeasurePlan {
        workload: Workload::Create,
        workers: vec![1, 2],
        rounds: 1,
        stop: Stop::Operations(256),
        seed: 1,
    };
    let cells = run(&plan, std::slice::from_ref(&apart), &mut |_| ()).unwrap();
    let done = |row: usize| cells[row][0].detail("operations").unwrap().median;
    assert!(done(0) >= 256.0);
    assert!((done(1) - 2.0 * done(0)).abs() < 0.1, "{}", done(1));
    drop(apart);
    for (image, before) in images.iter().zip(before) {
        // Its journal holds what the worker made.
        assert!(std::fs::read(image).unwrap() != before);
        let fs = lanefs::Fs::open(image).unwrap();
        assert_eq!(fs.read_dir("/").unwrap().count(), 1, "lost+found");
    }
}

#[test]
fn the_benches_of_orphans_have_every_form_and_the_directory() {
    let tables = measure("orphan");
    let fixed = table(&tables, "orphan");
    has_forms(fixed, "orphan");
    assert_eq!((fixed.unit, fixed.rows.len()), ("s", 2));
    // The directory is the last column.
    assert_eq!(fixed.cells[1].last().unwrap().samples.len(), 1);
    let operations = fixed.cells[1][0].detail("operations").unwrap().median;
    assert!((operations - 512.0).abs() < 0.1, "{operations}");
    let distance = table(&tables, "orphan-distance");
    assert!(distance.columns.iter().any(|column| column.label == "none"));
    let (rates, distance) = (
        table(&tables, "orphan-open-unlink"),
        table(&tables, "orphan-open-unlink-distance"),
    );
    let none = rates
        .columns
        .iter()
        .position(|column| column.label == "none");
    let median = |column: usize| rates.cells[0][column].spread().unwrap().median;
    let longer = distance.cells[0][0].spread().unwrap().median;
    assert!((longer - 100.0 * (median(none.unwrap()) / median(0) - 1.0)).abs() < 1e-6);
    let pairs = table(&tables, "orphan-rate-pairs");
    assert!((pairs.cells[0][3].spread().unwrap().median - 2.0).abs() < 0.1);
    let tables = measure("create-close");
    has_forms(table(&tables, "create-close"), "orphan");
    assert_eq!(table(&tables, "create-close-again").rows_are, "clients");
}

#[test]
fn the_bench_of_fallocate_has_rates_and_pieces() {
    let tables = measure("fallocate");
    let forms: usize = ["group_lock", "stream_goal", "mb_optimize_scan"]
        .map(|wanted| {
            mechanisms()
                .find(|(name, _)| *name == wanted)
                .unwrap()
                .1
                .len()
        })
        .iter()
        .product();
    assert_eq!(table(&tables, "fallocate").columns.len(), forms + 1);
    assert!(
        table(&tables, "fallocate")
            .about
            .contains("group_lock stream_goal mb_optimize_scan")
    );
    let unkept = table(&tables, "fallocate-unkept");
    let alone = [
        "try hashed 1",
        "try hashed 0",
        "try inode 1",
        "try global 1",
        "wait hashed 1",
        "wait inode 0",
    ];
    let labels: Vec<&str> = unkept.columns.iter().map(|column| &*column.label).collect();
    assert_eq!(labels, alone);
    for cell in unkept.cells.iter().flatten() {
        // Each step looks for its own blocks.
        let searches = cell.samples[0].counters.iter();
        let searches: f64 = searches
            .filter(|(name, _)| *name == "mballoc.searches")
            .map(|(_, count)| *count)
            .sum();
        assert!(searches >= 1.0, "{searches} by operation");
    }
    let pairs = table(&tables, "fallocate-pairs");
    assert_eq!(pairs.rows[..5], alone[1..]);
    assert_eq!(pairs.rows[5], "try hashed 1, prealloc=off");
    let pieces = table(&tables, "fallocate-pieces");
    assert_eq!(pieces.rows, ["empty", "fragmented", "95% full"]);
    let at_least_one = |row: usize| {
        let cell = &pieces.cells[row][0];
        assert!(cell.spread().unwrap().least >= 1.0);
        cell.detail("free pieces").unwrap().median
    };
    assert!(at_least_one(1) > 4.0 * at_least_one(0));
    assert!(at_least_one(2) > at_least_one(0));
}

#[test]
fn the_bench_of_lookup_has_cold_repeated_and_warm_walks() {
    let tables = measure("lookup");
    for key in [
        "lookup-cold",
        "lookup-repeated",
        "lookup-warm",
        "lookup-handle",
    ] {
        has_forms(table(&tables, key), "inode_lookup");
        assert!(table(&tables, key).cells[1][0].spread().unwrap().least > 0.0);
    }
    // A directory that may not be mounted anew is walked warm only.
    assert!(
        table(&tables, "lookup-cold").cells[0]
            .last()
            .unwrap()
            .samples
            .is_empty()
    );
    assert_eq!(
        table(&tables, "lookup-warm").cells[0]
            .last()
            .unwrap()
            .samples
            .len(),
        1
    );
    let pairs = table(&tables, "lookup-pairs");
    assert_eq!(pairs.rows, ["warm, locked", "by handle, locked"]);
    for row in &pairs.cells {
        assert!((row[3].spread().unwrap().median - 2.0).abs() < 0.1);
    }
}

#[test]
fn the_bench_of_directories_inodes_counts_blocks_and_time() {
    let tables = measure("dir-reserve");
    let made = table(&tables, "dir-reserve-alternately-make-files");
    has_forms(made, "dir_ireserve");
    assert_eq!(made.rows, ["1", "15", "16", "40", "200"]);
    let cell = &made.cells[4][0];
    // 4 directories with 200 files: 800 inodes of 256 bytes.
    assert!(cell.detail("table blocks written").unwrap().median >= 50.0);
    assert!(cell.detail("inodes scanned by e2fsck").unwrap().median >= 800.0);
    if testkit::have("e2fsck") {
        assert!(cell.detail("e2fsck s").unwrap().median > 0.0);
    } else {
        testkit::skip("needs e2fsck");
    }
    assert!(made.cells[4][0].spread().unwrap().median > made.cells[0][0].spread().unwrap().median);
    let then = table(&tables, "dir-reserve-2007");
    assert!((then.cells[2][1].spread().unwrap().median - 1049.862).abs() < 0.001);
    assert_eq!(table(&tables, "dir-reserve-clock").rows.len(), 3);
}

#[test]
fn the_other_benches_have_their_tables() {
    let tables = measure("source-tree");
    let seconds = table(&tables, "source-tree-disk").cells[0][0]
        .spread()
        .unwrap();
    assert!(seconds.least > 0.0);
    let directory = directory();
    let thrice = Setup {
        rounds: 3,
        ..tiny(directory.path())
    };
    let append = Suite::named("append").unwrap();
    let tables = append.measure(&thrice, &mut |_| ()).unwrap();
    let cells = tables[0].cells.iter().flatten();
    assert!(cells.map(|cell| cell.samples.len()).all(|count| count == 3));
}

#[test]
fn each_device_beneath_is_measured_and_nothing_that_was_there_is_changed() {
    let (folder, on) = (directory(), directory());
    let image = folder.path().join("engine");
    let (kept, other) = (image.with_extension("file"), on.path().join("other"));
    let bytes: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(&kept, &bytes).unwrap();
    std::fs::write(&other, b"precious").unwrap();
    let setup = Setup {
        image: Some(image.clone()),
        ..tiny(on.path())
    };
    let mut heard = 0;
    let of = |name: &str| [Suite::named(name).unwrap()];
    let found = speeds(&of("fsync"), &setup, |_| heard += 1);
    let names: Vec<&str> = found.iter().map(|speed| speed.of.as_str()).collect();
    let paths = [&kept, &image, on.path()].map(|path: &Path| path.to_str().unwrap());
    assert_eq!(names, [&["memory"][..], &paths].concat());
    assert_eq!(heard, 4);
    for speed in &found {
        let figures = speed.figures.as_ref().unwrap();
        let all = [figures.write, figures.read, figures.flush];
        assert!(all.iter().all(|figure| *figure > 0.0), "{speed:?}");
        assert!(figures.flushes > 0 && figures.batch > 0, "{speed:?}");
    }
    assert!(std::fs::read(&kept).unwrap() == bytes);
    assert_eq!(std::fs::read(&other).unwrap(), b"precious");
    for place in [folder.path(), on.path()] {
        assert_eq!(place.read_dir().unwrap().count(), 1);
    }
    // Where a bench leaves that file alone, so does this; what can't be measured says so.
    let nowhere = Setup {
        on: vec![folder.path().join("nowhere")],
        ..setup
    };
    let found = speeds(&of("stat"), &nowhere, |_| ());
    assert!(
        found
            .iter()
            .all(|speed| *speed.of != *kept.to_str().unwrap())
    );
    assert!(found.last().unwrap().figures.is_err());
}

#[test]
fn the_bench_of_fsync_has_what_was_to_be_reached() {
    let setup = Setup {
        on: Vec::new(),
        flush: Some(Duration::ZERO),
        ..tiny(Path::new(""))
    };
    let suite = Suite::named("fsync").unwrap();
    let tables = suite.measure(&setup, &mut |_| ()).unwrap();
    for key in [
        "fsync-overwrite-0us",
        "fsync-sparse-fourth-0us",
        "varmail-0us",
        "sqlite-rollback-0us",
        "sqlite-wal-0us",
        "mail-spool-0us",
    ] {
        let cell = &table(&tables, key).cells[1][0];
        assert!(
            cell.detail("fsyncs/operation").unwrap().least > 0.0,
            "{key}"
        );
        let (p50, p99) = ("fsync p50 us", "fsync p99 us");
        assert!(cell.detail(p50).unwrap().least <= cell.detail(p99).unwrap().greatest);
    }
    let wal = &table(&tables, "sqlite-wal-0us").cells[0][0];
    assert!((wal.detail("fsyncs/operation").unwrap().median - 1.0).abs() < 0.02);
    let alone = table(&tables, "fsync-alone-0us");
    assert_eq!(alone.rows.len(), 2 * 9);
    let goals = table(&tables, "fsync-goals-0us");
    let measured = |row: usize| goals.cells[row][1].spread().unwrap().median;
    // So few operations may do without the log on a busy machine: then there is nothing to say of its log commits.
    let logs = |names: &[&str]| {
        let of = |name: &&str| &table(&tables, &format!("{name}-0us")).cells;
        let mut cells = names.iter().flat_map(of);
        cells.any(|row| row[0].counter("fsync.log_commits") > 0.0)
    };
    let writing = [
        "fsync-overwrite",
        "fsync-fourth",
        "fsync",
        "fsync-sparse",
        "fsync-sparse-fourth",
    ];
    let mixes = ["varmail", "sqlite-rollback", "sqlite-wal", "mail-spool"];
    let logged = [logs(&writing), logs(&mixes)];
    assert_eq!(
        goals.rows.len(),
        3 + logged.into_iter().map(usize::from).sum::<usize>(),
        "{:?}",
        goals.rows
    );
    // Parents locked and nodes split by a file's second fsync in a transaction; items changed in place instead.
    assert_eq!((measured(0), measured(1), measured(2)), (0.0, 0.0, 1.0));
    assert!(measured(3) >= 0.8, "{}", measured(3));
}

/// A mount by fuse2fs, which does not say what is listed, and keeps what is removed while it is open.
struct Fuse2fs(tempfile::TempDir);

impl Fuse2fs {
    /// None where the programs or the rights are not there.
    fn mount() -> Option<Fuse2fs> {
        let there = ["mke2fs", "fuse2fs", "umount"]
            .iter()
            .all(|name| testkit::have(name));
        if !there || !testkit::is_root() || !Path::new("/dev/fuse").exists() {
            testkit::skip("needs mke2fs, fuse2fs and root");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let (image, at) = (folder.path().join("image"), folder.path().join("mount"));
        std::fs::create_dir(&at).unwrap();
        let [image, at] = [&image, &at].map(|path| path.to_str().unwrap().to_owned());
        let features = "^orphan_file,^metadata_csum_seed";
        testkit::mke2fs(&["-q", "-t", "ext4", "-O", features, &image, "64M"]);
        testkit::run("fuse2fs", &["-o", "rw", &image, &at]);
        Some(Fuse2fs(folder))
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("mount")
    }
}

impl Drop for Fuse2fs {
    fn drop(&mut self) {
        let unmounted = std::process::Command::new("umount")
            .arg(self.path())
            .status();
        assert!(unmounted.is_ok_and(|status| status.success()));
    }
}

#[test]
fn workloads_run_on_fuse2fs_and_remove_what_they_made() {
    let Some(mount) = Fuse2fs::mount() else {
        return;
    };
    let directory = HostDirectory::open(&mount.path(), false).unwrap();
    let contenders = [Contender::new("fuse2fs", "system calls", directory)];
    for workload in [
        Workload::Append,
        Workload::Overwrite,
        Workload::OpenUnlink,
        Workload::Mongo,
    ] {
        let plan = MeasurePlan {
            workload,
            workers: vec![1, 2],
            rounds: 1,
            stop: Stop::Time(Duration::from_millis(5)),
            seed: 1,
        };
        run(&plan, &contenders, &mut |_| {}).unwrap();
    }
    let suite = Suite::named("dir-reserve").unwrap();
    let setup = Setup {
        engine: false,
        ..tiny(&mount.path())
    };
    let tables = suite.measure(&setup, &mut |_| {}).unwrap();
    let samples = |table: &Table| {
        table
            .cells
            .iter()
            .flatten()
            .map(|cell| cell.samples.len())
            .sum::<usize>()
    };
    assert!(tables.iter().map(samples).sum::<usize>() > 0);
    drop(contenders);
    let left = mount
        .path()
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["lost+found"]);
}
