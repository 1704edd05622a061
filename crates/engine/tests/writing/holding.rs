//! Inodes that are held by a server: they outlive their last name, however many others pass through memory meanwhile.

use lanefs_engine::{Error, Ino, InodeFs, MountOptions, NewInode, limits};
use simulate::CowDevice;
use sync::Arc;

use crate::image::{NEW, clock, finish, make};

#[test]
fn a_held_inode_that_left_memory_is_still_held_when_its_name_goes() {
    let others = u32::try_from(limits::LIVE_INODES).unwrap() + 2000;
    let inodes = (others + 2000).to_string();
    let Some(image) = make(&["-b", "1024", "-N", &inodes], 32 << 20) else {
        return;
    };
    finish(&image, |fs| {
        let held = fs.create(Ino::ROOT, b"held", NEW).unwrap();
        let twice = fs.create(Ino::ROOT, b"twice", NEW).unwrap();
        fs.write(held, 0, b"contents").unwrap();
        fs.hold(held).unwrap();
        fs.hold(twice).unwrap();
        fs.hold(twice).unwrap();
        fs.sync().unwrap();
        // Each number that is looked at is loaded, in use or not; a commit evicts those beyond the limit.
        for number in 20..others {
            let _ = fs.inode(Ino(number));
        }
        fs.create(Ino::ROOT, b"another", NEW).unwrap();
        fs.sync().unwrap();

        fs.release(twice).unwrap();
        for name in [&b"held"[..], b"twice"] {
            fs.unlink(Ino::ROOT, name).unwrap();
        }
        let mut found = [0; 8];
        assert_eq!(fs.read(held, 0, &mut found).unwrap(), 8);
        assert_eq!(&found, b"contents");
        assert_eq!(fs.metadata(twice).unwrap().nlink, 0);
        for ino in [held, twice] {
            fs.release(ino).unwrap();
            assert!(matches!(fs.metadata(ino), Err(Error::NotFound)));
        }
        fs.close().unwrap();
    });
}

#[test]
fn the_last_holder_deletes_a_small_file_itself_and_leaves_a_large_one_to_the_reaper() {
    let Some(image) = make(&["-b", "1024", "-O", "^extents,^64bit"], 64 << 20) else {
        return;
    };
    let device = Arc::new(CowDevice::new(image.into()));
    let options = MountOptions {
        reaper_thread: true,
        ..MountOptions::default()
    };
    let fs = InodeFs::open_for_writing(Arc::clone(&device) as _, &options, clock).unwrap();
    let before = fs.statfs().unwrap();
    for (name, len) in [(&b"empty"[..], 0), (b"small", 5000), (b"large", 30 << 20)] {
        let new = NewInode { held: true, ..NEW };
        let ino = fs.create(Ino::ROOT, name, new).unwrap();
        let mut written = 0;
        while written < len {
            let piece = vec![7; 1 << 20];
            let end = piece.len().min(len - written);
            written += fs.write(ino, written as u64, &piece[..end]).unwrap();
        }
        fs.unlink(Ino::ROOT, name).unwrap();
        assert_eq!(fs.metadata(ino).unwrap().nlink, 0);
        fs.release(ino).unwrap();
        let is_gone = || matches!(fs.metadata(ino), Err(Error::NotFound));
        // At once, with no other thread; the large one takes many steps, and some time.
        assert!(is_gone() || len > 1 << 20);
        let start = sync::clock::now();
        while !is_gone() {
            assert!(start.elapsed() < sync::clock::Duration::from_secs(60));
            sync::thread::sleep(sync::clock::Duration::from_millis(1));
        }
    }
    fs.sync().unwrap();
    let after = fs.statfs().unwrap();
    assert_eq!(
        (after.free, after.free_files),
        (before.free, before.free_files)
    );
    fs.close().unwrap();
    crate::image::e2fsck(&device, simulate::Cut { event: 0, seed: 0 });
}
