//! Nodes written by a kernel for a file of 600 blocks with a hole after each (1 KiB blocks).

use super::*;
use crate::inode::{self, Inode};
use crate::numbers::Ino;

const SLOTS: &[u8] = include_bytes!("../../tests/golden/inodes.bin");
const INDEX: &[u8] = include_bytes!("../../tests/golden/extent_index.bin");
const LEAF: &[u8] = include_bytes!("../../tests/golden/extent_leaf.bin");
const BLOCKS: Range<u64> = 1..32768;

fn inode(at: usize) -> Inode {
    Inode::parse(&SLOTS[256 * at..]).unwrap()
}

fn seed() -> u32 {
    let uuid = b"\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef";
    inode::checksum_seed(crc32c(!0, uuid), Ino(15), inode(3).generation())
}

fn below_root(depth: u16) -> Expect {
    Expect {
        depth: Some(depth),
        covers: 0..1 << 32,
        blocks: BLOCKS,
    }
}

#[test]
fn golden_nodes_verify_and_are_written_back_identical() {
    let root = *inode(3).block_area();
    let nodes = [
        (&root[..], Expect::root(BLOCKS), 2, 1),
        (INDEX, below_root(1), 1, 8),
        (LEAF, below_root(0), 0, 84),
    ];
    for (bytes, expect, depth, count) in nodes {
        let node = ExtentNode::verify(bytes, &expect).unwrap();
        assert_eq!((node.depth(), node.header().entries()), (depth, count));
        let mut written = bytes.to_vec();
        encode(&mut written, node.depth(), node.entries());
        if bytes.len() == 1024 {
            verify_tail(bytes, seed()).unwrap();
            set_tail(&mut written, seed());
        }
        // The kernel leaves old entries behind the last one; only what is in use is compared.
        let used = 12 + 12 * usize::from(count);
        assert_eq!(written[..used], bytes[..used]);
        ExtentNode::verify(&written, &expect).unwrap();
    }
    let mut written = LEAF.to_vec();
    let node = ExtentNode::verify(LEAF, &below_root(0)).unwrap();
    encode(&mut written, 0, node.entries());
    set_tail(&mut written, seed());
    assert_eq!(written, LEAF);
}

#[test]
fn extents_are_what_debugfs_says() {
    let ExtentEntries::Extents(extents) =
        ExtentNode::verify(LEAF, &below_root(0)).unwrap().entries()
    else {
        panic!("a leaf has extents");
    };
    for (at, extent) in (0u32..).zip(extents).skip(1) {
        assert_eq!((extent.block(), extent.len()), (2 * at, 1));
        assert_eq!(extent.start(), FsBlock(10_241 + 2 * u64::from(at)));
    }
    let unwritten = inode(4);
    let node = ExtentNode::verify(unwritten.block_area(), &Expect::root(BLOCKS)).unwrap();
    let ExtentEntries::Extents([extent]) = node.entries() else {
        panic!("one extent");
    };
    assert_eq!((extent.len(), extent.is_unwritten()), (64, true));
    assert_eq!(extent.start(), FsBlock(8513));
    assert_eq!(extent.end(), 64);
}

#[test]
fn changed_tails_are_found() {
    for at in [0, 500, 1019, 1020, 1023] {
        let mut changed = LEAF.to_vec();
        changed[at] ^= 1;
        assert!(verify_tail(&changed, seed()).is_err(), "{at}");
    }
    // A header whose room leaves no tail.
    let mut changed = LEAF.to_vec();
    changed[4] = 0xff;
    assert!(verify_tail(&changed, seed()).is_err());
}

fn site(bytes: &[u8], expect: &Expect) -> Site {
    ExtentNode::verify(bytes, expect).unwrap_err().site()
}

#[test]
fn each_kind_of_damage_has_its_site() {
    let extent = |block, len, start| Extent::new(LBlock(block), len, FsBlock(start), false);
    let node = |extents: &[Extent]| {
        let mut bytes = [0; 60];
        encode(&mut bytes, 0, ExtentEntries::Extents(extents));
        bytes
    };
    let root = Expect::root(BLOCKS);
    assert_eq!(site(&[0; 60], &root), Site::ExtentMagic);
    assert_eq!(site(&[0; 3], &root), Site::ExtentMagic);
    assert_eq!(site(LEAF, &below_root(1)), Site::ExtentDepth);
    let mut deep = node(&[]);
    deep[6] = 6;
    assert_eq!(site(&deep, &root), Site::ExtentDepth);
    deep[6] = 1;
    assert_eq!(site(&deep, &root), Site::ExtentEmptyIndex);
    let mut many = node(&[]);
    many[4] = 5;
    assert_eq!(site(&many, &root), Site::ExtentCount);
    let mut empty = node(&[extent(0, 1, 100)]);
    empty[16] = 0;
    assert_eq!(site(&empty, &root), Site::ExtentLength);
    let overlap = node(&[extent(0, 5, 100), extent(4, 5, 200)]);
    assert_eq!(site(&overlap, &root), Site::ExtentOrder);
    assert_eq!(
        site(&node(&[extent(u32::MAX, 2, 100)]), &root),
        Site::ExtentOrder
    );
    assert_eq!(site(&node(&[extent(0, 5, 0)]), &root), Site::ExtentPointer);
    assert_eq!(
        site(&node(&[extent(0, 5, 32_764)]), &root),
        Site::ExtentPointer
    );
    ExtentNode::verify(&node(&[extent(0, 5, 32_763)]), &root).unwrap();
    let index = |indices: &[ExtentIndex]| {
        let mut bytes = [0; 60];
        encode(&mut bytes, 1, ExtentEntries::Indices(indices));
        bytes
    };
    let twice = [ExtentIndex::new(LBlock(3), FsBlock(9)); 2];
    assert_eq!(site(&index(&twice), &root), Site::ExtentIndexOrder);
    let outside = [ExtentIndex::new(LBlock(0), FsBlock(32_768))];
    assert_eq!(site(&index(&outside), &root), Site::ExtentIndexPointer);
}

#[test]
fn lengths_tell_written_from_unwritten() {
    let longest = Extent::new(LBlock(0), MAX_LEN, FsBlock(1), false);
    assert_eq!((longest.len(), longest.is_unwritten()), (MAX_LEN, false));
    let longest = Extent::new(LBlock(0), MAX_LEN - 1, FsBlock(1 << 47), true);
    assert_eq!((longest.len(), longest.is_unwritten()), (MAX_LEN - 1, true));
    assert_eq!(longest.start(), FsBlock(1 << 47));
    assert_eq!(
        (
            block_entries(1024),
            block_entries(4096),
            block_entries(65536)
        ),
        (84, 340, 5460)
    );
}
