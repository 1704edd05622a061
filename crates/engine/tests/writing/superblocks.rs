//! A first superblock that is gone, in part or whole: what the journal or a copy in another group says takes its place,
//! and what never was a file system stays refused.

use device::{BlockDevice, CountedDevice, MemoryDevice};
use lanefs_engine::{Error, Ino, InodeFs, MountOptions, NewInode};
use model::{ModelTree, Random};
use ondisk::{Feature, Superblock};
use simulate::{CowDevice, Cut, Recorder};
use sync::Arc;

use crate::executor::tree;
use crate::image::{clock, e2fsck, make, open, record, sweep};

const NEW: NewInode = NewInode {
    mode: 0o644,
    umask: 0,
    uid: 5,
    gid: 6,
    held: false,
};

/// Names, contents, and a file without a name that is still open; everything is committed.
fn work(device: &Recorder, fs: InodeFs) {
    let directory = fs.mkdir(Ino::ROOT, b"d", NEW).unwrap();
    let kept = fs.create(directory, b"kept", NEW).unwrap();
    fs.write(kept, 0, &[1; 50_000]).unwrap();
    fs.sync().unwrap();
    let held = fs.create(Ino::ROOT, b"held", NEW).unwrap();
    fs.write(held, 0, &[2; 20_000]).unwrap();
    fs.hold(held).unwrap();
    fs.unlink(Ino::ROOT, b"held").unwrap();
    fs.symlink(directory, b"link", b"target", NEW).unwrap();
    fs.sync().unwrap();
    device.mark(1);
    drop(fs);
}

/// What can become of the superblock's 1024 bytes.
fn losses(seed: u64) -> Vec<(usize, Vec<u8>)> {
    let mut random = Random::new(seed);
    let mut noise = |len: usize| (0..len).map(|_| random.bits() as u8).collect::<Vec<u8>>();
    vec![
        (1024, vec![0; 512]),
        (1024, vec![0; 1024]),
        (1024, noise(512)),
        (1024, noise(1024)),
        // The boot block before it too.
        (0, vec![0; 2048]),
    ]
}

fn device_of(bytes: Vec<u8>) -> Arc<CowDevice> {
    Arc::new(CowDevice::new(bytes.into()))
}

/// What is there after opening to write, and that e2fsck finds nothing wrong then.
fn recovered(bytes: Vec<u8>, cut: Cut) -> ModelTree {
    let device = device_of(bytes);
    let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    let found = tree(&fs);
    fs.close().unwrap();
    e2fsck(&device, cut);
    found
}

/// What a reader sees, who writes nothing.
fn read(bytes: Vec<u8>) -> (InodeFs, ModelTree) {
    let device = device_of(testkit::copy_image(&bytes));
    let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let fs = InodeFs::open(shared, &MountOptions::default()).unwrap();
    let found = tree(&fs);
    assert!(device.bytes() == bytes, "nothing was written");
    (fs, found)
}

/// One group, which has no copy; several; several of which one in a meta group's form has the descriptors.
const DIRTY: [(&[&str], u64); 5] = [
    (&["-b", "1024"], 8 << 20),
    (
        &["-b", "1024", "-O", "^orphan_file,^metadata_csum,^64bit"],
        8 << 20,
    ),
    (&["-b", "1024", "-O", "^orphan_file"], 24 << 20),
    (
        &[
            "-b",
            "2048",
            "-I",
            "128",
            "-O",
            "^extents,^64bit,^metadata_csum",
        ],
        40 << 20,
    ),
    (&["-b", "4096"], 64 << 20),
];

#[test]
fn the_superblock_of_an_image_in_use_comes_back_from_the_journal() {
    for (form, size) in DIRTY {
        let Some(image) = make(form, size) else {
            return;
        };
        let mut cuts = record(&image, work);
        let event = cuts.points().last().unwrap();
        let cut = Cut { event, seed: 0 };
        let whole = cuts.state(cut).bytes();
        let expected = recovered(testkit::copy_image(&whole), cut);
        for (number, (at, bytes)) in losses(7).into_iter().enumerate() {
            let mut lost = testkit::copy_image(&whole);
            lost[at..at + bytes.len()].copy_from_slice(&bytes);
            let (fs, seen) = read(testkit::copy_image(&lost));
            expected
                .compare(&seen)
                .unwrap_or_else(|difference| panic!("{form:?} loss {number}, read: {difference}"));
            assert!(fs.recovery_report().unwrap().transactions > 0);
            let found = recovered(lost, cut);
            expected.compare(&found).unwrap_or_else(|difference| {
                panic!("{form:?} loss {number}, written: {difference}")
            });
        }
    }
}

#[test]
fn the_superblock_of_a_clean_image_comes_back_from_a_copy() {
    let forms: [(&[&str], u64); 5] = [
        (&["-b", "1024"], 24 << 20),
        (&["-b", "1024", "-O", "^metadata_csum,^64bit"], 24 << 20),
        (
            &["-b", "1024", "-O", "^sparse_super,^resize_inode"],
            24 << 20,
        ),
        (&["-b", "2048", "-O", "sparse_super2"], 40 << 20),
        (&["-b", "4096", "-I", "512"], 160 << 20),
    ];
    for (form, size) in forms {
        let Some(image) = make(form, size) else {
            return;
        };
        let mut expected = None;
        let image = crate::image::finish(&image, |fs| {
            let ino = fs.create(Ino::ROOT, b"one", NEW).unwrap();
            fs.write(ino, 3, b"bytes").unwrap();
            expected = Some(tree(&fs));
            fs.close().unwrap();
        });
        let expected = expected.unwrap();
        for (number, (at, bytes)) in losses(8).into_iter().enumerate() {
            let mut lost = testkit::copy_image(&image);
            lost[at..at + bytes.len()].copy_from_slice(&bytes);
            let (fs, seen) = read(testkit::copy_image(&lost));
            assert!(expected.compare(&seen).is_ok(), "{form:?} loss {number}");
            assert!(fs.recovery_report().is_none());
            assert!(fs.had_lost_superblock());
            drop(fs);
            let cut = Cut {
                event: number,
                seed: 0,
            };
            let found = recovered(lost, cut);
            assert!(expected.compare(&found).is_ok(), "{form:?} loss {number}");
        }
    }
}

/// Without the superblock of a single group and with nothing in the journal, nothing says what there was.
#[test]
fn what_is_no_file_system_is_refused_after_few_reads() {
    let Some(clean) = make(&["-b", "1024"], 8 << 20) else {
        return;
    };
    let mut lost = testkit::copy_image(&clean);
    lost[1024..1536].fill(0);
    let mut random = Random::new(3);
    let noise: Vec<u8> = (0..4 << 20).map(|_| random.bits() as u8).collect();
    let devices =
        [lost, noise, vec![0xff; 2000], Vec::new()].map(|bytes| MemoryDevice::from_bytes(&bytes));
    for device in devices.into_iter().chain([MemoryDevice::new(1 << 50)]) {
        let device = Arc::new(CountedDevice::new(device));
        let shared = || Arc::clone(&device) as Arc<dyn BlockDevice>;
        let options = MountOptions::default();
        for refused in [
            InodeFs::open(shared(), &options).err().unwrap(),
            InodeFs::open_for_writing(shared(), &options, clock)
                .err()
                .unwrap(),
        ] {
            let text = refused.to_string();
            assert!(text.contains("has no ext4 magic"), "{text}");
        }
        let counts = device.counts();
        assert!(counts.reads <= 2 * 200, "{counts:?}");
        assert!(counts.read_bytes <= 2 * 400 * 1024, "{counts:?}");
        assert_eq!(counts.writes, 0);
    }
}

/// A file system that was made anew with other blocks leaves copies of the old superblock behind.
#[test]
fn a_copy_of_an_earlier_file_system_is_not_taken_for_this_ones() {
    let forms: [(&[&str], &[&str]); 2] = [
        (&["-b", "1024"], &["-b", "4096"]),
        (
            &["-b", "1024", "-O", "^metadata_csum,^64bit"],
            &["-b", "4096", "-O", "^metadata_csum,^64bit"],
        ),
    ];
    for (first, second) in forms {
        let (Some(old), Some(new)) = (make(first, 24 << 20), make(second, 24 << 20)) else {
            return;
        };
        // What the second did not write is as the first left it.
        let mut image = testkit::copy_image(&new);
        let blocks = image.chunks_mut(1024).zip(old.chunks(1024));
        for (block, old) in blocks
            .skip(1024)
            .filter(|(block, _)| block.iter().all(|byte| *byte == 0))
        {
            block.copy_from_slice(old);
        }
        assert!(
            image[8193 * 1024 + 56..][..2] == [0x53, 0xef],
            "the copy is there"
        );
        image[1024..2048].fill(0);
        let device = device_of(testkit::copy_image(&image));
        let refused = InodeFs::open(
            Arc::clone(&device) as Arc<dyn BlockDevice>,
            &MountOptions::default(),
        );
        let refused = refused.err().expect("no copy of its own");
        assert!(matches!(refused, Error::Corrupt(_)), "{refused}");
    }
}

/// The flag that says that the journal has something is the newest's, not the copy's: what is refused for writing is
/// refused before anything is written.
#[test]
fn without_a_journal_a_copy_is_enough_to_read() {
    let Some(image) = make(&["-b", "1024", "-O", "^has_journal"], 24 << 20) else {
        return;
    };
    let mut lost = testkit::copy_image(&image);
    lost[1024..2048].fill(0);
    let (fs, _) = read(testkit::copy_image(&lost));
    assert!(!fs.superblock().features().has(Feature::HAS_JOURNAL));
    let device = device_of(testkit::copy_image(&lost));
    let refused = InodeFs::open_for_writing(
        Arc::clone(&device) as Arc<dyn BlockDevice>,
        &MountOptions::default(),
        clock,
    );
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("e2fsck"), "{refused}");
    assert!(device.bytes() == lost, "nothing was written");
}

/// The kernel's journal seldom has the superblock: a copy finds the journal then, and what is in it counts.
#[test]
fn what_the_kernel_left_dirty_is_replayed_with_the_superblock_of_a_copy() {
    if !testkit::is_root() || !testkit::have("mount") {
        return testkit::skip("needs root and mount");
    }
    for form in [
        &["-b", "1024"][..],
        &["-b", "1024", "-O", "^metadata_csum,^64bit,^orphan_file"],
    ] {
        let Some(image) = make(form, 24 << 20) else {
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        testkit::write_image(&path, &image);
        let mut lost = {
            let mounted = testkit::KernelMount::with(&path, "loop").unwrap();
            let file = std::fs::File::create(mounted.path().join("late")).unwrap();
            std::io::Write::write_all(&mut &file, &[7; 10_000]).unwrap();
            file.sync_all().unwrap();
            testkit::read_mounted_image(&path)
        };
        let whole = read(testkit::copy_image(&lost));
        assert!(whole.0.recovery_report().unwrap().transactions > 0);
        lost[1024..2048].fill(0);
        let (fs, seen) = read(testkit::copy_image(&lost));
        assert!(whole.1.compare(&seen).is_ok());
        assert!(fs.recovery_report().unwrap().transactions > 0);
        let found = recovered(lost, Cut { event: 0, seed: 0 });
        assert!(whole.1.compare(&found).is_ok());
        assert_eq!(
            fs.metadata(fs.resolve(b"late", true).unwrap())
                .unwrap()
                .size,
            10_000
        );
    }
}

/// The superblock on the device has the label as soon as the call returns; a cut leaves the old one or the new.
#[test]
fn a_label_is_changed_as_a_whole_by_two_threads_too() {
    let Some(image) = make(&["-b", "1024", "-L", "first"], 4 << 20) else {
        return;
    };
    let cuts = record(&image, |recorder, fs| {
        assert_eq!(fs.label(), b"first");
        fs.set_label(b"second").unwrap();
        let mut bytes = [0; Superblock::SIZE];
        recorder.read_at(1024, &mut bytes).unwrap();
        assert_eq!(Superblock::view(&bytes).label(), b"second");
        recorder.mark(1);
        sync::thread::workers(2, |thread| {
            fs.set_label(&[b'a' + thread as u8; 16]).unwrap();
        });
        let last = fs.label();
        recorder.mark(2);
        for refused in [&b"0123456789abcdefg"[..], b"a\0b"] {
            let refused = fs.set_label(refused).unwrap_err();
            assert!(matches!(refused, Error::InvalidArgument), "{refused}");
        }
        fs.close().unwrap();
        recorder.read_at(1024, &mut bytes).unwrap();
        assert_eq!(Superblock::view(&bytes).label(), last);
    });
    sweep(cuts, 2, |cut, mark, fs| {
        let label = fs.label();
        let is_early = label == b"first" || label == b"second";
        let is_late = label == [b'a'; 16] || label == [b'b'; 16];
        match mark {
            None => assert!(is_early, "{cut}: {label:?}"),
            Some(1) => assert!(is_late || label == b"second", "{cut}: {label:?}"),
            Some(_) => assert!(is_late, "{cut}: {label:?}"),
        }
    });
}
