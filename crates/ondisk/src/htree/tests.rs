//! Golden blocks come from the kernel (6.18; 1 KiB blocks) and e2fsck -D (1.47.0; 64 KiB blocks), of the directory
//! inode 12 of file systems with UUID 11111111-2222-3333-4444-555555555555.

use proptest::prelude::*;

use super::*;

const ROOT_1K: &[u8] = include_bytes!("../../tests/golden/htree-root-1k.bin");
const NODE_1K: &[u8] = include_bytes!("../../tests/golden/htree-node-1k.bin");
const LEAF_1K: &[u8] = include_bytes!("../../tests/golden/htree-leaf-1k.bin");
const ROOT_64K_HEAD: &[u8] = include_bytes!("../../tests/golden/htree-root-64k-head.bin");
const ROOT_64K_TAIL: &[u8] = include_bytes!("../../tests/golden/htree-root-64k-tail.bin");
const KERNEL_GENERATION: u32 = 2_464_319_931;

fn seed(generation: u32) -> u32 {
    let uuid = [0x11, 0x11, 0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44]
        .into_iter()
        .chain([0x55; 6])
        .collect::<Vec<u8>>();
    let inode = crc32c(crc32c(!0, &uuid), &12_u32.to_le_bytes());
    crc32c(inode, &generation.to_le_bytes())
}

fn form(block_size: BlockSize) -> DirForm {
    DirForm {
        block_size,
        filetype: true,
        checksum: true,
        hashes: false,
        max_ino: Ino(10_000),
    }
}

fn root_64k() -> Vec<u8> {
    let mut block = ROOT_64K_HEAD.to_vec();
    block.resize(65536 - ROOT_64K_TAIL.len(), 0);
    block.extend(ROOT_64K_TAIL);
    block
}

fn read_root(block: &[u8], form: DirForm) -> Result<(Root, IndexBlock<'_>), Site> {
    root(block, form, LEVELS_MAX, false).map_err(|corrupt| corrupt.site())
}

fn list(index: IndexBlock<'_>) -> Vec<(u32, LBlock)> {
    (0..index.count())
        .map(|i| (index.hash(i), index.block(i)))
        .collect()
}

#[test]
fn roots_of_the_kernel_and_e2fsck_are_read_and_written_back_identical() {
    for (block, size, generation, expected) in [
        (ROOT_1K.to_vec(), BlockSize::K1, KERNEL_GENERATION, (1, 2)),
        (root_64k(), BlockSize::K64, 0, (0, 3)),
    ] {
        let form = form(size);
        verify_checksum(&block, Kind::Root, seed(generation)).expect("the checksum was set");
        let (root, index) = read_root(&block, form).expect("a sound root");
        assert_eq!(root.version, HashVersion::HalfMd4);
        assert_eq!((root.levels, index.count()), expected);
        index.verify_order().expect("ordered");
        let mut copy = vec![0xAA; block.len()];
        write_root(
            &mut copy,
            form,
            root,
            Ino(12),
            Ino(2),
            list(index).into_iter(),
        );
        // The kernel leaves behind the entries, and in the tail's unused word, what was there before.
        let tail = block.len() - 8;
        copy[tail..tail + 4].copy_from_slice(&block[tail..tail + 4]);
        seal(&mut copy, Kind::Root, seed(generation));
        let used = 32 + 8 * index.count();
        assert_eq!(copy[..used], block[..used]);
        assert_eq!(copy[tail..], block[tail..]);
    }
}

#[test]
fn a_node_of_the_kernel_is_read_and_written_back_identical() {
    let form = form(BlockSize::K1);
    verify_checksum(NODE_1K, Kind::Node, seed(KERNEL_GENERATION)).expect("the checksum was set");
    let index = node(NODE_1K, form).expect("a sound node");
    assert_eq!(index.count(), 119);
    assert_eq!((index.hash(1), index.block(1)), (0x006E_248E, LBlock(216)));
    let mut copy = vec![0xAA; 1024];
    write_node(&mut copy, form, list(index).into_iter());
    seal(&mut copy, Kind::Node, seed(KERNEL_GENERATION));
    let used = 8 + 8 * index.count();
    assert_eq!(copy[..used], NODE_1K[..used]);
    assert_eq!(copy[1016..], NODE_1K[1016..]);
}

#[test]
fn nodes_and_leaves_are_told_apart() {
    let form = form(BlockSize::K1);
    assert!(is_node(NODE_1K, form));
    assert!(!is_node(LEAF_1K, form) && !is_node(ROOT_1K, form));
    let refused = node(LEAF_1K, form).map_err(|corrupt| corrupt.site());
    assert_eq!(refused.err(), Some(Site::HtreeNode));
}

#[test]
fn a_search_starts_at_the_last_entry_not_above_the_hash() {
    let index = node(NODE_1K, form(BlockSize::K1)).expect("a sound node");
    assert_eq!(index.find(0), 0);
    assert_eq!(index.find(0x006E_248C), 0);
    assert_eq!(index.find(0x006E_248E), 1);
    assert_eq!(index.find(u32::MAX), 118);
}

#[test]
fn what_a_kernel_would_refuse_is_refused_by_name() {
    let form = form(BlockSize::K1);
    let with = |at: usize, value: u8| {
        let mut block = ROOT_1K.to_vec();
        block[at] = value;
        read_root(&block, form).err()
    };
    assert_eq!(with(28, 3), Some(Site::HtreeHashVersion));
    assert_eq!(with(28, 6), Some(Site::HtreeHashVersion));
    assert_eq!(with(29, 9), Some(Site::HtreeInfoLength));
    assert_eq!(with(30, 2), Some(Site::HtreeLevels));
    assert_eq!(with(31, 1), Some(Site::HtreeFlags));
    assert_eq!(with(32, 124), Some(Site::HtreeLimit));
    assert_eq!(with(34, 0), Some(Site::HtreeCount));
    assert_eq!(with(34, 124), Some(Site::HtreeCount));
    assert_eq!(with(34, 123), None);
    assert_eq!(
        read_root(&ROOT_1K[..30], form).err(),
        Some(Site::HtreeInfoLength)
    );
    assert_eq!(
        read_root(&ROOT_1K[..40], form).err(),
        Some(Site::HtreeLimit)
    );
    assert!(root(ROOT_1K, form, LEVELS_MAX, true).is_err());

    let mut block = NODE_1K.to_vec();
    block[16..20].fill(0xFF);
    let unordered = node(&block, form).expect("counts fit").verify_order();
    assert_eq!(
        unordered.map_err(|corrupt| corrupt.site()),
        Err(Site::HtreeOrder)
    );
    let broken = verify_checksum(&block, Kind::Node, seed(KERNEL_GENERATION));
    assert_eq!(
        broken.map_err(|corrupt| corrupt.site()),
        Err(Site::HtreeChecksum)
    );
}

#[test]
fn limits_are_those_of_the_kernel() {
    assert_eq!(Kind::Root.limit(BlockSize::K1, true), 123);
    assert_eq!(Kind::Node.limit(BlockSize::K1, true), 126);
    assert_eq!(Kind::Root.limit(BlockSize::K4, false), 508);
    assert_eq!(Kind::Node.limit(BlockSize::K4, false), 511);
    assert_eq!(Kind::Root.limit(BlockSize::K64, true), 8187);
}

proptest! {
    #[test]
    fn any_bytes_give_an_index_within_the_block_or_an_error(
        mut block in proptest::collection::vec(any::<u8>(), 0..1100),
        count in any::<u16>(),
        known in any::<bool>(),
    ) {
        if known && block.len() >= 40 {
            block[..34].copy_from_slice(&ROOT_1K[..34]);
            block[34..36].copy_from_slice(&(count % 200).to_le_bytes());
        }
        let form = form(BlockSize::K1);
        for (kind, index) in [
            (Kind::Root, read_root(&block, form).ok().map(|(_, index)| index)),
            (Kind::Node, node(&block, form).ok()),
        ] {
            let _ = verify_checksum(&block, kind, 1);
            if let Some(index) = index {
                prop_assert!((1..=126).contains(&index.count()));
                prop_assert!(index.find(0x8000_0000) < index.count());
                let _ = index.verify_order();
            }
        }
    }
}
