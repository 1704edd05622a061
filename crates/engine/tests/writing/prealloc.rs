//! Blocks kept for growing files: files lie in few pieces, no block is lost, none is out of reach.

use std::collections::HashMap;
use std::path::Path;

use device::BlockDevice;
use lanefs_engine::{Allocate, Error, FsBlock, Ino, InodeFs, MountOptions, NewInode};
use ondisk::Group;
use simulate::CowDevice;
use sync::Arc;
use sync::atomic::{AtomicUsize, Ordering};

use crate::files::{contents, judge_image, opened};
use crate::image::{clock, make, open, record, sweep};

const NEW: NewInode = NewInode {
    mode: 0o644,
    umask: 0,
    uid: 0,
    gid: 0,
    held: true,
};

/// Ends the growth of a file.
type End = fn(&InodeFs, Ino);

/// What was counted under this name.
fn counted(fs: &InodeFs, name: &str) -> u64 {
    let counters: HashMap<_, _> = fs.counters().into_iter().collect();
    counters[name]
}

/// The runs of a file's blocks: where each begins on the device, and how long it is.
fn runs(fs: &InodeFs, ino: Ino) -> Vec<(u64, u64)> {
    let mappings = fs.mappings_in(ino, 0..1 << 31).unwrap().into_iter();
    mappings
        .filter_map(|run| Some((run.physical?.0, run.len)))
        .collect()
}

/// In how many pieces each of these files of the root lies, as debugfs says.
fn pieces(device: &Arc<CowDevice>, names: &[String]) -> Vec<u64> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, &device.bytes());
    let of = |path: &Path, name: &String| {
        let request = format!("filefrag /{name}");
        let output = testkit::debugfs(&["-R", &request, path.to_str().unwrap()]);
        let text = String::from_utf8(output.stdout).unwrap();
        let count = text.split(": ").nth(1).unwrap();
        count.split_whitespace().next().unwrap().parse().unwrap()
    };
    names.iter().map(|name| of(&path, name)).collect()
}

/// Appends 4 KiB to each of these files in turns, until each has `blocks`.
fn append_in_turns(fs: &InodeFs, files: &[Ino], blocks: u64) {
    for block in 0..blocks {
        for ino in files {
            fs.write(*ino, block * 4096, &[7; 4096]).unwrap();
        }
    }
}

fn create(fs: &InodeFs, count: usize) -> (Vec<String>, Vec<Ino>) {
    let names: Vec<String> = (0..count).map(|number| format!("file{number}")).collect();
    let make = |name: &String| fs.create(Ino::ROOT, name.as_bytes(), NEW).unwrap();
    let files = names.iter().map(make).collect();
    (names, files)
}

#[test]
fn files_that_grow_in_turns_lie_in_few_pieces() {
    let Some(image) = make(&["-b", "4096"], 96 << 20) else {
        return;
    };
    let mut most = Vec::new();
    for form in ["prealloc=on", "prealloc=off"] {
        let (device, fs) = opened(&image);
        fs.choose(form).unwrap();
        let (names, files) = create(&fs, 4);
        append_in_turns(&fs, &files, 160);
        let ours: Vec<u64> = files
            .iter()
            .map(|ino| runs(&fs, *ino).len() as u64)
            .collect();
        for ino in &files {
            fs.release(*ino).unwrap();
        }
        assert_eq!(counted(&fs, "prealloc.hits") > 0, form == "prealloc=on");
        fs.close().unwrap();
        judge_image(&device);
        assert_eq!(pieces(&device, &names), ours);
        most.push(*ours.iter().max().unwrap());
    }
    assert!(most[0] <= 9, "{most:?}");
    assert!(most[1] > 120, "the twin shows what it is for: {most:?}");
}

#[test]
fn small_steps_of_fallocate_by_threads_give_files_in_few_pieces() {
    let Some(image) = make(&["-b", "4096"], 96 << 20) else {
        return;
    };
    let (device, fs) = opened(&image);
    let (names, files) = create(&fs, 4);
    sync::thread::workers(4, |thread| {
        for step in 0..256 {
            fs.allocate(files[thread], Allocate::Grow, step * 8192, 8192)
                .unwrap();
        }
    });
    for ino in &files {
        assert_eq!(fs.metadata(*ino).unwrap().blocks, 2 * 2048);
        fs.release(*ino).unwrap();
    }
    // One refill for many steps.
    let refills = counted(&fs, "prealloc.refills") + counted(&fs, "prealloc.lane_refills");
    assert!(refills <= 4 * 12, "{refills}");
    assert_eq!(counted(&fs, "prealloc.blocks"), counted_for_lanes(&fs));
    fs.close().unwrap();
    judge_image(&device);
    let pieces = pieces(&device, &names);
    assert!(pieces.iter().all(|count| *count <= 12), "{pieces:?}");
}

/// Blocks that threads keep for small files, when no file keeps any: less than a run each.
fn counted_for_lanes(fs: &InodeFs) -> u64 {
    let blocks = counted(fs, "prealloc.blocks");
    assert!(blocks <= counted(fs, "prealloc.lane_refills") * 512);
    blocks
}

#[test]
fn small_files_of_a_thread_lie_side_by_side_and_those_of_another_elsewhere() {
    let Some(image) = make(&["-b", "1024"], 64 << 20) else {
        return;
    };
    let (device, fs) = opened(&image);
    let directory = fs.mkdir(Ino::ROOT, b"directory", NEW).unwrap();
    let turn = AtomicUsize::new(0);
    let made: Vec<Vec<Ino>> = sync::thread::scope(|scope| {
        let worker = |thread: usize| {
            let (fs, turn) = (&fs, &turn);
            move || {
                let mut files = Vec::new();
                for number in 0..30 {
                    // Acquire: the other's files come before; pairs with the Release below.
                    while turn.load(Ordering::Acquire) != 2 * number + thread {
                        sync::thread::yield_now();
                    }
                    let name = format!("{thread}-{number}").into_bytes();
                    let ino = fs.create(directory, &name, NEW).unwrap();
                    fs.write(ino, 0, &[7; 5000]).unwrap();
                    files.push(ino);
                    // Release: pairs with the Acquire above.
                    turn.fetch_add(1, Ordering::Release);
                }
                files
            }
        };
        let workers: Vec<_> = (0..2).map(|thread| scope.spawn(worker(thread))).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .collect()
    });
    let geometry = *fs.geometry();
    let mut groups = Vec::new();
    for files in &made {
        let of: Vec<(u64, u64)> = files.iter().flat_map(|ino| runs(&fs, *ino)).collect();
        assert!(of.iter().all(|(_, len)| *len == 5), "{of:?}");
        let gaps = of.windows(2).filter(|pair| pair[0].0 + 5 != pair[1].0);
        // A run of this length ends once or twice.
        assert!(gaps.count() <= 2, "{of:?}");
        groups.push(geometry.group_of_block(FsBlock(of[0].0)));
    }
    assert_ne!(groups[0], groups[1]);
    // The first group of the one flexible group is left to directories, which lie in their inodes' groups.
    assert!(
        geometry.flex_size() >= 8 && !groups.contains(&Some(Group(0))),
        "{groups:?}"
    );
    let block = FsBlock(runs(&fs, directory)[0].0);
    let of_inode = geometry.group_of_ino(directory).map(|(group, _)| group);
    assert_eq!(geometry.group_of_block(block), of_inode);
    fs.close().unwrap();
    judge_image(&device);
}

/// The block that each directory begins with.
fn first_blocks(fs: &InodeFs, directories: &[Ino]) -> Vec<u64> {
    let first = |ino: &Ino| runs(fs, *ino)[0].0;
    directories.iter().map(first).collect()
}

fn make_directories(fs: &InodeFs, parent: Ino, prefix: &str, count: usize) -> Vec<Ino> {
    let make = |number| {
        let name = format!("{prefix}{number}").into_bytes();
        fs.mkdir(parent, &name, NEW).unwrap()
    };
    (0..count).map(make).collect()
}

#[test]
fn directories_of_a_thread_lie_side_by_side_where_they_would_without_kept_blocks() {
    let Some(image) = make(&["-b", "1024", "-N", "4096"], 64 << 20) else {
        return;
    };
    let mut places = Vec::new();
    for form in ["prealloc=on", "prealloc=off"] {
        let (device, fs) = opened(&image);
        fs.choose(form).unwrap();
        let before = fs.statfs().unwrap().free;
        let parent = fs.mkdir(Ino::ROOT, b"parent", NEW).unwrap();
        // One directory keeps nothing.
        assert_eq!(counted(&fs, "prealloc.blocks"), 0);
        let directories = make_directories(&fs, parent, "directory", 200);
        let is_on = form == "prealloc=on";
        assert_eq!(counted(&fs, "prealloc.lane_hits") > 150, is_on);
        assert_eq!(counted(&fs, "prealloc.blocks") > 0, is_on);
        // What is kept counts as free.
        let grown = fs.metadata(parent).unwrap().blocks / 2;
        assert_eq!(fs.statfs().unwrap().free, before - 200 - grown);
        places.push((first_blocks(&fs, &directories), runs(&fs, parent)));
        fs.choose("prealloc=off").unwrap();
        assert_eq!(counted(&fs, "prealloc.blocks"), 0);
        assert_eq!(fs.statfs().unwrap().free, before - 200 - grown);
        fs.close().unwrap();
        judge_image(&device);
    }
    // Except a block of the parent's extents, which lies behind what is kept.
    let [on, off] = places.try_into().unwrap();
    let near = |on: &u64, off: &u64| on.abs_diff(*off) <= 1;
    assert!(on.0.iter().zip(&off.0).all(|(on, off)| near(on, off)));
    let parents = on.1.iter().zip(&off.1);
    assert!(on.1.len() == off.1.len() && parents.into_iter().all(|(on, off)| near(&on.0, &off.0)));
}

#[test]
fn directories_of_two_threads_in_one_group_rarely_change_it() {
    let Some(image) = make(&["-b", "4096", "-N", "8192"], 256 << 20) else {
        return;
    };
    let (device, fs) = opened(&image);
    let parents = ["one", "other"].map(|name| fs.mkdir(Ino::ROOT, name.as_bytes(), NEW).unwrap());
    let searches = counted(&fs, "mballoc.searches");
    let made: Vec<Vec<Ino>> = sync::thread::scope(|scope| {
        let workers = parents.map(|parent| {
            let fs = &fs;
            scope.spawn(move || make_directories(fs, parent, "directory", 400))
        });
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .collect()
    });
    let searches = counted(&fs, "mballoc.searches") - searches;
    assert!(searches <= 2 * 5, "{searches}");
    for directories in &made {
        let first = first_blocks(&fs, directories);
        let gaps = first
            .windows(2)
            .filter(|pair| pair[0].abs_diff(pair[1]) > 4);
        assert!(gaps.count() <= 4, "{first:?}");
    }
    fs.close().unwrap();
    judge_image(&device);
}

#[test]
fn blocks_kept_for_directories_are_given_back_before_there_is_no_space() {
    let Some(image) = make(&["-b", "1024", "-N", "2048"], 8 << 20) else {
        return;
    };
    let (device, fs) = opened(&image);
    let parent = fs.mkdir(Ino::ROOT, b"parent", NEW).unwrap();
    make_directories(&fs, parent, "directory", 40);
    assert!(counted(&fs, "prealloc.blocks") > 0);
    let pool = (fs.geometry().blocks_count() - 1) / 50;
    // Another thread takes all there is.
    let filler = fs.create(Ino::ROOT, b"filler", NEW).unwrap();
    let fill = || {
        let mut size = 0;
        loop {
            match fs.write(filler, size, &[7; 1000]) {
                Ok(written) => size += written as u64,
                Err(Error::NoSpace) => return size,
                Err(error) => panic!("{error}"),
            }
        }
    };
    let size = sync::thread::scope(|scope| scope.spawn(fill).join().unwrap());
    assert_eq!(counted(&fs, "prealloc.blocks"), 0);
    assert!(fs.statfs().unwrap().free <= pool);
    let refused = fs.mkdir(parent, b"refused", NEW);
    assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
    // Directories use up what is free again to the same bound: the last one had needed a few blocks.
    fs.truncate(filler, size - (300 << 10)).unwrap();
    let mut more = (0..1000).map(|number| fs.mkdir(parent, format!("{number}").as_bytes(), NEW));
    let end = more.find(Result::is_err);
    assert!(matches!(end, Some(Err(Error::NoSpace))), "{end:?}");
    assert!(fs.statfs().unwrap().free <= pool + 3);
    assert_eq!(counted(&fs, "prealloc.blocks"), 0);
    fs.close().unwrap();
    judge_image(&device);
}

#[test]
fn what_a_file_does_not_use_is_given_back_and_counts_as_free_meanwhile() {
    let Some(image) = make(&["-b", "1024"], 48 << 20) else {
        return;
    };
    let (device, fs) = opened(&image);
    let ends: [(&str, End); 5] = [
        ("closed", |fs, ino| fs.closed(ino)),
        ("released", |fs, ino| fs.release(ino).unwrap()),
        ("cut", |fs, ino| fs.truncate(ino, 60_000).unwrap()),
        ("punched", |fs, ino| {
            fs.allocate(ino, Allocate::Punch, 0, 4096).unwrap();
        }),
        ("removed", |fs, ino| {
            fs.release(ino).unwrap();
            fs.unlink(Ino::ROOT, b"removed").unwrap();
        }),
    ];
    for (name, end) in ends {
        let before = fs.statfs().unwrap().free;
        let ino = fs.create(Ino::ROOT, name.as_bytes(), NEW).unwrap();
        let idle = counted(&fs, "prealloc.blocks");
        fs.write(ino, 0, &[7; 50_000]).unwrap();
        fs.write(ino, 50_000, &[7; 20_000]).unwrap();
        let held = counted(&fs, "prealloc.blocks");
        assert!(held > idle, "{name}: {held}");
        let taken = fs.metadata(ino).unwrap().blocks / 2;
        assert_eq!(fs.statfs().unwrap().free, before - taken, "{name}");
        end(&fs, ino);
        assert_eq!(counted(&fs, "prealloc.blocks"), idle, "{name}");
    }
    let ino = fs.create(Ino::ROOT, b"frozen", NEW).unwrap();
    fs.write(ino, 0, &[7; 70_000]).unwrap();
    assert!(counted(&fs, "prealloc.blocks") > 0);
    fs.freeze().unwrap();
    assert_eq!(counted(&fs, "prealloc.blocks"), 0);
    fs.thaw().unwrap();
    fs.close().unwrap();
    judge_image(&device);
}

#[test]
fn a_full_image_has_no_block_that_is_only_kept() {
    for size in [4, 16] {
        let Some(image) = make(&["-b", "1024", "-N", "256"], size << 20) else {
            return;
        };
        let (device, fs) = opened(&image);
        // Each keeps something and stays open.
        let (_, idle) = create(&fs, 20);
        for ino in &idle {
            fs.write(*ino, 0, &[7; 20_000]).unwrap();
        }
        let before = fs.statfs().unwrap();
        let made: Vec<Ino> = (0..8)
            .map(|number| format!("filler{number}").into_bytes())
            .map(|name| fs.create(Ino::ROOT, &name, NEW).unwrap())
            .collect();
        sync::thread::workers(4, |thread| {
            let mut sizes = [0; 2];
            let mut full = [false; 2];
            while full != [true; 2] {
                for which in 0..2 {
                    let ino = made[thread * 2 + which];
                    match fs.write(ino, sizes[which], &[7; 1500]) {
                        Ok(written) => sizes[which] += written as u64,
                        Err(Error::NoSpace) => full[which] = true,
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
        let full = fs.statfs().unwrap();
        let pool = (fs.geometry().blocks_count() - 1) / 50;
        assert!(full.free <= pool, "{full:?}, {pool}");
        assert_eq!(counted(&fs, "prealloc.blocks"), 0);
        assert!(size == 4 || counted(&fs, "prealloc.discards") > 0);
        let of = |ino: &Ino| fs.metadata(*ino).unwrap().blocks / 2;
        let taken: u64 = made.iter().map(of).sum();
        assert_eq!(before.free - full.free, taken);
        // What kept them goes on where there is room again. A thread that ran late may have got next to nothing.
        for ino in &made {
            fs.truncate(*ino, 0).unwrap();
        }
        assert_eq!(fs.write(idle[0], 20_000, &[8; 9000]).unwrap(), 9000);
        assert_eq!(contents(&fs, idle[0])[20_000..], [8; 9000]);
        fs.close().unwrap();
        judge_image(&device);
    }
}

#[test]
fn writes_into_the_middle_of_a_hole_use_what_was_kept_around_them() {
    let Some(image) = make(&["-b", "1024"], 64 << 20) else {
        return;
    };
    let (device, fs) = opened(&image);
    let (names, files) = create(&fs, 2);
    let mut expected = vec![0; 400 << 10];
    // Each block once, in an order that jumps about, while another file grows.
    for step in 0..400 {
        let block = step * 149 % 400;
        let at = block * 1024;
        expected[at..at + 1024].fill(1 + (step % 200) as u8);
        fs.write(files[0], at as u64, &expected[at..at + 1024])
            .unwrap();
        fs.write(files[1], step as u64 * 1024, &[9; 1024]).unwrap();
    }
    assert!(contents(&fs, files[0]) == expected);
    fs.close().unwrap();
    judge_image(&device);
    let pieces = pieces(&device, &names);
    assert!(pieces[0] <= 40 && pieces[1] <= 12, "{pieces:?}");
}

#[test]
fn no_cut_loses_a_block_that_was_kept() {
    let Some(image) = make(&["-b", "1024", "-J", "size=1", "-N", "64"], 6 << 20) else {
        return;
    };
    let cuts = record(&image, |_, fs| {
        let (_, files) = create(&fs, 2);
        fs.sync().unwrap();
        for step in 0..12 {
            for ino in &files {
                fs.write(*ino, step * 3000, &[7; 3000]).unwrap();
            }
            if step % 4 == 3 {
                fs.sync().unwrap();
            }
        }
        fs.allocate(files[0], Allocate::KeepSize, 100_000, 9000)
            .unwrap();
        fs.truncate(files[1], 2000).unwrap();
        fs.write(files[1], 2000, &[8; 9000]).unwrap();
        // As after a crash.
        fs.sync().unwrap();
    });
    let mut all = None;
    let states = sweep(cuts, 2, |cut, _, fs| {
        let files = ["file0", "file1"].map(|name| fs.lookup(Ino::ROOT, name.as_bytes()));
        let of = |ino: &Ino| fs.metadata(*ino).unwrap().blocks / 2;
        let taken: u64 = files.iter().flatten().map(of).sum();
        let sum = fs.statfs().unwrap().free + taken;
        assert_eq!(*all.get_or_insert(sum), sum, "{cut}");
    });
    assert!(states > 20, "{states}");
}

#[test]
fn inodes_leave_memory_however_many_files_were_written() {
    let Some(image) = make(&["-b", "1024", "-N", "4096"], 64 << 20) else {
        return;
    };
    let device = Arc::new(CowDevice::new(image.into()));
    let options = MountOptions {
        live_inodes: 64,
        ..MountOptions::default()
    };
    let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let fs = InodeFs::open_for_writing(shared, &options, clock).unwrap();
    let before = fs.statfs().unwrap().free;
    let mut taken = 0;
    for number in 0..700 {
        let name = format!("file{number}").into_bytes();
        let new = NewInode { held: false, ..NEW };
        let ino = fs.create(Ino::ROOT, &name, new).unwrap();
        // It is not open, and grows all the same.
        fs.write(ino, 0, &[7; 20_000]).unwrap();
        fs.write(ino, 20_000, &[7; 3000]).unwrap();
        taken += fs.metadata(ino).unwrap().blocks / 2;
        if number % 100 == 0 {
            fs.sync().unwrap();
        }
    }
    // A few hundred files keep something, at most 9 blocks each, besides this thread's run.
    let kept = counted(&fs, "prealloc.blocks");
    assert!((1..=256 * 9 + 4 * 512).contains(&kept), "{kept}");
    let root = fs.metadata(Ino::ROOT).unwrap().blocks / 2 - 1;
    assert_eq!(fs.statfs().unwrap().free, before - taken - root);
    fs.close().unwrap();
    judge_image(&device);
    drop(open(device as Arc<dyn BlockDevice>));
}
