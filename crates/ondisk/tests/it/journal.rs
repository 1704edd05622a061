//! Journal blocks, fast commits, orphan file and multi-mount block as the kernel and debugfs wrote them: checksums fit,
//! and what was parsed is written back the same. `tests/golden/journal/make.sh` made the files.

use std::path::PathBuf;

use lanefs_ondisk::fast_commit::{self, FcRecord, Scan, ScanStep};
use lanefs_ondisk::jbd2::{
    self, BlockHeader, BlockKind, BlockTag, CommitBlock, CommitChecksum, DescriptorWriter,
    JournalChecksum, JournalFeatures, JournalSuperblock, LogFormat, RevokeWriter, Tags,
    TransactionChecksum,
};
use lanefs_ondisk::mmp::{Mmp, MmpUse};
use lanefs_ondisk::orphan_file;
use lanefs_ondisk::{BlockSize, FsBlock, Generation, Ino, Tid, csum, inode};

const UUID: [u8; 16] = [
    0x11, 0x11, 0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55,
];

fn golden(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/journal")
        .join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn superblock(name: &str) -> JournalSuperblock {
    JournalSuperblock::read(&golden(&format!("{name}-superblock.bin"))).unwrap()
}

fn format(name: &str) -> LogFormat {
    superblock(name).verify(BlockSize::K1, 1 << 20).unwrap()
}

fn fs_seed() -> u32 {
    csum::crc32c(csum::INITIAL, &UUID)
}

#[test]
fn superblocks_written_field_by_field_are_those_of_the_kernel() {
    for (name, checksum) in [
        ("jbd2-v3", JournalChecksum::V3),
        ("jbd2-v2", JournalChecksum::V2),
        ("jbd2-v1", JournalChecksum::V1),
        ("jbd2-32bit", JournalChecksum::None),
        ("fast-commit", JournalChecksum::V3),
    ] {
        let original = superblock(name);
        assert_eq!(original.uuid(), UUID);
        assert_eq!(format(name).checksum, checksum, "{name}");
        let mut sb = JournalSuperblock::new(BlockSize::K1, original.blocks_count(), 1);
        sb.set_sequence(original.sequence());
        sb.set_start(original.start());
        sb.set_features(original.features());
        sb.set_uuid(UUID);
        sb.set_users_count(1);
        sb.set_checksum_type(original.checksum_type());
        sb.set_fast_commit_blocks_raw(original.fast_commit_blocks_raw());
        sb.seal();
        assert_eq!(sb.bytes(), original.bytes(), "{name}");
    }
    let fast = superblock("fast-commit");
    let places = (
        fast.blocks_count(),
        fast.log_end(),
        fast.fast_commit_first(),
    );
    assert_eq!(places, (4112, 4096, 4097));
    assert!(
        fast.features()
            .has_incompat(JournalFeatures::INCOMPAT_FAST_COMMIT)
    );
}

fn tid_of(block: &[u8], kind: BlockKind) -> Tid {
    let header = BlockHeader::of(block).unwrap();
    assert_eq!(header.kind(), Some(kind));
    header.tid()
}

#[test]
fn descriptor_blocks_are_written_back_the_same() {
    for name in ["jbd2-v3", "jbd2-v2", "jbd2-v1", "jbd2-32bit"] {
        let format = format(name);
        let original = match name {
            "jbd2-v1" => golden("jbd2-v1-transaction.bin")[..1024].to_vec(),
            _ => golden(&format!("{name}-descriptor.bin")),
        };
        let tid = tid_of(&original, BlockKind::Descriptor);
        assert!(format.verify_tail(&original), "{name}");
        let tags: Vec<BlockTag> = Tags::of(&format, &original).collect();
        assert!(tags.len() >= 3 && tags.last().unwrap().is_last);
        // Linux writes the journal's UUID there, debugfs zeros or whatever; nobody reads it.
        let at = BlockHeader::SIZE + format.tag_bytes();
        let uuid: [u8; 16] = original[at..at + 16].try_into().unwrap();
        let mut block = vec![0xFF; 1024];
        let mut writer = DescriptorWriter::new(&format, tid, &mut block);
        for tag in tags {
            assert!(writer.push(tag.block, tag.is_escaped, tag.checksum, &uuid));
        }
        writer.finish();
        // debugfs leaves old bytes between the last tag and the checksum.
        if name == "jbd2-v2" {
            let end = BlockHeader::SIZE + 3 * format.tag_bytes() + 16;
            block[end..1020].copy_from_slice(&original[end..1020]);
            format.seal_tail(&mut block);
        }
        let at = block.iter().zip(&original).position(|(a, b)| a != b);
        assert_eq!(at, None, "{name}");
    }
}

#[test]
fn copies_have_the_checksums_in_their_tags() {
    for name in ["jbd2-v3", "jbd2-v2"] {
        let format = format(name);
        let descriptor = golden(&format!("{name}-descriptor.bin"));
        let tid = tid_of(&descriptor, BlockKind::Descriptor);
        let first = Tags::of(&format, &descriptor).next().unwrap();
        let copy = golden(&format!("{name}-copy.bin"));
        assert_eq!(format.data_checksum(tid, &copy), first.checksum, "{name}");
        assert_ne!(format.data_checksum(tid.next(), &copy), first.checksum);
        // debugfs's file began with the magic number.
        assert_eq!(first.is_escaped, name == "jbd2-v2");
    }
}

#[test]
fn revoke_blocks_are_written_back_the_same() {
    for name in ["jbd2-v3", "jbd2-v2", "jbd2-32bit"] {
        let format = format(name);
        let original = golden(&format!("{name}-revoke.bin"));
        let tid = tid_of(&original, BlockKind::Revoke);
        assert!(format.verify_tail(&original), "{name}");
        let mut block = vec![0xFF; 1024];
        let mut writer = RevokeWriter::new(&format, tid, &mut block);
        let revoked: Vec<FsBlock> = jbd2::revoked(&format, &original).unwrap().collect();
        assert_eq!(revoked.len(), 2, "{name}");
        for number in revoked {
            assert!(writer.push(number));
        }
        writer.finish();
        assert!(block == original, "{name}");
    }
}

#[test]
fn commit_blocks_are_written_back_the_same() {
    for name in ["jbd2-v3", "jbd2-v2", "jbd2-v1", "jbd2-32bit"] {
        let format = format(name);
        let original = match name {
            "jbd2-v1" => golden("jbd2-v1-transaction.bin")[11 * 1024..].to_vec(),
            _ => golden(&format!("{name}-commit.bin")),
        };
        let tid = tid_of(&original, BlockKind::Commit);
        let read = CommitBlock::read(&original).unwrap();
        let checksum = CommitBlock::verify(&format, &original);
        assert_eq!(checksum, CommitChecksum::Good, "{name}");
        let mut commit = CommitBlock::new(tid, read.seconds(), read.nanoseconds());
        if format.checksum == JournalChecksum::V1 {
            commit.set_transaction_checksum(read.checksum());
        }
        let mut block = vec![0xFF; 1024];
        commit.write(&format, &mut block);
        assert!(block == original, "{name}");
    }
}

#[test]
fn a_transaction_has_the_checksum_of_version_1_in_its_commit_block() {
    let transaction = golden("jbd2-v1-transaction.bin");
    let (blocks, commit) = transaction.split_at(11 * 1024);
    let mut sum = TransactionChecksum::new();
    blocks.chunks(1024).for_each(|block| sum.add(block));
    let commit = CommitBlock::read(commit).unwrap();
    assert_ne!(commit.checksum(), 0);
    assert!(commit.has_transaction_checksum(sum.value()));
}

#[test]
fn fast_commits_of_the_kernel_are_read_and_written_back_the_same() {
    let area = golden("fast-commit-area.bin");
    let mut scan = Scan::new(Tid(3), 256);
    let mut kinds = Vec::new();
    for block in area.chunks(1024) {
        assert_eq!(scan.block(block), ScanStep::Continue);
        let mut written = Vec::new();
        for record in fast_commit::records(block, 256) {
            let record = record.unwrap();
            record.write(&mut written);
            kinds.push(std::mem::discriminant(&record));
            if let FcRecord::Creat(named) = record {
                assert!(named.parent.0 >= 2 && named.ino.0 > 11 && !named.name.is_empty());
            }
        }
        assert!(written == block);
    }
    let found = scan.found();
    assert_eq!((found.commits, found.blocks, found.damage), (3, 5, None));
    assert_eq!(found.changes, 30);
    kinds.sort_by_key(|kind| format!("{kind:?}"));
    kinds.dedup();
    assert_eq!(kinds.len(), 9, "all kinds of records are there");
}

#[test]
fn damaged_fast_commits_end_the_scan_and_never_count_more() {
    let area = golden("fast-commit-area.bin");
    let mut numbers = testkit::Random::new(1);
    let mut random = |end: usize| numbers.index(end);
    let mut ended = 0;
    for _ in 0..5000 {
        let mut damaged = area.clone();
        let at = random(damaged.len());
        damaged[at] = damaged[at].wrapping_add(u8::try_from(1 + random(255)).unwrap());
        let mut scan = Scan::new(Tid(3), 256);
        let last = damaged.chunks(1024).map(|block| scan.block(block)).last();
        let found = scan.found();
        assert!(found.commits <= 3 && found.changes <= 30);
        ended += u32::from(last == Some(ScanStep::Stop));
        for block in damaged.chunks(1024) {
            assert!(fast_commit::records(block, 256).count() <= 256);
        }
    }
    // What follows a tail to the end of its block does not count.
    assert!(ended > 2500, "{ended}");
}

#[test]
fn orphan_blocks_of_mke2fs_and_the_kernel_have_the_checksum_of_their_place() {
    let seed = inode::checksum_seed(fs_seed(), Ino(12), Generation(0));
    let empty = golden("orphan-empty.bin");
    let ours = orphan_file::empty_block(BlockSize::K1, FsBlock(1751), Some(seed));
    assert!(ours == empty);
    let original = golden("orphan-used.bin");
    let place = FsBlock(1764);
    assert_eq!(orphan_file::verify(&original, place, Some(seed)), Ok(()));
    let orphans: Vec<Ino> = orphan_file::slots(&original).flatten().collect();
    assert_eq!(orphans, [Ino(13)]);
    let slot = orphan_file::slots(&original)
        .position(|slot| slot.is_some())
        .unwrap();
    let mut block = vec![0; 1024];
    orphan_file::set_slot(&mut block, slot, Some(Ino(13)));
    orphan_file::seal(&mut block, place, Some(seed));
    assert!(block == original);
}

#[test]
fn multi_mount_blocks_say_who_has_the_file_system() {
    for (name, is_clean) in [("mmp-used.bin", false), ("mmp-clean.bin", true)] {
        let original = golden(name);
        let read = Mmp::read(&original).unwrap();
        assert_eq!(read.verify(Some(fs_seed())), Ok(()), "{name}");
        assert_eq!(read.used_by() == MmpUse::Clean, is_clean);
        assert_eq!(matches!(read.used_by(), MmpUse::Mounted(_)), !is_clean);
        assert_eq!((read.node(), read.device()), (&b"vm"[..], &b"loop0"[..]));
        // The kernel leaves old bytes after the device's name, so not field by field.
        let mut mmp = read;
        mmp.set_checksum(0);
        mmp.seal(Some(fs_seed()));
        assert!(mmp.bytes() == original, "{name}");
    }
}
