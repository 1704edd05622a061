//! Repairs on a device: through the journal and in stages, cut at every write, and with requests that fail.

use std::collections::BTreeSet;

use corpus::{PatchedBytes, Structures};
use device::{BlockDevice, MemoryDevice};
use lanefs::check::{Options, Report};
use lanefs::repair::{Outcome, RepairError, RepairScope, repair};
use ondisk::Superblock;
use simulate::{Cut, Fault, Recorder};
use sync::Arc;
use sync::atomic::AtomicBool;

const NOW: u64 = 1_795_800_000;

/// A check on one thread that nobody watches.
fn on_one_thread(cancelled: &AtomicBool) -> Options<'_> {
    Options {
        threads: 1,
        memory: None,
        superblock: None,
        is_replayed: false,
        cancelled,
        progress: &|_| {},
        trace: None,
    }
}

fn mend(device: Arc<dyn BlockDevice>, extent: RepairScope) -> Result<Outcome, RepairError> {
    let cancelled = AtomicBool::new(false);
    let options = on_one_thread(&cancelled);
    repair(&device, None, extent, &options, NOW)
}

fn check(bytes: &[u8]) -> Option<Report> {
    let cancelled = AtomicBool::new(false);
    let options = on_one_thread(&cancelled);
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(bytes));
    lanefs::check::check(&device, None, &options).ok()
}

/// The output and status of e2fsck -fn after e2fsck has replayed the journal. debugfs can't replay it here: it reads
/// the bitmaps first, and gives up if a cut left them half written.
fn e2fsck(bytes: &[u8]) -> (String, Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    testkit::write_image(&image, bytes);
    let run = |options: &[&str]| testkit::e2fsck_within(20, options, &image, None).unwrap();
    let sb = Superblock::view(bytes[1024..].first_chunk().unwrap());
    if sb.features().has(ondisk::Feature::NEEDS_RECOVERY) {
        run(&["-p", "-E", "journal_only"]);
    }
    let output = run(&["-fn"]);
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        output.status.code(),
    )
}

fn seed(name: &str) -> Arc<[u8]> {
    corpus::seed(name).bytes
}

/// Mutants of an image that are damaged, by number.
fn damaged(name: &str, numbers: std::ops::Range<u64>) -> Vec<Vec<u8>> {
    let bytes = seed(name);
    let structures = Structures::of(&PatchedBytes::new(Arc::clone(&bytes)));
    let mutants = numbers.map(|number| corpus::mutant(&bytes, &structures, number).0.to_vec());
    mutants
        .filter(|bytes| check(bytes).is_some_and(|report| !report.is_clean()))
        .collect()
}

#[test]
fn a_repair_goes_through_the_journal_and_leaves_it_empty() {
    let mut journaled = 0;
    for name in ["default-1k", "default-4k", "ext3-1k", "no-journal"] {
        for bytes in damaged(name, 0..12) {
            let device = Arc::new(MemoryDevice::from_bytes(&bytes));
            let outcome = mend(
                Arc::clone(&device) as Arc<dyn BlockDevice>,
                RepairScope::All,
            )
            .unwrap();
            let mut after = vec![0; bytes.len()];
            device.read_at(0, &mut after).unwrap();
            journaled += u32::from(outcome.is_journaled);
            assert!(!outcome.is_journaled || name != "no-journal");
            if outcome.repaired.after.is_clean() && outcome.has_written() {
                assert!(check(&after).unwrap().is_clean(), "{name}");
                let (text, status) = e2fsck(&after);
                assert_eq!(status, Some(0), "{name}: {text}");
            } else {
                assert_eq!(after == bytes, !outcome.has_written());
            }
        }
    }
    assert!(journaled > 10, "{journaled}");
}

/// The image as a careful repair leaves it that refuses: with the error flag, if its first superblock is sound.
fn with_error_flag(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let mut sb = *Superblock::view(bytes[1024..].first_chunk().unwrap());
    if sb.verify().is_ok() && ondisk::Geometry::new(&sb, bytes.len() as u64).is_ok() {
        sb.set_state(sb.state() | ondisk::superblock::state::ERROR);
        sb.seal();
        bytes[1024..2048].copy_from_slice(sb.bytes());
    }
    bytes
}

#[test]
fn a_careful_repair_touches_nothing_that_needs_a_decision() {
    for bytes in damaged("default-1k", 0..20) {
        let device = Arc::new(MemoryDevice::from_bytes(&bytes));
        let outcome = mend(
            Arc::clone(&device) as Arc<dyn BlockDevice>,
            RepairScope::Preen,
        )
        .unwrap();
        let is_left = !outcome.repaired.after.is_clean();
        let mut after = vec![0; bytes.len()];
        device.read_at(0, &mut after).unwrap();
        assert_eq!(is_left, after == with_error_flag(&bytes));
        let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
        assert_eq!(is_left, !lanefs::repair::is_marked_clean(&shared).unwrap());
    }
}

/// Lines of e2fsck's that name a problem.
fn problems(text: &str) -> BTreeSet<String> {
    let lines = text
        .lines()
        .filter(|line| line.contains('?') || line.contains("ERROR"));
    lines.map(str::to_owned).collect()
}

/// Corrects the checksum of a superblock that was torn between its two sectors, whose contents and checksum are of two
/// moments. Only lanefs opens such a state; e2fsck needs a copy of the superblock, which a file system of one group
/// does not have. Returns `None` if the superblock is not torn.
fn made_whole(state: &[u8]) -> Option<Vec<u8>> {
    let sb = Superblock::view(state[1024..].first_chunk().unwrap());
    let mut whole = *sb;
    whole.seal();
    if sb.verify().is_ok() || whole.verify().is_err() {
        return None;
    }
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(state));
    engine::InodeFs::open(device, &engine::MountOptions::default()).unwrap();
    let mut bytes = state.to_vec();
    bytes[1024..2048].copy_from_slice(whole.bytes());
    Some(bytes)
}

/// Whether debugfs, which reads the bitmaps first, can replay the journal of this state.
fn is_opened_by_debugfs(bytes: &[u8]) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    testkit::write_image(&image, bytes);
    let output = testkit::try_debugfs(&["-w", "-R", "journal_run", image.to_str().unwrap()]);
    !String::from_utf8_lossy(&output.stderr).contains("checksum does not match bitmap")
}

/// Counts of the states that were judged.
#[derive(Default, Debug)]
struct CutStates {
    all: u32,
    torn: u32,
    /// Cut while bitmaps and descriptors were written home.
    half_home: u32,
}

/// Cuts one repair at every `step`th point, and judges the states.
fn judge_cuts(name: &str, bytes: &[u8], step: usize, states: &mut CutStates) {
    let recorder = Arc::new(Recorder::new(bytes));
    let outcome = mend(
        Arc::clone(&recorder) as Arc<dyn BlockDevice>,
        RepairScope::All,
    )
    .unwrap();
    if !outcome.repaired.after.is_clean() {
        return;
    }
    let (text, status_before) = e2fsck(bytes);
    let before = problems(&text).len();
    let mut cuts = recorder.cuts();
    let points: Vec<usize> = cuts.points().step_by(step).collect();
    for event in points {
        for seed in 0..3 {
            let cut = Cut { event, seed };
            let state = cuts.state(cut).bytes();
            let whole = made_whole(&state);
            states.all += 1;
            states.torn += u32::from(whole.is_some());
            let judged = whole.as_ref().unwrap_or(&state);
            if outcome.is_journaled {
                let (text, status) = e2fsck(judged);
                let now = problems(&text).len();
                // If e2fsck gave up on the image, there is nothing to compare with.
                let gave_up = |status: Option<i32>| status.is_none_or(|status| status & 8 != 0);
                let is_better = gave_up(status_before) || !gave_up(status) && now <= before;
                assert!(
                    is_better,
                    "{name}, {cut}: {status:?} {now}, not {status_before:?} {before}:\n{text}"
                );
                states.half_home += u32::from(seed == 0 && !is_opened_by_debugfs(judged));
            }
            let device = Arc::new(MemoryDevice::from_bytes(&state));
            mend(
                Arc::clone(&device) as Arc<dyn BlockDevice>,
                RepairScope::All,
            )
            .unwrap();
            let mut after = vec![0; state.len()];
            device.read_at(0, &mut after).unwrap();
            let (text, status) = e2fsck(&after);
            assert_eq!(status, Some(0), "{name}, {cut}, then repaired: {text}");
        }
    }
}

/// After a cut and a replay of the journal the image is as before or mended, and a second repair mends it. With
/// LANEFS_REPAIR_CUTS set, 40 mutants of each image are cut at every write.
#[test]
fn a_cut_at_any_write_leaves_the_image_as_it_was_or_mended() {
    if !testkit::have("e2fsck") || !testkit::have("debugfs") {
        return testkit::skip("e2fsck or debugfs is missing");
    }
    let long = std::env::var_os("LANEFS_REPAIR_CUTS").is_some();
    let (numbers, step) = if long { (0..40, 1) } else { (0..4, 5) };
    let mut states = CutStates::default();
    for name in ["default-1k", "no-journal"] {
        for bytes in damaged(name, numbers.clone()) {
            judge_cuts(name, &bytes, step, &mut states);
        }
    }
    // In this one a directory is rebuilt, so the transaction also has bitmaps and descriptors.
    for bytes in damaged("default-1k", 15..16) {
        judge_cuts("default-1k", &bytes, 9, &mut states);
    }
    println!("{states:?}");
    assert!(states.torn > 0 && states.half_home > 0, "{states:?}");
}

/// An image without a free block and with a file whose first block of pointers has a wrong one; also that block, and
/// the journal's first one.
fn full_with_wrong_pointer() -> (Vec<u8>, usize, usize) {
    let folder = tempfile::tempdir().unwrap();
    let (image, all) = (folder.path().join("image"), folder.path().join("all"));
    let options = "-b 1024 -t ext4 -O ^extent,^64bit,^resize_inode";
    let mut words: Vec<&str> = options.split(' ').collect();
    words.extend([image.to_str().unwrap(), "4M"]);
    testkit::mke2fs(&words);
    std::fs::write(&all, vec![7; 4 << 20]).unwrap();
    // It takes all free blocks before it fails.
    testkit::debugfs_script(&image, &format!("write {} all\n", all.display()));
    let output = testkit::debugfs(&["-R", "bmap <12> 12", image.to_str().unwrap()]);
    let data: usize = String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let output = testkit::debugfs(&["-R", "bmap <8> 0", image.to_str().unwrap()]);
    let journal: usize = String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let mut bytes = testkit::read_image(&image);
    // The pointer to the thirteenth block is the first one of the block before it.
    let pointers = data - 1;
    let at = pointers * 1024;
    assert_eq!(bytes[at..at + 4], (data as u32).to_le_bytes());
    bytes[at + 84..at + 88].copy_from_slice(&5000_u32.to_le_bytes());
    (bytes, pointers, journal)
}

#[test]
fn a_map_is_mended_over_its_own_blocks_only_if_the_journal_has_room() {
    if !testkit::have("e2fsck") || !testkit::have("debugfs") {
        return testkit::skip("e2fsck or debugfs is missing");
    }
    let (mut bytes, pointers, journal) = full_with_wrong_pointer();
    let mut states = CutStates::default();
    judge_cuts("full", &bytes, 2, &mut states);
    // A repair that leaves anything is not judged.
    assert!(states.all > 0, "{states:?}");
    // The number of the log's first block: two are left.
    let first = journal * 1024 + 0x14;
    assert_eq!(bytes[first..first + 4], [0, 0, 0, 1]);
    bytes[first..first + 4].copy_from_slice(&1022_u32.to_be_bytes());
    let device = Arc::new(MemoryDevice::from_bytes(&bytes));
    let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let outcome = mend(shared, RepairScope::All).unwrap();
    let left = &outcome.repaired.after;
    assert!(
        !outcome.is_journaled && !left.is_clean(),
        "{:?}",
        left.problems
    );
    let mut after = [0; 1024];
    device.read_at(pointers as u64 * 1024, &mut after).unwrap();
    assert_eq!(after, bytes[pointers * 1024..][..1024]);
}

#[test]
fn a_superblock_whose_write_was_torn_is_made_whole_before_the_replay() {
    for name in ["default-1k", "default-4k", "dirty-1k", "dirty-4k"] {
        let mut bytes = seed(name).to_vec();
        // The time of the last write, without the checksum.
        bytes[1024 + 0x30] ^= 1;
        let device = Arc::new(MemoryDevice::from_bytes(&bytes));
        let outcome = mend(
            Arc::clone(&device) as Arc<dyn BlockDevice>,
            RepairScope::Preen,
        )
        .unwrap();
        assert!(
            outcome.repaired.after.is_clean() && outcome.has_written(),
            "{name}"
        );
        let mut after = vec![0; bytes.len()];
        device.read_at(0, &mut after).unwrap();
        if testkit::have("e2fsck") && testkit::have("debugfs") {
            let (text, status) = e2fsck(&after);
            assert_eq!(status, Some(0), "{name}: {text}");
        }
    }
}

#[test]
fn a_flag_that_says_orphans_goes_where_there_are_none() {
    let made = MemoryDevice::new(8 << 20);
    let options = lanefs::mkfs::Options {
        features: "orphan_file".to_owned(),
        ..lanefs::mkfs::Options::default()
    };
    lanefs::make::make_on(&made, &options).unwrap();
    let mut bytes = vec![0; 8 << 20];
    made.read_at(0, &mut bytes).unwrap();
    let mut sb = *Superblock::view(bytes[1024..].first_chunk().unwrap());
    sb.set_features(sb.features().with(ondisk::Feature::ORPHAN_PRESENT));
    sb.seal();
    bytes[1024..2048].copy_from_slice(sb.bytes());
    for scope in [RepairScope::Preen, RepairScope::All] {
        let device = Arc::new(MemoryDevice::from_bytes(&bytes));
        let outcome = mend(Arc::clone(&device) as Arc<dyn BlockDevice>, scope).unwrap();
        assert!(outcome.has_written() && outcome.repaired.after.is_clean());
        let mut after = vec![0; bytes.len()];
        device.read_at(0, &mut after).unwrap();
        if testkit::have("e2fsck") {
            let (text, status) = e2fsck(&after);
            assert_eq!(status, Some(0), "{text}");
        }
    }
}

#[test]
fn a_request_that_fails_ends_the_repair_with_an_error_and_a_second_one_mends() {
    let bytes = damaged("default-1k", 0..6).remove(0);
    for kind in [Fault::Read, Fault::Write, Fault::Flush] {
        for n in 0..10_000 {
            let recorder = Arc::new(Recorder::failing(&bytes, kind(n), true));
            let result = mend(
                Arc::clone(&recorder) as Arc<dyn BlockDevice>,
                RepairScope::All,
            );
            if !recorder.has_failed() {
                break;
            }
            let left = recorder.contents();
            assert!(!matches!(kind(0), Fault::Write(_)) || result.is_err());
            let device = Arc::new(MemoryDevice::from_bytes(&left));
            let again = mend(
                Arc::clone(&device) as Arc<dyn BlockDevice>,
                RepairScope::All,
            )
            .unwrap();
            assert!(again.repaired.after.is_clean(), "{:?}", kind(n));
        }
    }
}

/// Where the superblock has its UUID.
const UUID: std::ops::Range<usize> = 1024 + 0x68..1024 + 0x78;

/// The undo file is refused for an image, which stays as it is.
fn refuse_undo(bytes: &[u8], path: &std::path::Path) {
    let device = MemoryDevice::from_bytes(bytes);
    let refused = lanefs::undo::apply(&device, path);
    assert!(
        matches!(refused, Err(lanefs::undo::UndoError::Foreign { .. })),
        "{refused:?}"
    );
    let mut after = vec![0; bytes.len()];
    device.read_at(0, &mut after).unwrap();
    assert!(after == bytes);
}

#[test]
fn a_repair_that_changed_the_uuid_is_taken_back_on_its_own_image_only() {
    if !testkit::have("mke2fs") {
        return testkit::skip("needs mke2fs");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("undo");
    let image = folder.path().join("image");
    // Three groups, so that a copy of the superblock has the UUID.
    let options = ["-q", "-F", "-t", "ext4", "-b", "1024"];
    testkit::mke2fs(&[&options[..], &[image.to_str().unwrap(), "20M"]].concat());
    let mut bytes = testkit::read_image(&image);
    bytes[UUID].fill(0);
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(&bytes));
    let draft = Arc::new(lanefs::undo::Draft::new(Arc::clone(&device)));
    mend(Arc::clone(&draft) as Arc<dyn BlockDevice>, RepairScope::All).unwrap();
    draft.save(&path).unwrap();
    mend(Arc::clone(&device), RepairScope::All).unwrap();
    let mut repaired = vec![0; bytes.len()];
    device.read_at(0, &mut repaired).unwrap();
    assert_ne!(repaired[UUID], [0; 16]);
    repaired[UUID][0] ^= 1;
    refuse_undo(&repaired, &path);
    // As the repair left it, and as a cut between its writes may leave it.
    for _ in 0..2 {
        lanefs::undo::apply(&*device, &path).unwrap();
        let mut after = vec![0; bytes.len()];
        device.read_at(0, &mut after).unwrap();
        assert!(after == bytes);
    }
}

#[test]
fn what_an_undo_file_kept_takes_a_repair_back() {
    let folder = tempfile::tempdir().unwrap();
    for (index, bytes) in damaged("default-4k", 0..6).into_iter().enumerate() {
        let path = folder.path().join(format!("undo-{index}"));
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(&bytes));
        let draft = Arc::new(lanefs::undo::Draft::new(Arc::clone(&device)));
        mend(Arc::clone(&draft) as Arc<dyn BlockDevice>, RepairScope::All).unwrap();
        draft.save(&path).unwrap();
        assert!(draft.save(&path).is_err(), "a file that exists is kept");
        mend(Arc::clone(&device), RepairScope::All).unwrap();
        lanefs::undo::apply(&*device, &path).unwrap();
        let mut after = vec![0; bytes.len()];
        device.read_at(0, &mut after).unwrap();
        assert!(after == bytes);
        let other = MemoryDevice::from_bytes(&bytes[..bytes.len() - 4096]);
        assert!(lanefs::undo::apply(&other, &path).is_err());
        let mut foreign = bytes.clone();
        foreign[UUID][0] ^= 1;
        refuse_undo(&foreign, &path);
        let mut cut = std::fs::read(&path).unwrap();
        cut.pop();
        std::fs::write(&path, cut).unwrap();
        assert!(lanefs::undo::apply(&*device, &path).is_err());
    }
}
