//! Repairs of images in which parts have each other's places: an inode the map or the attributes of another, the
//! superblock and the descriptors the numbers of what is something else. `corpus::mutant` rarely makes such.

use corpus::{Random, Seed};
use ondisk::{FsBlock, Ino};

use crate::mended::Damaged;
use crate::repair::{Sums, files_of_users, save};
use crate::{number_from, seeds_from};

/// Where an inode has its size, its blocks, its map, and its attribute block.
const SIZE: usize = 4;
const SECTORS: usize = 0x1C;
const FLAGS: usize = 0x20;
const MAP: std::ops::Range<usize> = 0x28..0x64;
const ATTRIBUTES: usize = 0x68;

/// Inodes in use: those of the file system itself half of the time.
fn inode(random: &mut Random, used: &[u32]) -> u32 {
    let own = used.iter().filter(|ino| **ino < 13).count();
    if random.one_in(2) {
        used[random.index(own.max(1))]
    } else {
        used[random.index(used.len())]
    }
}

/// A block of the first bytes of a file's map, as far as that has any, or any block.
fn block(random: &mut Random, image: &Damaged, used: &[u32]) -> u32 {
    let ino = inode(random, used);
    let slot = &image.bytes[image.slot(ino)];
    let at = if slot[MAP.start] == 0x0A { 0x3C } else { 0x28 };
    let found = u32::from_le_bytes(*slot[at..].first_chunk().unwrap());
    let blocks = image.geometry.blocks_count() as u32;
    if found != 0 && found < blocks && !random.one_in(4) {
        found + random.index(4) as u32
    } else {
        random.index(blocks as usize) as u32
    }
}

fn change(random: &mut Random, image: &mut Damaged, used: &[u32]) -> String {
    let (to, from) = (inode(random, used), inode(random, used));
    let source = image.bytes[image.slot(from)].to_vec();
    let block = block(random, image, used);
    match random.index(8) {
        0..=2 => {
            image.change_inode(to, |slot| {
                slot[MAP].copy_from_slice(&source[MAP]);
                for at in [SIZE, SECTORS, FLAGS] {
                    slot[at..at + 4].copy_from_slice(&source[at..at + 4]);
                }
            });
            format!("map of {from} in {to}")
        }
        3 => {
            image.change_inode(to, |slot| slot[MAP].copy_from_slice(&source[MAP]));
            format!("map alone of {from} in {to}")
        }
        4 => {
            image.change_inode(to, |slot| {
                slot[ATTRIBUTES..ATTRIBUTES + 4].copy_from_slice(&block.to_le_bytes());
            });
            format!("attribute block {block} in {to}")
        }
        5 => {
            image.change_inode(to, |slot| slot.copy_from_slice(&source));
            format!("inode {from} in {to}")
        }
        6 => {
            let field = random.index(6);
            let ino = Some(Ino(from));
            image.change_superblock(|sb| match field {
                0 => sb.set_user_quota_ino(ino),
                1 => sb.set_group_quota_ino(ino),
                2 => sb.set_project_quota_ino(ino),
                3 => sb.set_orphan_file_ino(ino),
                4 => sb.set_journal_ino(ino),
                _ => sb.set_mmp_block(FsBlock(block.into())),
            });
            format!("field {field} names {from} or {block}")
        }
        _ => {
            let group = random.index(image.geometry.groups() as usize) as u32;
            let mut desc = image.desc(group);
            let field = random.index(3);
            let place = FsBlock(block.into());
            match field {
                0 => desc.set_block_bitmap(place),
                1 => desc.set_inode_bitmap(place),
                _ => desc.set_inode_table(place),
            }
            image.set_desc(group, &desc);
            format!("descriptor {group}, field {field} names {block}")
        }
    }
}

fn one_seed(seed: &Seed, numbers: std::ops::Range<u64>, sums: &mut Sums, is_loud: bool) {
    let original = files_of_users(&seed.bytes);
    let whole = Damaged::new(seed.bytes.to_vec());
    let inodes = 1..=whole.geometry.inodes_count().min(64);
    let is_used = |ino: &u32| whole.bytes[whole.slot(*ino)][0x1A..0x1C] != [0, 0];
    let used: Vec<u32> = inodes.filter(is_used).collect();
    for number in numbers {
        let mut random = Random::new(number.wrapping_mul(0x9E37_79B9).wrapping_add(5));
        let mut image = Damaged::new(whole.bytes.clone());
        let count = *random.pick(&[1, 1, 1, 2, 3]);
        let changes: Vec<String> = (0..count)
            .map(|_| change(&mut random, &mut image, &used))
            .collect();
        if let Some(words) = sums.judge(&original, &image.bytes)
            && is_loud
        {
            save(&format!("{}-{number}-mixed.img", seed.name), &image.bytes);
            println!("{} {number} {changes:?} {words}", seed.name);
        }
    }
}

/// As `mutants_are_repaired_as_by_e2fsck`, with the same variables.
#[test]
fn images_with_parts_in_places_of_others_are_repaired_as_by_e2fsck() {
    if !testkit::have("e2fsck") {
        return testkit::skip("e2fsck is missing");
    }
    let asked = number_from("LANEFS_REPAIR_MUTANTS");
    // Both images are damaged with this number, and e2fsck makes them clean.
    let few = if asked.is_none() { 8 } else { 0 };
    let first = number_from("LANEFS_REPAIR_FIRST").unwrap_or(few);
    let mut sums = Sums::default();
    let seeds = match asked {
        Some(_) => seeds_from("LANEFS_REPAIR_SEED"),
        None => Vec::from(["bigalloc", "quota-verity"].map(corpus::seed)),
    };
    for seed in seeds {
        one_seed(
            &seed,
            first..first + asked.unwrap_or(1),
            &mut sums,
            asked.is_some(),
        );
    }
    println!("{sums:?}");
    if asked.is_none() {
        sums.assert_all_as_good();
    } else {
        sums.assert_not_short();
    }
}
