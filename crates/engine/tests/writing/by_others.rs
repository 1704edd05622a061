//! Images that other tools made or tuned: what their superblocks say, or leave open, holds here as it does for Linux.

use std::path::Path;

use device::BlockDevice;
use lanefs_engine::{Error, Ino, InodeFs, MountOptions, NewInode};
use ondisk::Superblock;
use ondisk::superblock::{flags, mount_options};
use simulate::{CowDevice, Event, Recorder};
use sync::Arc;

use crate::files::opened;
use crate::image::{clock, make};

const OF_ROOT: NewInode = NewInode {
    mode: 0o644,
    umask: 0,
    held: false,
    uid: 0,
    gid: 0,
};

/// The image with another superblock.
fn tuned(mut image: Vec<u8>, tune: impl FnOnce(&mut Superblock)) -> Vec<u8> {
    let place = 1024..1024 + Superblock::SIZE;
    let bytes: [u8; Superblock::SIZE] = image[place.clone()].try_into().unwrap();
    let mut superblock = *Superblock::view(&bytes);
    tune(&mut superblock);
    superblock.seal();
    image[place].copy_from_slice(superblock.bytes());
    image
}

/// Lets the kernel use the image, where that is possible, and e2fsck judge it before and after.
fn by_kernel(image: &[u8], work: impl FnOnce(&Path)) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, image);
    testkit::e2fsck(&path);
    if !testkit::is_root() || !testkit::have("mount") {
        return testkit::skip("needs root and mount");
    }
    work(&testkit::KernelMount::with(&path, "loop").unwrap().path());
    testkit::e2fsck(&path);
}

#[test]
fn names_are_found_by_linux_where_nobody_had_said_how_they_are_hashed() {
    let forms: [&[&str]; 2] = [
        &["-t", "ext3", "-b", "1024"],
        &["-b", "1024", "-O", "^metadata_csum"],
    ];
    for form in forms {
        let Some(image) = make(form, 30 << 20) else {
            return;
        };
        let image = tuned(image, |superblock| {
            superblock.set_flags(superblock.flags() & !(flags::SIGNED_HASH | flags::UNSIGNED_HASH));
        });
        let (device, fs) = opened(&image);
        let new = NewInode {
            mode: 0o755,
            ..OF_ROOT
        };
        let directory = fs.mkdir(Ino::ROOT, b"d", new).unwrap();
        let names: Vec<String> = (0..300)
            .map(|number| format!("naïve-file-é-{number}"))
            .collect();
        for name in &names {
            fs.create(directory, name.as_bytes(), OF_ROOT).unwrap();
        }
        fs.close().unwrap();
        by_kernel(&device.bytes(), |root| {
            let is_there = |name: &&String| root.join("d").join(name).exists();
            assert_eq!(names.iter().filter(is_there).count(), 300, "{form:?}");
        });
    }
}

#[test]
fn an_image_of_the_hurd_is_read_and_not_written() {
    let Some(image) = make(&["-t", "ext2", "-o", "hurd"], 20 << 20) else {
        return;
    };
    let device = Arc::new(CowDevice::new(image.as_slice().into()));
    let fs = InodeFs::open(device.clone(), &MountOptions::default()).unwrap();
    assert_eq!(fs.read_dir(Ino::ROOT).unwrap().count(), 3);
    drop(fs);
    let refused = InodeFs::open_for_writing(device.clone(), &MountOptions::default(), clock);
    let refused = refused.map(drop).unwrap_err();
    assert!(matches!(refused, Error::OnlyRead(_)), "{refused}");
    assert!(refused.to_string().contains("Hurd"), "{refused}");
    assert!(device.bytes() == image, "nothing was written");
}

#[test]
fn whose_group_new_files_are_is_what_the_superblock_or_the_options_say() {
    let Some(image) = make(&["-b", "1024"], 16 << 20) else {
        return;
    };
    let image = tuned(image, |superblock| {
        superblock.set_default_mount_options(
            superblock.default_mount_options() | mount_options::BSD_GROUPS,
        );
    });
    let (device, fs) = opened(&image);
    let directory = |name: &[u8], mode, fs: &InodeFs| {
        let new = NewInode {
            mode,
            gid: 55,
            ..OF_ROOT
        };
        fs.mkdir(Ino::ROOT, name, new).unwrap();
        fs.lookup(Ino::ROOT, name).unwrap()
    };
    // The root directory is group 0's, and so are they.
    let plain = directory(b"plain", 0o755, &fs);
    assert_eq!(fs.metadata(plain).unwrap().gid, 0);
    let set = lanefs_engine::SetAttributes {
        gid: Some(55),
        ..Default::default()
    };
    let marked = directory(b"marked", 0o2755, &fs);
    for made in [plain, marked] {
        fs.set_attributes(made, &set).unwrap();
        let file = fs.create(made, b"file", OF_ROOT).unwrap();
        let below = fs.mkdir(made, b"below", OF_ROOT).unwrap();
        assert_eq!(fs.metadata(file).unwrap().gid, 55);
        let below = fs.metadata(below).unwrap();
        // As Linux: set-group-ID is not handed down then.
        assert_eq!((below.gid, below.mode & 0o7000), (55, 0));
    }
    fs.close().unwrap();
    let bytes = device.bytes();
    by_kernel(&bytes, |root| {
        use std::os::unix::fs::MetadataExt;
        for name in ["plain", "marked"] {
            let place = root.join(name).join("of-linux");
            std::fs::create_dir(&place).unwrap();
            let made = place.metadata().unwrap();
            assert_eq!((made.gid(), made.mode() & 0o7000), (55, 0), "{name}");
        }
    });
    let options = MountOptions {
        bsd_groups: Some(false),
        ..MountOptions::default()
    };
    let device = Arc::new(CowDevice::new(bytes.into()));
    let fs = InodeFs::open_for_writing(device, &options, clock).unwrap();
    let own = fs.create(plain, b"own", OF_ROOT).unwrap();
    let handed_down = fs.mkdir(marked, b"handed-down", OF_ROOT).unwrap();
    assert_eq!(fs.metadata(own).unwrap().gid, 0);
    assert_eq!(fs.metadata(handed_down).unwrap().mode & 0o7000, 0o2000);
    fs.close().unwrap();
}

#[test]
fn a_file_is_as_large_as_linux_lets_it_be() {
    let forms: [&[&str]; 5] = [
        &["-t", "ext3", "-b", "4096"],
        &["-t", "ext2", "-b", "2048"],
        &["-t", "ext3", "-b", "1024"],
        &["-b", "4096", "-O", "^huge_file"],
        &["-b", "4096"],
    ];
    for form in forms {
        let Some(image) = make(form, 100 << 20) else {
            return;
        };
        let (device, fs) = opened(&image);
        let file = fs.create(Ino::ROOT, b"file", OF_ROOT).unwrap();
        // The largest size that is not refused.
        let (mut most, mut refused) = (0_u64, 1 << 60);
        while refused - most > 1 {
            let between = u64::midpoint(most, refused);
            match fs.truncate(file, between) {
                Ok(()) => most = between,
                Err(Error::FileTooLarge) => refused = between,
                Err(other) => panic!("{form:?}: {other}"),
            }
        }
        fs.truncate(file, 0).unwrap();
        fs.close().unwrap();
        by_kernel(&device.bytes(), |root| {
            let file = root.join("file");
            let file = std::fs::File::options().write(true).open(file).unwrap();
            file.set_len(most).unwrap();
            let refused = file.set_len(most + 1).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(27), "{form:?}: {refused}");
            file.set_len(0).unwrap();
        });
    }
}

#[test]
fn the_device_is_told_what_is_free_where_the_superblock_or_the_options_say_so() {
    let Some(image) = make(&["-b", "1024"], 16 << 20) else {
        return;
    };
    let image = tuned(image, |superblock| {
        superblock
            .set_default_mount_options(superblock.default_mount_options() | mount_options::DISCARD);
    });
    for (asked, is_told) in [(None, true), (Some(false), false)] {
        let recorder = Arc::new(Recorder::new(&image));
        let options = MountOptions {
            discard: asked,
            ..MountOptions::default()
        };
        let shared = Arc::clone(&recorder) as Arc<dyn BlockDevice>;
        let fs = InodeFs::open_for_writing(shared, &options, clock).unwrap();
        let file = fs.create(Ino::ROOT, b"file", OF_ROOT).unwrap();
        fs.write(file, 0, &[1; 500_000]).unwrap();
        fs.sync().unwrap();
        fs.unlink(Ino::ROOT, b"file").unwrap();
        fs.close().unwrap();
        let (_, events) = recorder.recording();
        let discards = events
            .iter()
            .filter(|event| matches!(event, Event::Discard(_)));
        assert_eq!(discards.count() > 0, is_told, "{asked:?}");
    }
}
