//! Far more fsyncs at once than a mount has threads: what they promised is in the image, and the mount ends in order,
//! also while they are under way.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;

use crate::served::{Served, can_mount, image};

/// Threads that sync: four times the threads that answer.
const WRITERS: usize = 16;
const OPTIONS: &str = "threads=4,commit=300";
const BLOCK: usize = 4096;
/// The most threads of a server without requests: those that answer, and a few of the engine's.
const FEW: usize = 12;
const PATIENCE: Duration = Duration::from_secs(30);
/// Until a mount is taken away.
const UNDER_WAY: Duration = Duration::from_millis(60);

fn block(writer: usize, number: usize) -> Vec<u8> {
    let word = (writer * 1_000_003 + number + 1) as u64;
    word.to_le_bytes().repeat(BLOCK / 8)
}

fn name(writer: usize) -> String {
    format!("w{writer}")
}

/// A writer's file and its directory, opened while the mount is there.
fn opened(root: &Path, writer: usize) -> (File, File) {
    let file = File::create(root.join(name(writer))).unwrap();
    let directory = File::open(root).unwrap();
    directory.sync_all().unwrap();
    (file, directory)
}

/// Writes a block and syncs it, again and again, and the directory now and then; says how many blocks are promised,
/// at an error too.
fn write_and_sync((file, directory): (File, File), writer: usize, most: usize) -> usize {
    for number in 0..most {
        let write = || -> io::Result<()> {
            file.write_all_at(&block(writer, number), (number * BLOCK) as u64)?;
            match number % 5 {
                1 | 3 => file.sync_data(),
                4 => directory.sync_all().and_then(|()| file.sync_all()),
                _ => file.sync_all(),
            }
        };
        if write().is_err() {
            return number;
        }
    }
    most
}

/// All write and sync at once, while something else is done.
fn all_at_once(root: &Path, most: usize, meanwhile: impl FnOnce()) -> Vec<usize> {
    let files: Vec<_> = (0..WRITERS).map(|writer| opened(root, writer)).collect();
    std::thread::scope(|scope| {
        let write = |(writer, files)| scope.spawn(move || write_and_sync(files, writer, most));
        let writers: Vec<_> = files.into_iter().enumerate().map(write).collect();
        meanwhile();
        let promised = writers.into_iter().map(|writer| writer.join().unwrap());
        promised.collect()
    })
}

/// That each writer's file has at least what was promised to it, and nothing else.
fn check(root: &Path, promised: &[usize]) {
    for (writer, &blocks) in promised.iter().enumerate() {
        let file = File::open(root.join(name(writer))).unwrap();
        let len = file.metadata().unwrap().len() as usize;
        assert!(len >= blocks * BLOCK, "{writer}: {len} of {blocks} blocks");
        for number in 0..blocks {
            let mut found = vec![0; BLOCK];
            file.read_exact_at(&mut found, (number * BLOCK) as u64)
                .unwrap();
            assert!(found == block(writer, number), "{writer}: {number}");
        }
    }
}

/// The image has what was promised, for the kernel, and e2fsck finds nothing wrong.
fn check_image(image: &Path, promised: &[usize]) {
    testkit::e2fsck(image);
    let mounted = testkit::KernelMount::with(image, "loop,ro").unwrap();
    check(&mounted.path(), promised);
}

fn threads_of(process: u32) -> usize {
    let list = fs::read_dir(format!("/proc/{process}/task"));
    list.map_or(0, Iterator::count)
}

#[test]
fn sixteen_that_sync_at_once_find_all_of_it_on_a_mount_with_four_threads() {
    if !can_mount() {
        return;
    }
    for options in [&["-O", "fast_commit", "-J", "size=8"][..], &[]] {
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path(), "image", 96 << 20, options);
        let served = Served::start(&path, OPTIONS);
        let promised = all_at_once(served.path(), 100, || ());
        assert_eq!(promised, [100; WRITERS]);
        check(served.path(), &promised);
        if options.is_empty() {
            // The threads that waited for the disk have nothing to do any more, and end.
            let begin = Instant::now();
            while threads_of(served.process()) > FEW {
                assert!(begin.elapsed() < PATIENCE);
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        served.unmount();
        check_image(&path, &promised);
    }
}

#[test]
fn a_mount_that_is_taken_away_while_sixteen_sync_closes_its_image() {
    if !can_mount() {
        return;
    }
    let cut = UnmountFlags::FORCE | UnmountFlags::DETACH;
    for flags in [cut, UnmountFlags::DETACH] {
        for round in 0..3 {
            let folder = tempfile::tempdir().unwrap();
            let options = ["-O", "fast_commit", "-J", "size=8"];
            let path = image(folder.path(), "image", 96 << 20, &options);
            let mut served = Served::start(&path, OPTIONS);
            let promised = all_at_once(served.path(), 400, || {
                std::thread::sleep(UNDER_WAY);
                rustix::mount::unmount(served.path(), flags).unwrap();
            });
            assert!(served.wait().success(), "{flags:?}, round {round}");
            check_image(&path, &promised);
        }
    }
}
