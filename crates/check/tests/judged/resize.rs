//! The resize inode of a file system with clusters: what e2fsck counts as its blocks, wherever its pointers lead.

use corpus::Random;
use ondisk::Inode;

use crate::found::Made;
use crate::mended::Damaged;
use crate::{check, e2fsck, shown};

/// Mutants of each image.
const MUTANTS: u64 = 15;

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().unwrap())
}

/// A new value for a pointer: none, one that follows from another pointer, or any block.
fn changed(random: &mut Random, old: u32, other: u32, blocks: u64) -> u32 {
    match random.index(6) {
        0 => 0,
        1 => other,
        2 => other + 1,
        3 => old + 1,
        4 => old ^ 3,
        _ => random.index(blocks as usize) as u32,
    }
}

#[test]
fn pointers_of_the_resize_inode_are_counted_as_by_e2fsck() {
    for (cluster, size) in [("2048", "96M"), ("4096", "128M")] {
        let options = format!("-O bigalloc,^has_journal -C {cluster} -E resize=40000000");
        let Some(made) = Made::new(&options, size, |_| ()) else {
            return;
        };
        let whole = Damaged::new(made.bytes());
        let inode = Inode::parse(&whole.bytes[whole.slot(7)]).unwrap();
        let double = whole.at(inode.block_word(13).into());
        let reserved = (0..256).map(|index| word(&whole.bytes, double + 4 * index));
        let reserved: Vec<u32> = reserved.filter(|block| *block != 0).collect();
        assert!(reserved.len() > 3, "{cluster}");
        let mut counted = 0;
        for number in 0..MUTANTS {
            let mut random = Random::new(number);
            let mut image = Damaged::new(whole.bytes.clone());
            let mut changes = Vec::new();
            for _ in 0..1 + random.index(3) {
                let node = match random.index(3) {
                    0 => double,
                    _ => whole.at((*random.pick(&reserved)).into()),
                };
                let at = node + 4 * random.index(if node == double { 256 } else { 4 });
                let (old, other) = (word(&image.bytes, at), word(&image.bytes, node + 4));
                let new = changed(&mut random, old, other, whole.geometry.blocks_count());
                image.bytes[at..at + 4].copy_from_slice(&new.to_le_bytes());
                changes.push((at, old, new));
            }
            let report = check(&image.bytes, 1).unwrap();
            let verdict = e2fsck(&image.bytes).unwrap();
            let sectors = verdict
                .text
                .lines()
                .find(|line| line.contains("i_blocks is"));
            counted += u32::from(sectors.is_some());
            assert!(
                verdict.status < 0 || report.is_clean() != verdict.is_damage(),
                "{cluster}, {number}, {changes:?}:\n{}{}",
                shown(&report),
                verdict.text
            );
            let ours = report
                .problems
                .iter()
                .find(|it| it.code == lanefs_check::problem::Code::InodeBlocks);
            if let (Some(theirs), Some(ours)) = (sectors, ours) {
                let expected = format!("should be {}.", ours.expected.unwrap());
                assert!(
                    theirs.contains(&expected),
                    "{cluster}, {number}, {changes:?}: {theirs}, ours {ours}"
                );
            }
        }
        assert!(counted > 2, "{cluster}: {counted}");
    }
}
