//! Corruption met while writing is on record in the superblock, where e2fsck and the kernel look for it, and what
//! follows is what was asked for.

use device::BlockDevice;
use lanefs_engine::{Error, Ino, InodeFs, MountOptions, OnError, Superblock};
use ondisk::superblock::state;
use simulate::CowDevice;
use sync::Arc;

use crate::files::{opened, with_files};
use crate::image::{NEW, clock};

/// An image whose file `one` has its first block in the superblock.
fn broken() -> Option<Vec<u8>> {
    let image = with_files(&["-b", "1024"], 8 << 20, &["one"])?;
    if !testkit::have("debugfs") {
        testkit::skip("needs debugfs");
        return None;
    }
    let (device, fs) = opened(&image);
    let ino = fs.resolve(b"one", true).unwrap();
    fs.write(ino, 0, &[1; 3000]).unwrap();
    fs.close().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, &device.bytes());
    let path = path.to_str().unwrap();
    testkit::debugfs(&["-w", "-R", "sif one block[5] 1", path]);
    Some(testkit::read_image(path.as_ref()))
}

fn superblock(image: &[u8]) -> Superblock {
    *Superblock::view(image[1024..2048].try_into().unwrap())
}

fn open(image: Vec<u8>, errors: Option<OnError>) -> (Arc<CowDevice>, InodeFs) {
    let device = Arc::new(CowDevice::new(image.into()));
    let options = MountOptions {
        errors,
        ..MountOptions::default()
    };
    let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
    (
        device,
        InodeFs::open_for_writing(shared, &options, clock).unwrap(),
    )
}

#[test]
fn corruption_is_on_record_and_the_image_is_still_used() {
    let Some(image) = broken() else { return };
    let (device, fs) = open(image, Some(OnError::Continue));
    let ino = fs.resolve(b"one", true).unwrap();
    assert_eq!(fs.recorded_errors(), 0);
    assert!(fs.truncate(ino, 0).is_err());
    assert!(fs.read(ino, 0, &mut [0; 10]).is_err());
    assert_eq!(fs.recorded_errors(), 2);
    fs.create(Ino::ROOT, b"new", NEW).unwrap();
    fs.sync().unwrap();
    // As after a crash: the record is in the journal.
    drop(fs);
    let (device, fs) = open(device.bytes(), None);
    assert_eq!(fs.recorded_errors(), 2);
    fs.lookup(Ino::ROOT, b"new").unwrap();
    fs.close().unwrap();
    let found = superblock(&device.bytes());
    assert_eq!(found.state(), state::VALID | state::ERROR);
    assert_eq!(found.error_count(), 2);
    for (at, time, block) in [
        (
            found.first_error_ino(),
            found.first_error_time(),
            found.first_error_block(),
        ),
        (
            found.last_error_ino(),
            found.last_error_time(),
            found.last_error_block(),
        ),
    ] {
        assert_eq!((at, time, block), (ino.0, clock().seconds as u64, 1));
    }
    assert_eq!(found.first_error_function(), b"lanefs");
    assert_eq!(found.first_error_line(), ondisk::Site::ZoneNamed as u32);
    the_kernel_sees_it(&device.bytes());
}

/// The kernel mounts the image, and dumpe2fs shows what is on record.
fn the_kernel_sees_it(image: &[u8]) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, image);
    if testkit::have("dumpe2fs") {
        let output = testkit::dumpe2fs(&["-h", path.to_str().unwrap()]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        for expected in ["clean with errors", "FS Error count:           2", "lanefs"] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
    if testkit::is_root() {
        let mounted = testkit::KernelMount::read_only(&path).unwrap();
        assert!(mounted.path().join("new").exists());
    }
}

#[test]
fn after_corruption_nothing_is_changed_where_that_was_asked_for() {
    let Some(image) = broken() else { return };
    for (errors, by_superblock) in [(Some(OnError::ReadOnly), 1), (None, 2)] {
        let mut image = testkit::copy_image(&image);
        let mut sb = superblock(&image);
        sb.set_errors(by_superblock);
        sb.seal();
        image[1024..2048].copy_from_slice(sb.bytes());
        let (device, fs) = open(image, errors);
        let ino = fs.resolve(b"one", true).unwrap();
        fs.create(Ino::ROOT, b"before", NEW).unwrap();
        assert!(fs.truncate(ino, 0).is_err());
        let outcome = fs.create(Ino::ROOT, b"after", NEW);
        assert!(matches!(outcome, Err(Error::ReadOnly)), "{outcome:?}");
        assert!(!fs.is_writable() && fs.statfs().unwrap().is_read_only);
        fs.lookup(Ino::ROOT, b"before").unwrap();
        fs.close().unwrap();
        let (_, fs) = open(device.bytes(), None);
        assert_eq!(fs.recorded_errors(), 1);
        fs.lookup(Ino::ROOT, b"before").unwrap();
        assert!(matches!(
            fs.lookup(Ino::ROOT, b"after"),
            Err(Error::NotFound)
        ));
    }
}

#[test]
fn where_linux_panics_the_journal_is_aborted() {
    let Some(image) = broken() else { return };
    let (device, fs) = open(image, Some("panic".parse().unwrap()));
    let ino = fs.resolve(b"one", true).unwrap();
    fs.create(Ino::ROOT, b"before", NEW).unwrap();
    assert!(fs.truncate(ino, 0).is_err());
    let error = fs.create(Ino::ROOT, b"after", NEW).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("of the file system's own tables"),
        "{error}"
    );
    assert!(fs.close().is_err());
    let (_, fs) = open(device.bytes(), None);
    assert_eq!(fs.recorded_errors(), 1);
    fs.lookup(Ino::ROOT, b"before").unwrap();
    assert!("stop".parse::<OnError>().is_err());
}

#[test]
fn a_read_of_a_frozen_file_system_meets_corruption_and_does_not_wait() {
    let Some(image) = broken() else { return };
    let (device, fs) = open(image, None);
    let ino = fs.resolve(b"one", true).unwrap();
    fs.freeze().unwrap();
    let before = device.bytes();
    assert!(fs.read(ino, 0, &mut [0; 10]).is_err());
    assert!(before == device.bytes());
    assert_eq!(fs.recorded_errors(), 1);
    fs.thaw().unwrap();
    assert!(fs.read(ino, 0, &mut [0; 10]).is_err());
    fs.close().unwrap();
    assert_eq!(superblock(&device.bytes()).error_count(), 1);
}
