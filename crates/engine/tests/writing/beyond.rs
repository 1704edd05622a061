//! Volumes of more than 2^32 blocks: a file without extents has its blocks below, wherever there are any.

use std::path::{Path, PathBuf};

use device::{BlockDevice, FileDevice};
use lanefs_engine::{Error, Ino, InodeFs, MountOptions};
use ondisk::{Geometry, Group, GroupDesc, Superblock};
use sync::Arc;

use crate::image::{NEW, open};

const REACHED: u64 = 1 << 32;

/// A volume of 17 TiB in a sparse file, where the host has a file system that holds one.
fn huge(directory: &Path) -> Option<PathBuf> {
    if !testkit::have("mke2fs") || !testkit::have("debugfs") {
        testkit::skip("needs mke2fs and debugfs");
        return None;
    }
    let path = directory.join("image");
    let file = std::fs::File::create(&path).unwrap();
    if file.set_len(17 << 40).is_err() {
        testkit::skip("no file can have 17 TiB here");
        return None;
    }
    // Descriptors once, and what mke2fs writes of each group next to it: some 9 MB.
    let few = "sparse_super2,^sparse_super,^resize_inode";
    let once = "lazy_itable_init=1,nodiscard,num_backup_sb=0";
    let image = path.to_str().unwrap();
    let arguments = ["-t", "ext4", "-b", "4096", "-G", "65536"];
    let more = [
        "-N", "2228224", "-J", "size=8", "-O", few, "-E", once, image,
    ];
    testkit::mke2fs(&[&arguments[..], &more].concat());
    Some(path)
}

fn device(path: &Path) -> Arc<dyn BlockDevice> {
    Arc::new(FileDevice::open(path).unwrap())
}

/// An empty file that has pointers, not extents.
fn make_old_file(path: &Path) -> Ino {
    let fs = open(device(path));
    let ino = fs.create(Ino::ROOT, b"old", NEW).unwrap();
    fs.close().unwrap();
    let image = path.to_str().unwrap();
    let zeroed = (0..3).map(|word| format!("set_inode_field old block[{word}] 0"));
    for command in zeroed.chain(["set_inode_field old flags 0".to_owned()]) {
        testkit::debugfs(&["-w", "-R", &command, image]);
    }
    ino
}

/// Of all groups below block 2^32, only this one says that blocks are free: nine.
fn fill(path: &Path, but: Option<Group>) {
    let device = device(path);
    let mut superblock = [0; Superblock::SIZE];
    device.read_at(1024, &mut superblock).unwrap();
    let geometry = Geometry::new(Superblock::view(&superblock), device.size()).unwrap();
    let block_bytes = geometry.block_size().bytes() as u64;
    for group in (0..(REACHED / u64::from(geometry.blocks_per_group())) as u32).map(Group) {
        let (block, at) = geometry.desc_place(group);
        let place = block.0 * block_bytes + at as u64;
        let mut bytes = vec![0; geometry.desc_size()];
        device.read_at(place, &mut bytes).unwrap();
        let mut desc = GroupDesc::load(&bytes);
        desc.set_free_clusters(if but == Some(group) { 9 } else { 0 });
        desc.store(&mut bytes, &geometry, group);
        device.write_at(place, &bytes).unwrap();
    }
    device.flush().unwrap();
}

fn first_block(fs: &InodeFs, ino: Ino) -> u64 {
    let run = fs.mappings_in(ino, 0..1).unwrap().remove(0);
    run.physical.unwrap().0
}

#[test]
fn a_file_without_extents_has_no_use_for_blocks_beyond_its_pointers() {
    let directory = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    let Some(path) = huge(directory.path()) else {
        return;
    };
    let old = make_old_file(&path);
    fill(&path, None);
    for prealloc in ["prealloc=on", "prealloc=off"] {
        let fs =
            InodeFs::open_for_writing(device(&path), &MountOptions::default(), crate::image::clock);
        let fs = fs.unwrap();
        fs.choose(prealloc).unwrap();
        let name = prealloc.as_bytes();
        let new = fs.create(Ino::ROOT, name, NEW).unwrap();
        fs.write(new, 0, b"extents").unwrap();
        fs.fsync(new).unwrap();
        assert!(first_block(&fs, new) >= REACHED, "{prealloc}");
        let refused = fs.write(old, 0, b"pointers").and_then(|_| fs.fsync(old));
        assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
        fs.close().unwrap();
    }
    // Far behind where one looks first, and less than is wanted.
    fill(&path, Some(Group(20)));
    let fs = open(device(&path));
    fs.write(old, 0, &[7; 64 << 10]).unwrap();
    fs.fsync(old).unwrap();
    let group = first_block(&fs, old) >> 15;
    assert_eq!(group, 20);
    fs.close().unwrap();
}
