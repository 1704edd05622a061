//! What statfs tells is the kernel's, whether the image is opened to be read or to be written to.

use device::{BlockDevice, FileDevice};
use lanefs_engine::{Ino, InodeFs, MountOptions, StatFs, Superblock};
use ondisk::Feature;
use std::path::PathBuf;
use sync::Arc;

use crate::image::{NEW, make, open};

const FORMS: [&[&str]; 6] = [
    &["-t", "ext2", "-b", "1024"],
    &["-t", "ext2", "-b", "4096", "-O", "^resize_inode", "-m", "0"],
    &["-t", "ext3", "-b", "1024"],
    &["-t", "ext3", "-b", "4096", "-r", "1"],
    &["-b", "1024", "-O", "^extents,^64bit"],
    &["-b", "4096", "-O", "^flex_bg"],
];

fn numbers(found: StatFs) -> [u64; 5] {
    [
        found.blocks,
        found.free,
        found.available,
        found.files,
        found.free_files,
    ]
}

fn superblock(image: &[u8]) -> &Superblock {
    Superblock::view(image[1024..2048].try_into().unwrap())
}

fn fs_clusters(image: &[u8]) -> u64 {
    let superblock = superblock(image);
    superblock.blocks_count() - u64::from(superblock.first_data_block())
}

fn has_extents(image: &[u8]) -> bool {
    superblock(image).features().has(Feature::EXTENT)
}

/// An image's file.
struct Image {
    path: PathBuf,
    /// Blocks that a writer can't have, and Linux counts as free.
    pool: u64,
}

impl Image {
    fn kernels(&self, options: &str) -> [u64; 5] {
        let mounted = testkit::KernelMount::with(&self.path, options).unwrap();
        let shown = rustix::fs::statvfs(mounted.path()).unwrap();
        [
            shown.f_blocks,
            shown.f_bfree,
            shown.f_bavail,
            shown.f_files,
            shown.f_ffree,
        ]
    }

    fn to_a_reader(&self) -> [u64; 5] {
        let device = Arc::new(FileDevice::open_read_only(&self.path).unwrap());
        let fs = InodeFs::open(device as Arc<dyn BlockDevice>, &MountOptions::default());
        numbers(fs.unwrap().statfs().unwrap())
    }

    fn open(&self) -> InodeFs {
        open(Arc::new(FileDevice::open(&self.path).unwrap()) as Arc<dyn BlockDevice>)
    }

    fn to_a_writer(&self, mut numbers: [u64; 5]) -> [u64; 5] {
        numbers[2] = numbers[2].saturating_sub(self.pool);
        numbers
    }

    /// The kernel, a reader and a writer say the same; then a writer makes a file, and a reader says what it said.
    fn judge(&self, what: &str) {
        let expected = self.kernels("loop,ro");
        assert_eq!(self.to_a_reader(), expected, "{what}, to read");
        assert_eq!(self.kernels("loop"), expected, "{what}, the kernel's");
        let fs = self.open();
        let found = numbers(fs.statfs().unwrap());
        assert_eq!(found, self.to_a_writer(expected), "{what}, to write");
        let ino = fs.create(Ino::ROOT, b"one", NEW).unwrap();
        fs.write(ino, 0, &[1; 300_000]).unwrap();
        fs.sync().unwrap();
        let written = numbers(fs.statfs().unwrap());
        fs.close().unwrap();
        let found = self.to_a_writer(self.to_a_reader());
        assert_eq!(found, written, "{what}, afterwards");
    }
}

#[test]
fn space_and_inodes_are_what_the_kernel_says_for_readers_and_writers() {
    if !testkit::is_root() || !testkit::have("mount") {
        return testkit::skip("needs root and mount");
    }
    for form in FORMS {
        let Some(image) = make(form, 40 << 20) else {
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        testkit::write_image(&path, &image);
        // On file systems without extents Linux keeps no blocks for operations that free.
        let pool = if has_extents(&image) {
            0
        } else {
            fs_clusters(&image) / 50
        };
        let image = Image { path, pool };
        image.judge(&format!("{form:?}, new"));
        let fs = image.open();
        fs.unlink(Ino::ROOT, b"one").unwrap();
        fs.close().unwrap();
        image.judge(&format!("{form:?}, used"));
    }
}
