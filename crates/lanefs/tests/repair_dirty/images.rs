//! Images as a power cut leaves them, and what a repair makes of them.

use device::{BlockDevice, MemoryDevice};
use lanefs::check::{Options, Report};
use lanefs::repair::{Outcome, RepairError, RepairScope, repair};
use lanefs::{Fs, MountOptions, mkfs};
use ondisk::jbd2::{BlockHeader, BlockKind, JournalSuperblock};
use ondisk::{BlockSize, Superblock};
use simulate::{Cut, Recorder};
use sync::Arc;
use sync::atomic::AtomicBool;

pub const NOW: u64 = 1_795_800_000;
pub const FILES: usize = 300;

/// A kind of file system with more than one group.
pub struct Kind {
    pub name: &'static str,
    pub features: &'static str,
    pub block_size: BlockSize,
    pub blocks_per_group: u64,
}

pub const KINDS: [Kind; 4] = [
    Kind {
        name: "with checksums",
        features: "^resize_inode",
        block_size: BlockSize::K1,
        blocks_per_group: 8192,
    },
    Kind {
        name: "without checksums",
        features: "^metadata_csum,^resize_inode",
        block_size: BlockSize::K1,
        blocks_per_group: 8192,
    },
    Kind {
        name: "groups of their own size",
        features: "^resize_inode",
        block_size: BlockSize::K4,
        blocks_per_group: 4096,
    },
    Kind {
        name: "fast commits",
        features: "fast_commit,^resize_inode",
        block_size: BlockSize::K1,
        blocks_per_group: 8192,
    },
];

/// An image as a power cut leaves it after 300 files were made, each with an fsync.
pub fn dirty(kind: &Kind) -> Vec<u8> {
    let mut options = mkfs::Options {
        features: kind.features.to_owned(),
        block_size: Some(kind.block_size),
        blocks_per_group: Some(kind.blocks_per_group),
        ..mkfs::Options::default()
    };
    options.journal.size_mib = Some(16);
    dirty_as(&options)
}

/// As [`dirty`], for a file system that is made with these options. If it has fast commits, its log holds nothing else.
pub fn dirty_as(options: &mkfs::Options) -> Vec<u8> {
    let made = || dirty_of(48 << 20, options, |device| bytes_of(device));
    if !options.features.contains("fast_commit") {
        return made();
    }
    // Once in some 60 times a full commit comes last but for a few files.
    let mut images = (0..20).map(|_| made());
    let size = options.block_size.unwrap();
    images.find(|bytes| !has_transaction(size, bytes)).unwrap()
}

/// Whether the log has a transaction, as its first block shows.
fn has_transaction(block_size: BlockSize, bytes: &[u8]) -> bool {
    let journal = &bytes[journal_at(block_size, bytes)..];
    let sb = JournalSuperblock::read(journal).unwrap();
    let first = BlockHeader::of(&journal[sb.start() as usize * block_size.bytes()..]);
    first.is_some_and(|header| header.tid() == sb.sequence())
}

/// Makes the file system and the files of [`dirty_as`] on a device of `size` bytes, and gives it to `taken` as a power
/// cut leaves it: what is durable, before anything is written home at the end.
pub fn dirty_of<T>(
    size: u64,
    options: &mkfs::Options,
    taken: impl FnOnce(&dyn BlockDevice) -> T,
) -> T {
    let device = Arc::new(MemoryDevice::new(size));
    lanefs::make::make_on(&*device, options).unwrap();
    let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let fs = Fs::open_for_writing_with(shared, &MountOptions::default(), lanefs::now).unwrap();
    for number in 0..FILES {
        let file = fs.create(format!("/file{number}")).unwrap();
        file.write_at(format!("contents {number}").as_bytes(), 0)
            .unwrap();
        file.sync_all().unwrap();
    }
    taken(&*device)
}

pub fn bytes_of(device: &dyn BlockDevice) -> Vec<u8> {
    testkit::image_of(device.size(), |at, piece| {
        device.read_at(at, piece).unwrap()
    })
}

pub fn first(bytes: &[u8]) -> Superblock {
    *Superblock::view(bytes[1024..].first_chunk().unwrap())
}

pub fn set_first(bytes: &mut [u8], sb: &Superblock) {
    bytes[1024..1024 + Superblock::SIZE].copy_from_slice(sb.bytes());
}

/// The place of the first copy of the superblock, in KiB.
pub fn copy_at(kind: &Kind) -> u64 {
    let first = u64::from(kind.block_size == BlockSize::K1);
    (first + kind.blocks_per_group) * kind.block_size.bytes_u64() / 1024
}

pub fn options(cancelled: &AtomicBool, superblock: Option<u64>) -> Options<'_> {
    Options {
        threads: 1,
        memory: None,
        superblock,
        is_replayed: false,
        cancelled,
        progress: &|_| {},
        trace: None,
    }
}

pub fn check(device: &Arc<dyn BlockDevice>, superblock: Option<u64>) -> Report {
    let cancelled = AtomicBool::new(false);
    lanefs::check::check(device, None, &options(&cancelled, superblock)).unwrap()
}

pub fn try_to_mend(
    device: &Arc<dyn BlockDevice>,
    scope: RepairScope,
    superblock: Option<u64>,
) -> Result<Outcome, RepairError> {
    let cancelled = AtomicBool::new(false);
    repair(device, None, scope, &options(&cancelled, superblock), NOW)
}

pub fn mend(device: &Arc<dyn BlockDevice>, scope: RepairScope, superblock: Option<u64>) -> Outcome {
    try_to_mend(device, scope, superblock).unwrap()
}

/// How many of the files are there with their contents.
pub fn kept(bytes: &[u8]) -> usize {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(bytes));
    let fs = Fs::open_with(device, &MountOptions::default()).unwrap();
    let is_kept = |number: &usize| {
        fs.read(format!("/file{number}"))
            .is_ok_and(|bytes| bytes == format!("contents {number}").as_bytes())
    };
    (0..FILES).filter(is_kept).count()
}

pub fn judge(bytes: &[u8], what: &str) {
    if !testkit::have("e2fsck") {
        return testkit::skip("e2fsck is missing");
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    testkit::write_image(&image, bytes);
    let output = testkit::e2fsck_within(60, &["-fn"], &image, None).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{what}: {text}");
}

/// The image as e2fsck -fy leaves it; `None` without e2fsck.
pub fn by_e2fsck(bytes: &[u8]) -> Option<Vec<u8>> {
    if !testkit::have("e2fsck") {
        testkit::skip("e2fsck is missing");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    testkit::write_image(&image, bytes);
    testkit::e2fsck_within(60, &["-fy"], &image, None).unwrap();
    Some(testkit::read_image(&image))
}

pub fn on(bytes: &[u8]) -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::from_bytes(bytes))
}

/// Repairs the image, and what each of some cuts of that repair leaves (with LANEFS_REPAIR_CUTS set, a cut at every
/// write); all must then be clean and pass `verify`, as must the image after the repair that was not cut, which is
/// returned.
pub fn cuts_of_repair(
    what: &str,
    bytes: &[u8],
    copy: Option<u64>,
    verify: &dyn Fn(&[u8], &str),
) -> Vec<u8> {
    let points = match std::env::var_os("LANEFS_REPAIR_CUTS") {
        Some(_) => usize::MAX,
        None => 6,
    };
    let recorder = Arc::new(Recorder::new(bytes));
    let device = Arc::clone(&recorder) as Arc<dyn BlockDevice>;
    mend(&device, RepairScope::All, copy);
    let mut cuts = recorder.cuts();
    let all: Vec<usize> = cuts.points().collect();
    let step = all.len().div_ceil(points).max(1);
    // The first writes are the superblock's.
    let chosen = all.iter().take(6).chain(all.iter().step_by(step));
    for event in chosen.copied() {
        let state = cuts.state(Cut { event, seed: 1 }).bytes();
        let what = format!("{what}, cut at {event}");
        let cut = on(&state);
        let outcome = mend(&cut, RepairScope::All, None);
        assert!(outcome.repaired.after.is_clean(), "{what}: {outcome:?}");
        verify(&bytes_of(&*cut), &what);
    }
    let after = bytes_of(&*device);
    verify(&after, what);
    after
}

/// The byte at which the journal begins.
pub fn journal_at(block_size: BlockSize, bytes: &[u8]) -> usize {
    let size = block_size.bytes();
    let is_superblock = |block: &[u8]| {
        let kind = BlockHeader::of(block).and_then(|header| header.kind());
        kind == Some(BlockKind::SuperblockV2)
    };
    bytes.chunks(size).position(is_superblock).unwrap() * size
}
