//! Files as block devices: a loop device stands for every other.

use std::path::Path;

use lanefs_device::{BlockDevice, DeviceError, FileDevice, Resize};
use testkit::{Mounted, have, is_root, run, skip};

/// A loop device, detached when dropped.
struct Loop(String);

impl Loop {
    fn new(image: &Path) -> Loop {
        let output = run("losetup", &["--show", "-f", image.to_str().unwrap()]);
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
    let mounted = Mounted::with(Path::new(&block_device.0), "rw").unwrap();
    let refused = FileDevice::open(&block_device.0).unwrap_err();
    assert!(matches!(refused, DeviceError::InUse { .. }), "{refused}");
    assert!(FileDevice::open_read_only(&block_device.0).is_ok());
    drop(mounted);
    assert!(FileDevice::open(&block_device.0).is_ok());
}
