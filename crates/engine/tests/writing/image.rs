//! Images to write to, and what a cut left of them.

use std::path::Path;

use device::BlockDevice;
use lanefs_engine::{InodeFs, MountOptions, NewInode, Timestamp};
use ondisk::Superblock;
use simulate::{CowDevice, Cut, Cuts, Recorder};
use sync::Arc;

/// Where the superblock is.
const SUPERBLOCK: u64 = 1024;

/// Root's file with the usual permissions.
pub const NEW: NewInode = NewInode {
    mode: 0o644,
    umask: 0,
    uid: 0,
    gid: 0,
    held: false,
};

/// A clock that stands still.
pub fn clock() -> Timestamp {
    Timestamp {
        seconds: 1_700_000_000,
        nanoseconds: 5,
    }
}

/// The bytes of a fresh image; `None`, with the reason printed, if it can't be made here.
pub fn make(options: &[&str], size: u64) -> Option<Vec<u8>> {
    if !testkit::have("mke2fs") || !testkit::have("e2fsck") {
        testkit::skip("needs mke2fs and e2fsck");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    let mut arguments = Vec::new();
    if !options.contains(&"-t") {
        arguments.extend(["-t", "ext4"]);
    }
    arguments.extend(options);
    arguments.push(path.to_str().unwrap());
    testkit::mke2fs(&arguments);
    Some(testkit::read_image(&path))
}

/// Opens a device for writing.
pub fn open(device: Arc<dyn BlockDevice>) -> InodeFs {
    InodeFs::open_for_writing(device, &MountOptions::default(), clock).unwrap()
}

/// Runs `work` on a recorded image and gives all cuts of it.
pub fn record(image: &[u8], work: impl FnOnce(&Recorder, InodeFs)) -> Cuts {
    record_with(image, &MountOptions::default(), work)
}

/// As [`record`], opened with these options.
pub fn record_with(
    image: &[u8],
    options: &MountOptions,
    work: impl FnOnce(&Recorder, InodeFs),
) -> Cuts {
    let device = Arc::new(Recorder::new(image));
    let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
    work(
        &device,
        InodeFs::open_for_writing(shared, options, clock).unwrap(),
    );
    let (start, events) = device.recording();
    Cuts::new(start, events)
}

/// Every cut with some seeds; `check` gets the state after lanefs replayed and closed it, and the newest mark before
/// the cut.
pub fn sweep(
    mut cuts: Cuts,
    seeds: u64,
    mut check: impl FnMut(Cut, Option<u64>, &InodeFs),
) -> usize {
    let points: Vec<usize> = cuts.points().collect();
    let mut states = 0;
    for event in points {
        for seed in 0..seeds {
            let cut = Cut { event, seed };
            let state = Arc::new(cuts.state(cut));
            let fs = open(Arc::clone(&state) as Arc<dyn BlockDevice>);
            check(cut, cuts.mark_before(event), &fs);
            fs.close().unwrap();
            if states % 7 == 0 {
                e2fsck(&state, cut);
                let left = cuts.state(cut);
                if !has_torn_superblock(&left) {
                    kernel_like_e2fsck(&left, cut);
                }
            }
            states += 1;
        }
    }
    states
}

fn with_file(state: &CowDevice, work: impl FnOnce(&Path)) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, &state.bytes());
    work(&path);
}

/// e2fsck finds nothing wrong with an image that lanefs recovered and closed.
pub fn e2fsck(state: &CowDevice, cut: Cut) {
    with_file(state, |path| {
        let output = testkit::e2fsck_with(&["-fn"], path);
        assert!(
            testkit::found_nothing(&output),
            "{cut}: {}",
            String::from_utf8_lossy(&output.stdout)
        );
    });
}

/// Whether a cut left the superblock with a sum that is not its own: e2fsck and the kernel then know no remedy but
/// another group's copy, which a small image does not have; lanefs takes it from the journal.
pub fn has_torn_superblock(state: &CowDevice) -> bool {
    let mut bytes = [0; Superblock::SIZE];
    state.read_at(SUPERBLOCK, &mut bytes).unwrap();
    Superblock::view(&bytes).verify().is_err()
}

/// e2fsck replays what the cut left, as the kernel would, and then finds nothing wrong.
fn kernel_like_e2fsck(state: &CowDevice, cut: Cut) {
    with_file(state, |path| {
        let run = |option: &str| testkit::e2fsck_with(&["-f", option], path);
        let replayed = run("-p");
        assert!(
            replayed.status.code().is_some_and(|code| code <= 1),
            "{cut}: {replayed:?}"
        );
        let output = run("-n");
        assert!(
            testkit::found_nothing(&output),
            "{cut}: {}",
            String::from_utf8_lossy(&output.stdout)
        );
    });
}

/// Runs `work`, which closes the file system, on a copy of an image in memory; then e2fsck finds nothing wrong. Gives
/// what is there then.
pub fn finish(image: &[u8], work: impl FnOnce(InodeFs)) -> Vec<u8> {
    let device = Arc::new(device::MemoryDevice::new(image.len() as u64));
    for (at, piece) in (0..).step_by(1 << 16).zip(image.chunks(1 << 16)) {
        if piece.iter().any(|byte| *byte != 0) {
            device.write_at(at, piece).unwrap();
        }
    }
    work(open(Arc::clone(&device) as Arc<dyn BlockDevice>));
    let mut bytes = vec![0; image.len()];
    device.read_at(0, &mut bytes).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, &bytes);
    let output = testkit::e2fsck_with(&["-fn"], &path);
    assert!(
        testkit::found_nothing(&output),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    bytes
}
