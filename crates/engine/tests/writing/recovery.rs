//! Opening what a crash left: cut again at every write of the replay and of what is finished for the orphans, with
//! superblocks that were torn, and for reading only.

use device::BlockDevice;
use lanefs_engine::{Error, Ino, InodeFs, MountOptions, NewInode, ReplayPolicy};
use model::ModelTree;
use ondisk::Feature;
use simulate::{CowDevice, Cut, Cuts, Recorder};
use sync::Arc;

use crate::executor::tree;
use crate::image::{clock, e2fsck, open, record};
use crate::orphans::fragmented;

const FORMS: [&[&str]; 3] = [
    &["-b", "1024", "-O", "orphan_file"],
    &["-b", "1024", "-O", "^orphan_file,^metadata_csum,^64bit"],
    &["-b", "1024", "-O", "^orphan_file,^extents,^64bit"],
];

fn new() -> NewInode {
    NewInode {
        mode: 0o644,
        umask: 0,
        uid: 0,
        gid: 0,
        held: false,
    }
}

/// Work on an image with a file of many extents that leaves orphans in the middle of their steps: names come and go,
/// the large file is cut and deleted, and one that is held loses its name.
fn work(device: &Recorder, fs: InodeFs) {
    let held = fs.create(Ino::ROOT, b"held", new()).unwrap();
    fs.write(held, 0, &[1; 20_000]).unwrap();
    fs.hold(held).unwrap();
    let directory = fs.mkdir(Ino::ROOT, b"d", new()).unwrap();
    let small = fs.create(directory, b"a", new()).unwrap();
    fs.write(small, 5000, &[2; 30_000]).unwrap();
    fs.sync().unwrap();
    device.mark(1);
    fs.unlink(Ino::ROOT, b"held").unwrap();
    fs.truncate(small, 7000).unwrap();
    let large = fs.resolve(b"one", true).unwrap();
    fs.truncate(large, 1_100_100).unwrap();
    fs.sync().unwrap();
    fs.unlink(Ino::ROOT, b"one").unwrap();
    fs.symlink(directory, b"link", b"target", new()).unwrap();
    fs.sync().unwrap();
    drop(fs);
}

fn device_of(state: &CowDevice) -> Arc<CowDevice> {
    Arc::new(CowDevice::new(state.bytes().into()))
}

/// What is there after opening, and that e2fsck finds nothing wrong.
fn recovered(state: &CowDevice, cut: Cut) -> ModelTree {
    let device = device_of(state);
    let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    let found = tree(&fs);
    fs.close().unwrap();
    e2fsck(&device, cut);
    found
}

/// Every cut of opening `state`.
fn cuts_of_opening(state: &CowDevice) -> Cuts {
    record(&state.bytes(), |_, fs| drop(fs))
}

#[test]
fn what_is_cut_again_while_it_is_recovered_is_recovered_all_the_same() {
    let (mut opened, mut states) = (0, 0);
    for form in FORMS {
        let Some((image, _)) = fragmented(form) else {
            return;
        };
        let mut cuts = record(&image, work);
        let points: Vec<usize> = cuts
            .points()
            .filter(|event| cuts.mark_before(*event).is_some())
            .collect();
        let step = points.len() / 2;
        for event in points.into_iter().rev().step_by(step.max(1)) {
            let cut = Cut { event, seed: 2 };
            let state = cuts.state(cut);
            let expected = recovered(&state, cut);
            let mut again = cuts_of_opening(&state);
            let points: Vec<usize> = again.points().collect();
            opened += 1;
            for (number, event) in points.into_iter().enumerate() {
                let seed = number as u64 % 5;
                let second = Cut { event, seed };
                let state = again.state(second);
                let fs = open(device_of(&state));
                if let Err(difference) = expected.compare(&tree(&fs)) {
                    panic!("{form:?}: {cut}, then {second}: {difference}");
                }
                fs.close().unwrap();
                states += 1;
                if number % 6 == 0 {
                    let found = recovered(&state, second);
                    assert!(expected.compare(&found).is_ok(), "{cut}, then {second}");
                }
                if number % 13 == 0 {
                    by_e2fsck(&state, second);
                }
            }
        }
    }
    eprintln!("{states} cuts of recoveries of {opened} images");
    assert!(states > 100, "{states}");
}

/// e2fsck finishes, too, what was cut while lanefs recovered it.
fn by_e2fsck(state: &CowDevice, cut: Cut) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, &state.bytes());
    let output = testkit::e2fsck_with(&["-f", "-p"], &path);
    let status = output.status.code();
    assert!(status.is_some_and(|code| code <= 1), "{cut}: {output:?}");
    testkit::e2fsck(&path);
}

/// A dirty image whose superblock was being written when the power went: some of its sectors are of one moment, others
/// of another.
#[test]
fn a_torn_superblock_is_made_whole_from_what_is_there() {
    for form in FORMS {
        let Some((image, _)) = fragmented(form) else {
            return;
        };
        let mut cuts = record(&image, work);
        let event = cuts.points().last().unwrap();
        let cut = Cut { event, seed: 0 };
        let state = cuts.state(cut);
        let expected = recovered(&state, cut);
        let bytes = state.bytes();
        let torn = |sector: usize| {
            // The other sector is as mke2fs left it: without the mount.
            let mut torn = testkit::copy_image(&bytes);
            let at = 1024 + sector * 512;
            torn[at..at + 512].copy_from_slice(&image[at..at + 512]);
            assert!(torn != bytes, "{form:?} sector {sector}");
            CowDevice::new(torn.into())
        };
        // Of the second sector, only the checksum ever changes.
        if bytes[1536..2048] != image[1536..2048] {
            assert!(expected.compare(&recovered(&torn(1), cut)).is_ok());
        }
        // The first says that nothing needs recovery, and the journal that something does. Where the checksum is wrong
        // the journal is believed.
        if form[3].contains("^metadata_csum") {
            refused(torn(0));
        } else {
            assert!(expected.compare(&recovered(&torn(0), cut)).is_ok());
        }
    }
}

/// A process that was killed, or whose flush failed, leaves commits that the host's cache has and the device does not,
/// or not yet. The next mount replays them: if the power fails then, each is there whole or not at all.
#[test]
fn what_only_the_hosts_cache_has_of_a_commit_is_replayed_whole_or_not_at_all() {
    let mut states = 0;
    for form in FORMS {
        let Some((image, _)) = fragmented(form) else {
            return;
        };
        let mut cuts = record(&image, work);
        let points: Vec<usize> = cuts
            .points()
            .filter(|event| cuts.unflushed(*event) == 1)
            .collect();
        for event in points.into_iter().rev().take(6) {
            let (cached, durable) = (Cut { event, seed: 0 }, Cut { event, seed: 1 });
            let (cached_state, durable_state) = (cuts.state(cached), cuts.state(durable));
            let allowed = [
                recovered(&cached_state, cached),
                recovered(&durable_state, durable),
            ];
            let opening = cuts_of_opening(&cached_state).events().to_vec();
            // What is read is in the cache, and what a cut leaves is what reached the device.
            let mut again = Cuts::over(durable_state, opening);
            let points: Vec<usize> = again.points().collect();
            for (number, event) in points.into_iter().enumerate() {
                let second = Cut {
                    event,
                    seed: [0, 2, 3, 4, 5][number % 5],
                };
                let found = recovered(&again.state(second), second);
                let is_one = allowed.iter().any(|tree| tree.compare(&found).is_ok());
                assert!(is_one, "{form:?}: {cached}, then {second}");
                states += 1;
            }
        }
    }
    assert!(states > 100, "{states}");
}

/// Without checksums it is unknown which half of a torn commit is right, so the image is refused.
fn refused(torn: CowDevice) {
    let device = Arc::new(torn);
    let before = device.bytes();
    let refused = InodeFs::open_for_writing(
        Arc::clone(&device) as Arc<dyn BlockDevice>,
        &MountOptions::default(),
        clock,
    );
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("not been replayed"), "{refused}");
    assert!(device.bytes() == before, "nothing was written");
}

#[test]
fn reading_replays_in_memory_and_without_the_journal_shows_what_is_home() {
    let Some((image, _)) = fragmented(FORMS[0]) else {
        return;
    };
    let mut cuts = record(&image, work);
    let event = cuts.points().last().unwrap();
    let state = cuts.state(Cut { event, seed: 0 });
    let before = state.bytes();
    let device = device_of(&state);
    let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let fs = InodeFs::open(Arc::clone(&shared), &MountOptions::default()).unwrap();
    assert!(fs.recovery_report().unwrap().transactions > 0);
    fs.resolve(b"d/link", false).unwrap();
    for refused in [
        fs.sync(),
        fs.freeze(),
        fs.create(Ino::ROOT, b"x", new()).map(drop),
    ] {
        assert!(matches!(refused, Err(Error::ReadOnly)), "{refused:?}");
    }
    fs.close().unwrap();
    let noload = MountOptions {
        journal: ReplayPolicy::Ignore,
        ..MountOptions::default()
    };
    let fs = InodeFs::open(Arc::clone(&shared), &noload).unwrap();
    assert!(fs.recovery_report().is_none());
    assert!(fs.superblock().features().has(Feature::NEEDS_RECOVERY));
    assert!(
        fs.resolve(b"d", false).is_err(),
        "it was never written home"
    );
    drop(fs);
    let refused = InodeFs::open_for_writing(shared, &noload, clock)
        .err()
        .unwrap();
    assert!(matches!(refused, Error::Unwritable(_)), "{refused}");
    assert!(
        refused.to_string().contains("must be replayed"),
        "{refused}"
    );
    assert!(device.bytes() == before, "nothing was written");
}
