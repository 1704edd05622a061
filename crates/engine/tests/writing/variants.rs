//! Each form of each mechanism, alone and mixed: what one leaves, the others take up, and e2fsck agrees.

use device::BlockDevice;
use lanefs_engine::{Allocate, Ino, InodeFs, MountOptions, NewInode, Variants};
use simulate::CowDevice;
use sync::Arc;
use sync::atomic::{AtomicBool, Ordering};
use sync::clock::Duration;

use crate::files::{contents, judge_image};
use crate::fsync_log::count;
use crate::image::{clock, make};

const NEW: NewInode = NewInode {
    mode: 0o600,
    umask: 0,
    uid: 0,
    gid: 0,
    held: false,
};

/// Every form of every mechanism, each with the defaults of all others, then mixed.
fn all() -> Vec<Variants> {
    let mut all = Vec::new();
    let mut mixed = Variants::default();
    for (name, values) in Variants::choices() {
        for value in values {
            let option = format!("{name}={value}");
            let mut alone = Variants::default();
            alone.set(&option).unwrap();
            mixed.set(&option).unwrap();
            all.extend([alone, mixed]);
        }
    }
    all
}

fn open(device: &Arc<CowDevice>, variants: Variants, reaper_thread: bool) -> InodeFs {
    let options = MountOptions {
        variants,
        reaper_thread,
        ..MountOptions::default()
    };
    let shared = Arc::clone(device) as Arc<dyn BlockDevice>;
    InodeFs::open_for_writing(shared, &options, clock).unwrap()
}

#[test]
fn the_forms_of_the_log_that_are_given_at_open_are_used() {
    let Some(image) = make(&["-b", "4096", "-O", "fast_commit"], 16 << 20) else {
        return;
    };
    for (option, is_in_place, is_left_out) in [
        ("log_update=inplace", true, true),
        ("log_update=insert", false, true),
        ("log_use=auto", true, true),
        ("log_use=always", true, false),
    ] {
        let mut variants = Variants::default();
        variants.set(option).unwrap();
        let fs = open(
            &Arc::new(CowDevice::new(image.as_slice().into())),
            variants,
            false,
        );
        let file = fs.create(Ino::ROOT, b"file", NEW).unwrap();
        for round in 0..12 {
            for half in 0..2 {
                fs.write(file, (2 * round + half) * 4096, &[1; 4096])
                    .unwrap();
                fs.fsync(file).unwrap();
            }
            // Two fsyncs a log are not worth making it ready.
            fs.sync().unwrap();
        }
        let in_place = count(&fs, "fsync.items_in_place");
        assert_eq!(in_place > 0, is_in_place, "{option}: {in_place}");
        let not_worth = count(&fs, "fsync.full_not_worth");
        assert_eq!(not_worth > 0, is_left_out, "{option}: {not_worth}");
        // Choosing anew forgets what was learned.
        fs.choose("log_use=always").unwrap();
        fs.choose("log_use=auto").unwrap();
        let logged = count(&fs, "fsync.log_commits");
        fs.write(file, 1 << 20, &[1; 4096]).unwrap();
        fs.fsync(file).unwrap();
        assert_eq!(count(&fs, "fsync.log_commits"), logged + 1, "{option}");
    }
}

#[test]
fn what_one_form_leaves_the_others_take_up() {
    let Some(image) = make(&["-b", "1024", "-O", "orphan_file"], 12 << 20) else {
        return;
    };
    let device = Arc::new(CowDevice::new(image.into()));
    let mut free = None;
    for (round, variants) in all().into_iter().enumerate() {
        let fs = open(&device, variants, round % 3 == 2);
        let byte = 1 + round as u8;
        // What the round before left without names is gone, and the rest is there.
        if let Some(last) = round.checked_sub(1) {
            let kept = fs.lookup(Ino::ROOT, b"kept").unwrap();
            assert_eq!(contents(&fs, kept), vec![1 + last as u8; 60_000]);
            fs.unlink(Ino::ROOT, b"kept").unwrap();
        }
        fs.sync().unwrap();
        let now = fs.statfs().unwrap();
        assert_eq!(
            *free.get_or_insert((now.free, now.free_files)),
            (now.free, now.free_files)
        );
        let kept = fs.create(Ino::ROOT, b"kept", NEW).unwrap();
        fs.write(kept, 0, &[byte; 60_000]).unwrap();
        for number in 0..6 {
            let name = format!("held{number}").into_bytes();
            let ino = fs.create(Ino::ROOT, &name, NEW).unwrap();
            for piece in 0..30 {
                fs.write(ino, piece * 40_960, &[byte; 20_000]).unwrap();
            }
            fs.hold(ino).unwrap();
            fs.unlink(Ino::ROOT, &name).unwrap();
            if number % 2 == 0 {
                fs.release(ino).unwrap();
            }
        }
        fs.sync().unwrap();
        // As after a crash; three of them are orphans still.
        drop(fs);
    }
    let fs = open(&device, Variants::default(), false);
    fs.close().unwrap();
    judge_image(&device);
}

/// Makes, fills, cuts, renames and removes files in a directory of its own until told to stop; how often.
fn work(fs: &InodeFs, number: usize, stop: &AtomicBool) -> usize {
    let name = format!("worker{number}").into_bytes();
    let directory = fs.mkdir(Ino::ROOT, &name, NEW).unwrap();
    let mut rounds = 0;
    // Relaxed: a flag to end the test.
    while !stop.load(Ordering::Relaxed) {
        let ino = fs.create(directory, b"file", NEW).unwrap();
        fs.write(ino, 0, &[number as u8; 70_000]).unwrap();
        fs.fsync(ino).unwrap();
        fs.append(ino, &[number as u8; 10]).unwrap();
        fs.fsync(ino).unwrap();
        fs.allocate(ino, Allocate::Grow, 100_000, 50_000).unwrap();
        fs.truncate(ino, 3000).unwrap();
        assert_eq!(contents(fs, ino), [number as u8; 3000]);
        let generation = fs.metadata(ino).unwrap().generation;
        let opened = fs.open_by_handle(ino, generation).unwrap().metadata();
        assert_eq!((opened.ino, opened.size), (ino, 3000));
        fs.release(ino).unwrap();
        fs.hold(ino).unwrap();
        fs.unlink(directory, b"file").unwrap();
        fs.truncate(ino, 0).unwrap();
        fs.release(ino).unwrap();
        assert!(fs.open_by_handle(ino, generation).is_err());
        let inner = fs.mkdir(directory, b"inner", NEW).unwrap();
        for name in [b"one", b"two"] {
            fs.create(inner, name, NEW).unwrap();
        }
        for name in [b"one", b"two"] {
            fs.unlink(inner, name).unwrap();
        }
        fs.rmdir(directory, b"inner").unwrap();
        rounds += 1;
    }
    fs.rmdir(Ino::ROOT, &name).unwrap();
    rounds
}

#[test]
fn each_form_is_switched_a_thousand_times_under_load() {
    let features = "orphan_file,fast_commit";
    // Enough groups for several goals, and to skip one.
    let geometry = ["-b", "1024", "-g", "1024", "-O", features, "-J", "size=4"];
    let Some(image) = make(&geometry, 32 << 20) else {
        return;
    };
    let device = Arc::new(CowDevice::new(image.into()));
    let options = MountOptions {
        reaper_thread: true,
        // Inodes leave memory meanwhile.
        live_inodes: 16,
        ..MountOptions::default()
    };
    let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let fs = InodeFs::open_for_writing(shared, &options, clock).unwrap();
    let before = fs.statfs().unwrap();
    let stop = AtomicBool::new(false);
    let rounds: usize = sync::thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|number| {
                let (fs, stop) = (&fs, &stop);
                scope.spawn(move || work(fs, number, stop))
            })
            .collect();
        for (name, values) in Variants::choices() {
            for value in values.iter().cycle().take(1000) {
                fs.choose(&format!("{name}={value}")).unwrap();
                sync::thread::sleep(Duration::from_micros(200));
            }
        }
        // Relaxed: a flag to end the test.
        stop.store(true, Ordering::Relaxed);
        let rounds = workers.into_iter().map(|worker| worker.join().unwrap());
        rounds.sum()
    });
    assert!(rounds > 20, "{rounds} rounds only");
    // The forms of the fsync log were switched while it was in use.
    let logged = count(&fs, "fsync.log_commits");
    assert!(logged > 20, "{logged} log commits only");
    // So were those of the inode cache, of orphans and of the groups: inodes left memory, slots were taken, and more
    // groups than one were used.
    for name in ["icache.evictions", "orphan.slots_taken"] {
        assert!(count(&fs, name) > 20, "{name}");
    }
    let groups = count(&fs, "mballoc.groups_loaded");
    assert!(groups >= 4, "{groups} groups only");
    let free = |fs: &InodeFs| {
        fs.sync().unwrap();
        let found = fs.statfs().unwrap();
        (found.free, found.free_files)
    };
    let before = (before.free, before.free_files);
    // The thread that reaps may still be deleting the last inode that was released.
    let mut tries = 0..1000;
    while free(&fs) != before && tries.next().is_some() {
        sync::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(free(&fs), before);
    fs.close().unwrap();
    judge_image(&device);
}
