//! The same options and sizes give the same numbers as mke2fs: geometry, inodes, journal, reserved descriptor blocks,
//! overhead; and e2fsck finds ours clean. Needs e2fsprogs, not root.

mod tools;

use tools::{Case, Numbers};

/// Lines of `dumpe2fs -h` that must agree.
const SAME: &[&str] = &[
    "Filesystem features",
    "Filesystem flags",
    "Default mount options",
    "Errors behavior",
    "Inode count",
    "Block count",
    "Reserved block count",
    "Overhead clusters",
    "Free blocks",
    "Free inodes",
    "First block",
    "Block size",
    "Cluster size",
    "Group descriptor size",
    "Reserved GDT blocks",
    "Blocks per group",
    "Clusters per group",
    "Inodes per group",
    "Inode blocks per group",
    "RAID stride",
    "RAID stripe width",
    "Flex block group size",
    "Maximum mount count",
    "First inode",
    "Inode size",
    "Required extra isize",
    "Desired extra isize",
    "Journal inode",
    "Default directory hash",
    "Directory Hash Seed",
    "Journal backup",
    "Backup block groups",
    "Checksum type",
    "Checksum seed",
    "Character encoding",
    "MMP update interval",
    "Orphan file inode",
    "Journal features",
    "Total journal size",
    "Total journal blocks",
    "Max transaction length",
    "Fast commit length",
    "Journal sequence",
    "Journal start",
];

fn compare(cases: &[Case]) {
    compare_but(cases, &[]);
}

/// Compares all lines but some where we differ on purpose.
fn compare_but(cases: &[Case], different: &[&str]) {
    if !tools::ready() {
        return;
    }
    let mut wrong = Vec::new();
    for case in cases {
        let ours = Numbers::of_ours(case);
        let theirs = Numbers::of_mke2fs(case);
        for name in SAME.iter().filter(|name| !different.contains(name)) {
            let (one, other) = (ours.get(name), theirs.get(name));
            if one != other {
                wrong.push(format!("{case}: {name}: ours {one:?}, mke2fs's {other:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_size_gives_mke2fs_numbers() {
    let sizes = "256K 512K 1M 2M 3M 4M 5M 8M 9M 16M 17M 20M 31M 32M 33M 60M 64M 100M 127M 128M 200M 255M 256M 300M \
                 400M 511M 512M 513M 600M 800M 1000M 1023M 1G 1500M 2G 4G 7G 8G 9G 15G 16G 20G 31G 32G 33G 64G 65G \
                 127G 128G 129G 500G";
    let cases: Vec<Case> = sizes
        .split_whitespace()
        .map(|size| Case::new(size, ""))
        .collect();
    compare(&cases);
}

#[test]
fn every_block_size_gives_mke2fs_numbers() {
    let mut cases = Vec::new();
    for block in ["1024", "2048", "4096", "8192", "16384", "32768", "65536"] {
        for size in ["8M", "64M", "100M", "1G", "3G", "20G"] {
            cases.push(Case::new(size, &format!("-b {block}")));
        }
    }
    compare(&cases);
}

#[test]
fn every_feature_gives_mke2fs_numbers() {
    let mut cases = Vec::new();
    for features in [
        "fast_commit",
        "meta_bg,^resize_inode",
        "sparse_super2",
        "^sparse_super,^resize_inode",
        "^resize_inode",
        "^64bit",
        "^metadata_csum,^metadata_csum_seed",
        "^metadata_csum,^metadata_csum_seed,uninit_bg",
        "mmp",
        "^flex_bg",
        "^has_journal,^orphan_file",
        "^orphan_file",
        "^extent,^64bit",
        "encrypt,verity,stable_inodes,ea_inode,large_dir,project,casefold",
    ] {
        for size in ["8M", "20M", "64M", "1G", "20G"] {
            cases.push(Case::new(size, &format!("-O {features}")));
        }
    }
    compare(&cases);
}

#[test]
fn every_letter_gives_mke2fs_numbers() {
    let lines = "100M -T largefile|100M -T largefile4|100M -T news|2G -T small,news|2G -T news|1G -T floppy|1G -T big|\
                 1G -T huge|8M -N 5000|\
                 1G -b 1024 -N 1000000|1G -I 512|1G -I 128|1G -I 1024 -b 1024|100M -g 4096|1G -g 8192|1G -G 64|1G -G 1|\
                 1G -E packed_meta_blocks=1|20G -E packed_meta_blocks=1|1G -E resize=10000000|1G -J size=8|\
                 1G -O fast_commit -J size=8,fast_commit_size=1024|1G -E desc_size=128|\
                 64M -O bigalloc -b 1024 -C 65536|2G -O bigalloc -b 1024 -C 65536|\
                 1G -O sparse_super2 -E num_backup_sb=1|1G -O sparse_super2 -E num_backup_sb=0|\
                 1G -E orphan_file_size=1M|1G -E orphan_file_size=13|\
                 1G -m 50|1G -m 0.5|1G -e panic|1G -E lazy_itable_init=0|\
                 1G -J location=100000|64M -N 1|64M -N 20|1G -U clear";
    let cases = lines.split('|').map(|line| {
        let (size, letters) = line.split_once(' ').unwrap();
        Case::new(size, letters)
    });
    compare(&cases.collect::<Vec<_>>());
}

#[test]
fn every_spelling_of_a_number_gives_mke2fs_numbers() {
    let lines = "200M -E resize=300M|200M -E resize=2G|200M -E resize=10G|\
                 200M -E resize=0x100000|200M -E resize=201M|200M -E resize=393217|\
                 200M -E resize=4000000s|1G -E resize=10G|1G -E resize=1T|\
                 1G -b 2048 -E resize=16G|200M -N 0x400|200M -N 0400|200M -g 0x2000|200M -i 0x4000|200M -I 0x80|\
                 200M -G 0x10|200M -b 0x800|0x4000k -N 0x80|200M -E stride=0x10,stripe_width=0x20|200M -J size=0x8|\
                 200M -b -2048|200M -b -1024|200M -b -0x1000|1G -b -2048|2M -b -4096|1G -b -8192";
    let cases = lines.split('|').map(|line| {
        let (size, letters) = line.split_once(' ').unwrap();
        Case::new(size, letters)
    });
    compare(&cases.collect::<Vec<_>>());
}

#[test]
fn ext2_and_ext3_give_mke2fs_numbers() {
    let mut cases = Vec::new();
    for fs_type in ["ext2", "ext3"] {
        // An ext3 of 1 MiB has no room for its journal: mke2fs warns and makes an ext2, ours is an error.
        let least = if fs_type == "ext3" { "2M" } else { "1M" };
        for size in [least, "8M", "64M", "1G", "20G"] {
            cases.push(Case::of_type(fs_type, size, ""));
            if size != "2M" {
                cases.push(Case::of_type(fs_type, size, "-b 4096 -I 128"));
            }
        }
    }
    compare(&cases);
}

#[test]
fn groups_shrunk_for_many_inodes_keep_the_whole_reserve() {
    // mke2fs loses some of the blocks reserved for root while it tries group sizes.
    let cases = [
        "100M -i 1024 -b 4096",
        "1G -i 1024 -b 4096",
        "1G -N 1000000 -b 4096",
    ];
    let cases = cases.map(|line| {
        let (size, letters) = line.split_once(' ').unwrap();
        Case::new(size, letters)
    });
    compare_but(&cases, &["Reserved block count"]);
}

#[test]
fn clusters_give_mke2fs_numbers() {
    compare(&["3G", "20G", "500G"].map(|size| Case::new(size, "-O bigalloc")));
    // Where there is one group, mke2fs leaves gaps for the bitmaps of fifteen more.
    let small = ["8M", "20M", "64M", "1G"].map(|size| Case::new(size, "-O bigalloc"));
    compare_but(&small, &["Overhead clusters", "Free blocks"]);
}
