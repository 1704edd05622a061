//! Mutants: an image with a few structures changed, most of them sealed again.

use sync::Arc;

use crate::overlay::PatchedBytes;
use crate::structures::{Kind, Structure, Structures};
use model::Random;

/// Bytes at the front of a structure, where its numbers mostly are.
const FRONT: usize = 64;

/// Mutant number `number` of an image, and the structures that were changed.
///
/// # Panics
/// When `structures` are not those of `base`.
#[must_use]
pub fn mutant(
    base: &Arc<[u8]>,
    structures: &Structures,
    number: u64,
) -> (PatchedBytes, Vec<Structure>) {
    changed(base, structures, number, true)
}

/// The same changes as [`mutant`] makes, without right checksums.
pub fn unsealed_mutant(
    base: &Arc<[u8]>,
    structures: &Structures,
    number: u64,
) -> (PatchedBytes, Vec<Structure>) {
    changed(base, structures, number, false)
}

fn changed(
    base: &Arc<[u8]>,
    structures: &Structures,
    number: u64,
    seals: bool,
) -> (PatchedBytes, Vec<Structure>) {
    let mut random = Random::new(number.wrapping_mul(0x1234_5679).wrapping_add(7));
    let mut image = PatchedBytes::new(Arc::clone(base));
    let mut changed = Vec::new();
    for _ in 0..*random.pick(&[1, 1, 1, 2, 2, 3, 5]) {
        let class = &structures.classes[random.index(structures.classes.len())];
        let structure = class[random.index(class.len())];
        let mut bytes = image.get(structure.offset, structure.len);
        for _ in 0..*random.pick(&[1, 1, 2, 4]) {
            if random.one_in(12) {
                let other = class[random.index(class.len())];
                splice(&mut random, &mut bytes, &image.get(other.offset, other.len));
            } else {
                edit(&mut random, &mut bytes, structures);
            }
        }
        if !random.one_in(16) && seals {
            structure.kind.seal(&mut bytes, &structures.geometry);
        }
        // The magic number and the log's place at least must stay, or nothing behind them is ever read.
        if structure.kind == Kind::Superblock {
            bytes[0x38..0x3A].copy_from_slice(&0xEF53_u16.to_le_bytes());
            if seals {
                structure.kind.seal(&mut bytes, &structures.geometry);
            }
        }
        image.set(structure.offset, bytes);
        changed.push(structure);
    }
    (image, changed)
}

/// Where in a structure to change something: its front, or anywhere; mostly a multiple of the width.
fn place(random: &mut Random, len: usize, width: usize) -> usize {
    let end = if random.one_in(2) {
        len.min(FRONT)
    } else {
        len
    };
    let at = random.index(end.saturating_sub(width).max(1));
    if random.one_in(8) {
        at
    } else {
        at / width * width
    }
}

/// Gives one number of a structure another value.
fn edit(random: &mut Random, bytes: &mut [u8], structures: &Structures) {
    let width = *random.pick(&[1, 2, 2, 4, 4, 4, 8]);
    if bytes.len() < width {
        return;
    }
    let at = place(random, bytes.len(), width);
    let mut word = [0; 8];
    word[..width].copy_from_slice(&bytes[at..at + width]);
    let old = u64::from_le_bytes(word);
    let top = u64::MAX >> (64 - 8 * width);
    let geometry = &structures.geometry;
    let new = match random.index(12) {
        0 => 0,
        1 => 1,
        2 => top,
        3 => top >> 1,
        4 => (top >> 1) + 1,
        5 => old.wrapping_add(1),
        6 => old.wrapping_sub(1),
        7 => old ^ (1 << random.index(8 * width)),
        8 => geometry.blocks_count().wrapping_sub(random.index(3) as u64),
        9 => u64::from(geometry.inodes_count()).wrapping_add(random.index(2) as u64),
        10 => random.index(300) as u64,
        _ => random.bits(),
    };
    bytes[at..at + width].copy_from_slice(&new.to_le_bytes()[..width]);
}

/// Copies a part of one structure over a part of another.
fn splice(random: &mut Random, bytes: &mut [u8], other: &[u8]) {
    let len = (*random.pick(&[4_usize, 8, 12, 16, 64, 512]))
        .min(bytes.len())
        .min(other.len());
    let from = place(random, other.len(), 4).min(other.len() - len);
    let to = place(random, bytes.len(), 4).min(bytes.len() - len);
    bytes[to..to + len].copy_from_slice(&other[from..from + len]);
}
