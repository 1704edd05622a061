//! Attribute lists in a block and in inodes, as a kernel wrote them, and lists that were broken by hand.

use super::*;
use crate::inode;

const SLOTS: &[u8] = include_bytes!("../../tests/golden/inodes.bin");
const BLOCK: &[u8] = include_bytes!("../../tests/golden/xattr_block.bin");
const AT: FsBlock = FsBlock(2329);

fn seed() -> u32 {
    crc32c(
        !0,
        b"\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef",
    )
}

fn area(at: usize) -> &'static [u8] {
    inode::attribute_area(&SLOTS[256 * at..256 * (at + 1)]).unwrap()
}

#[test]
fn the_golden_block_verifies_and_is_written_back_identical() {
    verify_block_checksum(BLOCK, seed(), AT).unwrap();
    let mut all: Vec<_> = entries(ListPlace::Block(BLOCK)).unwrap().collect();
    for entry in &all {
        let Value::Here(value) = entry.value else {
            panic!("no value is elsewhere");
        };
        assert_eq!(entry.hash, entry_hash(entry.name, value));
    }
    let names: Vec<_> = all.iter().map(|entry| (entry.index, entry.name)).collect();
    assert_eq!(names, [(1, &b"a"[..]), (1, b"b")]);
    let sizes: Vec<_> = all.iter().map(|entry| entry.value).collect();
    assert_eq!(
        sizes,
        [Value::Here(&[b'A'; 101]), Value::Here(&[b'B'; 200])]
    );
    // The kernel wrote b's value before a's.
    let mut written = vec![0xee; 1024];
    all.reverse();
    assert!(encode(&mut written, BLOCK_HEADER, &all));
    written[..BLOCK_HEADER].copy_from_slice(&BLOCK[..BLOCK_HEADER]);
    let back: Vec<_> = entries(ListPlace::Block(&written)).unwrap().collect();
    assert_eq!(back, all);
    assert!(encode_block(&mut written, &mut all.clone()));
    set_block_checksum(&mut written, seed(), AT);
    verify_block_checksum(&written, seed(), AT).unwrap();
    assert_eq!(written[..16], BLOCK[..16], "header with the same hash");
}

#[test]
fn the_golden_access_list_is_converted_and_back_identical() {
    let mut all = entries(ListPlace::Inode(area(8))).unwrap();
    let list = all.find(|entry| entry.index == 2).unwrap();
    let Value::Here(disk) = list.value else {
        panic!("no value is elsewhere");
    };
    let xattr = crate::acl::disk_to_xattr(disk).unwrap();
    // Version 2 in the form in which system calls exchange lists, with 8 bytes for each entry.
    assert_eq!((&xattr[..4], xattr.len() % 8), (&[2, 0, 0, 0][..], 4));
    assert_eq!(crate::acl::xattr_to_disk(&xattr).unwrap(), disk);
}

#[test]
fn golden_areas_are_read_and_written_back_identical() {
    let mut seen = Vec::new();
    for at in 0..10 {
        let area = area(at);
        let all: Vec<_> = entries(ListPlace::Inode(area)).unwrap().collect();
        seen.extend(
            all.iter()
                .map(|entry| (at, entry.index, entry.name.to_vec())),
        );
        if !all.is_empty() && at != 5 {
            let mut written = vec![0xee; area.len()];
            assert!(encode_inode_area(&mut written, &all));
            assert_eq!(written, area);
        }
    }
    let expected: [(usize, u8, &[u8]); 6] = [
        (0, 1, b"small"),
        (5, 4, b"zz"),
        (5, 1, b"empty"),
        (5, 6, b"lbl"),
        (6, 1, b"big"),
        (8, 2, b""),
    ];
    assert_eq!(
        seen,
        expected.map(|(at, index, name)| (at, index, name.to_vec()))
    );
}

#[test]
fn a_value_in_an_inode_has_the_hash_of_its_hash() {
    let value: Vec<u8> = (0..=255).cycle().take(5120).collect();
    let hash = value_hash(seed(), &value);
    assert_eq!(
        inode::Inode::parse(&SLOTS[256 * 7..]).unwrap().value_hash(),
        hash
    );
    let entry = entries(ListPlace::Inode(area(6))).unwrap().next().unwrap();
    let ino = Ino(19);
    assert_eq!(entry.value, Value::Inode { ino, size: 5120 });
    assert_eq!(entry.hash, inode_entry_hash(b"big", hash));
    assert!(is_inode_entry_hash(entry.hash, b"big", hash));
    assert!(!is_inode_entry_hash(entry.hash, b"big", hash ^ 1));
}

#[test]
fn names_split_at_their_prefix() {
    assert_eq!(split_name(b"user.x"), Some((1, &b"x"[..])));
    assert_eq!(split_name(b"system.posix_acl_access"), Some((2, &b""[..])));
    assert_eq!(split_name(b"system.data"), Some((7, &b"data"[..])));
    assert_eq!(
        split_name(b"security.capability"),
        Some((6, &b"capability"[..]))
    );
    assert_eq!(split_name(b"user."), None);
    assert_eq!(split_name(b"other.x"), None);
    assert!(is_bare_prefix(b"user.") && is_bare_prefix(b"gnu."));
    assert!(!is_bare_prefix(b"system.") && !is_bare_prefix(b"user"));
    assert_eq!(prefix(4), Some("trusted."));
    assert_eq!(prefix(10), Some("gnu."));
    assert_eq!(prefix(9), None);
}

/// Reads a block that has one attribute with a four-byte value, after `change` changed the block.
fn broken(change: impl Fn(&mut [u8])) -> Result<usize, Site> {
    let mut block = vec![0; 1024];
    let value = Value::Here(b"abcd");
    let entry = XattrEntry {
        index: 1,
        name: b"n",
        value,
        hash: entry_hash(b"n", b"abcd"),
    };
    assert!(encode_block(&mut block, &mut [entry]));
    change(&mut block);
    let result = entries(ListPlace::Block(&block));
    result
        .map(|entries| entries.map(|entry| usize::from(entry.index)).sum())
        .map_err(|corrupt| corrupt.site())
}

#[test]
fn each_kind_of_damage_has_its_site() {
    assert_eq!(broken(|_| ()), Ok(1));
    assert_eq!(broken(|block| block[0] = 1), Err(Site::XattrBlockHeader));
    assert_eq!(broken(|block| block[8] = 2), Err(Site::XattrBlockHeader));
    assert_eq!(broken(|block| block[48] = 0), Err(Site::XattrName));
    // In turn: the value begins inside the list, ends after the block, is too long.
    assert_eq!(
        broken(|block| block[34..36].copy_from_slice(&[50, 0])),
        Err(Site::XattrValue)
    );
    assert_eq!(
        broken(|block| block[34..36].copy_from_slice(&[0xfd, 3])),
        Err(Site::XattrValue)
    );
    assert_eq!(broken(|block| block[43] = 0xff), Err(Site::XattrValue));
    // The list has no end mark.
    assert_eq!(
        broken(|block| block[32..].fill(0xff)),
        Err(Site::XattrEntry)
    );
    assert!(entries(ListPlace::Block(&[0; 10])).is_err());
}

#[test]
fn any_bytes_are_an_error_or_a_list_that_can_be_walked() {
    let mut state = 1u32;
    for round in 0..20_000 {
        let mut block = BLOCK.to_vec();
        for _ in 0..=round % 4 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let at = 32 + (state >> 8) as usize % 80;
            block[at] = (state >> 24) as u8;
        }
        if let Ok(entries) = entries(ListPlace::Block(&block)) {
            assert!(entries.count() < 64);
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let entry = |name, value| XattrEntry {
        index: 1,
        name,
        value: Value::Here(value),
        hash: 0,
    };
    let mut area = [0; 96];
    // 4 magic, 20 entry, 4 end: 68 bytes are left for the value.
    assert!(encode_inode_area(&mut area, &[entry(b"n", &[7; 68])]));
    assert!(!encode_inode_area(&mut area, &[entry(b"n", &[7; 69])]));
    assert!(fits(92, [(1, 68)]));
    assert!(!fits(92, [(1, 69)]));
    assert!(encode_inode_area(&mut [], &[]));
    assert!(!encode_inode_area(&mut [0; 2], &[entry(b"n", b"")]));
}

#[test]
fn whatever_fits_is_read_back_as_it_was_written() {
    let mut state = 7u32;
    let mut next = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    let (mut fitted, mut refused) = (0, 0);
    for _ in 0..2000 {
        let count = next(30) as usize;
        let names: Vec<Vec<u8>> = (0..count)
            .map(|number| {
                [
                    vec![b'a'; next(20) as usize],
                    number.to_string().into_bytes(),
                ]
                .concat()
            })
            .collect();
        let values: Vec<Vec<u8>> = (0..count)
            .map(|_| vec![next(256) as u8; next(90) as usize])
            .collect();
        let mut all: Vec<XattrEntry<'_>> = Vec::new();
        for (name, value) in names.iter().zip(&values) {
            let value = match next(8) {
                0 => Value::Inode {
                    ino: Ino(1 + next(1000)),
                    size: 1 + next(MAX_VALUE),
                },
                _ => Value::Here(value),
            };
            all.push(XattrEntry {
                index: 1 + next(8) as u8,
                name,
                value,
                hash: 1 + next(1000),
            });
        }
        let lengths: Vec<_> = all
            .iter()
            .map(|entry| match entry.value {
                Value::Here(value) => (entry.name.len(), value.len()),
                Value::Inode { .. } => (entry.name.len(), 0),
            })
            .collect();
        let mut block = vec![0xee; 1024];
        let expected = fits(1024 - BLOCK_HEADER, lengths.iter().copied());
        assert_eq!(encode_block(&mut block, &mut all), expected);
        if expected {
            let back: Vec<_> = entries(ListPlace::Block(&block)).unwrap().collect();
            assert_eq!(back, all);
            fitted += 1;
        } else {
            refused += 1
        }
        let mut area = vec![0xee; 320];
        let expected = fits(320 - INODE_HEADER, lengths);
        assert_eq!(
            encode_inode_area(&mut area, &all),
            expected || all.is_empty()
        );
        if expected {
            let back: Vec<_> = entries(ListPlace::Inode(&area)).unwrap().collect();
            assert_eq!(back, all);
        }
    }
    assert!(fitted > 200 && refused > 50, "{fitted} {refused}");
}
