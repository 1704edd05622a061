//! Fast commits behind the log are kept by a repair, and don't count any more after it.

use device::{BlockDevice, CountedDevice, MemoryDevice};
use lanefs::repair::RepairScope;
use lanefs::{Fs, MountOptions, mkfs};
use ondisk::jbd2::{CommitBlock, DescriptorWriter, JournalSuperblock};
use ondisk::{BlockSize, Feature, FsBlock, Geometry, GroupDesc, Ino, Inode, Tid, inode};
use sync::Arc;

use crate::images::{
    FILES, KINDS, Kind, NOW, by_e2fsck, cuts_of_repair, dirty, dirty_as, dirty_of, first,
    journal_at, judge, kept, mend,
};

const FAST: &Kind = &KINDS[3];

const BLOCK: usize = 1024;
/// Blocks of the log and of the area for fast commits, as they are made.
const LOG: usize = 1024;

/// An image whose fast commits change more blocks than its log has. The log is empty; all but three of its blocks
/// become a part of the area for fast commits.
fn larger_than_the_log() -> Vec<u8> {
    let mut options = mkfs::Options {
        features: "fast_commit,^resize_inode".to_owned(),
        block_size: Some(BlockSize::K1),
        ..mkfs::Options::default()
    };
    options.journal.size_mib = Some(1);
    options.journal.fast_commit_kib = Some(LOG as u64);
    let mut bytes = dirty_as(&options);
    let at = journal_at(BlockSize::K1, &bytes);
    let journal = &mut bytes[at..at + 2 * LOG * BLOCK];
    let mut sb = JournalSuperblock::read(journal).unwrap();
    assert_eq!(sb.start(), 1);
    let area = sb.fast_commit_first() as usize * BLOCK;
    assert!(journal[area..].starts_with(&[9, 0, 8, 0]), "HEAD");
    journal.copy_within(area.., 5 * BLOCK);
    sb.set_fast_commit_blocks_raw(sb.blocks_count() - 4);
    sb.seal();
    journal[..JournalSuperblock::SIZE].copy_from_slice(sb.bytes());
    bytes
}

#[test]
fn without_a_log_that_is_large_enough_they_are_written_in_stages() {
    let bytes = larger_than_the_log();
    // e2fsck calls a log of three blocks corrupt, so it does not judge this one.
    cuts_of_repair("stages", &bytes, None, &|cut, what| {
        assert_eq!(kept(cut), FILES, "{what}");
        let journal = &cut[journal_at(BlockSize::K1, cut)..];
        let sb = JournalSuperblock::read(journal).unwrap();
        assert_eq!(sb.start(), 0, "{what}");
        // A log that is made anew has no area.
        let area = &journal[5 * BLOCK..6 * BLOCK];
        let is_cleared = sb.fast_commit_blocks() == 0 || area.iter().all(|byte| *byte == 0);
        assert!(is_cleared, "{what}");
        assert!(
            !first(cut).features().has(Feature::NEEDS_RECOVERY),
            "{what}"
        );
    });
}

/// Puts transactions before the fast commits, each with one copy of a free block. The first copy's checksum may be
/// wrong.
pub fn with_transactions(bytes: &[u8], count: u32, is_damaged: bool) -> Vec<u8> {
    let mut bytes = testkit::copy_image(bytes);
    let at = journal_at(BlockSize::K1, &bytes);
    let last = bytes.len() - BLOCK;
    let copy = bytes[last..].to_vec();
    let mut sb = JournalSuperblock::read(&bytes[at..]).unwrap();
    let format = sb.verify(BlockSize::K1, sb.blocks_count().into()).unwrap();
    let home = FsBlock((last / BLOCK) as u64);
    let first = sb.sequence().0.wrapping_sub(count);
    let len = count as usize * 3 * BLOCK;
    let log = &mut bytes[at + sb.start() as usize * BLOCK..][..len];
    log.fill(0);
    for (number, log) in (0..).zip(log.chunks_mut(3 * BLOCK)) {
        let tid = Tid(first.wrapping_add(number));
        let mut writer = DescriptorWriter::new(&format, tid, &mut log[..BLOCK]);
        let wrong = u32::from(is_damaged && number == 0);
        let checksum = format.data_checksum(tid, &copy) ^ wrong;
        assert!(writer.push(home, false, checksum, &sb.uuid()));
        writer.finish();
        log[BLOCK..2 * BLOCK].copy_from_slice(&copy);
        CommitBlock::new(tid, NOW, 0).write(&format, &mut log[2 * BLOCK..]);
    }
    sb.set_sequence(Tid(first));
    sb.seal();
    bytes[at..at + JournalSuperblock::SIZE].copy_from_slice(sb.bytes());
    bytes
}

#[test]
fn behind_a_damaged_copy_they_are_kept() {
    let whole = dirty(FAST);
    let bytes = with_transactions(&whole, 1, true);
    let after = cuts_of_repair("damaged copy", &bytes, None, &|cut, what| {
        assert_eq!(kept(cut), FILES, "{what}");
        assert!(
            !first(cut).features().has(Feature::NEEDS_RECOVERY),
            "{what}"
        );
    });
    judge(&after, "damaged copy");
    let Some(theirs) = by_e2fsck(&bytes) else {
        return;
    };
    assert!(kept(&theirs) <= FILES);
    println!("e2fsck keeps {} of {FILES} files", kept(&theirs));
}

/// Zeros the link count of the journal's inode, so that only its copy in the superblock leads to the log.
fn without_journal_inode(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = testkit::copy_image(bytes);
    let geometry = Geometry::of(&first(&bytes)).unwrap();
    let (group, index) = geometry.group_of_ino(Ino::JOURNAL).unwrap();
    let (block, at) = geometry.desc_place(group);
    let desc = block.offset(BlockSize::K1) as usize + at;
    let table = GroupDesc::load(&bytes[desc..desc + geometry.desc_size()]).inode_table();
    let (block, at) = geometry.inode_place(table, index);
    let at = block.offset(BlockSize::K1) as usize + at;
    let slot = &mut bytes[at..at + geometry.inode_size()];
    let mut inode = Inode::parse(slot).unwrap();
    inode.set_links_count(0);
    inode.write_to(slot);
    inode::set_checksum(slot, geometry.csum_seed(), Ino::JOURNAL);
    bytes
}

#[test]
fn with_a_wrong_inode_of_the_journal_they_are_kept() {
    let bytes = without_journal_inode(&dirty(FAST));
    let after = cuts_of_repair("journal's inode", &bytes, None, &|cut, what| {
        assert_eq!(kept(cut), FILES, "{what}");
        let journal = &cut[journal_at(BlockSize::K1, cut)..];
        let sb = JournalSuperblock::read(journal).unwrap();
        assert_eq!(sb.start(), 0, "{what}: no later replay undoes the repair");
        let has_flag = first(cut).features().has(Feature::NEEDS_RECOVERY);
        assert!(!has_flag, "{what}");
    });
    judge(&after, "journal's inode");
    if let Some(theirs) = by_e2fsck(&bytes) {
        println!("e2fsck keeps {} of {FILES} files", kept(&theirs));
    }
}

#[test]
fn no_more_of_a_large_image_is_read_than_they_and_its_metadata_need() {
    const SIZE: u64 = 1 << 30;
    const PIECE: usize = 1 << 20;
    let options = mkfs::Options {
        features: FAST.features.to_owned(),
        ..mkfs::Options::default()
    };
    let image: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(SIZE));
    dirty_of(SIZE, &options, |device| {
        let mut piece = vec![0; PIECE];
        for offset in (0..SIZE).step_by(PIECE) {
            device.read_at(offset, &mut piece).unwrap();
            if piece.iter().any(|byte| *byte != 0) {
                image.write_at(offset, &piece).unwrap();
            }
        }
    });
    let counted = Arc::new(CountedDevice::new(image));
    let device = Arc::clone(&counted) as Arc<dyn BlockDevice>;
    mend(&device, RepairScope::All, None);
    let read = counted.counts().read_bytes;
    assert!(read < SIZE / 8, "{read} bytes were read");
    let fs = Fs::open_with(device, &MountOptions::default()).unwrap();
    for number in 0..FILES {
        let bytes = fs.read(format!("/file{number}")).unwrap();
        assert_eq!(bytes, format!("contents {number}").as_bytes());
    }
}
