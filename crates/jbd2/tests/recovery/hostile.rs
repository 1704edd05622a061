//! Random journals against a naive model, and the same journals damaged in thousands of ways with checksums that fit.

use device::{BlockDevice, DeviceError, MemoryDevice};
use lanefs_jbd2::recovery::{
    Error, JournalState, ReplayReport, replay_to_device, scan_and_overlay,
};
use ondisk::{FsBlock, Superblock};
use sync::atomic::{AtomicU64, Ordering};
use sync::{Arc, clock};

use testkit::Random;

use crate::written::Written;

fn overlay(written: &Written) -> Result<(Arc<dyn BlockDevice>, ReplayReport), Error> {
    let device = written.device.clone();
    let scanned = scan_and_overlay(device, &written.sb, &written.geometry, None)?;
    Ok((scanned.device, scanned.report))
}

/// The seeds of a run; SEED=n and ROUNDS=m in the environment choose others.
fn seeds(rounds: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first: u64 = number("SEED").unwrap_or(0);
    first..first + number("ROUNDS").unwrap_or(rounds)
}

fn read_all(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(device.size()).unwrap()];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn random_journals_are_replayed_as_a_model_with_plain_maps_does() {
    let mut transactions = 0;
    for seed in seeds(600) {
        let mut random = Random::new(seed);
        let written = Written::new(&mut random).with_pointers();
        let (view, report) = overlay(&written).unwrap_or_else(|error| panic!("{seed}: {error}"));
        assert_eq!(report.used_backup_map, written.needs_backup_map);
        assert_eq!(
            report.transactions, written.transactions,
            "seed {seed} {:?} {report:?}",
            written.format
        );
        assert_eq!(report.blocks, written.expected.len() as u64, "seed {seed}");
        transactions += report.transactions;
        let mut expected = read_all(&*written.device);
        for (block, bytes) in &written.expected {
            let at = usize::try_from(FsBlock(*block).offset(written.size)).unwrap();
            expected[at..at + bytes.len()].copy_from_slice(bytes);
        }
        assert!(read_all(&*view) == expected, "seed {seed}");
        // Any part of the device reads as the whole does.
        for _ in 0..20 {
            let start = random.index(expected.len());
            let len = random.index((expected.len() - start).min(3 * written.size.bytes()) + 1);
            let mut part = vec![1; len];
            view.read_at(start as u64, &mut part).unwrap();
            assert!(
                part == expected[start..start + len],
                "seed {seed}: {start}, {len}"
            );
        }
        assert_home(&written, &expected, seed);
    }
    assert!(transactions > 2000, "{transactions}");
}

/// Replay onto the device leaves what the overlay shows, and a clean journal.
fn assert_home(written: &Written, expected: &[u8], seed: u64) {
    let journal_at = 300 << written.size.bits();
    let device: Arc<dyn BlockDevice> = written.device.clone();
    let report =
        lanefs_jbd2::recovery::replay_to_device(&device, &written.sb, &written.geometry, None)
            .unwrap();
    assert_eq!(report.journal, JournalState::Replayed);
    let home = read_all(&*device);
    assert!(
        home[2048..journal_at] == expected[2048..journal_at],
        "seed {seed}"
    );
    let bytes: [u8; 1024] = home[1024..2048].try_into().unwrap();
    let sb = *Superblock::view(&bytes);
    let geometry = ondisk::Geometry::new(&sb, device.size()).unwrap();
    // Were it needed after all, there would be nothing left to do.
    let again = scan_and_overlay(device.clone(), &sb, &geometry, None);
    let again = again.unwrap().report;
    assert_eq!((again.journal, again.blocks), (JournalState::Clean, 0));
    let forced = scan_and_overlay(device, &written.sb, &written.geometry, None);
    let forced = forced.unwrap().report;
    assert_eq!((forced.journal, forced.blocks), (JournalState::Clean, 0));
}

/// A device whose power is cut at some write or flush: nothing works afterwards.
struct PowerCut {
    inner: Arc<MemoryDevice>,
    left: AtomicU64,
}

impl PowerCut {
    fn step(&self) -> Result<(), DeviceError> {
        // Relaxed: one thread; pairs with nothing.
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            return Err(DeviceError::ReadOnly);
        }
        // Relaxed: one thread; pairs with nothing.
        self.left.store(left - 1, Ordering::Relaxed);
        Ok(())
    }
}

impl BlockDevice for PowerCut {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.step()?;
        self.inner.write_at(offset, bytes)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.step()
    }
    fn discard(&self, _: std::ops::Range<u64>) -> Result<(), DeviceError> {
        Ok(())
    }
}

#[test]
fn a_replay_that_was_cut_anywhere_is_finished_by_the_next() {
    let mut cuts = 0;
    for seed in 0..40 {
        let written = Written::new(&mut Random::new(seed)).with_pointers();
        let size = written.device.size();
        let (view, report) = overlay(&written).unwrap();
        let journal_at = 300 << written.size.bits();
        let expected = read_all(&*view)[2048..journal_at].to_vec();
        let before = read_all(&*written.device);
        let whole = Arc::new(PowerCut {
            inner: Arc::new(MemoryDevice::from_bytes(&before)),
            left: AtomicU64::new(u64::MAX),
        });
        let device = Arc::clone(&whole) as Arc<dyn BlockDevice>;
        replay_to_device(&device, &written.sb, &written.geometry, None).unwrap();
        // Relaxed: one thread; pairs with nothing.
        let steps = u64::MAX - whole.left.load(Ordering::Relaxed);
        // The log, a flush; copies, a flush, the journal, a flush, the superblock, a flush.
        let log = if report.blocks > 0 { 2 } else { 0 };
        assert!(steps >= log + report.blocks + 5, "seed {seed}");
        for cut in 0..=steps {
            let inner = Arc::new(MemoryDevice::from_bytes(&before));
            let device: Arc<dyn BlockDevice> = Arc::new(PowerCut {
                inner: inner.clone(),
                left: AtomicU64::new(cut),
            });
            let result = replay_to_device(&device, &written.sb, &written.geometry, None);
            assert_eq!(result.is_ok(), cut == steps, "seed {seed}, cut {cut}");
            // What the next mount reads.
            let mut bytes = [0; 1024];
            inner.read_at(1024, &mut bytes).unwrap();
            let sb = *Superblock::view(&bytes);
            let geometry = ondisk::Geometry::new(&sb, size).unwrap();
            let device: Arc<dyn BlockDevice> = inner;
            replay_to_device(&device, &sb, &geometry, None).unwrap();
            assert!(
                read_all(&*device)[2048..journal_at] == expected,
                "seed {seed}, cut {cut}"
            );
            cuts += 1;
        }
    }
    assert!(cuts > 400, "{cuts}");
}

/// Changes some words of the journal, most often where they mean something, and makes checksums fit again. Returns what
/// the changed blocks held before.
fn damage(written: &Written, random: &mut Random) -> Vec<(u32, Vec<u8>)> {
    let blocks = written.journal.blocks_count() as usize;
    let mut before = Vec::new();
    for _ in 0..1 + random.index(3) {
        // Every fourth time the journal's superblock.
        let position = if random.one_in(4) {
            0
        } else {
            random.index(blocks)
        };
        let position = u32::try_from(position).unwrap();
        let mut block = written.get(position);
        before.push((position, block.clone()));
        for _ in 0..1 + random.index(3) {
            let near = [24, 96, block.len()][random.index(3)];
            let at = random.index(near.min(block.len() - 4));
            let at = if random.one_in(2) { at & !3 } else { at };
            let word: u32 = match random.index(7) {
                0 => 0,
                1 => 1,
                2 => u32::MAX,
                3 => 0x8000_0000,
                4 => 300 + u32::try_from(random.index(200)).unwrap(),
                5 => u32::from_be_bytes(block[at..at + 4].try_into().unwrap()).wrapping_add(1),
                _ => u32::try_from(random.index(1 << 31)).unwrap(),
            };
            block[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        if random.one_in(20) {
            // The same block again, elsewhere.
            let elsewhere = u32::try_from(random.index(blocks)).unwrap();
            before.push((elsewhere, written.get(elsewhere)));
            written.put(elsewhere, &block);
        }
        written.put(position, &block);
        if !random.one_in(5) {
            written.seal_copies(position);
            written.seal(position);
        }
    }
    before
}

/// Reads every block that a transaction could name.
fn read_targets(view: &dyn BlockDevice, written: &Written) {
    let mut bytes = vec![0; 60 * written.size.bytes()];
    view.read_at(FsBlock(90).offset(written.size), &mut bytes)
        .unwrap();
}

#[test]
fn ten_thousand_damaged_journals_neither_panic_nor_hang() {
    let (mut replayed, mut refused) = (0, std::collections::BTreeMap::new());
    let begin = clock::now();
    for seed in seeds(500) {
        let mut random = Random::new(seed ^ 0xDEAD);
        let written = Written::new(&mut random).with_pointers();
        for _ in 0..20 {
            let before = damage(&written, &mut random);
            match overlay(&written) {
                Ok((view, report)) => {
                    replayed += 1;
                    assert!(report.blocks <= 512);
                    read_targets(&*view, &written);
                    let _ = report.to_string();
                }
                Err(error) => {
                    let what = error.to_string();
                    let what = what.split(" (").next().unwrap().to_owned();
                    *refused.entry(what).or_insert(0) += 1;
                }
            }
            for (position, block) in before.into_iter().rev() {
                written.put(position, &block);
            }
        }
        let (_, report) = overlay(&written).unwrap();
        assert_eq!(report.transactions, written.transactions);
    }
    println!(
        "{replayed} replayed in {:?}, refused: {refused:#?}",
        begin.elapsed()
    );
    assert!(replayed > 2000, "{replayed}");
    assert!(refused.len() >= 10, "{refused:#?}");
}

#[test]
fn damaged_maps_of_the_journal_neither_panic_nor_hang() {
    for seed in seeds(250) {
        let mut random = Random::new(seed ^ 0xF00D);
        let mut written = Written::new(&mut random).with_pointers();
        let original = written.sb.journal_backup();
        for _ in 0..20 {
            let mut words = original;
            for _ in 0..1 + random.index(3) {
                let word = u32::try_from(random.index(1 << 31)).unwrap();
                let at = random.index(17);
                words[at] = match random.index(5) {
                    0 => 0,
                    1 => u32::MAX,
                    2 => words[at] ^ (1 << random.index(32)),
                    3 => 200 + word % 200,
                    _ => word,
                };
            }
            written.sb.set_journal_backup(words);
            if !written.needs_backup_map {
                written.put_inode();
            }
            if let Ok((view, _)) = overlay(&written) {
                read_targets(&*view, &written);
            }
        }
    }
}

#[test]
fn a_log_that_only_revokes_for_ever_ends() {
    let mut random = Random::new(3);
    let written = Written::new(&mut random).with_pointers();
    let tid = written.journal.sequence();
    let mut block = vec![0; written.size.bytes()];
    for position in 1..written.journal.blocks_count() {
        ondisk::jbd2::RevokeWriter::new(&written.format, tid, &mut block).finish();
        written.put(position, &block);
    }
    let (_, report) = overlay(&written).unwrap();
    assert_eq!((report.transactions, report.blocks), (0, 0));
}

#[test]
fn an_image_without_a_journal_or_without_need_is_left_alone() {
    let mut random = Random::new(9);
    let mut written = Written::new(&mut random).with_pointers();
    let features = written.sb.features();
    let needless = features.without(ondisk::Feature::NEEDS_RECOVERY);
    written.sb.set_features(needless);
    written.geometry = ondisk::Geometry::new(&written.sb, written.device.size()).unwrap();
    let (view, report) = overlay(&written).unwrap();
    assert_eq!((report.journal, report.blocks), (JournalState::Ignored, 0));
    assert!(report.to_string().contains("passed over"));
    assert!(!view.is_read_only(), "the device itself");
    written
        .sb
        .set_features(needless.without(ondisk::Feature::HAS_JOURNAL));
    written.geometry = ondisk::Geometry::new(&written.sb, written.device.size()).unwrap();
    let (_, report) = overlay(&written).unwrap();
    assert_eq!(report, ReplayReport::default());
}

#[test]
fn a_device_that_ends_inside_the_journal_is_an_error() {
    let mut random = Random::new(5);
    let written = Written::new(&mut random).with_pointers();
    let short = Arc::new(MemoryDevice::new(written.size.bytes_u64() * 250));
    let result = scan_and_overlay(short, &written.sb, &written.geometry, None);
    assert!(matches!(result, Err(Error::Io(_) | Error::Corrupt(_))));
}

#[test]
fn a_journal_of_sixteen_million_blocks_through_one_block_of_pointers_is_refused_soon() {
    let size = ondisk::BlockSize::K4;
    let mut sb = Written::new(&mut Random::new(0)).sb;
    sb.set_log_block_size(size.log());
    sb.set_log_cluster_size(size.log());
    sb.set_first_data_block(0);
    sb.set_blocks_per_group(32768);
    sb.set_clusters_per_group(32768);
    sb.set_blocks_count(1 << 25);
    sb.set_inodes_count(64 << 10);
    let mut words = [0; 17];
    words[13] = 1000;
    words[14] = 1001;
    words[15] = 16;
    sb.set_journal_backup(words);
    let device = Arc::new(MemoryDevice::new(128 << 30));
    // Three levels: 1001 names 1000 everywhere, 1000 names 1002 everywhere, and 1002 names a run of blocks.
    for (block, first, step) in [(1001_u64, 1000_u32, 0), (1000, 1002, 0), (1002, 2000, 1)] {
        let pointers: Vec<u8> = (0..1024)
            .flat_map(|index| (first + index * step).to_le_bytes())
            .collect();
        device.write_at(block << 12, &pointers).unwrap();
    }
    let geometry = ondisk::Geometry::new(&sb, device.size()).unwrap();
    let begin = clock::now();
    let error = scan_and_overlay(device, &sb, &geometry, None)
        .err()
        .unwrap();
    // The superblock's copy is tried as well, but the error that is reported is that of the inode, which is zeros.
    assert!(error.to_string().contains("journal's inode"), "{error}");
    assert!(begin.elapsed() < clock::Duration::from_secs(10));
}
