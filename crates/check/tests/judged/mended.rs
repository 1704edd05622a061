//! Repairs whose outcome is known: each image is damaged in one way, and afterwards e2fsck and the checker find nothing
//! and the files are as they were.

use std::collections::BTreeMap;
use std::ops::Range;

use lanefs_check::problem::Code;
use lanefs_check::repair::{RepairScope, Repaired};
use ondisk::jbd2::JournalSuperblock;
use ondisk::{BlockSize, FsBlock, Geometry, Group, GroupDesc, Ino, Superblock, bitmap, inode};

use crate::found::{Made, Worn};
use crate::repair::{decide, decide_on, files, written};
use crate::{check, e2fsck, shown};

pub fn seed(name: &str) -> Vec<u8> {
    corpus::seed(name).bytes.to_vec()
}

/// An image under damage.
pub struct Damaged {
    pub bytes: Vec<u8>,
    pub geometry: Geometry,
}

impl Damaged {
    pub fn new(bytes: Vec<u8>) -> Damaged {
        let sb = *Superblock::view(bytes[1024..].first_chunk().unwrap());
        let geometry = Geometry::new(&sb, bytes.len() as u64).unwrap();
        Damaged { bytes, geometry }
    }

    fn size(&self) -> BlockSize {
        self.geometry.block_size()
    }

    pub fn at(&self, block: u64) -> usize {
        FsBlock(block).offset(self.size()) as usize
    }

    pub fn desc(&self, group: u32) -> GroupDesc {
        let (block, at) = self.geometry.desc_place(Group(group));
        GroupDesc::load(&self.bytes[self.at(block.0) + at..][..self.geometry.desc_size()])
    }

    pub fn set_desc(&mut self, group: u32, desc: &GroupDesc) {
        let (block, at) = self.geometry.desc_place(Group(group));
        let from = self.at(block.0) + at;
        let raw = &mut self.bytes[from..from + self.geometry.desc_size()];
        desc.store(raw, &self.geometry, Group(group));
    }

    pub fn change_superblock(&mut self, change: impl Fn(&mut Superblock)) {
        let mut sb = *Superblock::view(self.bytes[1024..].first_chunk().unwrap());
        change(&mut sb);
        sb.seal();
        self.bytes[1024..2048].copy_from_slice(sb.bytes());
    }

    pub fn slot(&self, ino: u32) -> Range<usize> {
        let (group, index) = self.geometry.group_of_ino(Ino(ino)).unwrap();
        let table = self.desc(group.0).inode_table();
        let (block, at) = self.geometry.inode_place(table, index);
        let from = self.at(block.0) + at;
        from..from + self.geometry.inode_size()
    }

    pub fn change_inode(&mut self, ino: u32, change: impl Fn(&mut [u8])) {
        let slot = self.slot(ino);
        let (sums, seed) = (self.geometry.has_metadata_csum(), self.geometry.csum_seed());
        let bytes = &mut self.bytes[slot];
        change(bytes);
        if sums {
            inode::set_checksum(bytes, seed, Ino(ino));
        }
    }

    /// Fills every free block with bytes that are not zero, as blocks of deleted files are.
    fn fill_free_blocks(&mut self) {
        for group in self.geometry.all_groups() {
            let at = self.at(self.desc(group.0).block_bitmap().0);
            let bits = self.bytes[at..at + self.size().bytes()].to_vec();
            let first = self.geometry.group_first_block(group).0;
            for bit in 0..self.geometry.group_blocks(group) {
                if !bitmap::test(&bits, bit) {
                    let (at, len) = (self.at(first + u64::from(bit)), self.size().bytes());
                    self.bytes[at..at + len].fill(0xA5);
                }
            }
        }
    }
}

/// Repairs an image and returns the bytes and what was decided. Both judges find nothing afterwards.
pub fn mended(bytes: &[u8], what: &str) -> (Vec<u8>, Repaired) {
    let repaired = decide(bytes, RepairScope::All, 1).unwrap();
    let new = match &repaired.writes {
        Some(writes) => written(bytes, writes),
        None => bytes.to_vec(),
    };
    let again = check(&new, 2).unwrap();
    let before = shown(&repaired.before);
    assert!(again.is_clean(), "{what}:\n{before}{}", shown(&again));
    if let Some(verdict) = e2fsck(&new) {
        assert_eq!(verdict.status, 0, "{what}:\n{before}{}", verdict.text);
    }
    (new, repaired)
}

/// The contents of all files by inode, without those of the file system itself.
pub fn contents(bytes: &[u8]) -> BTreeMap<u32, Vec<u8>> {
    let files = files(bytes);
    files.into_iter().filter(|(ino, _)| *ino > 12).collect()
}

fn assert_same(before: &BTreeMap<u32, Vec<u8>>, after: &BTreeMap<u32, Vec<u8>>, what: &str) {
    let differs = before
        .iter()
        .find(|(ino, bytes)| after.get(ino) != Some(bytes));
    let ino = differs.map(|(ino, _)| ino);
    assert_eq!(ino, None, "{what}: the inode's contents differ");
}

#[test]
fn a_table_that_a_descriptor_names_wrongly_is_found_and_nothing_is_lost() {
    for name in ["default-1k", "quota-verity", "ext3-1k", "default-4k"] {
        let whole = Damaged::new(seed(name));
        let before = contents(&whole.bytes);
        assert!(!before.is_empty());
        let right = whole.desc(0).inode_table().0;
        // Beside the table, in a file's blocks, where nothing is, and beyond the end.
        for table in [right + 1, right - 1, 700, 900, 1 << 40] {
            for moves_bitmap in [false, true] {
                let mut damaged = Damaged::new(whole.bytes.clone());
                let mut desc = damaged.desc(0);
                desc.set_inode_table(FsBlock(table));
                if moves_bitmap {
                    desc.set_block_bitmap(FsBlock(1 << 40));
                    desc.set_inode_bitmap(FsBlock(table + 2));
                }
                damaged.set_desc(0, &desc);
                let what = format!("{name}, table at {table}, {moves_bitmap}");
                let (new, _) = mended(&damaged.bytes, &what);
                assert_same(&before, &contents(&new), &what);
            }
        }
    }
}

#[test]
fn a_journal_whose_map_has_holes_and_blocks_of_others_is_made_anew_from_the_rest() {
    for (hole, other) in [(true, true), (true, false), (false, true)] {
        let mut damaged = Damaged::new(seed("ext3-1k"));
        let before = contents(&damaged.bytes);
        let slot = damaged.slot(8);
        let word = |at: usize, bytes: &[u8]| {
            u64::from(u32::from_le_bytes([
                bytes[at],
                bytes[at + 1],
                bytes[at + 2],
                bytes[at + 3],
            ]))
        };
        let pointers = damaged.at(word(slot.start + 0x28 + 48, &damaged.bytes));
        for (index, damages, value) in [(5, hole, 0_u32), (9, other, 2)] {
            if damages {
                let at = pointers + 4 * index;
                damaged.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
        }
        let (new, repaired) = mended(&damaged.bytes, &format!("{hole} {other}"));
        assert!(repaired.before.counts.contains_key(&Code::JournalInode) == hole);
        assert!(contents(&new) == before);
        let sb = Superblock::view(new[1024..].first_chunk().unwrap());
        assert_eq!(sb.journal_ino(), Some(Ino(8)), "there is a journal");
    }
}

#[test]
fn a_copy_of_a_shared_block_has_its_contents_whatever_the_free_block_held() {
    let mut damaged = Damaged::new(seed("default-1k"));
    damaged.fill_free_blocks();
    let before = contents(&damaged.bytes);
    // Two files with one extent each at the end of the inode's area: the second one gets the first one's block.
    let is_plain = |ino: &&u32| {
        let slot = &damaged.bytes[damaged.slot(**ino)];
        slot[0x28..0x2C] == [0x0A, 0xF3, 1, 0] && slot[0x2E] == 0
    };
    let plain: Vec<u32> = before.keys().filter(is_plain).copied().collect();
    let (first, second) = (plain[0], plain[1]);
    let extent = damaged.bytes[damaged.slot(first)][0x34..0x40].to_vec();
    damaged.change_inode(second, |slot| slot[0x34..0x40].copy_from_slice(&extent));
    let (new, _) = mended(&damaged.bytes, "shared");
    let after = contents(&new);
    assert_eq!(after[&first], before[&first]);
    let len = before[&first].len().min(after[&second].len()).min(1024);
    assert!(len > 0 && after[&second][..len] == before[&first][..len]);
}

#[test]
fn a_quota_file_that_is_broken_or_lacks_a_record_is_written_anew() {
    let original = seed("quota-verity");
    let whole = Damaged::new(original.clone());
    let named = |bytes: &[u8]| {
        let sb = Superblock::view(bytes[1024..].first_chunk().unwrap());
        [
            sb.user_quota_ino(),
            sb.group_quota_ino(),
            sb.project_quota_ino(),
        ]
    };
    let before = contents(&original);
    for ino in named(&original).into_iter().flatten().map(|ino| ino.0) {
        for damage in ["mode", "map", "owner", "another's blocks"] {
            let mut damaged = Damaged::new(original.clone());
            match damage {
                "another's blocks" => {
                    let (large, _) = before.iter().max_by_key(|it| it.1.len()).unwrap();
                    let map = damaged.slot(*large).start + 0x28;
                    let map = damaged.bytes[map..map + 60].to_vec();
                    damaged.change_inode(ino, |slot| slot[0x28..0x64].copy_from_slice(&map));
                }
                "mode" => damaged.change_inode(ino, |slot| slot[..2].fill(0)),
                "map" => damaged.change_inode(ino, |slot| slot[0x28..0x64].fill(0x77)),
                // A new owner of a file has no record.
                _ => damaged.change_inode(20, |slot| slot[2..4].copy_from_slice(&[9, 9])),
            }
            let what = format!("inode {ino}, {damage}");
            let (new, _) = mended(&damaged.bytes, &what);
            assert_eq!(named(&new), named(&whole.bytes), "{what}");
            assert!(contents(&new) == before, "{what}");
        }
    }
    // The superblock names a directory of users: that stays.
    for kind in 0..3 {
        let mut damaged = Damaged::new(original.clone());
        damaged.change_superblock(|sb| match kind {
            0 => sb.set_user_quota_ino(Some(Ino(15))),
            1 => sb.set_group_quota_ino(Some(Ino(15))),
            _ => sb.set_project_quota_ino(Some(Ino(15))),
        });
        let (new, _) = mended(
            &damaged.bytes,
            &format!("quota of kind {kind} in a directory"),
        );
        assert!(contents(&new) == before);
    }
}

#[test]
fn extents_with_one_wrong_number_cost_one_extent() {
    let whole = Damaged::new(seed("default-1k"));
    let before = contents(&whole.bytes);
    // The file with a tree of two levels: its root leads to a node of indices.
    let has_tree = |ino: &&u32| {
        let slot = &whole.bytes[whole.slot(**ino)];
        slot[0x28..0x2A] == [0x0A, 0xF3] && slot[0x2E] == 2
    };
    let ino = *before.keys().find(has_tree).unwrap();
    let pieces = before[&ino].chunks(1024);
    let all = pieces.filter(|it| it.iter().any(|byte| *byte != 0)).count();
    let slot = &whole.bytes[whole.slot(ino)];
    let generation = ondisk::Inode::parse(slot).unwrap().generation();
    let seed = inode::checksum_seed(whole.geometry.csum_seed(), Ino(ino), generation);
    let node =
        whole.at(u32::from_le_bytes([slot[0x38], slot[0x39], slot[0x3A], slot[0x3B]]).into());
    for (at, value) in [
        (24, 4096_u32),
        (24, 0),
        (24, 1),
        (24, 0x7FFF_FFFF),
        (12, 7),
        (36, 5),
    ] {
        let mut damaged = Damaged::new(whole.bytes.clone());
        // The first logical block of an index.
        let bytes = &mut damaged.bytes[node..node + 1024];
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        ondisk::extent::set_tail(bytes, seed);
        let (new, _) = mended(&damaged.bytes, &format!("index at {value}"));
        let after = contents(&new).remove(&ino).unwrap();
        let same = before[&ino].chunks(1024).zip(after.chunks(1024));
        let same = same.filter(|(a, b)| a == b && a.iter().any(|byte| *byte != 0));
        assert_eq!(same.count(), all, "index at {value}");
    }
}

type Damage = (&'static str, fn(&mut Damaged), Code);

/// Damage to one field each, which e2fsck names.
const FIELDS: &[Damage] = &[
    (
        "bigalloc",
        |image| {
            let mut desc = image.desc(0);
            desc.set_inode_bitmap(FsBlock(0));
            image.set_desc(0, &desc);
        },
        Code::InodeBitmapPlace,
    ),
    (
        "default-4k",
        |image| {
            let mut desc = image.desc(0);
            desc.set_itable_unused(image.geometry.inodes_per_group());
            image.set_desc(0, &desc);
        },
        Code::NoRoot,
    ),
    (
        "default-1k",
        |image| image.change_superblock(|sb| sb.set_inodes_count(u32::MAX)),
        Code::InodesCount,
    ),
    (
        "ext3-1k",
        |image| image.change_inode(14, |slot| slot[0x75] = 4),
        Code::InodeReserved,
    ),
    (
        "default-4k",
        |image| {
            let blocks = image.bytes.chunks(4096);
            let is_journal =
                |block: &&[u8]| block.starts_with(&[0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 4]);
            let at = blocks.take_while(|block| !is_journal(block)).count() * 4096;
            let mut journal = JournalSuperblock::read(&image.bytes[at..]).unwrap();
            journal.set_users_count(2);
            journal.seal();
            image.bytes[at..at + JournalSuperblock::SIZE].copy_from_slice(journal.bytes());
        },
        Code::JournalSuperblock,
    ),
];

#[test]
fn one_wrong_field_is_found_and_mended() {
    for (name, damage, code) in FIELDS {
        let mut damaged = Damaged::new(seed(name));
        let before = contents(&damaged.bytes);
        damage(&mut damaged);
        let what = format!("{name}, {code:?}");
        let (new, repaired) = mended(&damaged.bytes, &what);
        assert!(
            repaired.before.counts.contains_key(code),
            "{what}: {}",
            shown(&repaired.before)
        );
        assert_same(&before, &contents(&new), &what);
    }
}

#[test]
fn an_attribute_without_a_value_is_sound() {
    let fill = |root: std::path::PathBuf| std::fs::write(root.join("f"), "x").unwrap();
    let Some(made) = Made::new("", "8M", fill) else {
        return;
    };
    let commands = ["ea_set /f user.empty \"\"", "ea_set /f user.other value"];
    made.debugfs(&commands);
    let report = check(&made.bytes(), 1).unwrap();
    assert!(report.is_clean(), "{}", shown(&report));
}

#[test]
fn a_block_that_cant_be_read_is_replaced_where_it_can_be_made_again_and_left_elsewhere() {
    // An image of several groups, so that there are copies.
    let whole = Damaged::new(seed("meta-bg"));
    assert!(whole.geometry.groups() > 1 && whole.size() == BlockSize::K1);
    let desc = whole.desc(0);
    let before = contents(&whole.bytes);
    let descriptors = whole.geometry.desc_place(Group(0)).0.0;
    let replaced = [1, descriptors, desc.block_bitmap().0, desc.inode_bitmap().0];
    for block in replaced {
        let device = Worn::new(&whole.bytes, &[block]);
        let repaired = decide_on(&device, RepairScope::All, 1).unwrap();
        assert!(
            repaired.after.is_clean(),
            "{block}: {}",
            shown(&repaired.after)
        );
        let mut new = whole.bytes.clone();
        let at = whole.at(block);
        new[at..at + 1024].fill(0);
        let new = written(&new, &repaired.writes.unwrap());
        assert!(check(&new, 1).unwrap().is_clean(), "{block}");
        assert!(contents(&new) == before, "{block}");
    }
    let file = *before.keys().next().unwrap();
    let inode_table = (whole.slot(file).start / 1024) as u64;
    let slot = &whole.bytes[whole.slot(2)];
    let root = u64::from(u32::from_le_bytes([
        slot[0x3C], slot[0x3D], slot[0x3E], slot[0x3F],
    ]));
    for (block, beside) in [(inode_table, false), (inode_table, true), (root, true)] {
        let mut damaged = Damaged::new(whole.bytes.clone());
        if beside {
            // A bitmap that needs to be written.
            let at = damaged.at(damaged.desc(0).block_bitmap().0);
            damaged.bytes[at + 40] ^= 0xFF;
        }
        let device = Worn::new(&damaged.bytes, &[block]);
        let repaired = decide_on(&device, RepairScope::All, 1).unwrap();
        assert!(!repaired.after.is_clean(), "{block} {beside}");
        let new = match &repaired.writes {
            Some(writes) => {
                assert!(!writes.blocks.contains_key(&block), "{block}");
                written(&damaged.bytes, writes)
            }
            None => damaged.bytes.clone(),
        };
        // The device reads again: nothing that it hid was given up.
        assert!(contents(&new) == before, "{block}");
        let report = check(&new, 1).unwrap();
        let has_lost = report.counts.contains_key(&Code::BlockFreeUsed)
            || report.counts.contains_key(&Code::InodeFreeUsed);
        assert!(!has_lost, "{}", shown(&report));
    }
}

#[test]
fn copies_of_superblock_and_descriptors_are_written_anew() {
    for name in ["meta-bg", "sparse-super2"] {
        let whole = Damaged::new(seed(name));
        let copies = whole.geometry.all_groups().skip(1);
        let copies: Vec<u64> = copies
            .filter_map(|group| whole.geometry.group_start(group).superblock)
            .map(|block| block.0)
            .collect();
        for copy in copies {
            let mut damaged = Damaged::new(whole.bytes.clone());
            let at = damaged.at(copy);
            damaged.bytes[at..at + 1024].fill(0x33);
            let (new, _) = mended(&damaged.bytes, &format!("{name}, copy in {copy}"));
            let report = check(&new, 1).unwrap();
            assert!(
                !report.counts.contains_key(&Code::BackupSuperblock),
                "{name}"
            );
            // The copy serves.
            let mut damaged = Damaged::new(new);
            damaged.bytes[1024..2048].fill(0x11);
            let (new, _) = mended(&damaged.bytes, &format!("{name}, from the copy in {copy}"));
            assert!(contents(&new) == contents(&whole.bytes));
        }
    }
}
