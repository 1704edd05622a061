//! Many readers of one image at once.

use std::os::unix::fs::MetadataExt;

use lanefs_engine::{Ino, InodeFs, MountOptions};

use crate::image::{Image, can_mount};
use crate::populate::pattern;

/// Threads read all files in different orders, through a cache of eight blocks, so that they evict each other's.
#[test]
fn many_threads_read_different_files() {
    if !can_mount() {
        return;
    }
    let image = Image::make("-t ext4 -b 1024", 64);
    let files: Vec<(Ino, Vec<u8>)> = {
        let mounted = testkit::KernelMount::with(image.path(), "loop").unwrap();
        (0..200u64)
            .map(|index| {
                let bytes = pattern(index, (index * 257) as usize);
                let path = mounted.path().join(format!("f{index}"));
                testkit::write_image(&path, &bytes);
                let ino = std::fs::metadata(&path).unwrap().ino();
                (Ino(u32::try_from(ino).unwrap()), bytes)
            })
            .collect()
    };
    for cache_bytes in [8 * 1024, 32 << 20] {
        let options = MountOptions {
            cache_bytes,
            ..MountOptions::default()
        };
        let fs = InodeFs::open(image.device(), &options).unwrap();
        sync::thread::workers(8, |worker| {
            let mut buf = vec![0; 60_000];
            for step in 0..files.len() {
                let (ino, bytes) = &files[(step * 7 + worker * 31) % files.len()];
                let len = fs.read(*ino, 0, &mut buf).unwrap();
                assert!(buf[..len] == bytes[..]);
            }
        });
    }
}
