//! Layouts by themselves. `tests/dirblocks.rs` has the blocks judged by e2fsck and the kernel.

use std::collections::BTreeSet;

use super::*;

const SHAPE: DirectoryFormat = DirectoryFormat {
    block_size: BlockSize::K1,
    checksum: true,
    filetype: true,
    dir_index: true,
    large_dir: false,
    hash: HashVersion::HalfMd4,
    hash_seed: [1, 2, 3, 4],
};

fn numbered(count: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|i| format!("name {i}").into_bytes())
        .collect()
}

fn plan(shape: DirectoryFormat, names: &[Vec<u8>]) -> Result<DirectoryPlan, Refused> {
    DirectoryPlan::new(shape, names.len(), |i| &names[i])
}

/// The blocks of a directory whose names stand for inodes that follow from the names alone.
fn blocks(shape: DirectoryFormat, names: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let plan = plan(shape, names).expect("a directory");
    let identity = DirectoryIdentity {
        ino: Ino(12),
        parent: Ino::ROOT,
        checksum_seed: 7,
    };
    let target = |i: usize| NamedInode {
        ino: Ino(ondisk::csum::crc32c(0, &names[i]) | 1),
        file_type: FileType::Regular,
    };
    let fill = |number| {
        let mut block = vec![0xAA; shape.block_size.bytes()];
        plan.fill(number, identity, |i| &names[i], target, &mut block);
        block
    };
    (0..plan.blocks()).map(fill).collect()
}

#[test]
fn the_order_in_which_names_are_given_does_not_matter() {
    for count in [5, 3_000] {
        for dir_index in [true, false] {
            let shape = DirectoryFormat { dir_index, ..SHAPE };
            let names = numbered(count);
            let mut others = names.clone();
            others.reverse();
            others.swap(0, count / 2);
            assert_eq!(blocks(shape, &names), blocks(shape, &others));
        }
    }
}

#[test]
fn every_name_is_in_the_blocks_once() {
    for shape in [
        SHAPE,
        DirectoryFormat {
            dir_index: false,
            ..SHAPE
        },
    ] {
        let names = numbered(3_000);
        let mut found = BTreeSet::new();
        for (number, block) in blocks(shape, &names).iter().enumerate() {
            let is_index = shape.dir_index && (number == 0 || htree::is_node(block, shape.form()));
            if is_index {
                continue;
            }
            dirent::verify_checksum(block, 7).expect("sealed");
            for entry in dirent::entries(block, shape.form()) {
                let entry = entry.expect("sound");
                assert!(found.insert(entry.name.to_vec()), "twice");
            }
        }
        found.remove(&b"."[..]);
        found.remove(&b".."[..]);
        assert_eq!(found, names.into_iter().collect());
    }
}

#[test]
fn a_directory_is_linear_exactly_as_long_as_it_fits_one_block() {
    // 1024 - 12 (checksum) - 24 (dots) = 988 bytes, 16 a name.
    let fits = numbered(61);
    let plan_of = |names: &[Vec<u8>]| plan(SHAPE, names).expect("a directory");
    assert_eq!(
        (plan_of(&fits).blocks(), plan_of(&fits).is_indexed()),
        (1, false)
    );
    let more = numbered(62);
    assert_eq!(
        (plan_of(&more).blocks(), plan_of(&more).is_indexed()),
        (3, true)
    );
    assert_eq!(plan_of(&[]).blocks(), 1);
}

#[test]
fn what_cannot_be_a_name_is_refused_by_name() {
    let refused = |names: &[&str]| {
        let names: Vec<Vec<u8>> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
        plan(SHAPE, &names)
            .map(|_| ())
            .expect_err("refused")
            .to_string()
    };
    let long = "x".repeat(256);
    assert_eq!(refused(&["a", "b/c"]), "\"b/c\" cannot be a file's name");
    for bad in ["", ".", "..", "nul\0"] {
        assert!(refused(&[bad]).ends_with("cannot be a file's name"));
    }
    assert!(refused(&[&long]).ends_with("has 256 bytes, and 255 is the most"));
    assert_eq!(refused(&["a", "b", "a"]), "the name \"a\" is there twice");
    let mut many = numbered(1_000);
    many.push(many[500].clone());
    assert_eq!(
        plan(SHAPE, &many).err(),
        Some(Refused::SameName(many[500].clone()))
    );
    assert!(plan(SHAPE, &[long.as_bytes()[..255].to_vec()]).is_ok());
}

#[test]
fn leaves_leave_room_but_not_much() {
    let names = numbered(20_000);
    let bytes: usize = names.iter().map(|name| SHAPE.form().record_len(name)).sum();
    let blocks = plan(SHAPE, &names).expect("a directory").blocks() as usize;
    let filled = bytes as f64 / (blocks * 1024) as f64;
    assert!((0.80..0.875).contains(&filled), "{filled}");
}

#[test]
fn shares_are_whole_and_even() {
    for (count, owners) in [(10, 3), (126, 126), (1_000_000, 123), (5, 1)] {
        let shares: Vec<_> = (0..owners)
            .map(|which| share(count, owners, which))
            .collect();
        assert_eq!(
            (shares[0].start, shares[owners as usize - 1].end),
            (0, count)
        );
        assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
        let most = count.div_ceil(owners);
        assert!(
            shares
                .iter()
                .all(|it| (1..=most).contains(&(it.end - it.start)))
        );
    }
}
