//! Fast commits in a journal on another device are brought home by a repair of everything.

use device::{BlockDevice, MemoryDevice};
use lanefs::repair::{RepairScope, repair};
use ondisk::jbd2::JournalSuperblock;
use ondisk::{Feature, Features, Superblock};
use sync::Arc;
use sync::atomic::AtomicBool;

use crate::images::{FILES, KINDS, NOW, bytes_of, dirty, first, kept, on, options, set_first};

/// The UUID of the journal's device.
const UUID: [u8; 16] = *b"journal's device";

/// Moves the journal of an image to a device of its own: its blocks follow the ext4 superblock there.
pub fn moved(bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut image = testkit::copy_image(bytes);
    let mut sb = first(&image);
    let size = 1024_usize << sb.log_block_size();
    // The block behind the superblock's.
    let at = if size == 1024 { 2 } else { 1 };
    // The superblock's copy of the inode has an extent tree of depth 0.
    let words = sb.journal_backup();
    let entries = (words[0] >> 16) & 0xFFFF;
    let mut log = vec![0; at * size];
    for entry in 0..entries as usize {
        let [_, len, start] = [0, 1, 2].map(|word| words[3 + 3 * entry + word]);
        let (len, start) = ((len & 0xFFFF) as usize, start as usize);
        log.extend_from_slice(&bytes[start * size..(start + len) * size]);
    }
    let shift = at as u32;
    let mut journal = JournalSuperblock::read(&log[at * size..]).unwrap();
    journal.set_first(journal.first() + shift);
    if journal.start() != 0 {
        journal.set_start(journal.start() + shift);
    }
    journal.set_blocks_count(journal.blocks_count() + shift);
    journal.set_users(&[sb.uuid()]);
    journal.seal();
    log[at * size..][..JournalSuperblock::SIZE].copy_from_slice(journal.bytes());
    let mut header = sb;
    header.set_features(Features::of(&[Feature::JOURNAL_DEV]));
    header.set_uuid(UUID);
    header.set_blocks_count((log.len() / size) as u64);
    header.seal();
    set_first(&mut log, &header);
    sb.set_journal_ino(None);
    sb.set_journal_uuid(UUID);
    sb.set_journal_backup_type(0);
    sb.seal();
    set_first(&mut image, &sb);
    (image, log)
}

#[test]
fn fast_commits_on_another_device_are_brought_home() {
    let kind = &KINDS[3];
    let (image, log) = moved(&dirty(kind));
    let journal: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(&log));
    let device = on(&image);
    let cancelled = AtomicBool::new(false);
    let mend = || {
        let journal = Some(Arc::clone(&journal));
        let options = options(&cancelled, None);
        repair(&device, journal, RepairScope::All, &options, NOW).unwrap()
    };
    let outcome = mend();
    assert!(outcome.is_replayed, "{outcome:?}");
    assert!(outcome.repaired.after.is_clean(), "{outcome:?}");
    let after = bytes_of(&*device);
    assert_eq!(kept(&after), FILES);
    // The log is empty: a second repair changes nothing.
    let outcome = mend();
    assert!(!outcome.has_written(), "{outcome:?}");
}

/// Repairs a file system whose log on another device is damaged, and whose journal's superblock names this user.
/// Returns whether the repair succeeded, and whether it changed the image and the journal's device.
fn with_damaged_log(user: impl Fn(&Superblock) -> [u8; 16]) -> (bool, [bool; 2]) {
    let kind = &KINDS[0];
    let (image, mut log) = moved(&dirty(kind));
    let size = kind.block_size.bytes();
    let at = if size == 1024 { 2 } else { 1 };
    let mut journal = JournalSuperblock::read(&log[at * size..]).unwrap();
    journal.set_users(&[user(&first(&image))]);
    journal.seal();
    let start = at * size;
    log[start..start + JournalSuperblock::SIZE].copy_from_slice(journal.bytes());
    // The checksum of the first descriptor block becomes wrong.
    let descriptor = start - at * size + journal.start() as usize * size;
    log[descriptor + size - 1] ^= 1;
    let journal: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(&log));
    let cancelled = AtomicBool::new(false);
    let (options, device) = (options(&cancelled, None), on(&image));
    let shared = Some(Arc::clone(&journal));
    let repaired = repair(&device, shared, RepairScope::All, &options, NOW);
    let is_changed = [bytes_of(&*device) != image, bytes_of(&*journal) != log];
    (repaired.is_ok(), is_changed)
}

#[test]
fn a_damaged_log_is_given_up_if_it_is_this_file_systems_and_no_other() {
    assert_eq!(with_damaged_log(Superblock::uuid), (true, [true, true]));
    // A repair that fails changes nothing.
    let others = with_damaged_log(|_| *b"another's system");
    assert_eq!(others, (false, [false, false]));
}
