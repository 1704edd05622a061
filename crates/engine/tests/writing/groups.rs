//! Volumes of many groups with little memory for them: the bound holds while all groups are used, the sum of what is
//! free stays exact, and e2fsck agrees.

use device::BlockDevice;
use lanefs_engine::{Ino, InodeFs, MountOptions};
use sync::Arc;

use crate::files::judge_image;
use crate::image::{NEW, clock, make};
use simulate::CowDevice;

/// Bytes for the blocks of four groups of 1,024 blocks.
const FOUR_GROUPS: usize = 4 * 1024 / 8 * 3;

fn open(device: &Arc<CowDevice>) -> InodeFs {
    let options = MountOptions {
        group_bytes: FOUR_GROUPS,
        ..MountOptions::default()
    };
    let shared = Arc::clone(device) as Arc<dyn BlockDevice>;
    InodeFs::open_for_writing(shared, &options, clock).unwrap()
}

fn counter(fs: &InodeFs, name: &str) -> u64 {
    let found = fs.counters().into_iter().find(|(known, _)| *known == name);
    found.unwrap().1
}

/// Blocks that a file takes.
fn blocks(fs: &InodeFs, ino: Ino) -> u64 {
    let sectors = fs.metadata(ino).unwrap().blocks;
    sectors * 512 / fs.geometry().block_size().bytes_u64()
}

#[test]
fn all_groups_are_used_in_the_memory_of_four() {
    let options = [
        "-b",
        "1024",
        "-g",
        "1024",
        "-O",
        "^resize_inode",
        "-J",
        "size=1",
    ];
    let Some(image) = make(&options, 96 << 20) else {
        return;
    };
    let device = Arc::new(CowDevice::new(image.into()));
    let fs = open(&device);
    let groups = fs.geometry().groups();
    assert_eq!(groups, 96);
    let start = fs.statfs().unwrap().free;
    let directory_blocks = blocks(&fs, Ino::ROOT);
    let mut files = Vec::new();
    let in_memory = |fs: &InodeFs| counter(fs, "mballoc.groups_in_memory");
    for number in 0..110_u32 {
        let name = number.to_string().into_bytes();
        let ino = fs.create(Ino::ROOT, &name, NEW).unwrap();
        fs.write(ino, 0, &vec![number as u8; 700 << 10]).unwrap();
        files.push((ino, name));
        fs.sync().unwrap();
        // What is kept for files that grow may hold a few more.
        assert!(in_memory(&fs) <= 8, "{}", in_memory(&fs));
        if number % 8 == 7 {
            let (ino, name) = files.remove(files.len() - 5);
            fs.unlink(Ino::ROOT, &name).unwrap();
            let _ = ino;
        }
        let taken: u64 = files.iter().map(|(ino, _)| blocks(&fs, *ino)).sum();
        let grown = blocks(&fs, Ino::ROOT) - directory_blocks;
        assert_eq!(fs.statfs().unwrap().free, start - taken - grown, "{number}");
    }
    assert!(counter(&fs, "mballoc.groups_loaded") >= u64::from(groups) * 3 / 4);
    assert!(counter(&fs, "mballoc.groups_evicted") >= u64::from(groups) / 2);
    // Frees go to groups that left memory long ago.
    for (_, name) in &files {
        fs.unlink(Ino::ROOT, name).unwrap();
    }
    fs.sync().unwrap();
    let grown = blocks(&fs, Ino::ROOT) - directory_blocks;
    assert_eq!(fs.statfs().unwrap().free + grown, start);
    assert!(in_memory(&fs) <= 4);
    fs.close().unwrap();
    judge_image(&device);
}

/// Threads fill and empty the volume meanwhile.
#[test]
fn threads_use_all_groups_in_the_memory_of_four() {
    let options = [
        "-b",
        "1024",
        "-g",
        "1024",
        "-O",
        "^resize_inode",
        "-J",
        "size=1",
    ];
    let Some(image) = make(&options, 48 << 20) else {
        return;
    };
    let device = Arc::new(CowDevice::new(image.into()));
    let fs = open(&device);
    let start = fs.statfs().unwrap().free;
    sync::thread::workers(4, |thread| {
        for round in 0..12 {
            let name = format!("{thread}-{round}").into_bytes();
            let ino = fs.create(Ino::ROOT, &name, NEW).unwrap();
            for piece in 0..16 {
                let bytes = vec![thread as u8 + 1; 40 << 10];
                fs.write(ino, piece * (40 << 10), &bytes).unwrap();
            }
            if round % 3 == 0 {
                fs.fsync(ino).unwrap();
            }
            if round >= 6 {
                let old = format!("{thread}-{}", round - 6).into_bytes();
                fs.unlink(Ino::ROOT, &old).unwrap();
            }
        }
        for round in 6..12 {
            let old = format!("{thread}-{round}").into_bytes();
            fs.unlink(Ino::ROOT, &old).unwrap();
        }
    });
    fs.sync().unwrap();
    let grown = blocks(&fs, Ino::ROOT) - 1;
    assert_eq!(fs.statfs().unwrap().free + grown, start);
    assert!(counter(&fs, "mballoc.groups_evicted") > 20);
    assert!(counter(&fs, "mballoc.groups_in_memory") <= 4);
    fs.close().unwrap();
    judge_image(&device);
}
