//! Golden blocks come from mke2fs 1.47.0 (-d) and the kernel (6.18); the directories are inode 12 of file systems
//! with UUID 11111111-2222-3333-4444-555555555555.

use proptest::prelude::*;

use super::*;

const GOLDEN_1K: &[u8] = include_bytes!("../../tests/golden/dirent-1k.bin");
const GOLDEN_64K_HEAD: &[u8] = include_bytes!("../../tests/golden/dirent-64k-head.bin");
const GOLDEN_64K_TAIL: &[u8] = include_bytes!("../../tests/golden/dirent-64k-tail.bin");
const GOLDEN_NO_FILETYPE: &[u8] = include_bytes!("../../tests/golden/dirent-nofiletype.bin");
const KERNEL_LEAF: &[u8] = include_bytes!("../../tests/golden/htree-leaf-1k.bin");
const INLINE: &[u8] = include_bytes!("../../tests/golden/inline-directory.bin");

/// The seed of inode 12 with this generation.
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

fn golden_64k() -> Vec<u8> {
    let mut block = GOLDEN_64K_HEAD.to_vec();
    block.resize(65536 - GOLDEN_64K_TAIL.len(), 0);
    block.extend(GOLDEN_64K_TAIL);
    block
}

fn parsed(block: &[u8], form: DirForm) -> Vec<DirRecord<'_>> {
    entries(block, form)
        .collect::<Result<_, _>>()
        .expect("a sound block")
}

fn sites(block: &[u8], form: DirForm) -> Vec<Site> {
    entries(block, form)
        .filter_map(|entry| Some(entry.err()?.site()))
        .collect()
}

/// The same entries, written again.
fn rewritten(block: &[u8], form: DirForm, seed: u32) -> Vec<u8> {
    let mut copy = vec![0xAA; block.len()];
    let mut writer = DirBlockWriter::new(&mut copy, form);
    for entry in parsed(block, form) {
        assert!(writer.push(entry.ino, entry.name, entry.file_type, entry.hash));
    }
    writer.finish();
    if form.checksum {
        seal(&mut copy, seed);
    }
    copy
}

#[test]
fn blocks_of_mke2fs_are_read_and_written_back_identical() {
    let plain = DirForm {
        filetype: false,
        checksum: false,
        ..form(BlockSize::K1)
    };
    for (block, form) in [
        (GOLDEN_1K.to_vec(), form(BlockSize::K1)),
        (golden_64k(), form(BlockSize::K64)),
        (GOLDEN_NO_FILETYPE.to_vec(), plain),
    ] {
        assert_eq!(rewritten(&block, form, seed(0)), block);
        if form.checksum {
            verify_checksum(&block, seed(0)).expect("mke2fs set the checksum");
        }
    }
}

#[test]
fn every_name_and_type_of_a_golden_block_is_read() {
    let long = "n".repeat(255);
    let expected = [
        (".", 12, FileType::Directory),
        ("..", 2, FileType::Directory),
        ("blk", 13, FileType::BlockDevice),
        ("chr", 14, FileType::CharDevice),
        ("file", 15, FileType::Regular),
        ("größe", 16, FileType::Regular),
        ("link", 17, FileType::Symlink),
        (&long, 18, FileType::Regular),
        ("pipe", 19, FileType::Fifo),
        ("sock", 20, FileType::Socket),
        ("sub", 21, FileType::Directory),
    ];
    let found = parsed(GOLDEN_1K, form(BlockSize::K1));
    assert_eq!(found.len(), expected.len());
    for (entry, (name, ino, file_type)) in found.iter().zip(expected) {
        assert_eq!(entry.name, name.as_bytes());
        assert_eq!((entry.ino, entry.file_type), (Ino(ino), Some(file_type)));
        assert!(is_valid_name(entry.name));
    }
}

#[test]
fn a_block_of_the_kernel_is_verified_and_its_entries_written_back_in_place() {
    let form = form(BlockSize::K1);
    verify_checksum(KERNEL_LEAF, seed(2_464_319_931)).expect("the kernel set the checksum");
    let mut copy = KERNEL_LEAF.to_vec();
    let found = parsed(KERNEL_LEAF, form);
    assert!(found.len() > 4);
    for entry in &found {
        copy[entry.offset..entry.offset + form.record_len(entry.name)].fill(0xAA);
        write(&mut copy, form, entry);
    }
    assert_eq!(copy, KERNEL_LEAF);
}

#[test]
fn an_inline_directory_of_mke2fs_is_read_and_written_back_identical() {
    // The map's 60 bytes: the parent's number, and entries.
    let area = &INLINE[40..100];
    assert_eq!(area[..4], 2_u32.to_le_bytes());
    let form = form(BlockSize::K1).without_checksum();
    let found = parsed(&area[4..], form);
    let names: Vec<&[u8]> = found.iter().map(|entry| entry.name).collect();
    assert_eq!(names, [&b"a longer name"[..], b"one", b"x"]);
    let mut copy = area[4..].to_vec();
    for entry in &found {
        copy[entry.offset..entry.offset + form.record_len(entry.name)].fill(0xAA);
        write(&mut copy, form, entry);
    }
    assert_eq!(copy, &area[4..]);
}

#[test]
fn a_changed_byte_or_a_missing_tail_is_noticed() {
    let mut block = GOLDEN_1K.to_vec();
    block[40] ^= 1;
    let broken = verify_checksum(&block, seed(0)).map_err(|corrupt| corrupt.site());
    assert_eq!(broken, Err(Site::DirentChecksum));
    block[1024 - 5] = 0;
    let missing = verify_checksum(&block, seed(0)).map_err(|corrupt| corrupt.site());
    assert_eq!(missing, Err(Site::DirentTail));
    assert_eq!(stored_checksum(GOLDEN_1K), Some(0x972B_012C));
    assert_eq!(stored_checksum(&block), None);
}

#[test]
fn every_impossible_record_is_refused_by_name_and_ends_the_block() {
    let form = form(BlockSize::K1);
    // The record of "file" stands at byte 48: inode, rec_len at 52, name_len at 54.
    let with = |at: usize, value: u16| {
        let mut block = GOLDEN_1K.to_vec();
        block[at..at + 2].copy_from_slice(&value.to_le_bytes());
        sites(&block, form)
    };
    assert_eq!(with(52, 0), [Site::DirentLengthSmall]);
    assert_eq!(with(52, 8), [Site::DirentLengthSmall]);
    assert_eq!(with(52, 14), [Site::DirentLengthUnaligned]);
    assert_eq!(with(52, 1024), [Site::DirentOverrun]);
    assert_eq!(with(52, 1012 - 48 - 8), [Site::DirentNearEnd]);
    assert_eq!(with(54, 5), [Site::DirentNameLong]);
    assert_eq!(with(50, 1), [Site::DirentIno]);
    assert_eq!(
        sites(&GOLDEN_1K[..7], form.without_checksum()),
        [Site::DirentTruncated]
    );
    assert_eq!(
        verify_name(b"a/b").map_err(|c| c.site()),
        Err(Site::DirentName)
    );
    assert!(verify_name(b"").is_err() && verify_name(b"nul\0").is_err());
    assert!(verify_name(b"ordinary").is_ok());
}

#[test]
fn an_empty_block_is_one_free_record_at_every_block_size() {
    for log in 0..=6 {
        let block_size = BlockSize::from_log(log).expect("a size");
        for checksum in [true, false] {
            let form = DirForm {
                checksum,
                ..form(block_size)
            };
            let mut block = vec![0xFF; block_size.bytes()];
            DirBlockWriter::new(&mut block, form).finish();
            let found = parsed(&block, form);
            assert_eq!(found.len(), 1);
            assert_eq!((found[0].len, found[0].is_used()), (form.usable(), false));
        }
    }
}

/// A directory that is encrypted and casefolded, byte by byte from the kernel's documentation (dynamic structures,
/// `ext4_extended_dir_entry_2`): no tool of Debian 12 writes one, and the kernel only where it has Unicode and the key.
#[test]
fn hashes_of_a_block_made_by_hand_are_read_and_written_back_identical() {
    #[rustfmt::skip]
    let records: &[u8] = &[
        // Inode 12, length 12, name of 1, a directory; no hash behind it.
        12, 0, 0, 0, 12, 0, 1, 2, b'.', 0, 0, 0,
        2, 0, 0, 0, 12, 0, 2, 2, b'.', b'.', 0, 0,
        // Inode 13, length 28, a file with 9 bytes of ciphertext, rounded up to 12, and the two hashes.
        13, 0, 0, 0, 28, 0, 9, 1, 0xC0, 0xFF, 0xEE, 0x01, 0x80, 0x7F, 0x2E, 0x20, 0x5C, 0, 0, 0,
        0x78, 0x56, 0x34, 0x12, 0xF0, 0xDE, 0xBC, 0x9A,
        // Inode 0x0102, a link with 16 bytes, which need no rounding; the last record takes what is left.
        2, 1, 0, 0, 0xCC, 3, 16, 7, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
        0xFE, 0xFF, 0xFF, 0xFF, 1, 0, 0, 0,
    ];
    let form = DirForm {
        hashes: true,
        checksum: false,
        ..form(BlockSize::K1)
    };
    let mut block = records.to_vec();
    block.resize(1024, 0);
    let entries = parsed(&block, form);
    let found: Vec<_> = entries
        .iter()
        .map(|entry| (entry.ino.0, entry.len, entry.name.len(), entry.hash))
        .collect();
    let hash = |major, minor| Some(NameHash { major, minor });
    assert_eq!(
        found,
        [
            (12, 12, 1, None),
            (2, 12, 2, None),
            (13, 28, 9, hash(0x1234_5678, 0x9ABC_DEF0)),
            (0x0102, 972, 16, hash(0xFFFF_FFFE, 1)),
        ]
    );
    assert_eq!(entries[3].file_type, Some(FileType::Symlink));
    assert_eq!(rewritten(&block, form, 0), block);
}

#[test]
fn hashes_stand_behind_names_but_not_behind_dots() {
    let form = DirForm {
        hashes: true,
        ..form(BlockSize::K1)
    };
    let hash = NameHash {
        major: 0x1234_5678,
        minor: 0x9ABC_DEF0,
    };
    let mut block = vec![0; 1024];
    let mut writer = DirBlockWriter::new(&mut block, form);
    assert!(writer.push(Ino(12), b".", Some(FileType::Directory), None));
    assert!(writer.push(Ino(13), b"hello", Some(FileType::Regular), Some(hash)));
    writer.finish();
    assert_eq!(block[12 + 4], 0xE8);
    assert_eq!(
        block[12 + 16..12 + 24],
        [0x78, 0x56, 0x34, 0x12, 0xF0, 0xDE, 0xBC, 0x9A]
    );
    let found = parsed(&block, form);
    assert_eq!((found[0].hash, found[1].hash), (None, Some(hash)));
}

#[test]
fn a_full_block_takes_no_more() {
    let mut block = vec![0; 1024];
    let mut writer = DirBlockWriter::new(&mut block, form(BlockSize::K1));
    let name = [b'x'; 255];
    for _ in 0..3 {
        assert!(writer.push(Ino(12), &name, None, None));
    }
    assert!(!writer.push(Ino(12), &name, None, None));
    assert!(writer.push(Ino(12), &name[..212], None, None));
    assert!(!writer.push(Ino(12), b"a", None, None));
    writer.finish();
    assert_eq!(parsed(&block, form(BlockSize::K1)).len(), 4);
}

proptest! {
    #[test]
    fn any_bytes_are_iterated_to_an_end(
        mut block in proptest::collection::vec(any::<u8>(), 0..1100),
        lens in proptest::collection::vec((0_usize..1024, 0_u16..40), 0..8),
    ) {
        for (at, len) in lens {
            if let Some(place) = block.get_mut(at..at + 2) {
                place.copy_from_slice(&(len * 4).to_le_bytes());
            }
        }
        for checksum in [true, false] {
            for hashes in [true, false] {
                let form = DirForm { checksum, hashes, ..form(BlockSize::K1) };
                let mut end = 0;
                for entry in entries(&block, form).flatten() {
                    prop_assert_eq!(entry.offset, end);
                    prop_assert!(entry.name.len() + HEADER_LEN <= entry.len);
                    end += entry.len;
                }
                prop_assert!(end <= block.len());
            }
        }
    }
}

/// [`find`], [`room`] and [`remove`] as their definition says, record by record.
fn found_slowly(block: &[u8], form: DirForm, name: &[u8]) -> Result<Option<(Ino, usize)>, Site> {
    for entry in entries(block, form) {
        let entry = entry.map_err(|corrupt| corrupt.site())?;
        if entry.is_used() && entry.name == name {
            return Ok(Some((entry.ino, entry.offset)));
        }
    }
    Ok(None)
}

fn room_slowly(block: &[u8], form: DirForm, name: &[u8]) -> Result<bool, Site> {
    for entry in entries(block, form) {
        let entry = entry.map_err(|corrupt| corrupt.site())?;
        let kept = if entry.is_used() {
            form.record_len(entry.name)
        } else {
            0
        };
        if entry.len >= kept + form.record_len(name) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn removed_slowly(block: &[u8], form: DirForm, offset: usize) -> Result<(), Site> {
    for entry in entries(block, form) {
        if entry.map_err(|corrupt| corrupt.site())?.offset == offset {
            return Ok(());
        }
    }
    Err(Site::EntryToRemove)
}

proptest! {
    /// With bytes changed anywhere, in any form, the quick search finds, misses and refuses what the thorough one does.
    #[test]
    fn a_quick_search_says_what_a_thorough_one_says(
        changes in proptest::collection::vec((0..1024_usize, any::<u8>()), 0..6),
        which in 0..8_usize, place in 0..32_usize, hashes in any::<bool>(), checksum in any::<bool>(),
    ) {
        let form = DirForm { hashes, checksum, ..form(BlockSize::K1) };
        for golden in [GOLDEN_1K, KERNEL_LEAF] {
            let mut block = golden.to_vec();
            for (at, byte) in &changes {
                let len = block.len();
                block[at % len] = *byte;
            }
            let names: Vec<Vec<u8>> = entries(golden, super::tests::form(BlockSize::K1))
                .filter_map(|entry| Some(entry.ok()?.name.to_vec()))
                .collect();
            let name = names.get(which).cloned().unwrap_or_else(|| b"none".to_vec());
            prop_assert_eq!(
                find(&block, form, &name).map_err(|corrupt| corrupt.site()),
                found_slowly(&block, form, &name)
            );
            prop_assert_eq!(
                room(&block, form, &name)
                    .map(|room| room.is_some())
                    .map_err(|corrupt| corrupt.site()),
                room_slowly(&block, form, &name)
            );
            let at = 4 * place;
            prop_assert_eq!(
                remove(&mut block.clone(), form, at).map_err(|corrupt| corrupt.site()),
                removed_slowly(&block, form, at)
            );
        }
    }
}
