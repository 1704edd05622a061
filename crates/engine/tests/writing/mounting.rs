//! Opening for writing and closing: what the superblock says meanwhile and afterwards, and what is refused untouched.

use device::{BlockDevice, MemoryDevice};
use lanefs_engine::{Ino, InodeFs, MountOptions, NewInode, SetAttributes, Superblock};
use ondisk::Feature;
use ondisk::superblock::state;
use sync::Arc;

use crate::image::{clock, make, open};

fn device(image: &[u8]) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(image.len() as u64);
    device.write_at(0, image).unwrap();
    Arc::new(device)
}

fn bytes(device: &MemoryDevice) -> Vec<u8> {
    testkit::image_of(device.size(), |at, piece| {
        device.read_at(at, piece).unwrap()
    })
}

fn superblock(device: &MemoryDevice) -> Superblock {
    *Superblock::view(bytes(device)[1024..2048].try_into().unwrap())
}

fn change_superblock(device: &MemoryDevice, change: impl FnOnce(&mut Superblock)) {
    let mut changed = superblock(device);
    change(&mut changed);
    changed.seal();
    device.write_at(1024, changed.bytes()).unwrap();
}

#[test]
fn the_superblock_says_of_a_mount_what_linux_says() {
    let Some(image) = make(&["-b", "1024", "-O", "orphan_file"], 8 << 20) else {
        return;
    };
    let device = device(&image);
    let before = superblock(&device);
    for round in 1..=2 {
        let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
        let during = superblock(&device);
        assert_eq!(during.mount_count(), before.mount_count() + round);
        assert_eq!(during.mount_time(), clock().seconds as u64);
        assert_eq!(during.state(), state::VALID);
        assert!(during.features().has(Feature::NEEDS_RECOVERY));
        assert!(during.features().has(Feature::ORPHAN_PRESENT));
        let attributes = SetAttributes {
            uid: Some(5),
            ..SetAttributes::default()
        };
        fs.set_attributes(Ino::ROOT, &attributes).unwrap();
        fs.close().unwrap();
        let after = superblock(&device);
        assert_eq!(after.features(), before.features());
        assert_eq!(after.state(), state::VALID);
        assert_eq!(after.mount_count(), before.mount_count() + round);
        assert_eq!(after.write_time(), clock().seconds as u64);
    }
}

#[test]
fn what_cannot_be_written_to_is_refused_and_left_as_it_was() {
    let Some(image) = make(&["-b", "1024"], 8 << 20) else {
        return;
    };
    let refused = |change: fn(&mut Superblock), expected: &str| {
        let device = device(&image);
        change_superblock(&device, change);
        let before = bytes(&device);
        let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
        let error = InodeFs::open_for_writing(shared, &MountOptions::default(), clock).err();
        let error = error.expect(expected).to_string();
        assert!(error.contains(expected), "{error}");
        assert!(before == bytes(&device), "{expected}");
    };
    refused(
        |superblock| superblock.set_journal_ino(None),
        "on another device",
    );
    refused(
        |superblock| {
            superblock.set_features(superblock.features().without(Feature::HAS_JOURNAL));
            superblock.set_state(0);
        },
        "not marked as closed",
    );
    for change in [
        |superblock: &mut Superblock| {
            superblock.set_features(superblock.features().with(Feature::READ_ONLY))
        },
        |superblock: &mut Superblock| {
            // A feature of which nothing is known but that it asks writers to keep away.
            let mut features = superblock.features();
            features.ro_compat |= 1 << 30;
            superblock.set_features(features.with(Feature::NEEDS_RECOVERY));
        },
    ] {
        refused(change, "can't be written to yet");
    }
    refused(|superblock| superblock.set_state(0), "not marked as closed");
}

/// `noload`: a journal that holds nothing is left alone, and the image is one without a journal meanwhile.
#[test]
fn a_clean_image_is_written_to_without_its_journal_where_that_was_asked_for() {
    let Some(image) = make(&["-b", "1024"], 8 << 20) else {
        return;
    };
    let noload = MountOptions {
        journal: lanefs_engine::ReplayPolicy::Ignore,
        ..MountOptions::default()
    };
    let device = device(&image);
    let shared = || Arc::clone(&device) as Arc<dyn BlockDevice>;
    let before = superblock(&device);
    let new = NewInode {
        mode: 0o644,
        umask: 0,
        uid: 0,
        gid: 0,
        held: false,
    };
    let fs = InodeFs::open_for_writing(shared(), &noload, clock).unwrap();
    let mapped = fs.mappings(Ino::JOURNAL).unwrap();
    let journal: Vec<(usize, usize)> = mapped
        .map(|run| run.unwrap())
        .map(|run| {
            (
                run.physical.unwrap().0 as usize * 1024,
                run.len as usize * 1024,
            )
        })
        .collect();
    let is_untouched = || {
        let now = bytes(&device);
        journal
            .iter()
            .all(|(at, len)| now[*at..at + len] == image[*at..at + len])
    };
    assert_eq!(superblock(&device).state() & state::VALID, 0);
    assert!(!superblock(&device).features().has(Feature::NEEDS_RECOVERY));
    let ino = fs.create(Ino::ROOT, b"one", new).unwrap();
    fs.write(ino, 0, &[1; 20_000]).unwrap();
    fs.fsync(ino).unwrap();
    fs.freeze().unwrap();
    assert_eq!(superblock(&device).state(), state::VALID);
    fs.thaw().unwrap();
    assert_eq!(superblock(&device).state() & state::VALID, 0);
    fs.unlink(Ino::ROOT, b"one").unwrap();
    fs.mkdir(Ino::ROOT, b"two", new).unwrap();
    fs.sync().unwrap();
    // As after a crash: e2fsck comes first, because the journal can't help.
    let crashed = MemoryDevice::from_bytes(&bytes(&device));
    let refused = InodeFs::open_for_writing(Arc::new(crashed), &MountOptions::default(), clock);
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("e2fsck"), "{refused}");
    fs.close().unwrap();
    assert!(is_untouched());
    let after = superblock(&device);
    assert_eq!(
        (after.features(), after.state()),
        (before.features(), state::VALID)
    );
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, &bytes(&device));
    testkit::e2fsck(&path);
    if testkit::is_root() {
        let mounted = testkit::KernelMount::with(&path, "loop").unwrap();
        assert!(mounted.path().join("two").is_dir());
    }
}

#[test]
fn counts_that_linux_left_behind_are_what_the_groups_have() {
    let Some(image) = make(&[], 16 << 20) else {
        return;
    };
    let device = device(&image);
    let expected = superblock(&device);
    // As after a crash of Linux, whose superblock is older than its descriptors.
    change_superblock(&device, |old| {
        old.set_free_blocks_count(expected.free_blocks_count() + 1000);
        old.set_free_inodes_count(expected.free_inodes_count() + 50);
    });
    open(Arc::clone(&device) as Arc<dyn BlockDevice>)
        .close()
        .unwrap();
    let found = superblock(&device);
    assert_eq!(found.free_blocks_count(), expected.free_blocks_count());
    assert_eq!(found.free_inodes_count(), expected.free_inodes_count());
}
