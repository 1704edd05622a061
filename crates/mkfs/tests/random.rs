//! Any options and any size are either refused or give an image that is clean to e2fsck, and metadata are placed around
//! data that were there first. Seeded: a failure names its seed.

mod tools;

use std::panic::{AssertUnwindSafe, catch_unwind};

use device::{BlockDevice, FileDevice, MemoryDevice};
use lanefs_mkfs::{BlockRun, Error, Layout, Options, StreamGeometry, format};
use ondisk::{BlockSize, FsBlock};
use testkit::Random;

const FEATURES: &[&str] = &[
    "fast_commit",
    "meta_bg",
    "sparse_super2",
    "^sparse_super",
    "^resize_inode",
    "^64bit",
    "^metadata_csum",
    "uninit_bg",
    "^metadata_csum_seed",
    "mmp",
    "^flex_bg",
    "^has_journal",
    "^orphan_file",
    "^extent",
    "bigalloc",
    "inline_data",
    "ea_inode",
    "large_dir",
    "^filetype",
    "^dir_index",
    "^huge_file",
    "^large_file",
    "^extra_isize",
    "none",
    "resize_inode",
];

const LETTERS: &[(char, &[&str])] = &[
    (
        'b',
        &["1024", "2048", "4096", "4096", "8192", "16384", "65536"],
    ),
    ('C', &["2048", "8192", "65536", "1M", "512M"]),
    ('i', &["1024", "4096", "16384", "1M", "64M"]),
    ('I', &["128", "256", "512", "1024", "4096"]),
    (
        'N',
        &[
            "1",
            "11",
            "12",
            "13",
            "100",
            "10000",
            "1000000",
            "4294967295",
        ],
    ),
    ('g', &["256", "264", "1024", "8192", "32768", "65528"]),
    ('G', &["1", "2", "16", "1024", "1073741824"]),
    ('t', &["ext2", "ext3", "ext4"]),
    ('T', &["floppy", "small", "news", "largefile", "huge"]),
    (
        'J',
        &[
            "size=1",
            "size=4",
            "size=64",
            "size=1024",
            "location=1",
            "location=5000",
            "fast_commit_size=1",
        ],
    ),
    (
        'E',
        &[
            "resize=100000",
            "resize=4294967295",
            "packed_meta_blocks",
            "num_backup_sb=0",
            "num_backup_sb=1",
            "desc_size=128",
            "desc_size=1024",
            "orphan_file_size=1",
            "orphan_file_size=100000",
            "lazy_itable_init=0",
            "stride=65535",
        ],
    ),
    ('m', &["0", "0.1", "50"]),
];

fn options(random: &mut Random) -> Options {
    let mut options = Options {
        uuid: Some([1; 16]),
        hash_seed: Some([2; 16]),
        time: Some(1_700_000_000),
        device_is_zero: true,
        lost_found: random.below(4) > 0,
        ..Options::default()
    };
    for _ in 0..random.below(4) {
        options.set('O', random.pick::<&str>(FEATURES)).unwrap();
    }
    for _ in 0..random.below(4) {
        let (letter, values) = LETTERS[random.below(LETTERS.len() as u64) as usize];
        options.set(letter, random.pick::<&str>(values)).unwrap();
    }
    options
}

/// Numbers of all magnitudes below `1 << bits`.
fn magnitude(random: &mut Random, bits: u64) -> u64 {
    let bits = random.below(bits + 1);
    random.below(1 << bits)
}

/// Runs `check` for many seeds; a panic or a failure names the seed.
fn for_seeds(seeds: std::ops::Range<u64>, check: impl Fn(u64)) {
    for seed in seeds {
        let outcome = catch_unwind(AssertUnwindSafe(|| check(seed)));
        assert!(outcome.is_ok(), "seed {seed}");
    }
}

#[test]
fn no_options_and_no_size_make_the_plan_panic() {
    for_seeds(0..600, |seed| {
        let mut random = Random::new(seed);
        let options = options(&mut random);
        let size = magnitude(&mut random, 37);
        match Layout::plan(size, &options) {
            Ok(layout) => {
                assert!(layout.size_bytes() <= size);
                let used: u64 = layout.used().iter().map(|run| run.len).sum();
                assert!(used <= layout.geometry().blocks_count());
                let mut end = 0;
                for run in layout.used() {
                    assert!(run.start.0 >= end && run.len > 0);
                    end = run.end().0;
                }
            }
            Err(Error::Usage(message)) => panic!("{size} {options:?}: {message}"),
            Err(_) => {}
        }
    });
}

#[test]
fn whatever_is_made_is_clean() {
    if !tools::ready() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    for_seeds(0..60, |seed| {
        let mut random = Random::new(0x5EED_0000 + seed);
        let options = options(&mut random);
        let size = (64 << 10) + magnitude(&mut random, 30);
        let Ok(layout) = Layout::plan(size, &options) else {
            return;
        };
        let device = FileDevice::create(&image, size).unwrap();
        match format(&device, &layout) {
            Ok(_) => {}
            Err(Error::TooSmall { .. }) => return,
            Err(error) => panic!("{error}"),
        }
        drop(device);
        testkit::e2fsck(&image);
    });
}

#[test]
fn metadata_around_data_are_clean() {
    if !tools::ready() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    for_seeds(0..25, |seed| {
        let mut random = Random::new(0xDA7A_0000 + seed);
        let options = Options {
            block_size: Some([BlockSize::K1, BlockSize::K4][random.below(2) as usize]),
            features: ["", "^flex_bg", "sparse_super2", "meta_bg,^resize_inode"]
                [random.below(4) as usize]
                .into(),
            device_is_zero: true,
            ..Options::default()
        };
        let size = (40 << 20) + random.below(600 << 20);
        let blocks = size >> options.block_size.unwrap().bits();
        let regions = match random.below(2) {
            0 => StreamGeometry::growing(&options).unwrap(),
            _ => StreamGeometry::sized(size, &options).unwrap(),
        };
        let options = Options {
            stream: Some(regions.clone()),
            inodes: Some(100 + random.below(20_000)),
            ..options
        };
        let mut taken = Vec::new();
        // Data of three quarters of the image, with gaps of all sizes.
        for clear in regions.clear_runs() {
            let mut at = clear.start.0;
            while at < clear.end().0 && at < blocks / 4 * 3 {
                let start = FsBlock(at + magnitude(&mut random, 8));
                let len = clear.end().0.saturating_sub(start.0);
                let len = len.min(1 + magnitude(&mut random, 14));
                at = start.0 + len;
                if len > 0 {
                    taken.push(BlockRun { start, len });
                }
            }
        }
        let Ok(layout) = Layout::plan_around(size, &options, &taken) else {
            return;
        };
        for run in layout.used() {
            assert!(
                !taken
                    .iter()
                    .any(|data| data.start < run.end() && run.start < data.end())
            );
        }
        // The data belong to no file here, so their blocks are free; what counts is the place of everything else.
        let device = FileDevice::create(&image, size).unwrap();
        format(&device, &layout).unwrap();
        drop(device);
        testkit::e2fsck(&image);
    });
}

#[test]
fn a_device_that_is_too_short_is_an_error() {
    let layout = Layout::plan(8 << 20, &Options::default()).unwrap();
    let device = MemoryDevice::new(4 << 20);
    assert!(matches!(format(&device, &layout), Err(Error::Device(_))));
    // No superblock: a reader sees no file system.
    let mut magic = [0; 2];
    device.read_at(1024 + 56, &mut magic).unwrap();
    assert_eq!(magic, [0, 0]);
}
