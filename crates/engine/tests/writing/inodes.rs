//! Inodes that come into memory, leave it, are deleted and have their numbers used again, by all threads at once, in a
//! memory that holds hardly any; and handles, which must never lead to another file.

use device::BlockDevice;
use lanefs_engine::{Error, Generation, Ino, InodeFs, MountOptions, NewInode};
use model::Random;
use simulate::CowDevice;
use sync::thread::workers;
use sync::{Arc, Mutex, Rank};

use crate::files::{contents, judge_image};
use crate::image::{clock, make};

const NEW: NewInode = NewInode {
    mode: 0o600,
    umask: 0,
    uid: 0,
    gid: 0,
    held: false,
};

/// Opens the image with room for `live_inodes` inodes in memory.
fn open(device: &Arc<CowDevice>, live_inodes: usize) -> InodeFs {
    let options = MountOptions {
        live_inodes,
        ..MountOptions::default()
    };
    let shared = Arc::clone(device) as Arc<dyn BlockDevice>;
    InodeFs::open_for_writing(shared, &options, clock).unwrap()
}

fn counter(fs: &InodeFs, name: &str) -> u64 {
    let counters = fs.counters();
    let found = counters.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no counter {name}")).1
}

type Handle = (Ino, Generation);

fn handle(fs: &InodeFs, ino: Ino) -> Handle {
    (ino, fs.metadata(ino).unwrap().generation)
}

fn is_stale(fs: &InodeFs, (ino, generation): Handle) -> bool {
    match fs.open_by_handle(ino, generation) {
        Err(Error::Stale) => true,
        Err(error) => panic!("{error}"),
        Ok(_) => {
            fs.release(ino).unwrap();
            false
        }
    }
}

#[test]
fn a_handle_means_its_inode_as_long_as_that_is_there() {
    let Some(image) = make(&["-b", "1024", "-N", "64", "-O", "orphan_file"], 8 << 20) else {
        return;
    };
    let device = Arc::new(CowDevice::new(image.into()));
    let fs = open(&device, 1000);
    let file = fs.create(Ino::ROOT, b"file", NEW).unwrap();
    let (root, first) = (handle(&fs, Ino::ROOT), handle(&fs, file));
    assert!(!is_stale(&fs, root) && !is_stale(&fs, first));
    // The journal, the orphan file, no number at all, another generation.
    let orphans = fs.superblock().orphan_file_ino().unwrap();
    for (ino, generation) in [
        (Ino(8), Generation(0)),
        (orphans, handle(&fs, orphans).1),
        (Ino(0), Generation(0)),
        (Ino(100_000), Generation(0)),
        (file, Generation(first.1.0 ^ 1)),
        (Ino(file.0 + 1), Generation(0)),
    ] {
        assert!(is_stale(&fs, (ino, generation)), "{ino:?}");
    }
    fs.close().unwrap();

    // From the device.
    let fs = open(&device, 1000);
    assert!(is_stale(&fs, (file, Generation(first.1.0 ^ 1))));
    let inode = fs.open_by_handle(first.0, first.1).unwrap();
    assert_eq!(inode.metadata().ino, file);
    // It is held: without its name it is still there, and found.
    fs.unlink(Ino::ROOT, b"file").unwrap();
    assert!(!is_stale(&fs, first));
    assert_eq!(fs.metadata(file).unwrap().nlink, 0);
    fs.release(file).unwrap();
    assert!(is_stale(&fs, first));
    fs.sync().unwrap();
    assert!(is_stale(&fs, first));
    // Until the number is used again.
    let mut number = 0;
    let again = loop {
        number += 1;
        let name = format!("file{number}");
        match fs.create(Ino::ROOT, name.as_bytes(), NEW) {
            Ok(ino) if ino == file => break handle(&fs, ino),
            made => drop(made.unwrap()),
        }
    };
    assert_ne!(again.1, first.1);
    assert!(is_stale(&fs, first) && !is_stale(&fs, again));
    fs.close().unwrap();
    let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let fs = InodeFs::open(shared, &MountOptions::default()).unwrap();
    assert_eq!(
        fs.open_by_handle(again.0, again.1).unwrap().metadata().ino,
        file
    );
    let stale = fs.open_by_handle(first.0, first.1);
    assert!(matches!(stale.err(), Some(Error::Stale)));
    judge_image(&device);
}

#[test]
fn inodes_leave_memory_when_there_are_too_many_and_come_back_as_they_were() {
    let Some(image) = make(&["-b", "1024", "-N", "4096"], 16 << 20) else {
        return;
    };
    for form in ["rcu", "locked"] {
        let device = Arc::new(CowDevice::new(image.as_slice().into()));
        let fs = open(&device, 64);
        fs.choose(&format!("inode_lookup={form}")).unwrap();
        let mut files = Vec::new();
        for number in 0..1000u32 {
            let name = format!("file{number}");
            let ino = fs.create(Ino::ROOT, name.as_bytes(), NEW).unwrap();
            fs.write(ino, 0, &number.to_le_bytes()).unwrap();
            files.push(ino);
            if number % 50 == 49 {
                fs.sync().unwrap();
            }
        }
        fs.sync().unwrap();
        for _ in 0..3 {
            for (number, ino) in (0u32..).zip(&files) {
                assert_eq!(contents(&fs, *ino), number.to_le_bytes());
            }
        }
        let kept = counter(&fs, "icache.inodes");
        assert!(kept <= 64 + 64 / 16, "{form}: {kept}");
        assert!(counter(&fs, "icache.evictions") >= 3000 - 64);
        assert!(
            counter(&fs, "icache.finds") > 0 && counter(&fs, "icache.failed_finds") >= 3000 - 64
        );
        fs.close().unwrap();
        judge_image(&device);
    }
}

/// More threads than cores: a thread that lost its core while it looked into the table keeps others from evicting.
#[test]
fn many_threads_keep_no_more_inodes_than_few() {
    let Some(image) = make(&["-b", "1024", "-N", "20000"], 32 << 20) else {
        return;
    };
    for form in ["rcu", "locked"] {
        let device = Arc::new(CowDevice::new(image.as_slice().into()));
        let fs = open(&device, 512);
        fs.choose(&format!("inode_lookup={form}")).unwrap();
        let most = Mutex::new(Rank::Leaf, 0);
        workers(24, |number| {
            let mut random = Random::new(number as u64);
            for time in 0..6_000 {
                let _ = fs.inode(Ino(12 + random.below(16_000) as u32));
                if time % 256 == 0 {
                    let kept = counter(&fs, "icache.inodes");
                    let mut most = most.lock();
                    *most = kept.max(*most);
                }
            }
        });
        let most = most.into_inner();
        // A machine on which more than these threads want a core keeps more for a moment.
        assert!(most < 8 * 512, "{form}: {most} of 16,000");
    }
}

#[test]
fn a_thousand_inodes_in_memory_make_the_table_grow() {
    let Some(image) = make(&["-b", "1024", "-N", "20000"], 32 << 20) else {
        return;
    };
    let device = Arc::new(CowDevice::new(image.into()));
    let fs = open(&device, 100_000);
    let before = counter(&fs, "icache.buckets");
    for ino in 12..16_000 {
        let _ = fs.inode(Ino(ino));
    }
    assert!(counter(&fs, "icache.buckets") > before);
    assert!(counter(&fs, "icache.longest_chain") <= 40);
    assert!(counter(&fs, "icache.inodes") >= 15_000);
}

/// One thread's files: their names, handles and contents; and handles of files that are gone.
struct Worker<'a> {
    fs: &'a InodeFs,
    number: usize,
    directory: Ino,
    random: Random,
    files: Vec<(Vec<u8>, Handle, Vec<u8>)>,
    gone: Vec<Handle>,
    made: u32,
}

impl Worker<'_> {
    fn create(&mut self) {
        self.made += 1;
        let name = format!("file{}", self.made).into_bytes();
        let text = format!("{} of {}", self.made, self.number).into_bytes();
        let new = match self.fs.create(self.directory, &name, NEW) {
            Err(Error::NoSpace) => return,
            new => new.unwrap(),
        };
        self.fs.write(new, 0, &text).unwrap();
        self.files.push((name, handle(self.fs, new), text));
    }

    fn pick(&mut self) -> usize {
        self.random.below(self.files.len() as u64) as usize
    }

    fn step(&mut self) {
        let fs = self.fs;
        if self.files.len() < 3 {
            return self.create();
        }
        match self.random.below(8) {
            0 | 1 => self.create(),
            2 | 3 => {
                let place = self.pick();
                let (name, handle, _) = self.files.swap_remove(place);
                fs.unlink(self.directory, &name).unwrap();
                assert!(is_stale(fs, handle));
                self.gone.push(handle);
            }
            4 => {
                // Held beyond its name.
                let place = self.pick();
                let (name, handle, text) = self.files.swap_remove(place);
                let opened = fs.open_by_handle(handle.0, handle.1).unwrap();
                fs.unlink(self.directory, &name).unwrap();
                assert!(!is_stale(fs, handle));
                let mut found = vec![0; 64];
                let len = opened.read(0, &mut found).unwrap();
                assert_eq!(found[..len], text);
                fs.release(handle.0).unwrap();
                self.gone.push(handle);
            }
            5 => {
                let place = self.random.below(self.gone.len().max(1) as u64) as usize;
                if let Some(handle) = self.gone.get(place) {
                    assert!(is_stale(fs, *handle));
                }
            }
            6 if self.random.one_in(4) => fs.sync().unwrap(),
            _ => {
                let place = self.pick();
                let (name, handle, text) = self.files[place].clone();
                assert_eq!(fs.lookup(self.directory, &name).unwrap(), handle.0);
                assert!(!is_stale(fs, handle));
                assert_eq!(fs.metadata(handle.0).unwrap().size, text.len() as u64);
                assert_eq!(contents(fs, handle.0), text);
            }
        }
    }

    fn finish(mut self) {
        for (name, handle, text) in std::mem::take(&mut self.files) {
            assert_eq!(fs_contents(self.fs, self.directory, &name), text);
            assert!(!is_stale(self.fs, handle));
        }
    }
}

fn fs_contents(fs: &InodeFs, directory: Ino, name: &[u8]) -> Vec<u8> {
    contents(fs, fs.lookup(directory, name).unwrap())
}

/// Threads with a directory each, and one that looks at every number and changes the form.
fn churn(fs: &InodeFs, threads: usize, steps: usize, seed: u64, numbers: u32) {
    let directories: Vec<Ino> = (0..threads)
        .map(|number| {
            let name = format!("worker{number}").into_bytes();
            fs.mkdir(Ino::ROOT, &name, NEW).unwrap()
        })
        .collect();
    workers(threads + 1, |number| {
        let random = Random::new(seed * 16 + number as u64);
        if number == threads {
            return look_around(fs, random, steps, numbers);
        }
        let mut worker = Worker {
            fs,
            number,
            directory: directories[number],
            random,
            files: Vec::new(),
            gone: Vec::new(),
            made: 0,
        };
        (0..steps).for_each(|_| worker.step());
        worker.finish();
    });
}

fn look_around(fs: &InodeFs, mut random: Random, steps: usize, numbers: u32) {
    for _ in 0..steps {
        let ino = Ino(1 + random.below(numbers.into()) as u32);
        match random.below(8) {
            0 => {
                let form = ["rcu", "locked"][random.below(2) as usize];
                fs.choose(&format!("inode_lookup={form}")).unwrap();
            }
            1 => {
                let guess = Generation(random.below(1 << 32) as u32);
                assert!(fs.open_by_handle(ino, guess).is_err());
            }
            // In use or not: it comes into memory.
            _ => drop(fs.metadata(ino)),
        }
    }
}

#[test]
fn threads_create_delete_and_look_in_a_memory_of_few_inodes() {
    let Some(image) = make(&["-b", "1024", "-N", "256"], 16 << 20) else {
        return;
    };
    let device = Arc::new(CowDevice::new(image.into()));
    let fs = open(&device, 16);
    churn(&fs, 3, 300, 1, 256);
    for name in [
        "icache.evictions",
        "icache.finds",
        "icache.failed_finds",
        "icache.inodes",
    ] {
        assert!(counter(&fs, name) > 0, "{name}");
    }
    fs.close().unwrap();
    judge_image(&device);
}

/// As many schedules as `LANEFS_SCHEDULES` says, from the number on that `LANEFS_FIRST` says.
#[test]
fn under_schedules_no_inode_is_there_twice_or_leads_to_another() {
    let Some(image) = make(&["-b", "1024", "-N", "64"], 4 << 20) else {
        return;
    };
    let first = testkit::number_in("LANEFS_FIRST", 0);
    let seeds = testkit::number_in("LANEFS_SCHEDULES", 16);
    for seed in first..first + seeds {
        let device = Arc::new(CowDevice::new(image.as_slice().into()));
        let plan = sync::schedule::SchedulePlan {
            seed,
            points: 3_000_000,
        };
        let work = || {
            let fs = open(&device, 4);
            churn(&fs, 2, 14, seed, 64);
            fs.close().unwrap();
        };
        sync::schedule::run(plan, work).unwrap_or_else(|cause| panic!("seed {seed}: {cause}"));
        if seed % 10 == 0 {
            judge_image(&device);
        }
    }
}

/// One takes a file's last name away while another finds it by handle.
#[test]
fn who_finds_a_file_that_is_being_deleted_waits_and_holds_it_or_is_told_that_it_is_gone() {
    let Some(image) = make(&["-b", "1024", "-N", "64"], 4 << 20) else {
        return;
    };
    let (mut waits, mut gone, mut held) = (0, 0, 0);
    for seed in 0..100 {
        let device = Arc::new(CowDevice::new(image.as_slice().into()));
        let plan = sync::schedule::SchedulePlan {
            seed,
            points: 1_000_000,
        };
        let work = || {
            let fs = open(&device, 4);
            let file = fs.create(Ino::ROOT, b"file", NEW).unwrap();
            fs.write(file, 0, b"text").unwrap();
            let handle = handle(&fs, file);
            let found = Mutex::new(Rank::Leaf, Vec::new());
            workers(2, |thread| {
                if thread == 0 {
                    return fs.unlink(Ino::ROOT, b"file").unwrap();
                }
                let looks: Vec<bool> = (0..4).map(|_| opened_by(&fs, handle)).collect();
                *found.lock() = looks;
            });
            assert!(is_stale(&fs, handle));
            let waits = counter(&fs, "icache.waits");
            fs.close().unwrap();
            (waits, found.into_inner())
        };
        let run = sync::schedule::run(plan, work);
        let ((waited, found), _) = run.unwrap_or_else(|cause| panic!("seed {seed}: {cause}"));
        // Gone is gone.
        assert!(
            found.is_sorted_by(|one, next| one >= next),
            "{seed}: {found:?}"
        );
        waits += waited;
        held += found.iter().filter(|is_there| **is_there).count();
        gone += found.iter().filter(|is_there| !**is_there).count();
        if seed % 10 == 0 {
            judge_image(&device);
        }
    }
    assert!(waits > 0 && held > 0 && gone > 0, "{waits} {held} {gone}");
}

/// Whether a handle leads to the file, which then stays as it is until it is released.
fn opened_by(fs: &InodeFs, (ino, generation): Handle) -> bool {
    let opened = match fs.open_by_handle(ino, generation) {
        Err(Error::Stale) => return false,
        opened => opened.unwrap(),
    };
    let mut text = [0; 8];
    let len = opened.read(0, &mut text).unwrap();
    assert_eq!(text[..len], *b"text");
    drop(opened);
    fs.release(ino).unwrap();
    true
}

#[test]
fn what_is_made_and_held_leaves_memory_like_any_other() {
    let Some(image) = make(&["-b", "1024", "-N", "8192"], 32 << 20) else {
        return;
    };
    let device = Arc::new(CowDevice::new(image.into()));
    let fs = open(&device, 64);
    // As a server makes files: the kernel has each in hand until it forgets it.
    let held = NewInode { held: true, ..NEW };
    let mut made = Vec::new();
    for number in 0..2000 {
        let name = format!("file{number}");
        made.push(fs.create(Ino::ROOT, name.as_bytes(), held).unwrap());
        if number % 500 == 499 {
            fs.sync().unwrap();
        }
    }
    fs.sync().unwrap();
    // One more, so that the bound is looked at behind the last commit.
    fs.create(Ino::ROOT, b"last", NEW).unwrap();
    let kept = counter(&fs, "icache.inodes");
    assert!(kept <= 128, "{kept}");
    for ino in made {
        assert_eq!(fs.metadata(ino).unwrap().nlink, 1);
        fs.release(ino).unwrap();
    }
    fs.close().unwrap();
    judge_image(&device);
}
