//! What statfs tells is the kernel's, whether the image is opened to be read or to be written to.

use device::{BlockDevice, FileDevice};
use lanefs_engine::{Fs, Ino, NewInode, OpenOptions, StatFs, Superblock};
use ondisk::Feature;
use sync::Arc;

use crate::image::{clock, make};

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

#[test]
fn space_and_inodes_are_what_the_kernel_says_for_readers_and_writers() {
    if !testkit::is_root() || !testkit::have("mount") {
        return testkit::skip("needs root and mount");
    }
    let forms: [&[&str]; 6] = [
        &["-t", "ext2", "-b", "1024"],
        &["-t", "ext2", "-b", "4096", "-O", "^resize_inode", "-m", "0"],
        &["-t", "ext3", "-b", "1024"],
        &["-t", "ext3", "-b", "4096", "-r", "1"],
        &["-b", "1024", "-O", "^extents,^64bit"],
        &["-b", "4096", "-O", "^flex_bg"],
    ];
    for form in forms {
        let Some(image) = make(form, 40 << 20) else {
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        std::fs::write(&path, &image).unwrap();
        let kernels = |options: &str| {
            let mounted = testkit::Mounted::with(&path, options).unwrap();
            let shown = rustix::fs::statvfs(mounted.path()).unwrap();
            [
                shown.f_blocks,
                shown.f_bfree,
                shown.f_bavail,
                shown.f_files,
                shown.f_ffree,
            ]
        };
        for round in 0..2 {
            let reading = || {
                let device = Arc::new(FileDevice::open_read_only(&path).unwrap());
                let fs = Fs::open(device as Arc<dyn BlockDevice>, &OpenOptions::default());
                numbers(fs.unwrap().statfs().unwrap())
            };
            let expected = kernels("loop,ro");
            // On file systems without extents Linux keeps no blocks for operations that free.
            let clusters = fs_clusters(&image);
            let pool = if has_extents(&image) {
                0
            } else {
                clusters / 50
            };
            let writable = |mut numbers: [u64; 5]| {
                numbers[2] = numbers[2].saturating_sub(pool);
                numbers
            };
            assert_eq!(reading(), expected, "{form:?} round {round}, to read");
            assert_eq!(
                kernels("loop"),
                expected,
                "{form:?} round {round}, the kernel, to write"
            );
            let device = Arc::new(FileDevice::open(&path).unwrap());
            let fs = Fs::open_for_writing(
                device as Arc<dyn BlockDevice>,
                &OpenOptions::default(),
                clock,
            );
            let fs = fs.unwrap();
            assert_eq!(
                numbers(fs.statfs().unwrap()),
                writable(expected),
                "{form:?} round {round}, to write"
            );
            let new = NewInode {
                mode: 0o644,
                umask: 0,
                uid: 0,
                gid: 0,
                held: false,
            };
            let ino = fs.create(Ino::ROOT, b"one", new).unwrap();
            fs.write(ino, 0, &[1; 300_000]).unwrap();
            fs.sync().unwrap();
            let written = numbers(fs.statfs().unwrap());
            fs.close().unwrap();
            assert_eq!(
                writable(reading()),
                written,
                "{form:?} round {round}, afterwards"
            );
            if round == 1 {
                break;
            }
            let device = Arc::new(FileDevice::open(&path).unwrap());
            let fs = Fs::open_for_writing(
                device as Arc<dyn BlockDevice>,
                &OpenOptions::default(),
                clock,
            );
            let fs = fs.unwrap();
            fs.unlink(Ino::ROOT, b"one").unwrap();
            fs.close().unwrap();
        }
    }
}
