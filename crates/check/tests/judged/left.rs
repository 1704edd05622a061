//! Repairs that can't mend everything: in a full file system a directory without a name stays without one, as
//! `lost+found` can't be made. All other damage is mended, of whatever kind it is.

use lanefs_check::problem::Code;
use lanefs_check::repair::RepairScope;

use crate::found::Made;
use crate::mended::{Damaged, contents};
use crate::repair::{decide, written};
use crate::{check, e2fsck, shown};

type Change = fn(&mut Damaged);

/// Damage to what Linux reads first.
const LAYOUT: &[(Change, Code)] = &[
    (
        |image| {
            let (block, at) = image.geometry.desc_place(ondisk::Group(0));
            let at = image.at(block.0) + at + 0x1E;
            image.bytes[at] ^= 0x55;
        },
        Code::DescriptorChecksum,
    ),
    (
        |image| {
            let mut desc = image.desc(1);
            desc.set_itable_unused(desc.free_inodes() + 1);
            image.set_desc(1, &desc);
        },
        Code::DescriptorCounts,
    ),
    (
        |image| {
            let mut desc = image.desc(1);
            desc.set_flags(desc.flags() | ondisk::group_desc::flags::BLOCK_UNINIT);
            image.set_desc(1, &desc);
        },
        Code::LastGroupUninit,
    ),
    (
        |image| {
            let mut desc = image.desc(1);
            desc.set_block_bitmap(ondisk::FsBlock(1 << 30));
            image.set_desc(1, &desc);
        },
        Code::BlockBitmapPlace,
    ),
    (
        |image| image.change_superblock(|sb| sb.set_reserved_blocks_count(12_000)),
        Code::ReservedBlocks,
    ),
    (
        |image| image.change_superblock(|sb| sb.set_inodes_count(77)),
        Code::InodesCount,
    ),
    (
        |image| image.bytes[1024..2048].fill(0),
        Code::SuperblockFromBackup,
    ),
    (
        |image| {
            let slot = image.slot(8);
            image.bytes[slot].fill(0);
        },
        Code::JournalInode,
    ),
];

/// A file system without a free block and without `lost+found`, in which a directory has no name.
fn full() -> Option<Made> {
    let made = Made::new("-m 0", "16M", |root| {
        std::fs::create_dir(root.join("d")).unwrap();
        std::fs::write(root.join("f"), vec![1; 30_000]).unwrap();
    })?;
    made.debugfs(&["rmdir lost+found", "unlink d"]);
    for number in 0..20 {
        let stats = made.asked("show_super_stats -h");
        let free = stats
            .lines()
            .find_map(|line| line.strip_prefix("Free blocks:"));
        let free: u64 = free.unwrap().trim().parse().unwrap();
        if free == 0 {
            return Some(made);
        }
        let (write, last) = (format!("write /dev/null fill{number}"), free - 1);
        made.debugfs(&[&write, &format!("fallocate fill{number} 0 {last}")]);
    }
    panic!("the file system does not get full");
}

#[test]
fn what_is_wrong_beside_a_directory_that_finds_no_room_is_mended() {
    let Some(made) = full() else { return };
    let whole = Damaged::new(made.bytes());
    let before = contents(&whole.bytes);
    for (damage, code) in LAYOUT {
        let mut damaged = Damaged::new(whole.bytes.clone());
        damage(&mut damaged);
        let repaired = decide(&damaged.bytes, RepairScope::All, 1).unwrap();
        assert!(
            repaired.before.counts.contains_key(code),
            "{code:?}: {}",
            shown(&repaired.before)
        );
        let Some(writes) = &repaired.writes else {
            panic!("{code:?}: nothing is mended: {}", shown(&repaired.before));
        };
        let new = written(&damaged.bytes, writes);
        let left = check(&new, 1).unwrap();
        let codes: Vec<Code> = left.counts.keys().copied().collect();
        assert!(
            !left.is_clean() && !codes.contains(code),
            "{code:?}: {}",
            shown(&left)
        );
        if let Some(verdict) = e2fsck(&new) {
            let numbers: Vec<u32> = codes.iter().map(|code| code.kind().number).collect();
            let is_named = |number: &u32| numbers.contains(number) || *number >> 16 == 3;
            let is_same = verdict.numbers.iter().all(is_named);
            assert!(is_same, "{code:?}: {codes:?}\n{}", verdict.text);
        }
        assert!(contents(&new) == before, "{code:?}");
    }
}
