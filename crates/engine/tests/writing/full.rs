//! Images without a free block or inode: sums agree with the model's, and whatever frees works.

use std::collections::BTreeMap;

use device::BlockDevice;
use lanefs_engine::{
    Allocate, BlockClaimant, Error, Ino, InodeFs, MountOptions, RenameFlag, XattrFlag,
};
use simulate::CowDevice;
use sync::{Arc, Mutex, Rank};

use crate::files::{contents, judge, judge_image, opened};
use crate::image::{NEW, clock, make, open, record, sweep};

const THREADS: u64 = 4;

/// Files by name, as far as they were written.
type Files = BTreeMap<Vec<u8>, Vec<u8>>;

/// Fills the image with files from several threads until none can add a block; what each holds.
fn fill(fs: &InodeFs) -> Files {
    let files = Mutex::new(Rank::Leaf, Files::new());
    sync::thread::workers(THREADS as usize, |thread| {
        for number in 0.. {
            let name = format!("{thread}-{number}").into_bytes();
            let ino = match fs.create(Ino::ROOT, &name, NEW) {
                Ok(ino) => ino,
                Err(Error::NoSpace) => return,
                Err(error) => panic!("{error}"),
            };
            // Pieces with holes between them, so that punching and freeing are many extents.
            let (mut bytes, byte) = (Vec::new(), 1 + (thread * 50 + number % 50) as u8);
            let mut is_full = false;
            for piece in 0..40 {
                match fs.write(ino, piece * 8192, &[byte; 5000]) {
                    Ok(written) => {
                        bytes.resize((piece * 8192) as usize, 0);
                        bytes.resize(bytes.len() + written, byte);
                    }
                    Err(Error::NoSpace) => {
                        is_full = true;
                        break;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            files.lock().insert(name, bytes);
            if is_full {
                return;
            }
        }
    });
    let mut files = files.into_inner();
    // Where data and map each need a block, one that is left is of no use: a file with a map of its own takes it.
    let longest = files.iter_mut().max_by_key(|(_, bytes)| bytes.len());
    let (name, bytes) = longest.unwrap();
    let ino = fs.lookup(Ino::ROOT, name).unwrap();
    loop {
        match fs.write(ino, bytes.len() as u64, &[99; 1000]) {
            Ok(written) => bytes.resize(bytes.len() + written, 99),
            Err(Error::NoSpace) => return files,
            Err(error) => panic!("{error}"),
        }
    }
}

fn check(fs: &InodeFs, files: &Files) {
    for (name, expected) in files {
        let ino = fs.lookup(Ino::ROOT, name).unwrap();
        assert!(contents(fs, ino) == *expected, "{name:?}");
    }
}

/// Blocks that files take, as `stat` counts.
fn taken(fs: &InodeFs, names: &[&Vec<u8>]) -> u64 {
    let block = fs.statfs().unwrap().block_size / 512;
    let of = |name: &&Vec<u8>| {
        let ino = fs.lookup(Ino::ROOT, name).unwrap();
        fs.metadata(ino).unwrap().blocks / block
    };
    names.iter().map(of).sum()
}

/// Fills, looks, and empties in every way there is; e2fsck and the kernel agree before and after.
fn fill_and_empty(options: &[&str], size: u64, reaper_thread: bool) {
    let Some(image) = make(options, size) else {
        return;
    };
    let device = Arc::new(CowDevice::new(image.into()));
    let options = MountOptions {
        reaper_thread,
        ..MountOptions::default()
    };
    let shared = || Arc::clone(&device) as Arc<dyn BlockDevice>;
    let fs = InodeFs::open_for_writing(shared(), &options, clock).unwrap();
    let before = fs.statfs().unwrap();
    let files = fill(&fs);
    check(&fs, &files);
    let full = fs.statfs().unwrap();
    let pool = (fs.geometry().blocks_count() - fs.geometry().first_data_block().0) / 50;
    assert!(full.free <= pool && full.available == 0, "{full:?}, {pool}");
    let names: Vec<&Vec<u8>> = files.keys().collect();
    let root = fs.metadata(Ino::ROOT).unwrap().blocks * 512 / full.block_size;
    let used = before.free - full.free;
    assert!(taken(&fs, &names) <= used && used <= taken(&fs, &names) + root);
    fs.close().unwrap();
    let shown: Vec<(&str, Vec<u8>)> = files
        .iter()
        .take(10)
        .map(|(name, bytes)| (std::str::from_utf8(name).unwrap(), bytes.clone()))
        .collect();
    judge(&device, &shown);

    let fs = InodeFs::open_for_writing(shared(), &options, clock).unwrap();
    assert_eq!(fs.statfs().unwrap().free, full.free);
    empty(&fs, files);
    let now = fs.statfs().unwrap();
    let grown = fs.metadata(Ino::ROOT).unwrap().blocks * 512 / full.block_size - 1;
    fs.close().unwrap();
    let fs = open(shared());
    let after = fs.statfs().unwrap();
    assert_eq!(after.free + grown, before.free);
    assert_eq!(after.files, before.files);
    assert_eq!(after.free_files, before.free_files);
    assert!(reaper_thread || now.free == after.free);
    fs.close().unwrap();
    judge_image(&device);
}

/// Takes everything away, in turns by each way; none may fail for want of space.
fn empty(fs: &InodeFs, mut files: Files) {
    let names: Vec<Vec<u8>> = files.keys().cloned().collect();
    for (turn, name) in names.iter().enumerate() {
        let Ok(ino) = fs.lookup(Ino::ROOT, name) else {
            continue;
        };
        let bytes = files[name].len() as u64;
        match turn % 5 {
            0 => fs.truncate(ino, bytes / 2).unwrap(),
            1 => {
                // Small holes, each of which splits an extent.
                for at in (0..bytes).step_by(8192) {
                    fs.allocate(ino, Allocate::Punch, at + 2048, 1024).unwrap();
                }
            }
            2 => {
                if let Some(next) = names.get(turn + 1) {
                    fs.rename(Ino::ROOT, name, Ino::ROOT, next, RenameFlag::Replace)
                        .unwrap();
                    files.remove(name);
                    continue;
                }
            }
            _ => {}
        }
        fs.unlink(Ino::ROOT, name).unwrap();
        files.remove(name);
    }
}

#[test]
fn an_image_filled_by_threads_to_its_last_block_can_be_emptied() {
    fill_and_empty(&["-b", "1024", "-N", "512"], 16 << 20, false);
}

#[test]
fn a_full_image_is_emptied_with_a_thread_that_reaps() {
    fill_and_empty(&["-b", "1024", "-N", "512"], 12 << 20, true);
}

#[test]
fn an_image_of_one_small_group_is_filled_and_emptied() {
    fill_and_empty(&["-b", "1024", "-N", "64"], 2 << 20, false);
}

#[test]
fn an_image_of_block_maps_is_filled_and_emptied() {
    let options = [
        "-b",
        "1024",
        "-N",
        "256",
        "-O",
        "^extents,^64bit,^metadata_csum",
    ];
    fill_and_empty(&options, 10 << 20, false);
}

#[test]
fn an_image_without_free_inodes_gives_each_of_them_once() {
    let Some(image) = make(&["-b", "1024", "-N", "64"], 8 << 20) else {
        return;
    };
    let (device, fs) = opened(&image);
    let free = fs.statfs().unwrap().free_files;
    let made = Mutex::new(Rank::Leaf, Vec::new());
    sync::thread::workers(THREADS as usize, |thread| {
        for number in 0.. {
            let name = format!("{thread}-{number}").into_bytes();
            match fs.create(Ino::ROOT, &name, NEW) {
                Ok(ino) => made.lock().push((ino, name)),
                Err(Error::NoSpace) => return,
                Err(error) => panic!("{error}"),
            }
        }
    });
    let mut made = made.into_inner();
    made.sort();
    made.dedup_by_key(|(ino, _)| *ino);
    assert_eq!(made.len() as u64, free);
    assert_eq!(fs.statfs().unwrap().free_files, 0);
    // One goes, and its number comes back after a commit that nobody asked for.
    fs.unlink(Ino::ROOT, &made[3].1).unwrap();
    assert_eq!(fs.statfs().unwrap().free_files, 1);
    assert_eq!(fs.create(Ino::ROOT, b"again", NEW).unwrap(), made[3].0);
    let again = fs.mkdir(Ino::ROOT, b"no", NEW);
    assert!(matches!(again, Err(Error::NoSpace)), "{again:?}");
    fs.close().unwrap();
    judge_image(&device);
}

/// A range for which the image has no room is not zeroed in part, its edges included.
#[test]
fn zeroing_more_than_there_is_room_for_changes_no_byte() {
    let Some(image) = make(&["-b", "1024", "-N", "64"], 8 << 20) else {
        return;
    };
    let (device, fs) = opened(&image);
    let ino = fs.create(Ino::ROOT, b"one", NEW).unwrap();
    fs.write(ino, 0, &[5; 2048]).unwrap();
    let end = 2 << 20;
    fs.write(ino, end, &[6; 1024]).unwrap();
    let filler = fs.create(Ino::ROOT, b"filler", NEW).unwrap();
    let mut at = 0;
    while let Ok(written) = fs.write(filler, at, &[7; 1024]) {
        at += written as u64;
    }
    let before = contents(&fs, ino);
    for how in [Allocate::Zero, Allocate::ZeroKeepSize] {
        let refused = fs.allocate(ino, how, 512, end);
        assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
        assert!(contents(&fs, ino) == before);
    }
    fs.unlink(Ino::ROOT, b"filler").unwrap();
    fs.sync().unwrap();
    fs.allocate(ino, Allocate::Zero, 512, end).unwrap();
    let mut after = before;
    after[512..512 + end as usize].fill(0);
    assert!(contents(&fs, ino) == after);
    fs.close().unwrap();
    judge_image(&device);
}

/// What is reserved for root is taken by root, and by the user and group that the superblock names.
#[test]
fn the_reserve_is_for_root_only() {
    let Some(image) = make(&["-b", "1024", "-m", "10", "-N", "64"], 8 << 20) else {
        return;
    };
    let (device, fs) = opened(&image);
    let ino = fs.create(Ino::ROOT, b"one", NEW).unwrap();
    let write_all = |mut at: u64| loop {
        match fs.write(ino, at, &[3; 4096]) {
            Ok(written) => at += written as u64,
            Err(Error::NoSpace) => return at,
            Err(error) => panic!("{error}"),
        }
    };
    let others = BlockClaimant {
        uid: 1000,
        gids: &[1000, 5],
    };
    let acting = fs.act_for(others).unwrap();
    let end = write_all(0);
    let reserved = fs.superblock().reserved_blocks_count();
    let found = fs.statfs().unwrap();
    let pool = (fs.geometry().blocks_count() - 1) / 50;
    assert_eq!((found.free, found.available), (reserved + pool, 0));
    {
        let root = BlockClaimant { uid: 0, gids: &[] };
        let _root = fs.act_for(root).unwrap();
        assert!(fs.write(ino, end, &[3; 10_240]).unwrap() == 10_240);
    }
    assert!(matches!(
        fs.write(ino, end + 10_240, b"no"),
        Err(Error::NoSpace)
    ));
    drop(acting);
    write_all(end + 10_240);
    assert_eq!(fs.statfs().unwrap().free, pool);
    fs.close().unwrap();
    judge_image(&device);
}

/// A device that remembers what was discarded, and fails discards from some time on.
struct Told {
    inner: CowDevice,
    ranges: Mutex<(Vec<std::ops::Range<u64>>, usize)>,
}

impl BlockDevice for Told {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), device::DeviceError> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), device::DeviceError> {
        self.inner.write_at(offset, buf)
    }

    fn flush(&self) -> Result<(), device::DeviceError> {
        self.inner.flush()
    }

    fn discard(&self, range: std::ops::Range<u64>) -> Result<(), device::DeviceError> {
        let mut told = self.ranges.lock();
        if told.1 == 0 {
            return Err(device::DeviceError::ReadOnly);
        }
        told.1 -= 1;
        told.0.push(range.clone());
        drop(told);
        // What is free may read as anything.
        let garbage = vec![0xdb; (range.end - range.start) as usize];
        self.inner.write_at(range.start, &garbage)
    }
}

#[test]
fn the_device_is_told_what_is_free_when_that_is_durable() {
    let Some(image) = make(&["-b", "1024"], 8 << 20) else {
        return;
    };
    for most in [usize::MAX, 1] {
        let device = Arc::new(Told {
            inner: CowDevice::new(image.as_slice().into()),
            ranges: Mutex::new(Rank::Leaf, (Vec::new(), most)),
        });
        let options = MountOptions {
            discard: Some(true),
            ..MountOptions::default()
        };
        let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
        let fs = InodeFs::open_for_writing(shared, &options, clock).unwrap();
        let mut blocks = Vec::new();
        for round in 0..3_u8 {
            let ino = fs.create(Ino::ROOT, b"one", NEW).unwrap();
            fs.write(ino, 0, &[7 + round; 50_000]).unwrap();
            let kept = fs.create(Ino::ROOT, &[b'a' + round], NEW).unwrap();
            fs.write(kept, 0, &[round; 30_000]).unwrap();
            let run = fs.mappings(ino).unwrap().next().unwrap().unwrap();
            blocks.push(run.physical.unwrap().0 * 1024);
            fs.fsync(ino).unwrap();
            let told = device.ranges.lock().0.len();
            fs.unlink(Ino::ROOT, b"one").unwrap();
            assert_eq!(device.ranges.lock().0.len(), told, "before it is durable");
            fs.sync().unwrap();
        }
        for round in 0..3_u8 {
            let kept = fs.lookup(Ino::ROOT, &[b'a' + round]).unwrap();
            assert_eq!(contents(&fs, kept), vec![round; 30_000]);
        }
        fs.close().unwrap();
        let told = device.ranges.lock().0.clone();
        let expected = if most == 1 { 1 } else { 3 };
        assert_eq!(told.len(), expected);
        for (range, start) in told.iter().zip(&blocks) {
            assert_eq!(*range, *start..*start + 49 * 1024);
        }
        judge_image(&device.inner);
    }
}

/// A cut at any write while a full image is emptied: nothing that was synced is lost, and the next mount finds the
/// space again.
#[test]
fn a_full_image_survives_any_cut_while_it_is_emptied() {
    let Some(image) = make(&["-b", "1024", "-N", "32"], 2 << 20) else {
        return;
    };
    let (device, fs) = opened(&image);
    let free = fs.statfs().unwrap().free;
    let files = fill(&fs);
    fs.close().unwrap();
    let names: Vec<Vec<u8>> = files.keys().cloned().collect();
    assert!(names.len() >= 3, "{} files", names.len());
    let cuts = record(&device.bytes(), |device, fs| {
        let first = fs.lookup(Ino::ROOT, &names[0]).unwrap();
        for at in (0..files[&names[0]].len() as u64).step_by(8192) {
            fs.allocate(first, Allocate::Punch, at + 2048, 1024)
                .unwrap();
        }
        fs.fsync(first).unwrap();
        device.mark(1);
        fs.rename(
            Ino::ROOT,
            &names[1],
            Ino::ROOT,
            &names[0],
            RenameFlag::Replace,
        )
        .unwrap();
        for name in &names[2..] {
            fs.unlink(Ino::ROOT, name).unwrap();
        }
        fs.sync().unwrap();
        device.mark(2);
        let ino = fs.create(Ino::ROOT, b"new", NEW).unwrap();
        fs.write(ino, 0, &[9; 300_000]).unwrap();
        fs.close().unwrap();
    });
    sweep(cuts, 2, |cut, mark, fs| {
        let found = fs.lookup(Ino::ROOT, &names[0]).unwrap();
        let found = contents(fs, found);
        let mut punched = files[&names[0]].clone();
        for at in (2048..punched.len()).step_by(8192) {
            let end = punched.len().min(at + 1024);
            punched[at..end].fill(0);
        }
        match mark {
            None => assert_eq!(found.len(), punched.len(), "{cut}"),
            Some(1) => assert!(found == punched || found == files[&names[1]], "{cut}"),
            _ => {
                assert!(found == files[&names[1]], "{cut}");
                assert!(fs.statfs().unwrap().free + 600 >= free, "{cut}");
            }
        }
    });
}

/// Attributes that two inodes share are copied when one of them loses one: on a full image too.
#[test]
fn a_shared_block_of_attributes_is_copied_on_a_full_image() {
    let Some(image) = make(&["-b", "1024", "-N", "64"], 4 << 20) else {
        return;
    };
    let (device, fs) = opened(&image);
    let names = [&b"user.first"[..], b"user.second"];
    let inodes: Vec<Ino> = [&b"a"[..], b"b"]
        .into_iter()
        .map(|name| {
            let ino = fs.create(Ino::ROOT, name, NEW).unwrap();
            for attribute in names {
                fs.set_xattr(ino, attribute, &[7; 300], XattrFlag::Any)
                    .unwrap();
            }
            ino
        })
        .collect();
    let blocks: Vec<_> = inodes
        .iter()
        .map(|ino| fs.inode(*ino).unwrap().xattr_block())
        .collect();
    assert!(blocks[0].is_some() && blocks[0] == blocks[1], "{blocks:?}");
    fill(&fs);
    let before = fs.statfs().unwrap();
    assert_eq!(before.available, 0);
    let refused = fs.set_xattr(inodes[0], b"user.third", &[1; 100], XattrFlag::Any);
    assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
    fs.remove_xattr(inodes[0], b"user.first").unwrap();
    assert_eq!(fs.statfs().unwrap().free + 1, before.free);
    let left = |ino: Ino| fs.xattrs(ino).unwrap().len();
    assert_eq!((left(inodes[0]), left(inodes[1])), (1, 2));
    // With the last one the block goes.
    fs.remove_xattr(inodes[0], b"user.second").unwrap();
    fs.unlink(Ino::ROOT, b"b").unwrap();
    assert_eq!(fs.statfs().unwrap().free, before.free + 1);
    fs.close().unwrap();
    judge_image(&device);
}
