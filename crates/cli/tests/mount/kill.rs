//! The server is killed while eight threads write: whatever was fsynced is whole afterwards, for lanefs, for e2fsck and
//! for the kernel, and nobody needs an fsck first. The image is a file, or on a disk that loses its power at the same
//! time and drops or tears what was not flushed.
//!
//! A writer reports what it was promised before and after each call that may be cut: a file counts once its fsync has
//! returned, under its name, or either of two while it is being renamed; it need not be there once its removal has
//! begun.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use testkit::{FailingDisk, KernelMount, Random};

use crate::served::{Served, can_mount, image};

const WRITERS: u64 = 8;
/// In CI.
const FEW: u64 = 3;
/// In the long run.
const MANY: u64 = 200;
/// In the long run, the kernel mounts the image as the kill left it once in this number of rounds.
const KERNEL_EVERY: u64 = 5;

/// A file whose fsync has returned.
struct Promised {
    /// Where it may be, relative to the mount.
    names: Vec<String>,
    seed: u64,
    len: usize,
    may_be_gone: bool,
}

fn contents(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(seed).fill(&mut bytes);
    bytes
}

/// Makes, syncs, renames and removes files until the mount fails; gives what it was promised.
fn write_until_cut(root: &Path, round: u64, writer: u64, stop: &AtomicBool) -> Vec<Promised> {
    let mut random = Random::new((round + 1) * 1000 + writer);
    let mut promised: Vec<Promised> = Vec::new();
    let mut number = 0;
    let own = format!("r{round}/w{writer}");
    if fs::create_dir(root.join(&own)).is_err() {
        return promised;
    }
    // Relaxed: only a wish to end.
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        if step(root, &own, number, &mut random, &mut promised).is_err() {
            break;
        }
    }
    promised
}

fn step(
    root: &Path,
    own: &str,
    number: u64,
    random: &mut Random,
    promised: &mut Vec<Promised>,
) -> io::Result<()> {
    // Half of the names are in the directory that all writers share.
    let shared = own.split('/').next().unwrap_or(own);
    let name = match random.below(2) {
        0 => format!("{own}/f{number}"),
        _ => format!("{shared}/{}-f{number}", own.replace('/', "-")),
    };
    let (seed, len) = (random.bits(), random.below(60_000) as usize);
    let bytes = contents(seed, len);
    let mut file = File::create_new(root.join(&name))?;
    for part in bytes.chunks(1 + random.below(40_000) as usize) {
        file.write_all(part)?;
    }
    // Only the result of the call says whether the file was synced: nothing can be asked of a mount that was killed.
    let is_promised = match random.below(4) {
        0 => fs::create_dir(root.join(format!("{own}/d{number}"))).map(|()| false),
        1 => file.sync_data().map(|()| true),
        _ => file.sync_all().map(|()| true),
    }?;
    drop(file);
    if !is_promised {
        return Ok(());
    }
    promised.push(Promised {
        names: vec![name],
        seed,
        len,
        may_be_gone: false,
    });
    let chosen = random.below(promised.len() as u64) as usize;
    let old = &mut promised[chosen];
    match random.below(5) {
        0 => {
            old.may_be_gone = true;
            fs::remove_file(root.join(old.names.last().unwrap()))?;
            promised.swap_remove(chosen);
        }
        1 => {
            let new = format!("{shared}/moved-{}-{number}", own.replace('/', "-"));
            let from = root.join(old.names.last().unwrap());
            old.names.push(new.clone());
            fs::rename(from, root.join(new))?;
        }
        _ => {}
    }
    Ok(())
}

/// Every promised file is whole; gives how many there are.
fn check(root: &Path, promised: &[Promised], who: &str) -> usize {
    for file in promised {
        let found = file
            .names
            .iter()
            .find_map(|name| fs::read(root.join(name)).ok());
        match found {
            Some(found) => {
                let expected = contents(file.seed, file.len);
                assert!(found == expected, "{who}: {:?} is not whole", file.names);
            }
            None => assert!(file.may_be_gone, "{who}: {:?} is gone", file.names),
        }
    }
    promised.len()
}

/// e2fsck replays the journal of a copy, and then finds nothing wrong.
fn e2fsck_replays(copy: &Path) {
    let output = testkit::e2fsck_with(&["-fy"], copy);
    assert!(
        output.status.code().is_some_and(|code| code <= 1),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    testkit::e2fsck(copy);
}

/// Where the image is.
enum Place {
    File(PathBuf),
    Disk(FailingDisk),
}

impl Place {
    fn image(&self) -> PathBuf {
        match self {
            Place::File(path) => path.clone(),
            Place::Disk(disk) => disk.path(),
        }
    }

    /// What goes with the end of the server.
    fn lose(&self, round: u64) {
        if let Place::Disk(disk) = self {
            disk.cut_power(3 + round);
        }
    }

    fn copy(&self, folder: &Path) -> PathBuf {
        let copy = folder.join("copy");
        match self {
            Place::File(path) => {
                let (from, to) = (path.to_str().unwrap(), copy.to_str().unwrap());
                testkit::run("cp", &["--sparse=always", from, to]);
            }
            Place::Disk(disk) => testkit::write_image(&copy, &disk.bytes()),
        }
        copy
    }
}

/// Has all writers work on a mount until its server is killed; gives what they were promised.
fn work_until_killed(served: Served, round: u64) -> Vec<Promised> {
    let root = served.path().to_path_buf();
    let directory = root.join(format!("r{round}"));
    fs::create_dir(&directory).unwrap();
    // It is there afterwards, also if no writer gets as far as an fsync.
    File::open(&directory).unwrap().sync_all().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (root, stop) = (&root, &stop);
                scope.spawn(move || write_until_cut(root, round, writer, stop))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(200 + round * 37 % 700));
        served.kill();
        // Relaxed: only a wish to end.
        stop.store(true, Ordering::Relaxed);
        writers
            .into_iter()
            .flat_map(|writer| writer.join().unwrap())
            .collect()
    })
}

fn kill_again_and_again(rounds: u64, place: &Place) {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, mut kernels) = (0, 0);
    for round in 0..rounds {
        let served = Served::start(&place.image(), "commit=1");
        let promised = work_until_killed(served, round);
        place.lose(round);
        let copy = place.copy(folder.path());
        if round % KERNEL_EVERY == 0
            && let Ok(kernel) = KernelMount::with(&copy, "loop")
        {
            check(&kernel.path(), &promised, "the kernel");
            kernels += 1;
        }
        e2fsck_replays(&copy);
        let served = Served::start(&place.image(), "");
        files += check(served.path(), &promised, "lanefs");
        fs::remove_dir_all(served.path().join(format!("r{round}"))).unwrap();
        served.unmount();
        testkit::e2fsck(&place.image());
    }
    println!(
        "{rounds} kills, {files} files promised and whole, {kernels} states seen by the kernel too"
    );
    assert!(files > 0);
}

fn kill_on_a_file(rounds: u64, options: &[&str]) {
    if can_mount() {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path(), "a.img", 256 << 20, options);
        kill_again_and_again(rounds, &Place::File(image));
    }
}

fn kill_and_cut_power(rounds: u64, options: &[&str]) {
    if can_mount() {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path(), "a.img", 96 << 20, options);
        kill_again_and_again(
            rounds,
            &Place::Disk(FailingDisk::recording(&image).unwrap()),
        );
    }
}

#[test]
fn what_was_synced_survives_three_kills() {
    kill_on_a_file(FEW, &[]);
}

#[test]
#[ignore = "takes ten minutes: cargo xtask suites kill"]
fn what_was_synced_survives_two_hundred_kills() {
    kill_on_a_file(MANY, &[]);
}

#[test]
#[ignore = "takes ten minutes: cargo xtask suites kill"]
fn what_was_synced_survives_two_hundred_kills_with_power_cuts() {
    kill_and_cut_power(MANY / 2, &[]);
    kill_and_cut_power(MANY / 2, &["-O", "fast_commit", "-J", "size=16"]);
}

#[test]
#[ignore = "takes minutes: cargo xtask suites kill"]
fn what_was_synced_survives_kills_with_small_blocks_and_a_small_journal() {
    kill_on_a_file(
        MANY / 8,
        &["-b", "1024", "-J", "size=1", "-O", "orphan_file"],
    );
}
