//! Files of 2 GiB and more, and what can't be allocated in a file without extents: as in Linux.

use lanefs_engine::{Allocate, Error};
use ondisk::Feature;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::files::{judge_image, opened, with_files};
use crate::image::{record, sweep};

const LIMIT: u64 = 1 << 31;

#[test]
fn the_first_file_of_2_gib_brings_its_feature_in_the_same_step() {
    let options = ["-b", "1024", "-O", "^large_file,^resize_inode"];
    let Some(image) = with_files(&options, 8 << 20, &["one", "two"]) else {
        return;
    };
    let cuts = record(&image, |device, fs| {
        assert!(!fs.superblock().features().has(Feature::LARGE_FILE));
        let ino = fs.resolve(b"one", true).unwrap();
        fs.truncate(ino, LIMIT - 1).unwrap();
        fs.sync().unwrap();
        device.mark(1);
        assert_eq!(fs.write(ino, LIMIT - 10, &[7; 20]).unwrap(), 20);
        fs.sync().unwrap();
        device.mark(2);
        let two = fs.resolve(b"two", true).unwrap();
        fs.truncate(two, 3 * LIMIT).unwrap();
        fs.close().unwrap();
    });
    let mut is_seen = [false; 2];
    sweep(cuts, 2, |cut, mark, fs| {
        let has = fs.superblock().features().has(Feature::LARGE_FILE);
        let one = fs.metadata(fs.resolve(b"one", true).unwrap()).unwrap();
        assert_eq!(one.size >= LIMIT, has, "{cut}");
        assert!(has || mark < Some(2), "{cut}");
        is_seen[usize::from(has)] = true;
    });
    assert_eq!(is_seen, [true; 2]);
    let (device, fs) = opened(&image);
    let ino = fs.resolve(b"one", true).unwrap();
    fs.allocate(ino, Allocate::Grow, 2 * LIMIT, 5000).unwrap();
    fs.close().unwrap();
    judge_image(&device);
}

/// What the kernel says of each way to allocate in a file of an image.
fn by_kernel(image: &[u8], ways: &[(Allocate, FallocateFlags)]) -> Option<Vec<Option<Errno>>> {
    if !testkit::is_root() {
        testkit::skip("mounting needs root");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, image);
    let mounted = testkit::KernelMount::with(&path, "rw").unwrap();
    let file = std::fs::File::options()
        .write(true)
        .open(mounted.path().join("one"))
        .unwrap();
    let try_one = |(_, flags): &(Allocate, FallocateFlags)| {
        rustix::fs::fallocate(&file, *flags, 4096, 4096).err()
    };
    Some(ways.iter().map(try_one).collect())
}

#[test]
fn each_way_to_allocate_is_refused_in_a_block_map_where_linux_refuses_it() {
    let options = ["-b", "1024", "-O", "^extents,^64bit,^metadata_csum"];
    let Some(image) = with_files(&options, 8 << 20, &["one"]) else {
        return;
    };
    let (device, fs) = opened(&image);
    let ino = fs.resolve(b"one", true).unwrap();
    fs.write(ino, 0, &[1; 40_000]).unwrap();
    let keep = FallocateFlags::KEEP_SIZE;
    let ways = [
        (Allocate::Grow, FallocateFlags::empty()),
        (Allocate::KeepSize, keep),
        (Allocate::Punch, keep | FallocateFlags::PUNCH_HOLE),
        (Allocate::Zero, FallocateFlags::ZERO_RANGE),
        (Allocate::ZeroKeepSize, keep | FallocateFlags::ZERO_RANGE),
        (Allocate::Collapse, FallocateFlags::COLLAPSE_RANGE),
        (Allocate::Insert, FallocateFlags::INSERT_RANGE),
    ];
    let ours: Vec<Option<Errno>> = ways
        .iter()
        .map(|(how, _)| match fs.allocate(ino, *how, 4096, 4096) {
            Ok(()) => None,
            Err(Error::NotSupported(_)) => Some(Errno::OPNOTSUPP),
            Err(error) => panic!("{how:?}: {error}"),
        })
        .collect();
    let punch = ways.iter().map(|(how, _)| *how == Allocate::Punch);
    assert!(ours.iter().map(Option::is_none).eq(punch));
    fs.close().unwrap();
    judge_image(&device);
    if let Some(expected) = by_kernel(&device.bytes(), &ways) {
        assert_eq!(ours, expected);
    }
}
