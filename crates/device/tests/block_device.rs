//! Files as block devices: a loop device stands for every other.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use lanefs_device::{BlockDevice, DeviceError, FileDevice, Ground, Resize};
use testkit::{KernelMount, LoopDevice, have, is_root, skip};

fn attach(file: &Path, options: &[&str]) -> LoopDevice {
    LoopDevice::over(file, options).unwrap()
}

#[test]
fn a_block_device_has_its_size_and_is_refused_to_writers_while_mounted() {
    if !is_root() || !have("losetup") || !have("mke2fs") {
        skip("loop devices need root");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    drop(FileDevice::create(&image, 3 << 20).unwrap());
    let block_device = attach(&image, &[]);
    {
        let device = FileDevice::create(block_device.path(), 1 << 20).unwrap();
        assert_eq!((device.size(), device.is_regular()), (3 << 20, false));
        assert!(device.set_size(1 << 20).is_ok() && device.set_size(4 << 20).is_err());
        assert_eq!(device.size(), 3 << 20);
        device.write_at((3 << 20) - 5000, &[7; 5000]).unwrap();
        device.flush().unwrap();
        device.discard((3 << 20) - 4096..3 << 20).unwrap();
        let mut bytes = [1; 4096];
        device.read_at((3 << 20) - 5000, &mut bytes[..904]).unwrap();
        assert!(bytes[..904].iter().all(|byte| *byte == 7));
        device.read_at((3 << 20) - 4096, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0) || bytes.iter().all(|byte| *byte == 7));
        assert!(FileDevice::create(block_device.path(), 4 << 20).is_err());
    }
    testkit::mke2fs(&["-t", "ext4", block_device.name()]);
    let mounted = KernelMount::with(block_device.path(), "rw").unwrap();
    let refused = FileDevice::open(block_device.path()).unwrap_err();
    assert!(matches!(refused, DeviceError::InUse { .. }), "{refused}");
    assert!(FileDevice::open_read_only(block_device.path()).is_ok());
    drop(mounted);
    assert!(FileDevice::open(block_device.path()).is_ok());
}

fn is_in_use(opened: Result<FileDevice, DeviceError>) -> bool {
    match opened {
        Ok(_) => false,
        Err(DeviceError::InUse { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_file_behind_a_loop_device_is_locked_as_if_it_had_been_opened() {
    if !is_root() || !have("losetup") {
        return skip("loop devices need root");
    }
    let directory = tempfile::tempdir().unwrap();
    // Names are bytes, not text.
    let image = directory.path().join(OsStr::from_bytes(b"an image, \xE4"));
    drop(FileDevice::create(&image, 3 << 20).unwrap());
    let one = attach(&image, &[]);
    let two = attach(&image, &[]);
    let on_one = attach(one.path(), &[]);
    let names = [&one, &two, &on_one].map(LoopDevice::path);
    let names = [names[0], names[1], names[2], &image];
    for name in names {
        let writer = FileDevice::open(name).unwrap();
        for other in names {
            assert!(is_in_use(FileDevice::open(other)), "{name:?}, {other:?}");
            assert!(
                is_in_use(FileDevice::open_read_only(other)),
                "{name:?}, {other:?}"
            );
        }
        drop(writer);
        let _reader = FileDevice::open_read_only(name).unwrap();
        for other in names {
            assert!(FileDevice::open_read_only(other).is_ok());
            assert!(is_in_use(FileDevice::open(other)), "{name:?}, {other:?}");
        }
    }
}

#[test]
fn ranges_of_a_file_are_told_apart_and_have_one_writer_in_all() {
    if !is_root() || !have("losetup") {
        return skip("loop devices need root");
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    drop(FileDevice::create(&image, 3 << 20).unwrap());
    let low = attach(&image, &["--sizelimit", "1048576"]);
    let high = attach(&image, &["--offset", "1048576"]);
    let [low_ground, high_ground] =
        [&low, &high].map(|device| Ground::of_path(device.path()).unwrap());
    assert_eq!(low_ground.other_loop_device(), None);
    assert_eq!(high_ground.other_loop_device(), None);
    let writer = FileDevice::open(low.path()).unwrap();
    assert!(is_in_use(FileDevice::open(high.path())));
    assert!(is_in_use(FileDevice::open_read_only(&image)));
    drop(writer);
    let _writer = FileDevice::open(high.path()).unwrap();
    assert!(is_in_use(FileDevice::open(&image)));
    let all = attach(&image, &[]);
    assert!(is_in_use(FileDevice::open(all.path())));
    let number = |device: &LoopDevice| device.name().trim_start_matches("/dev/").to_owned();
    assert_eq!(low_ground.other_loop_device(), Some(number(&all)));
    drop(all);
    let middle = attach(&image, &["--offset", "524288", "--sizelimit", "524288"]);
    assert_eq!(low_ground.other_loop_device(), Some(number(&middle)));
    assert_eq!(high_ground.other_loop_device(), None);
}

#[test]
fn a_file_that_was_deleted_is_known_by_its_loop_devices() {
    if !is_root() || !have("losetup") {
        return skip("loop devices need root");
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    drop(FileDevice::create(&image, 1 << 20).unwrap());
    let one = attach(&image, &[]);
    let two = attach(&image, &[]);
    std::fs::remove_file(&image).unwrap();
    // Another file may have the name now.
    drop(FileDevice::create(&image, 1 << 20).unwrap());
    let ground = |name: &Path| Ground::of_path(name).unwrap();
    let number = two.name().trim_start_matches("/dev/").to_owned();
    assert_eq!(ground(one.path()).other_loop_device(), Some(number));
    assert_eq!(ground(&image).other_loop_device(), None);
    assert!(FileDevice::open(one.path()).is_ok());
}

#[test]
fn what_the_kernel_has_mounted_is_refused_through_other_loop_devices() {
    if !is_root() || !have("losetup") || !have("mke2fs") {
        return skip("loop devices need root");
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    drop(FileDevice::create(&image, 3 << 20).unwrap());
    testkit::mke2fs(&["-t", "ext2", image.to_str().unwrap()]);
    let below = attach(&image, &[]);
    let above = attach(below.path(), &[]);
    let mounted = KernelMount::with(below.path(), "rw").unwrap();
    assert!(is_in_use(FileDevice::open(above.path())));
    drop(mounted);
    let _mounted = KernelMount::with(above.path(), "rw").unwrap();
    let ground = Ground::of_path(below.path()).unwrap();
    let number = above.name().trim_start_matches("/dev/").to_owned();
    assert_eq!(ground.other_loop_device(), Some(number));
}
