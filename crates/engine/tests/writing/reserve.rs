//! Inode numbers: what is set aside for directories, that it is found again, costs no more than it should and never
//! hides a free number; and in which group directories go, beside the kernel.

use std::collections::{BTreeMap, BTreeSet};

use device::BlockDevice;
use lanefs_engine::{Error, Ino, InodeFs, MountOptions, NewInode, SetAttributes};
use ondisk::GroupDesc;
use simulate::CowDevice;
use sync::{Arc, Mutex, Rank};

use crate::files::judge_image;
use crate::image::{clock, make};

const NEW: NewInode = NewInode {
    mode: 0o755,
    umask: 0,
    uid: 0,
    gid: 0,
    held: false,
};

const FORMS: [&str; 6] = ["auto", "off", "low", "normal", "high", "40"];

fn device(image: &[u8]) -> Arc<CowDevice> {
    Arc::new(CowDevice::new(image.into()))
}

fn open(device: &Arc<CowDevice>, form: &str) -> InodeFs {
    open_with(device, form, MountOptions::default())
}

fn open_with(device: &Arc<CowDevice>, form: &str, mut options: MountOptions) -> InodeFs {
    options
        .variants
        .set(&format!("dir_ireserve={form}"))
        .unwrap();
    let shared = Arc::clone(device) as Arc<dyn BlockDevice>;
    InodeFs::open_for_writing(shared, &options, clock).unwrap()
}

fn name(prefix: &str, number: usize) -> Vec<u8> {
    format!("{prefix}{number}").into_bytes()
}

/// A directory below the root with `count` directories in it, which are each other's neighbours.
fn directories(fs: &InodeFs, count: usize) -> Vec<Ino> {
    let top = fs.mkdir(Ino::ROOT, b"top", NEW).unwrap();
    (0..count)
        .map(|number| fs.mkdir(top, &name("d", number), NEW).unwrap())
        .collect()
}

/// Makes files in all directories in turns; the numbers of each directory's files.
fn alternately(fs: &InodeFs, directories: &[Ino], files: std::ops::Range<usize>) -> Vec<Vec<Ino>> {
    let mut made = vec![Vec::new(); directories.len()];
    for file in files {
        for (directory, made) in directories.iter().zip(&mut made) {
            made.push(fs.create(*directory, &name("file", file), NEW).unwrap());
        }
    }
    made
}

/// In how many blocks of inode tables the inodes lie.
fn table_blocks(fs: &InodeFs, inos: &[Ino]) -> usize {
    let geometry = fs.geometry();
    let block = |ino: &Ino| {
        let (group, index) = geometry.group_of_ino(*ino).unwrap();
        (group, index / geometry.inodes_per_block())
    };
    inos.iter().map(block).collect::<BTreeSet<_>>().len()
}

fn counter(fs: &InodeFs, name: &str) -> u64 {
    let counters: BTreeMap<_, _> = fs.counters().into_iter().collect();
    counters[name]
}

/// Inodes in tables that e2fsck looks at: those below the watermarks. The file system must be closed.
fn watermarks(device: &CowDevice, geometry: &ondisk::Geometry) -> u32 {
    let below = |group| {
        let (block, at) = geometry.desc_place(group);
        let mut raw = vec![0; geometry.desc_size()];
        let offset = block.0 * geometry.block_size().bytes_u64() + at as u64;
        device.read_at(offset, &mut raw).unwrap();
        geometry.inodes_per_group() - GroupDesc::load(&raw).itable_unused()
    };
    geometry.all_groups().map(below).sum()
}

#[test]
fn files_made_in_turns_lie_together_by_directory() {
    let Some(image) = make(&["-b", "4096", "-N", "16384"], 64 << 20) else {
        return;
    };
    let mut blocks = BTreeMap::new();
    for form in FORMS {
        let device = device(&image);
        let fs = open(&device, form);
        let directories = directories(&fs, 30);
        let made = alternately(&fs, &directories, 0..40);
        let sum: usize = made.iter().map(|inos| table_blocks(&fs, inos)).sum();
        blocks.insert(form, sum);
        if form != "off" {
            let (hits, refills) = (
                counter(&fs, "ialloc.window_hits"),
                counter(&fs, "ialloc.window_refills"),
            );
            assert!(hits > 2 * refills, "{form}: {hits} hits, {refills} refills");
        }
        fs.close().unwrap();
        judge_image(&device);
    }
    // Of 30 times 40 files, with 16 inodes a block.
    assert!(blocks["off"] >= 30 * 30, "{blocks:?}");
    assert!(blocks["auto"] <= 30 * 12, "{blocks:?}");
    assert!(blocks["low"] <= 30 * 5, "{blocks:?}");
    assert!(blocks["normal"] <= 30 * 4, "{blocks:?}");
    assert!(blocks["high"] <= 30 * 4, "{blocks:?}");
}

#[test]
fn empty_directories_cost_what_they_cost_without_reservation() {
    let Some(image) = make(&["-b", "4096", "-N", "16384"], 64 << 20) else {
        return;
    };
    let mut seen = Vec::new();
    for form in ["off", "auto"] {
        let device = device(&image);
        let fs = open(&device, form);
        let made = directories(&fs, 600);
        let geometry = *fs.geometry();
        fs.sync().unwrap();
        let logged = fs.journal_statistics().unwrap().logged_blocks.sum();
        let words = counter(&fs, "ialloc.words_searched");
        let blocks = table_blocks(&fs, &made);
        fs.close().unwrap();
        judge_image(&device);
        seen.push((blocks, watermarks(&device, &geometry), logged, words));
    }
    let [off, auto] = seen[..] else {
        unreachable!()
    };
    assert!(auto.0 <= off.0 + 2, "table blocks: {seen:?}");
    assert!(auto.1 <= off.1 + off.1 / 20, "watermarks: {seen:?}");
    assert!(auto.2 <= off.2 + off.2 / 20, "logged blocks: {seen:?}");
    assert!(auto.3 <= off.3, "words searched: {seen:?}");
}

#[test]
fn the_part_of_inode_tables_that_e2fsck_reads_grows_little() {
    let Some(image) = make(&["-b", "4096", "-N", "16384"], 64 << 20) else {
        return;
    };
    // With how many per cent more, at most: the last window of each directory is part empty.
    for (files, most) in [(1, 1), (2, 40), (5, 25), (15, 20), (16, 20), (40, 10)] {
        let mut seen = Vec::new();
        for form in ["off", "auto"] {
            let device = device(&image);
            let fs = open(&device, form);
            let directories = directories(&fs, 150);
            alternately(&fs, &directories, 0..files);
            let geometry = *fs.geometry();
            fs.sync().unwrap();
            let groups = counter(&fs, "ialloc.groups_initialised");
            fs.close().unwrap();
            judge_image(&device);
            seen.push((watermarks(&device, &geometry), groups));
        }
        let [off, auto] = seen[..] else {
            unreachable!()
        };
        assert!(
            auto.0 * 100 <= off.0 * (100 + most),
            "{files} files: {seen:?}"
        );
        assert_eq!(auto.1, off.1, "{files} files");
    }
}

#[test]
fn numbers_beside_a_directorys_files_are_found_after_a_remount() {
    let Some(image) = make(&["-b", "4096", "-N", "16384"], 64 << 20) else {
        return;
    };
    // What each directory's windows have left in the end.
    for (form, files, left) in [("auto", 14, 3), ("low", 12, 3), ("normal", 50, 13)] {
        let device = device(&image);
        let fs = open(&device, form);
        let directories = directories(&fs, 20);
        let before = alternately(&fs, &directories, 0..files);
        fs.close().unwrap();
        let fs = open(&device, form);
        // In the order in which nobody would get it right by chance.
        let backwards: Vec<Ino> = directories.iter().rev().copied().collect();
        let mut after = alternately(&fs, &backwards, files..files + left);
        after.reverse();
        let mut fresh = 0;
        for (before, after) in before.iter().zip(&after) {
            let all: Vec<Ino> = before.iter().chain(after).copied().collect();
            let (old, new) = (table_blocks(&fs, before), table_blocks(&fs, &all));
            assert!(new <= old + 1, "{form}: {before:?} {after:?}");
            fresh += new - old;
        }
        assert!(
            fresh <= 5,
            "{form}: {fresh} blocks more: {before:?} {after:?}"
        );
        fs.close().unwrap();
        judge_image(&device);
    }
}

/// Which of 64 names a file server's client removes, or makes, next: random and always the same.
struct Client {
    seed: u32,
    files: BTreeMap<usize, Ino>,
}

impl Client {
    fn new(seed: u32) -> Client {
        let files = BTreeMap::new();
        Client { seed, files }
    }

    fn below(&mut self, below: u32) -> u32 {
        self.seed = self
            .seed
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        (self.seed >> 16) % below
    }

    /// A file is made if its name is not there, else removed now and then, else changed.
    fn step(&mut self, fs: &InodeFs, directory: Ino) {
        let number = self.below(64) as usize;
        let Some(ino) = self.files.get(&number).copied() else {
            let ino = fs.create(directory, &name("file", number), NEW).unwrap();
            self.files.insert(number, ino);
            return;
        };
        match self.below(5) {
            0 => {
                fs.unlink(directory, &name("file", number)).unwrap();
                self.files.remove(&number);
            }
            more => {
                let mode = SetAttributes {
                    mode: Some(0o600 + more as u16),
                    ..SetAttributes::default()
                };
                fs.set_attributes(ino, &mode).unwrap();
            }
        }
    }

    fn inos(&self) -> Vec<Ino> {
        self.files.values().copied().collect()
    }
}

/// Clients at work, each in a directory of its own, in turns, with a commit now and then; how many blocks of the inode
/// table the files of one of them lie in, and how many blocks a commit logs, each on average and times ten.
fn churn(fs: &InodeFs, clients: &mut [(Ino, Client)], rounds: u64) -> (u64, u64) {
    let logged = |fs: &InodeFs| fs.journal_statistics().unwrap().logged_blocks.sum();
    let (mut blocks, before) = (0, logged(fs));
    for _ in 0..rounds {
        for _ in 0..50 {
            for (directory, client) in clients.iter_mut() {
                client.step(fs, *directory);
            }
        }
        fs.sync().unwrap();
        let of = |(_, client): &(Ino, Client)| table_blocks(fs, &client.inos()) as u64;
        blocks += clients.iter().map(of).sum::<u64>();
    }
    let all = rounds * clients.len() as u64;
    (blocks * 10 / all, (logged(fs) - before) * 10 / rounds)
}

#[test]
fn files_made_where_others_were_removed_lie_where_those_lay() {
    let Some(image) = make(&["-b", "4096", "-N", "16384"], 64 << 20) else {
        return;
    };
    let mut seen = BTreeMap::new();
    for form in ["off", "auto", "low"] {
        for count in [1, 4] {
            let device = device(&image);
            let fs = open(&device, form);
            let directories = directories(&fs, count);
            let client = |(seed, directory): (usize, &Ino)| (*directory, Client::new(seed as u32));
            let mut clients: Vec<_> = directories.iter().enumerate().map(client).collect();
            churn(&fs, &mut clients, 60);
            let first = churn(&fs, &mut clients, 60);
            fs.close().unwrap();
            judge_image(&device);
            let fs = open(&device, form);
            churn(&fs, &mut clients, 5);
            let second = churn(&fs, &mut clients, 60);
            fs.close().unwrap();
            judge_image(&device);
            seen.insert((form, count), [first, second]);
        }
    }
    // Without windows the files of one directory are in as few blocks as can be, and those of four lie among each
    // other's, which is the least for the log. With them each of four is by itself.
    for form in ["auto", "low"] {
        for (count, times) in [(1, 12), (4, 13)] {
            for (with, without) in seen[&(form, count)].iter().zip(seen[&("off", count)]) {
                let (alone, _) = seen[&("off", 1)][0];
                assert!(with.0 * 10 <= alone * 14, "{form}, {count}: {seen:?}");
                assert!(
                    with.1 * 10 <= without.1 * times,
                    "{form}, {count}: {seen:?}"
                );
            }
        }
    }
}

/// Reads of inode-table blocks by a program that looks at all files of a directory in its own order and remembers a few
/// blocks.
fn reads_in_order(fs: &InodeFs, directory: Ino, remembered: usize) -> usize {
    let geometry = fs.geometry();
    let (mut recent, mut reads) = (Vec::new(), 0);
    for entry in fs.read_dir(directory).unwrap() {
        let (group, index) = geometry.group_of_ino(entry.unwrap().ino).unwrap();
        let block = (group, index / geometry.inodes_per_block());
        match recent.iter().position(|one| *one == block) {
            Some(at) => drop(recent.remove(at)),
            None => reads += 1,
        }
        recent.push(block);
        if recent.len() > remembered {
            recent.remove(0);
        }
    }
    reads
}

#[test]
fn inodes_of_an_indexed_directory_lie_in_the_order_in_which_it_is_listed() {
    let Some(image) = make(&["-b", "4096", "-N", "16384"], 64 << 20) else {
        return;
    };
    let mut reads = BTreeMap::new();
    for form in ["off", "auto", "high", "1024"] {
        let device = device(&image);
        let fs = open(&device, form);
        let directory = fs.mkdir(Ino::ROOT, b"large", NEW).unwrap();
        for file in 0..2000 {
            fs.create(directory, &name("a-name-of-some-length-", file), NEW)
                .unwrap();
        }
        reads.insert(form, reads_in_order(&fs, directory, 16));
        fs.close().unwrap();
        judge_image(&device);
    }
    // 125 blocks hold them all.
    assert!(reads["off"] > 1500, "{reads:?}");
    assert!(reads["auto"] * 2 < reads["off"], "{reads:?}");
    assert!(reads["high"] * 10 < reads["off"] * 9, "{reads:?}");
    assert!(reads["1024"] * 3 < reads["off"], "{reads:?}");
}

#[test]
fn every_number_is_given_out_once_before_there_is_no_space() {
    let Some(image) = make(&["-b", "1024", "-N", "512"], 16 << 20) else {
        return;
    };
    for form in FORMS {
        let device = device(&image);
        let fs = open(&device, form);
        let free = fs.statfs().unwrap().free_files;
        let made = Mutex::new(Rank::Leaf, Vec::new());
        sync::thread::workers(4, |thread| {
            let mut all = Vec::new();
            let mut add = |made: Result<Ino, Error>| match made {
                Ok(ino) => {
                    all.push(ino);
                    Some(ino)
                }
                Err(Error::NoSpace) => None,
                Err(error) => panic!("{error}"),
            };
            let mut number = 0;
            'full: loop {
                let inner = name("inner", thread * 1000 + number);
                let Some(directory) = add(fs.mkdir(Ino::ROOT, &inner, NEW)) else {
                    break;
                };
                number += 1;
                for file in 0..number {
                    if add(fs.create(directory, &name("f", file), NEW)).is_none() {
                        break 'full;
                    }
                }
            }
            made.lock().extend(all);
        });
        let mut made = made.into_inner();
        made.sort_unstable();
        made.dedup();
        assert_eq!((form, made.len() as u64), (form, free));
        assert_eq!((form, fs.statfs().unwrap().free_files), (form, 0));
        fs.close().unwrap();
        judge_image(&device);
    }
}

#[test]
fn what_is_set_aside_counts_as_free_and_goes_back_with_its_directory() {
    let Some(image) = make(&["-b", "1024", "-N", "4096"], 16 << 20) else {
        return;
    };
    let device = device(&image);
    let options = MountOptions {
        live_inodes: 64,
        ..MountOptions::default()
    };
    let fs = open_with(&device, "normal", options);
    let free = fs.statfs().unwrap().free_files;
    let directories = directories(&fs, 200);
    assert_eq!(fs.statfs().unwrap().free_files, free - 201);
    alternately(&fs, &directories, 0..3);
    fs.sync().unwrap();
    assert_eq!(fs.statfs().unwrap().free_files, free - 201 - 600);
    for (number, directory) in directories.iter().enumerate() {
        let inner = fs.lookup(Ino::ROOT, b"top").unwrap();
        for file in 0..3 {
            fs.unlink(*directory, &name("file", file)).unwrap();
        }
        fs.rmdir(inner, &name("d", number)).unwrap();
    }
    fs.sync().unwrap();
    assert_eq!(fs.statfs().unwrap().free_files, free - 1);
    // As all of it is asked for, nothing is kept back.
    fs.choose("dir_ireserve=off").unwrap();
    let (hits, made) = (counter(&fs, "ialloc.window_hits"), directories.len());
    for file in 0..made {
        fs.create(Ino::ROOT, &name("last", file), NEW).unwrap();
    }
    assert_eq!(counter(&fs, "ialloc.window_hits"), hits);
    assert_eq!(fs.statfs().unwrap().free_files, free - 1 - made as u64);
    fs.close().unwrap();
    judge_image(&device);
}

/// A device with something else on it before: what mke2fs leaves of that in inode tables is never read as inodes.
#[test]
fn tables_that_were_not_zeroed_are_made_readable_before_numbers_are_given_out() {
    if !testkit::have("mke2fs") || !testkit::have("e2fsck") {
        return testkit::skip("needs mke2fs and e2fsck");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    for form in FORMS {
        std::fs::write(&path, vec![0xa5; 24 << 20]).unwrap();
        let options = ["-t", "ext4", "-b", "1024", "-N", "6144", "-E"];
        let lazy = "nodiscard,lazy_itable_init=1,lazy_journal_init=0";
        let arguments = [&options[..], &[lazy, path.to_str().unwrap()]].concat();
        testkit::mke2fs(&arguments);
        let device = device(&testkit::read_image(&path));
        let fs = open(&device, form);
        let top = directories(&fs, 40);
        alternately(&fs, &top, 0..20);
        assert!(counter(&fs, "ialloc.table_blocks_zeroed") > 0);
        fs.close().unwrap();
        judge_image(&device);
        let fs = open(&device, form);
        alternately(&fs, &top, 20..23);
        fs.close().unwrap();
        judge_image(&device);
    }
}

#[test]
fn the_kernel_and_lanefs_fill_directories_in_turns() {
    if !testkit::is_root() {
        return testkit::skip("mounting needs root");
    }
    let ext3 =
        "^extents,^64bit,^metadata_csum,^uninit_bg,^flex_bg,^huge_file,^extra_isize,^orphan_file";
    let ext2 = format!("{ext3},^has_journal,^dir_nlink");
    for features in [ext2.as_str(), ext3, "metadata_csum"] {
        let options = ["-b", "1024", "-N", "4096", "-O", features];
        let Some(mut image) = make(&options, 24 << 20) else {
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        for (round, form) in ["auto", "low", "off", "auto", "100"]
            .into_iter()
            .enumerate()
        {
            let device = device(&image);
            let fs = open(&device, form);
            let top = match fs.lookup(Ino::ROOT, b"top") {
                Ok(_) => (0..12)
                    .map(|number| fs.resolve(&name("top/d", number), true).unwrap())
                    .collect(),
                Err(_) => directories(&fs, 12),
            };
            for (at, directory) in top.iter().enumerate() {
                for file in 0..10 {
                    fs.create(*directory, &name(&format!("ours{round}-"), file), NEW)
                        .unwrap();
                }
                if round > 0 {
                    // Something of the kernel's goes, so that its numbers are free again.
                    let old = name(&format!("theirs{}-", round - 1), at % 8);
                    fs.unlink(*directory, &old).unwrap();
                }
            }
            fs.close().unwrap();
            judge_image(&device);
            testkit::write_image(&path, &device.bytes());
            {
                let mounted = testkit::KernelMount::with(&path, "loop").unwrap();
                for number in 0..12 {
                    let inside = mounted.path().join(format!("top/d{number}"));
                    for file in 0..8 {
                        std::fs::write(inside.join(format!("theirs{round}-{file}")), b"x").unwrap();
                    }
                    std::fs::remove_file(inside.join(format!("ours{round}-{}", number % 10)))
                        .unwrap();
                }
            }
            image = testkit::read_image(&path);
        }
        testkit::e2fsck(&path);
    }
}

/// How many directories each group has.
fn spread(device: &CowDevice, geometry: &ondisk::Geometry) -> Vec<u32> {
    let count = |group| {
        let (block, at) = geometry.desc_place(group);
        let mut raw = vec![0; geometry.desc_size()];
        let offset = block.0 * geometry.block_size().bytes_u64() + at as u64;
        device.read_at(offset, &mut raw).unwrap();
        GroupDesc::load(&raw).used_dirs()
    };
    geometry.all_groups().map(count).collect()
}

/// The kernel and lanefs make the same directories: 48 in the root, each with ten directories and a deep one inside.
#[test]
fn directories_are_spread_over_groups_as_the_kernel_spreads_them() {
    if !testkit::is_root() {
        return testkit::skip("mounting needs root");
    }
    for layout in [&["-G", "2"][..], &["-O", "^flex_bg"]] {
        let options = [&["-b", "1024", "-N", "16384"], layout].concat();
        let Some(image) = make(&options, 128 << 20) else {
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        testkit::write_image(&path, &image);
        for top in 0..48 {
            // Linux counts free inodes exactly when it mounts; later each CPU keeps up to 32 changes for itself.
            let mounted = testkit::KernelMount::with(&path, "loop").unwrap();
            let top = mounted.path().join(format!("top{top}"));
            std::fs::create_dir_all(top.join("deep/deeper")).unwrap();
            for number in 0..10 {
                std::fs::create_dir(top.join(format!("d{number}"))).unwrap();
            }
        }
        let kernels = device(&testkit::read_image(&path));
        for form in ["off", "auto"] {
            let ours = device(&image);
            let fs = open(&ours, form);
            let geometry = *fs.geometry();
            for top in 0..48 {
                let top = fs.mkdir(Ino::ROOT, &name("top", top), NEW).unwrap();
                let deep = fs.mkdir(top, b"deep", NEW).unwrap();
                fs.mkdir(deep, b"deeper", NEW).unwrap();
                for number in 0..10 {
                    fs.mkdir(top, &name("d", number), NEW).unwrap();
                }
                // Directories beside their likes are counted, for the choice of groups, at a commit.
                fs.sync().unwrap();
            }
            fs.close().unwrap();
            judge_image(&ours);
            let (theirs, ours) = (spread(&kernels, &geometry), spread(&ours, &geometry));
            let apart: u32 = theirs.iter().zip(&ours).map(|(a, b)| a.abs_diff(*b)).sum();
            let all: u32 = theirs.iter().sum();
            assert_eq!(all, ours.iter().sum::<u32>());
            assert!(
                apart * 4 <= all,
                "{form} {layout:?}: {theirs:?} and {ours:?}"
            );
        }
    }
}
