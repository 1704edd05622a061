//! Superblocks, group descriptors, bitmaps and the places that follow from them, for every profile.

use std::collections::BTreeMap;
use std::path::PathBuf;

use lanefs_ondisk::features::Feature;
use lanefs_ondisk::group_desc::{computed_checksum, flags};
use lanefs_ondisk::site::Site;
use lanefs_ondisk::{
    FsBlock, Geometry, GeometryError, Group, GroupDesc, Ino, Superblock, Unsupported, bitmap,
};

pub const PROFILES: &[&str] = &[
    "default",
    "csum32",
    "small64",
    "ext2",
    "revision0",
    "uninit",
    "bigalloc",
    "bigalloc4k",
    "meta_bg",
    "sparse2",
    "block64k",
    "huge",
];

fn golden(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/superblock")
        .join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn superblock(profile: &str) -> Superblock {
    let bytes: [u8; 1024] = golden(&format!("{profile}.sb")).try_into().unwrap();
    *Superblock::view(&bytes)
}

pub fn geometry(profile: &str) -> Geometry {
    Geometry::new(&superblock(profile), u64::MAX).unwrap()
}

/// The descriptors that were kept, each with its bytes.
pub fn descriptors(profile: &str) -> Vec<(Group, Vec<u8>)> {
    let geometry = geometry(profile);
    let bytes = golden(&format!("{profile}.gd"));
    let chunks = bytes.chunks_exact(geometry.desc_size());
    chunks
        .take(geometry.groups() as usize)
        .zip(0..)
        .map(|(raw, n)| (Group(n), raw.to_vec()))
        .collect()
}

#[test]
fn superblocks_of_mke2fs_verify_and_are_written_back_the_same() {
    for profile in PROFILES {
        let bytes = golden(&format!("{profile}.sb"));
        let mut sb = superblock(profile);
        sb.verify()
            .unwrap_or_else(|error| panic!("{profile}: {error}"));
        assert_eq!(sb.label(), profile.as_bytes());
        assert_eq!(&sb.uuid(), b"lanefs@\0\x80\0golden", "{profile}");
        assert_eq!(sb.mkfs_time(), 1_700_000_000);
        sb.set_checksum(if sb.features().has(Feature::METADATA_CSUM) {
            !0
        } else {
            sb.checksum()
        });
        sb.seal();
        assert_eq!(sb.bytes()[..], bytes, "{profile}");
    }
}

#[test]
fn every_setter_writes_what_its_getter_read() {
    for profile in PROFILES {
        let sb = superblock(profile);
        let mut copy = sb;
        copy.set_features(sb.features());
        copy.set_inodes_count(sb.inodes_count());
        copy.set_blocks_count(sb.raw_blocks_count());
        copy.set_free_blocks_count(sb.raw_free_blocks_count());
        copy.set_reserved_blocks_count(sb.raw_reserved_blocks_count());
        copy.set_mkfs_time(sb.mkfs_time());
        copy.set_write_time(sb.write_time());
        copy.set_label(sb.label());
        copy.set_hash_seed(sb.hash_seed());
        copy.set_journal_ino(sb.journal_ino());
        copy.set_journal_backup(sb.journal_backup());
        copy.set_backup_groups(sb.backup_groups());
        copy.set_orphan_file_ino(sb.orphan_file_ino());
        copy.set_log_groups_per_flex(sb.log_groups_per_flex());
        assert_eq!(copy.bytes(), sb.bytes(), "{profile}");
    }
}

#[test]
fn geometry_is_what_mke2fs_was_asked_for() {
    let default = geometry("default");
    assert_eq!(default.block_size().bytes(), 4096);
    assert_eq!((default.groups(), default.desc_size()), (16, 64));
    assert_eq!((default.inode_size(), default.first_ino()), (256, Ino(11)));
    assert_eq!(default.blocks_count(), 524_288);
    assert_eq!(default.flex_size(), 16);
    let seed = superblock("default").checksum_seed();
    assert_eq!(default.csum_seed(), seed);

    let revision0 = geometry("revision0");
    assert!(revision0.features().is_empty());
    assert_eq!(
        (revision0.inode_size(), revision0.first_ino()),
        (128, Ino(11))
    );
    assert_eq!(
        (revision0.first_data_block(), revision0.groups()),
        (FsBlock(1), 5)
    );

    let bigalloc = geometry("bigalloc");
    assert_eq!(
        (bigalloc.cluster_ratio(), bigalloc.first_data_block()),
        (16, FsBlock(0))
    );
    assert_eq!(
        bigalloc.blocks_per_group(),
        16 * bigalloc.clusters_per_group()
    );
    assert_eq!(bigalloc.group_of_block(FsBlock(131_072)), Some(Group(1)));
    assert_eq!(
        bigalloc.bit_of_block(FsBlock(131_072 + 33)),
        Some((Group(1), 2))
    );

    assert_eq!(geometry("block64k").block_size().bytes(), 65536);
    let huge = geometry("huge");
    assert_eq!((huge.groups(), huge.blocks_count()), (139_264, 17 << 28));
    assert_eq!(
        huge.group_of_block(FsBlock((17 << 28) - 1)),
        Some(Group(139_263))
    );
    assert_eq!(huge.group_of_block(FsBlock(17 << 28)), None);
}

#[test]
fn descriptors_verify_and_are_stored_back_the_same() {
    for profile in PROFILES {
        let geometry = geometry(profile);
        let all = descriptors(profile);
        assert!(!all.is_empty());
        for (group, raw) in all {
            let desc = GroupDesc::verify(&raw, &geometry, group)
                .unwrap_or_else(|error| panic!("{profile}: {error}"));
            assert!(
                desc.has_possible_counts(&geometry, group),
                "{profile}, group {group}"
            );
            let mut back = vec![0xA5; raw.len()];
            back.copy_from_slice(&raw);
            back[0x1E..0x20].fill(if computed_checksum(&raw, &geometry, group).is_some() {
                0xA5
            } else {
                0
            });
            desc.store(&mut back, &geometry, group);
            assert_eq!(back, raw, "{profile}, group {group}");
            let mut bad = raw.clone();
            bad[12] ^= 1;
            let caught = GroupDesc::verify(&bad, &geometry, group).is_err();
            let has_checksum = geometry.has_metadata_csum() || geometry.has(Feature::UNINIT_BG);
            assert_eq!(caught, has_checksum, "{profile}, group {group}");
        }
    }
}

#[test]
fn bitmaps_match_their_checksums_and_counts() {
    for profile in ["csum32", "small64", "bigalloc", "ext2"] {
        let geometry = geometry(profile);
        let (group, raw) = descriptors(profile).remove(0);
        let desc = GroupDesc::verify(&raw, &geometry, group).unwrap();
        let bits = golden(&format!("{profile}.bits"));
        let (blocks, inodes) = bits.split_at(1024);
        desc.verify_block_bitmap(blocks, &geometry, group).unwrap();
        desc.verify_inode_bitmap(inodes, &geometry, group).unwrap();
        let free =
            geometry.group_clusters(group) - bitmap::count(blocks, geometry.group_clusters(group));
        assert_eq!(free, desc.free_clusters(), "{profile}");
        let per_group = geometry.inodes_per_group();
        assert_eq!(
            per_group - bitmap::count(inodes, per_group),
            desc.free_inodes(),
            "{profile}"
        );

        let mut again = desc;
        again.set_block_bitmap_csum(desc.block_bitmap_csum() ^ 0x55);
        again.set_inode_bitmap_csum(desc.inode_bitmap_csum() ^ 0x55);
        if !geometry.has_metadata_csum() {
            continue;
        }
        assert!(again.verify_block_bitmap(blocks, &geometry, group).is_err());
        assert!(again.verify_inode_bitmap(inodes, &geometry, group).is_err());
        again.seal_block_bitmap(blocks, &geometry);
        again.seal_inode_bitmap(inodes, &geometry);
        assert_eq!(again.block_bitmap_csum(), desc.block_bitmap_csum());
        assert_eq!(again.inode_bitmap_csum(), desc.inode_bitmap_csum());
    }
}

#[derive(Default, Debug, PartialEq)]
struct Start {
    superblock: Option<u64>,
    descriptors: Option<(u64, u64)>,
    reserved: Option<(u64, u64)>,
}

/// What dumpe2fs says lies at the start of each group, and the last group it was kept for.
fn starts_by_dumpe2fs(profile: &str) -> BTreeMap<u32, Start> {
    let text = String::from_utf8(golden(&format!("{profile}.groups"))).unwrap();
    let mut starts = BTreeMap::<u32, Start>::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let group = words.next().unwrap().parse().unwrap();
        let start = starts.entry(group).or_default();
        while let Some(kind) = words.next() {
            let numbers = words.next().unwrap();
            let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
            let range = (first.parse().unwrap(), last.parse().unwrap());
            match kind {
                "super" => start.superblock = Some(range.0),
                "descriptors" => start.descriptors = Some(range),
                "reserved" => start.reserved = Some(range),
                _ => panic!("{line}"),
            }
        }
    }
    starts
}

#[test]
fn superblocks_and_descriptors_lie_where_dumpe2fs_finds_them() {
    for profile in PROFILES {
        let geometry = geometry(profile);
        let mut expected = starts_by_dumpe2fs(profile);
        let (&last, _) = expected.last_key_value().unwrap();
        // The list of the largest profile is cut in the middle.
        let groups = if *profile == "huge" {
            (0..=1855).chain(last..last + 1)
        } else {
            (0..=last).chain(0..0)
        };
        let inclusive =
            |range: std::ops::Range<u64>| (!range.is_empty()).then(|| (range.start, range.end - 1));
        for group in groups {
            let start = geometry.group_start(Group(group));
            let ours = Start {
                superblock: start.superblock.map(|block| block.0),
                descriptors: inclusive(start.descriptors),
                reserved: inclusive(start.reserved),
            };
            assert_eq!(
                ours,
                expected.remove(&group).unwrap_or_default(),
                "{profile}, group {group}"
            );
        }
        assert!(expected.is_empty());
        for group in last + 1..geometry.groups() {
            let start = geometry.group_start(Group(group));
            assert_eq!(start.blocks(), 0, "{profile}, group {group}");
        }
    }
}

#[test]
fn uninitialised_groups_say_so() {
    let all = descriptors("default");
    let has = |group: usize, flag| GroupDesc::load(&all[group].1).has(flag);
    assert!(!has(0, flags::BLOCK_UNINIT) && has(5, flags::INODE_UNINIT));
}

/// The refusal of the default superblock after one change.
fn refusal(change: impl Fn(&mut Superblock)) -> GeometryError {
    let mut sb = superblock("default");
    change(&mut sb);
    Geometry::new(&sb, 2 << 30).unwrap_err()
}

fn site(error: GeometryError) -> Option<Site> {
    match error {
        GeometryError::Corrupt(corrupt) => Some(corrupt.site()),
        _ => None,
    }
}

#[test]
fn impossible_numbers_are_refused_by_name() {
    let is =
        |change: fn(&mut Superblock), expected| assert_eq!(site(refusal(change)), Some(expected));
    is(|sb| sb.set_log_block_size(7), Site::BlockSize);
    is(|sb| sb.set_log_block_size(u32::MAX), Site::BlockSize);
    is(|sb| sb.set_blocks_per_group(0), Site::BlocksPerGroup);
    is(|sb| sb.set_blocks_per_group(32769), Site::BlocksPerGroup);
    is(|sb| sb.set_inode_size(192), Site::InodeSize);
    is(|sb| sb.set_inode_size(8192), Site::InodeSize);
    is(|sb| sb.set_first_data_block(1), Site::FirstDataBlock);
    is(|sb| sb.set_blocks_count(0), Site::BlocksCount);
    is(|sb| sb.set_blocks_count(u64::MAX), Site::BlocksCount);
    is(|sb| sb.set_desc_size(63), Site::DescSize);
    is(|sb| sb.set_desc_size(2048), Site::DescSize);
    is(|sb| sb.set_inodes_per_group(0), Site::InodesPerGroup);
    is(|sb| sb.set_inodes_per_group(32776), Site::InodesPerGroup);
    is(|sb| sb.set_inodes_count(1), Site::InodesCount);
    is(|sb| sb.set_first_ino(Ino(10)), Site::FirstIno);
    is(|sb| sb.set_first_ino(Ino(u32::MAX)), Site::FirstIno);
    is(
        |sb| sb.set_reserved_gdt_blocks(1025),
        Site::ReservedGdtBlocks,
    );
    is(
        |sb| {
            sb.set_features(sb.features().with(Feature::BIGALLOC));
            sb.set_log_cluster_size(1);
        },
        Site::ClusterSize,
    );
    is(
        |sb| {
            sb.set_features(sb.features().with(Feature::BIGALLOC));
            sb.set_log_cluster_size(4);
        },
        Site::ClustersPerGroup,
    );
    is(
        |sb| {
            sb.set_features(sb.features().with(Feature::META_BG));
            sb.set_first_meta_bg(2);
        },
        Site::FirstMetaBg,
    );
}

#[test]
fn what_cannot_be_read_is_named() {
    let with =
        |feature| refusal(move |sb: &mut Superblock| sb.set_features(sb.features().with(feature)));
    let unknown = Feature::from_name("FEATURE_I31").unwrap();
    assert_eq!(
        with(Feature::JOURNAL_DEV),
        GeometryError::Unsupported(Unsupported::JournalDevice)
    );
    assert!(
        with(Feature::COMPRESSION)
            .to_string()
            .ends_with("can't read: compression")
    );
    assert!(
        with(unknown)
            .to_string()
            .ends_with("can't read: FEATURE_I31")
    );
    let unknown_compat = Feature::from_name("FEATURE_R31").unwrap();
    let mut sb = superblock("default");
    sb.set_features(sb.features().with(unknown_compat));
    assert!(
        Geometry::new(&sb, 2 << 30).is_ok(),
        "an unknown ro_compat bit does not stop readers"
    );
    let truncated = Geometry::new(&superblock("default"), (2 << 30) - 1).unwrap_err();
    assert_eq!(
        truncated,
        GeometryError::Truncated {
            needed: 2 << 30,
            present: (2 << 30) - 1
        }
    );
}

/// Flips every byte of a superblock through a few values: whatever comes out must answer every question.
#[test]
fn no_superblock_makes_the_geometry_panic() {
    let mut accepted = 0;
    for profile in PROFILES {
        let original = golden(&format!("{profile}.sb"));
        for at in 0..0x290 {
            for value in [0x00, 0x01, 0x7F, 0x80, 0xFF, original[at] ^ 0x10] {
                let mut bytes: [u8; 1024] = original.clone().try_into().unwrap();
                bytes[at] = value;
                let Ok(geometry) = Geometry::new(Superblock::view(&bytes), u64::MAX) else {
                    continue;
                };
                accepted += 1;
                for group in [0, 1, 2, geometry.groups() / 2, geometry.groups() - 1].map(Group) {
                    let start = geometry.group_start(group);
                    let desc = GroupDesc::load(&[value; 64]);
                    let place = geometry.inode_place(desc.inode_table(), u32::MAX);
                    assert!(start.blocks() < u64::MAX && place.1 < geometry.block_size().bytes());
                    assert!(geometry.group_blocks(group) > 0 && geometry.group_clusters(group) > 0);
                    let (_, byte) = geometry.desc_place(group);
                    assert!(byte + geometry.desc_size() <= geometry.block_size().bytes());
                    let raw = vec![value; geometry.desc_size()];
                    let _ = GroupDesc::verify(&raw, &geometry, group);
                }
                assert_eq!(geometry.group_of_ino(Ino(0)), None);
                assert_eq!(geometry.group_of_ino(Ino(1)), Some((Group(0), 0)));
                let last = Ino(geometry.inodes_count());
                let (group, index) = geometry.group_of_ino(last).unwrap();
                assert_eq!(geometry.ino_of(group, index), last);
                assert_eq!(geometry.group_of_block(FsBlock(u64::MAX)), None);
            }
        }
    }
    assert!(
        accepted > 10_000,
        "most changes leave a possible superblock: {accepted}"
    );
}
