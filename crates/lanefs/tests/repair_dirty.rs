//! Repairs of images whose journal must be replayed and whose first superblock is lost, wrong, or not the one that was
//! asked for: what the log holds is kept, as by e2fsck -fy.

use std::collections::BTreeSet;

use device::{BlockDevice, MemoryDevice};
use lanefs::check::{Code, Options, Report};
use lanefs::repair::{Outcome, RepairScope, repair};
use lanefs::undo::{self, Draft};
use lanefs::{Fs, MountOptions, mkfs};
use ondisk::{BlockSize, Superblock, superblock};
use simulate::{Cut, Recorder};
use sync::Arc;
use sync::atomic::AtomicBool;

const NOW: u64 = 1_700_000_000;
const FILES: usize = 300;

/// A kind of file system with more than one group.
struct Kind {
    name: &'static str,
    features: &'static str,
    block_size: BlockSize,
    blocks_per_group: u64,
}

const KINDS: [Kind; 4] = [
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
fn dirty(kind: &Kind) -> Vec<u8> {
    let device = Arc::new(MemoryDevice::new(48 << 20));
    let mut options = mkfs::Options {
        features: kind.features.to_owned(),
        block_size: Some(kind.block_size),
        blocks_per_group: Some(kind.blocks_per_group),
        ..mkfs::Options::default()
    };
    options.journal.size_mib = Some(16);
    lanefs::make::make_on(&*device, &options).unwrap();
    let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let fs = Fs::open_for_writing_with(shared, &MountOptions::default(), lanefs::now).unwrap();
    for number in 0..FILES {
        let file = fs.create(format!("/file{number}")).unwrap();
        file.write_at(format!("contents {number}").as_bytes(), 0)
            .unwrap();
        file.sync_all().unwrap();
    }
    // What is durable, before anything is written home at the end.
    bytes_of(&*device)
}

fn bytes_of(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.size() as usize];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

fn first(bytes: &[u8]) -> Superblock {
    *Superblock::view(bytes[1024..].first_chunk().unwrap())
}

fn set_first(bytes: &mut [u8], sb: &Superblock) {
    bytes[1024..1024 + Superblock::SIZE].copy_from_slice(sb.bytes());
}

/// The place of the first copy of the superblock, in KiB.
fn copy_at(kind: &Kind) -> u64 {
    let first = u64::from(kind.block_size == BlockSize::K1);
    (first + kind.blocks_per_group) * kind.block_size.bytes_u64() / 1024
}

/// Ways to lose the first superblock: what they are called, the image, and the copy that the user names, if one must be
/// named.
fn lost(kind: &Kind, bytes: &[u8]) -> Vec<(&'static str, Vec<u8>, Option<u64>)> {
    let changed = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = bytes.to_vec();
        change(&mut bytes);
        bytes
    };
    let other_size = |is_sealed: bool| {
        changed(&|bytes| {
            let mut sb = first(bytes);
            let log = sb.log_block_size();
            sb.set_log_block_size(if log == 0 { 2 } else { 0 });
            if is_sealed {
                sb.seal();
            }
            set_first(bytes, &sb);
        })
    };
    vec![
        ("zeros", changed(&|bytes| bytes[1024..2048].fill(0)), None),
        ("junk", changed(&|bytes| bytes[1024..2048].fill(0xA5)), None),
        ("wrong size", other_size(false), None),
        ("wrong size with its checksum", other_size(true), None),
        (
            "wrong inodes per group",
            changed(&|bytes| {
                let mut sb = first(bytes);
                sb.set_inodes_per_group(sb.inodes_per_group() + 8);
                sb.seal();
                set_first(bytes, &sb);
            }),
            None,
        ),
        ("a named copy", bytes.to_vec(), Some(copy_at(kind))),
        (
            "zeros and a named copy",
            changed(&|bytes| bytes[1024..2048].fill(0)),
            Some(copy_at(kind)),
        ),
    ]
}

fn options(cancelled: &AtomicBool, superblock: Option<u64>) -> Options<'_> {
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

fn check(device: &Arc<dyn BlockDevice>, superblock: Option<u64>) -> Report {
    let cancelled = AtomicBool::new(false);
    lanefs::check::check(device, None, &options(&cancelled, superblock)).unwrap()
}

fn mend(device: &Arc<dyn BlockDevice>, scope: RepairScope, superblock: Option<u64>) -> Outcome {
    let cancelled = AtomicBool::new(false);
    repair(device, None, scope, &options(&cancelled, superblock), NOW).unwrap()
}

/// How many of the files are there with their contents.
fn kept(bytes: &[u8]) -> usize {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(bytes));
    let fs = Fs::open_with(device, &MountOptions::default()).unwrap();
    let is_kept = |number: &usize| {
        fs.read(format!("/file{number}"))
            .is_ok_and(|bytes| bytes == format!("contents {number}").as_bytes())
    };
    (0..FILES).filter(is_kept).count()
}

fn judge(bytes: &[u8], what: &str) {
    if !testkit::have("e2fsck") {
        return testkit::skip("e2fsck is missing");
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    std::fs::write(&image, bytes).unwrap();
    let output = testkit::e2fsck_within(60, &["-fn"], &image, None).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{what}: {text}");
}

fn on(bytes: &[u8]) -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::from_bytes(bytes))
}

#[test]
fn a_repair_keeps_what_the_log_holds_whatever_became_of_the_first_superblock() {
    for kind in &KINDS {
        let whole = dirty(kind);
        assert!(
            first(&whole)
                .features()
                .has(ondisk::Feature::NEEDS_RECOVERY)
        );
        let unharmed = ("nothing", whole.clone(), None);
        for (how, bytes, copy) in lost(kind, &whole).into_iter().chain([unharmed]) {
            let what = format!("{}, {how}", kind.name);
            let device = on(&bytes);
            let outcome = mend(&device, RepairScope::All, copy);
            let after = bytes_of(&*device);
            assert!(outcome.repaired.after.is_clean(), "{what}: {outcome:?}");
            assert!(outcome.has_written(), "{what}");
            assert_eq!(kept(&after), FILES, "{what}");
            let sb = first(&after);
            assert_eq!(sb.state() & superblock::state::ERROR, 0, "{what}");
            assert!(check(&device, None).is_clean(), "{what}");
            judge(&after, &what);
        }
    }
}

/// Problems that are about the first superblock itself.
const OF_SUPERBLOCK: [Code; 3] = [
    Code::SuperblockFromBackup,
    Code::InodesPerGroup,
    Code::InodesCount,
];

#[test]
fn a_verdict_sees_the_log_whatever_became_of_the_first_superblock() {
    for kind in &KINDS {
        let whole = dirty(kind);
        for (how, bytes, copy) in lost(kind, &whole) {
            let what = format!("{}, {how}", kind.name);
            let report = check(&on(&bytes), copy);
            let codes: BTreeSet<Code> = report.counts.keys().copied().collect();
            assert!(
                codes.contains(&Code::JournalReplayed),
                "{what}: {:?}",
                report.problems
            );
            let is_expected = |it: &lanefs::check::Problem| {
                OF_SUPERBLOCK.contains(&it.code)
                    || it.kind().severity == lanefs::check::Severity::Note
            };
            assert!(
                report.problems.iter().all(is_expected),
                "{what}: {:?}",
                report.problems
            );
            assert_eq!(report.is_clean(), copy.is_some(), "{what}");
        }
    }
}

#[test]
fn a_careful_repair_leaves_a_lost_superblock_alone_unless_a_copy_is_named() {
    let kind = &KINDS[0];
    let whole = dirty(kind);
    for (how, bytes, copy) in lost(kind, &whole) {
        let device = on(&bytes);
        let outcome = mend(&device, RepairScope::Preen, copy);
        let after = bytes_of(&*device);
        assert_eq!(outcome.has_written(), copy.is_some(), "{how}");
        assert_eq!(outcome.repaired.after.is_clean(), copy.is_some(), "{how}");
        match copy {
            Some(_) => assert_eq!(kept(&after), FILES, "{how}"),
            None => assert!(after == bytes, "{how}: written to"),
        }
    }
}

#[test]
fn an_undo_file_takes_back_the_superblock_and_the_replay() {
    let kind = &KINDS[0];
    let whole = dirty(kind);
    let folder = tempfile::tempdir().unwrap();
    for (number, (how, bytes, copy)) in lost(kind, &whole).into_iter().enumerate() {
        let device = on(&bytes);
        let draft = Arc::new(Draft::new(Arc::clone(&device)));
        let tried = Arc::clone(&draft) as Arc<dyn BlockDevice>;
        mend(&tried, RepairScope::All, copy);
        assert!(bytes_of(&*device) == bytes, "{how}: written to");
        let file = folder.path().join(number.to_string());
        draft.save(&file).unwrap();
        mend(&device, RepairScope::All, copy);
        assert!(bytes_of(&*device) == bytes_of(&*tried), "{how}: as tried");
        undo::apply(&*device, &file).unwrap();
        assert!(bytes_of(&*device) == bytes, "{how}: taken back");
    }
}

/// With LANEFS_REPAIR_CUTS set, repairs are cut at every write.
#[test]
fn a_cut_at_any_write_loses_nothing_of_the_log() {
    let points = match std::env::var_os("LANEFS_REPAIR_CUTS") {
        Some(_) => usize::MAX,
        None => 12,
    };
    for kind in [&KINDS[0], &KINDS[3]] {
        let whole = dirty(kind);
        for (how, bytes, copy) in lost(kind, &whole) {
            if !["zeros", "a named copy"].contains(&how) {
                continue;
            }
            let recorder = Arc::new(Recorder::new(&bytes));
            let device = Arc::clone(&recorder) as Arc<dyn BlockDevice>;
            mend(&device, RepairScope::All, copy);
            let mut cuts = recorder.cuts();
            let all: Vec<usize> = cuts.points().collect();
            let step = all.len().div_ceil(points).max(1);
            // The first writes are the superblock's.
            let chosen = all.iter().take(4).chain(all.iter().step_by(step));
            for event in chosen.copied() {
                let state = cuts.state(Cut { event, seed: 1 }).bytes();
                let what = format!("{}, {how}, cut at {event}", kind.name);
                let device = on(&state);
                let outcome = mend(&device, RepairScope::All, None);
                assert!(outcome.repaired.after.is_clean(), "{what}: {outcome:?}");
                assert_eq!(kept(&bytes_of(&*device)), FILES, "{what}");
            }
        }
    }
}
