//! Images of which a large part is damaged: half of a large directory, the root, half of the inode tables, all bitmaps.
//! One repair makes each clean for both judges, and keeps at least as much of the files as e2fsck -y does.

use std::path::PathBuf;

use ondisk::{FsBlock, Group};

use crate::found::Made;
use crate::mended::{Damaged, mended};
use crate::repair::{e2fsck_yes, files, kept};

/// Damages an image.
type Damage = fn(&mut Damaged, &Places);

/// The blocks of two directories.
struct Places {
    /// The large directory, in the order of its contents.
    large: Vec<u64>,
    /// The root.
    root: Vec<u64>,
}

/// Fills a block with random bytes.
fn junk(image: &mut Damaged, block: u64) {
    let mut random = corpus::Random::new(block);
    let (at, len) = (image.at(block), image.geometry.block_size().bytes());
    image.bytes[at..at + len].fill_with(|| random.bits() as u8);
}

fn zero(image: &mut Damaged, block: u64) {
    let (at, len) = (image.at(block), image.geometry.block_size().bytes());
    image.bytes[at..at + len].fill(0);
}

/// Every second block of all inode tables.
fn tables(image: &Damaged) -> Vec<u64> {
    let blocks = u64::from(image.geometry.inode_table_blocks());
    let groups = (0..image.geometry.groups()).map(|group| image.desc(group).inode_table().0);
    groups
        .flat_map(|first| (first..first + blocks).step_by(2))
        .collect()
}

const DAMAGE: &[(&str, Damage)] = &[
    ("the middle of a large directory, junk", |image, places| {
        let quarter = places.large.len() / 4;
        for block in &places.large[quarter..3 * quarter] {
            junk(image, *block);
        }
    }),
    (
        "every second block of a large directory, zeros",
        |image, places| {
            for block in places.large.iter().step_by(2) {
                zero(image, *block);
            }
        },
    ),
    ("the root of a large directory's index", |image, places| {
        junk(image, places.large[0]);
    }),
    ("the root's blocks", |image, places| {
        for block in &places.root {
            zero(image, *block);
        }
    }),
    ("the root's inode", |image, _| {
        let slot = image.slot(2);
        image.bytes[slot].fill(0);
    }),
    ("half of the inode tables, zeros", |image, _| {
        for block in tables(image) {
            zero(image, block);
        }
    }),
    ("half of the inode tables, junk", |image, _| {
        for block in tables(image) {
            junk(image, block);
        }
    }),
    ("all bitmaps", |image, _| {
        for group in 0..image.geometry.groups() {
            let desc = image.desc(group);
            junk(image, desc.block_bitmap().0);
            junk(image, desc.inode_bitmap().0);
        }
    }),
    ("superblock and descriptors", |image, _| {
        let desc = image.geometry.desc_place(Group(0)).0;
        junk(image, 1);
        junk(image, desc.0);
    }),
    ("one of 50 blocks", |image, _| {
        for block in (1..image.geometry.blocks_count()).step_by(50) {
            junk(image, block);
        }
    }),
];

#[test]
fn half_of_an_image_is_repaired_in_one_run_with_no_fewer_bytes_than_by_e2fsck() {
    let names = crate::number_from("LANEFS_CHECK_NAMES").unwrap_or(1500);
    let fill = |root: PathBuf| {
        std::fs::create_dir(root.join("large")).unwrap();
        for name in 0..names {
            let path = root.join(format!("large/the-name-of-a-file-{name:07}"));
            std::fs::write(path, format!("{name}").repeat(80)).unwrap();
        }
        for name in 0..20_usize {
            let folder = root.join(format!("d{name}/below"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("file"), vec![name as u8 + 1; 700 * name]).unwrap();
        }
    };
    let (inodes, size) = (names + 200, format!("{}K", 12_000 + 3 * names));
    let options = format!("-N {inodes} -O ^resize_inode -J size=1");
    let Some(made) = Made::new(&options, &size, fill) else {
        return;
    };
    let whole = Damaged::new(made.bytes());
    let before = files(&whole.bytes);
    let blocks = |path: &str| {
        let text = made.asked(&format!("blocks {path}"));
        text.split_whitespace()
            .map(|it| it.parse().unwrap())
            .collect()
    };
    let places = Places {
        large: blocks("/large"),
        root: blocks("/"),
    };
    assert!(places.large.len() > 20 && whole.geometry.contains(FsBlock(places.root[0]), 1));
    for (what, damage) in DAMAGE {
        let mut damaged = Damaged::new(whole.bytes.clone());
        damage(&mut damaged, &places);
        let (new, _) = mended(&damaged.bytes, what);
        if let Some(theirs) = e2fsck_yes(&damaged.bytes) {
            let (ours, theirs) = (kept(&before, &new), kept(&before, &theirs));
            println!("{what}: {ours} pieces are kept, {theirs} by e2fsck");
            assert!(ours >= theirs, "{what}: {ours}, e2fsck {theirs}");
        }
    }
}
