//! Images of problems that `preen.rs` finds neither in those of `numbers.rs` nor in a mutant.

use std::fs;
use std::path::PathBuf;

use lanefs_check::problem::Code;
use ondisk::{Feature, Flags, FsBlock, Ino, Inode, inode, orphan_file};

use crate::found::{Made, encrypted};
use crate::mended::{Damaged, seed};

/// Where an inode has its map, and the first extent's entry in a root of extents.
const MAP: usize = 0x28;
const EXTENT: usize = MAP + 12;

/// A problem and an image with it; other problems may come with it. None where a program is missing.
type Image = (Code, fn() -> Option<Vec<u8>>);

pub const IMAGES: &[Image] = &[
    (Code::FirstMetaGroup, first_meta_group),
    (Code::OrphanLoop, orphan_loop),
    (Code::OrphanFlag, orphan_flag),
    (Code::OrphanNamed, orphan_named),
    (Code::EncryptContextCorrupt, corrupt_context),
    (Code::ExtentRootEmpty, empty_root),
    (Code::ExtentUnwrittenDirectory, unwritten_directory),
    (Code::ClaimsTooMany, too_many_claims),
    (Code::XattrValueSize, value_size),
    (Code::EntryCasefold, not_utf8),
    (Code::EntryValueInode, name_of_a_value),
    (Code::EntryUnencrypted, encrypted),
    (Code::EntryOtherPolicy, encrypted),
    (Code::NameFoldedTwice, folded_twice),
    (Code::HtreeChecksum, index_checksum),
];

/// An image with the directory `/d` and two files in it.
fn made(options: &str) -> Option<Made> {
    Made::new(options, "16M", |root: PathBuf| {
        fs::create_dir(root.join("d")).unwrap();
        fs::write(root.join("d/aname"), "x").unwrap();
        fs::write(root.join("d/ANAMF"), "x").unwrap();
    })
}

fn number_of(made: &Made, path: &str) -> u32 {
    let shown = made.asked(&format!("stat {path}"));
    shown.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The inodes in use of a seed for which `is_wanted` returns true.
fn inodes(image: &Damaged, is_wanted: impl Fn(&Inode) -> bool) -> Vec<u32> {
    let all = 11..=image.geometry.inodes_count();
    let is_found = |ino: &u32| {
        let inode = Inode::parse(&image.bytes[image.slot(*ino)]);
        inode.is_ok_and(|inode| inode.links_count() > 0 && is_wanted(&inode))
    };
    all.filter(is_found).collect()
}

fn first_meta_group() -> Option<Vec<u8>> {
    let made = Made::new("-O meta_bg,^resize_inode", "4M", |_| {})?;
    let mut damaged = Damaged::new(made.bytes());
    damaged.change_superblock(|sb| sb.set_first_meta_bg(9));
    Some(damaged.bytes)
}

fn orphan_loop() -> Option<Vec<u8>> {
    let made = made("")?;
    let ino = number_of(&made, "/d/aname");
    made.debugfs(&[
        "unlink /d/aname",
        &format!("sif <{ino}> links_count 0"),
        &format!("sif <{ino}> dtime {ino}"),
        &format!("ssv last_orphan {ino}"),
    ]);
    Some(made.bytes())
}

fn orphan_flag() -> Option<Vec<u8>> {
    let made = made("-O orphan_file")?;
    let ino = number_of(&made, "/d/aname");
    made.debugfs(&["unlink /d/aname", &format!("sif <{ino}> links_count 0")]);
    let mut damaged = Damaged::new(made.bytes());
    let sb = *ondisk::Superblock::view(damaged.bytes[1024..].first_chunk().unwrap());
    assert!(sb.features().has(Feature::ORPHAN_FILE));
    let file = sb.orphan_file_ino().unwrap();
    let slot = &damaged.bytes[damaged.slot(file.0)];
    let orphans = Inode::parse(slot).unwrap();
    let block = u32::from_le_bytes(slot[EXTENT + 8..EXTENT + 12].try_into().unwrap());
    let seed = inode::checksum_seed(damaged.geometry.csum_seed(), file, orphans.generation());
    let at = damaged.at(block.into());
    let bytes = &mut damaged.bytes[at..at + 1024];
    orphan_file::set_slot(bytes, 0, Some(Ino(ino)));
    orphan_file::seal(bytes, FsBlock(block.into()), Some(seed));
    Some(damaged.bytes)
}

fn orphan_named() -> Option<Vec<u8>> {
    let mut damaged = Damaged::new(seed("default-4k"));
    damaged.change_superblock(|sb| sb.set_orphan_file_ino(Some(Ino(12))));
    Some(damaged.bytes)
}

fn corrupt_context() -> Option<Vec<u8>> {
    let mut damaged = Damaged::new(encrypted()?);
    let context = [1, 1, 4, 0, 2, 2, 2, 2];
    let ino = inodes(&damaged, |inode| inode.flags().contains(Flags::ENCRYPT));
    for ino in ino {
        damaged.change_inode(ino, |slot| {
            // The version, and the hash of the entry, which the kernel does not demand.
            if let Some(at) = slot.windows(8).position(|bytes| bytes == context) {
                slot[at] = 0;
                slot[128 + 32 + 4 + 12..][..4].fill(0);
            }
        });
    }
    Some(damaged.bytes)
}

fn empty_root() -> Option<Vec<u8>> {
    let mut damaged = Damaged::new(seed("default-1k"));
    let has_tree = |inode: &Inode| inode.block_area()[..8] == [0x0A, 0xF3, 1, 0, 4, 0, 2, 0];
    let ino = inodes(&damaged, has_tree);
    damaged.change_inode(*ino.first()?, |slot| slot[MAP + 2] = 0);
    Some(damaged.bytes)
}

fn unwritten_directory() -> Option<Vec<u8>> {
    let made = made("")?;
    let ino = number_of(&made, "/d");
    let mut damaged = Damaged::new(made.bytes());
    damaged.change_inode(ino, |slot| slot[EXTENT + 5] |= 0x80);
    Some(damaged.bytes)
}

/// Two files that map almost all blocks four times.
fn too_many_claims() -> Option<Vec<u8>> {
    let mut damaged = Damaged::new(seed("default-1k"));
    let has_extents =
        |inode: &Inode| inode.flags().contains(Flags::EXTENTS) && inode.mode() & 0xF000 == 0x8000;
    for ino in inodes(&damaged, has_extents) {
        damaged.change_inode(ino, |slot| {
            slot[MAP + 2..MAP + 4].copy_from_slice(&4_u16.to_le_bytes());
            slot[MAP + 6..MAP + 8].fill(0);
            for extent in 0..4_u32 {
                let at = EXTENT + 12 * extent as usize;
                slot[at..at + 4].copy_from_slice(&(4000 * extent).to_le_bytes());
                slot[at + 4..at + 8].copy_from_slice(&4000_u32.to_le_bytes());
                slot[at + 8..at + 12].copy_from_slice(&20_u32.to_le_bytes());
            }
        });
    }
    Some(damaged.bytes)
}

fn value_size() -> Option<Vec<u8>> {
    let mut damaged = Damaged::new(seed("ea-inode"));
    let is_value = |inode: &Inode| inode.flags().contains(Flags::EA_INODE);
    let ino = inodes(&damaged, is_value)[0];
    damaged.change_inode(ino, |slot| slot[4] ^= 1);
    Some(damaged.bytes)
}

/// Writes other bytes over the ones of a name in `/d`.
fn renamed(made: &Made, from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut bytes = made.bytes();
    let places: Vec<usize> = (0..bytes.len() - from.len())
        .filter(|at| bytes[*at..].starts_with(from))
        .collect();
    assert_eq!(places.len(), 1);
    bytes[places[0]..][..to.len()].copy_from_slice(to);
    bytes
}

fn not_utf8() -> Option<Vec<u8>> {
    let strict = "-O casefold,^metadata_csum -E encoding=utf8,encoding_flags=strict";
    let made = made(strict)?;
    made.debugfs(&["sif /d flags 0x40080000"]);
    Some(renamed(&made, b"ANAMF", b"ANAM\xFF"))
}

fn folded_twice() -> Option<Vec<u8>> {
    let made = made("-O casefold,^metadata_csum -E encoding=utf8")?;
    made.debugfs(&["sif /d flags 0x40080000"]);
    Some(renamed(&made, b"ANAMF", b"ANAME"))
}

fn name_of_a_value() -> Option<Vec<u8>> {
    if !testkit::have("debugfs") {
        return None;
    }
    let damaged = Damaged::new(seed("ea-inode"));
    let is_value = |inode: &Inode| inode.flags().contains(Flags::EA_INODE);
    let ino = inodes(&damaged, is_value)[0];
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    testkit::write_image(&image, &damaged.bytes);
    testkit::debugfs_script(&image, &format!("link <{ino}> /value\n"));
    Some(testkit::read_image(&image))
}

/// The index of a directory with long names has nodes below its root, once e2fsck -D has made it.
fn index_checksum() -> Option<Vec<u8>> {
    if !testkit::have("e2fsck") {
        return None;
    }
    let made = Made::new("", "16M", |root: PathBuf| {
        fs::create_dir(root.join("d")).unwrap();
        for number in 0..600 {
            fs::write(root.join(format!("d/{number:0250}")), "").unwrap();
        }
    })?;
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    testkit::write_image(&image, &made.bytes());
    // The status is 1: it has changed the image.
    let _ = testkit::e2fsck_with(&["-fyD"], &image);
    let mut bytes = testkit::read_image(&image);
    let word = |block: &[u8], at| u16::from_le_bytes([block[at], block[at + 1]]);
    // One entry that covers the block and has no name, then the room and the number of the index's entries.
    let is_node = |block: &[u8]| {
        block[..4] == [0; 4]
            && word(block, 4) == 1024
            && word(block, 6) == 0
            && word(block, 8) == (1024 - 16) / 8
            && word(block, 10) > 1
    };
    let at = 1024 * bytes.chunks(1024).position(is_node).unwrap();
    bytes[at + 1023] ^= 1;
    Some(bytes)
}
