//! Maps that are wrong: changing such files is refused or done, and never panics.

use device::BlockDevice;
use lanefs_engine::{InodeFs, MountOptions};
use model::Random;
use simulate::CowDevice;
use sync::Arc;

use crate::files::{self, Change};
use crate::image::clock;
use crate::orphans::fragmented;

/// Does random changes; what they say is not looked at.
fn change_at_will(image: &[u8], random: &mut Random, with_extents: bool) {
    let device = Arc::new(CowDevice::new(image.into()));
    let Ok(fs) = InodeFs::open_for_writing(
        device as Arc<dyn BlockDevice>,
        &MountOptions::default(),
        clock,
    ) else {
        return;
    };
    let Ok(ino) = fs.resolve(b"one", true) else {
        return;
    };
    for _ in 0..12 {
        let _outcome = match files::random(random, 1_000_000, 2_500_000, with_extents) {
            Change::Write(offset, bytes) => fs.write(ino, offset, &bytes).map(|_| ()),
            Change::Truncate(size) => fs.truncate(ino, size),
            Change::Allocate(how, offset, len) => fs.allocate(ino, how, offset, len),
        };
    }
    let _outcome = fs.close();
}

fn damage(options: &[&str], is_map: impl Fn(&[u8]) -> bool, with_extents: bool) {
    let Some((image, _)) = fragmented(options) else {
        return;
    };
    let blocks: Vec<usize> = (0..image.len() / 1024)
        .filter(|block| is_map(&image[block * 1024..(block + 1) * 1024]))
        .collect();
    assert!(blocks.len() > 3, "{} blocks of the map", blocks.len());
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut image = testkit::copy_image(&image);
        for _ in 0..1 + random.below(6) {
            let block = *random.pick(&blocks);
            let at = block * 1024 + random.below(200) as usize;
            image[at] = match random.below(3) {
                0 => random.bits() as u8,
                1 => 0,
                _ => image[at].wrapping_add(1),
            };
        }
        change_at_will(&image, &mut random, with_extents);
    }
}

#[test]
fn changing_files_with_broken_trees_never_panics() {
    let is_node = |block: &[u8]| block[..2] == [0x0a, 0xf3];
    damage(&["-b", "1024", "-O", "^metadata_csum"], is_node, true);
}

#[test]
fn changing_files_with_broken_maps_never_panics() {
    // Pointers with holes between them, and no more than the image has blocks.
    let is_pointers = |block: &[u8]| {
        let words = block
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        let words: Vec<u32> = words.collect();
        words.iter().all(|word| *word < 8192)
            && words.iter().filter(|word| **word > 100).count() > 3
    };
    damage(
        &["-b", "1024", "-O", "^extents,^64bit,^metadata_csum"],
        is_pointers,
        false,
    );
}
