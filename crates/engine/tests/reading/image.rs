//! Images for the tests: made by mke2fs in a directory that goes away with them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use device::{BlockDevice, FileDevice};
use lanefs_engine::{InodeFs, MountOptions};
use testkit::KernelMount;

/// A file system image and the directory it lies in.
pub struct Image {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl Image {
    /// An image of `mebibytes` MiB, made by mke2fs with these arguments.
    pub fn make(arguments: &str, mebibytes: u64) -> Image {
        let directory = in_memory();
        let path = directory.path().join("image");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(mebibytes << 20).unwrap();
        let mut all: Vec<&str> = Vec::new();
        all.extend(arguments.split_whitespace());
        all.push(path.to_str().unwrap());
        testkit::mke2fs(&all);
        Image {
            _directory: directory,
            path,
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its bytes as a device.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::new(FileDevice::open_read_only(&self.path).unwrap())
    }

    /// Mounted by the kernel; `None`, and said so, if this kernel can't.
    pub fn mount(&self, options: &str) -> Option<KernelMount> {
        KernelMount::with(&self.path, options)
            .inspect_err(|_| testkit::skip("this kernel can't mount an image"))
            .ok()
    }

    /// Opened by the engine.
    pub fn open(&self) -> InodeFs {
        InodeFs::open(self.device(), &MountOptions::default()).unwrap()
    }

    /// What debugfs answers to one request.
    pub fn debugfs(&self, request: &str) -> String {
        let output = testkit::debugfs(&["-R", request, self.path.to_str().unwrap()]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// A directory in memory where there is one: what is tested is formats, not the disk below.
pub fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

/// Whether images can be made and mounted here; prints a line if not.
pub fn can_mount() -> bool {
    let can = testkit::is_root() && testkit::have("mke2fs") && testkit::have("debugfs");
    if !can {
        testkit::skip("loop mounts need root, mke2fs and debugfs");
    }
    can
}
