//! Files as block devices: a loop device stands for every other.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use lanefs_device::{BlockDevice, DeviceError, FileDevice, Ground, Resize};
use testkit::{KernelMount, have, is_root, run, skip};

/// A loop device, detached when dropped.
struct Loop(String);

impl Loop {
    fn new(image: &Path) -> Loop {
        Loop::with(image, &[])
    }

    fn with(image: &Path, options: &[&str]) -> Loop {
        let mut losetup = Command::new("losetup");
        let output = losetup.args(options).args(["--show", "-f"]).arg(image);
        let output = output.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Loop(String::from_utf8(output.stdout).unwrap().trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["-d", &self.0]);
    }
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
    let block_device = Loop::new(&image);
    {
        let device = FileDevice::create(&block_device.0, 1 << 20).unwrap();
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
        assert!(FileDevice::create(&block_device.0, 4 << 20).is_err());
    }
    run("mke2fs", &["-q", "-F", "-t", "ext4", &block_device.0]);
    let mounted = KernelMount::with(Path::new(&block_device.0), "rw").unwrap();
    let refused = FileDevice::open(&block_device.0).unwrap_err();
    assert!(matches!(refused, DeviceError::InUse { .. }), "{refused}");
    assert!(FileDevice::open_read_only(&block_device.0).is_ok());
    drop(mounted);
    assert!(FileDevice::open(&block_device.0).is_ok());
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
    let one = Loop::new(&image);
    let two = Loop::new(&image);
    let on_one = Loop::new(Path::new(&one.0));
    let names = [&one.0, &two.0, &on_one.0].map(Path::new);
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
    let low = Loop::with(&image, &["--sizelimit", "1048576"]);
    let high = Loop::with(&image, &["--offset", "1048576"]);
    let [low_ground, high_ground] =
        [&low, &high].map(|device| Ground::of_path(Path::new(&device.0)).unwrap());
    assert_eq!(low_ground.other_loop_device(), None);
    assert_eq!(high_ground.other_loop_device(), None);
    let writer = FileDevice::open(&low.0).unwrap();
    assert!(is_in_use(FileDevice::open(&high.0)));
    assert!(is_in_use(FileDevice::open_read_only(&image)));
    drop(writer);
    let _writer = FileDevice::open(&high.0).unwrap();
    assert!(is_in_use(FileDevice::open(&image)));
    let all = Loop::new(&image);
    assert!(is_in_use(FileDevice::open(&all.0)));
    let number = |device: &Loop| device.0.trim_start_matches("/dev/").to_owned();
    assert_eq!(low_ground.other_loop_device(), Some(number(&all)));
    drop(all);
    let middle = Loop::with(&image, &["--offset", "524288", "--sizelimit", "524288"]);
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
    let one = Loop::new(&image);
    let two = Loop::new(&image);
    std::fs::remove_file(&image).unwrap();
    // Another file may have the name now.
    drop(FileDevice::create(&image, 1 << 20).unwrap());
    let ground = |name: &str| Ground::of_path(Path::new(name)).unwrap();
    let number = two.0.trim_start_matches("/dev/").to_owned();
    assert_eq!(ground(&one.0).other_loop_device(), Some(number));
    assert_eq!(ground(image.to_str().unwrap()).other_loop_device(), None);
    assert!(FileDevice::open(&one.0).is_ok());
}

#[test]
fn what_the_kernel_has_mounted_is_refused_through_other_loop_devices() {
    if !is_root() || !have("losetup") || !have("mke2fs") {
        return skip("loop devices need root");
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    drop(FileDevice::create(&image, 3 << 20).unwrap());
    run(
        "mke2fs",
        &["-q", "-F", "-t", "ext2", image.to_str().unwrap()],
    );
    let below = Loop::new(&image);
    let above = Loop::new(Path::new(&below.0));
    let mounted = KernelMount::with(Path::new(&below.0), "rw").unwrap();
    assert!(is_in_use(FileDevice::open(&above.0)));
    drop(mounted);
    let _mounted = KernelMount::with(Path::new(&above.0), "rw").unwrap();
    let ground = Ground::of_path(Path::new(&below.0)).unwrap();
    let number = above.0.trim_start_matches("/dev/").to_owned();
    assert_eq!(ground.other_loop_device(), Some(number));
}
