//! The fsync log: what was fsynced is there after a cut, by lanefs's replay, the kernel's and e2fsck's.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use device::BlockDevice;
use lanefs_engine::{Fs, Ino, NewInode, OpenOptions, RenameFlag};
use simulate::CowDevice;
use sync::Arc;
use testkit::{Manifest, Mounted};

use crate::files::contents;
use crate::image::{make, open};
use crate::interop::manifest;

const NEW: NewInode = NewInode {
    mode: 0o644,
    umask: 0,
    uid: 0,
    gid: 0,
    held: false,
};

/// A counter's value.
fn count(fs: &Fs, name: &str) -> u64 {
    let counters: BTreeMap<_, _> = fs.counters().into_iter().collect();
    counters[name]
}

/// An image with an area for fast commits.
fn image(block_bytes: &str) -> Option<Vec<u8>> {
    make(
        &["-b", block_bytes, "-O", "fast_commit", "-J", "size=8"],
        64 << 20,
    )
}

fn device(image: Vec<u8>) -> Arc<CowDevice> {
    Arc::new(CowDevice::new(image.into()))
}

fn shared(device: &Arc<CowDevice>) -> Arc<dyn BlockDevice> {
    Arc::clone(device) as Arc<dyn BlockDevice>
}

/// Types, links, sizes and contents: what a log promises of a file, without times.
fn plain(mut manifest: Manifest) -> Manifest {
    for entry in manifest.entries.values_mut() {
        entry.mtime = 0;
    }
    manifest.without_lost_found()
}

/// What a cut device shows after lanefs's own replay, which must leave an image that e2fsck calls clean.
fn by_lanefs(cut: &CowDevice, directory: &Path) -> Manifest {
    let device = Arc::new(cut.clone());
    let reader = Fs::open(shared(&device), &OpenOptions::default()).unwrap();
    let seen = plain(manifest(&reader));
    drop(reader);
    let fs = open(shared(&device));
    let written = plain(manifest(&fs));
    assert!(seen.differences(&written).is_empty());
    fs.close().unwrap();
    let path = directory.join("lanefs.img");
    fs::write(&path, device.bytes()).unwrap();
    testkit::e2fsck(&path);
    seen
}

/// After e2fsck's replay, whose bitmaps its own later passes set right.
fn by_e2fsck(cut: &CowDevice, directory: &Path) -> Manifest {
    let path = directory.join("e2fsck.img");
    fs::write(&path, cut.bytes()).unwrap();
    let replay = std::process::Command::new("e2fsck")
        .arg("-fy")
        .arg(&path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&replay.stdout);
    assert!(replay.status.code() < Some(2), "{text}");
    // What it may mend: bitmaps and counts. Nothing is lost, found or cut.
    for word in ["lost+found", "Unattached", "Clear", "ref count is"] {
        assert!(!text.contains(word), "{text}");
    }
    testkit::e2fsck(&path);
    let bytes = fs::read(&path).unwrap();
    let device = Arc::new(CowDevice::new(bytes.into()));
    plain(manifest(
        &Fs::open(device, &OpenOptions::default()).unwrap(),
    ))
}

/// After the kernel's replay; `None` without root.
fn by_kernel(cut: &CowDevice, directory: &Path) -> Option<Manifest> {
    if !testkit::is_root() {
        testkit::skip("mounting needs root");
        return None;
    }
    let path = directory.join("kernel.img");
    fs::write(&path, cut.bytes()).unwrap();
    let mounted = Mounted::with(&path, "loop").unwrap();
    let seen = plain(Manifest::of(&mounted.path()).unwrap());
    drop(mounted);
    testkit::e2fsck(&path);
    Some(seen)
}

/// All three, which agree.
fn after_a_cut(cut: &CowDevice) -> Manifest {
    let directory = tempfile::tempdir().unwrap();
    let ours = by_lanefs(cut, directory.path());
    let theirs = by_e2fsck(cut, directory.path());
    let differences = theirs.differences(&ours);
    assert!(differences.is_empty(), "e2fsck and lanefs: {differences}");
    if let Some(theirs) = by_kernel(cut, directory.path()) {
        let differences = theirs.differences(&ours);
        assert!(
            differences.is_empty(),
            "the kernel and lanefs: {differences}"
        );
    }
    ours
}

#[test]
fn a_file_created_written_and_fsynced_is_found_again_by_everyone() {
    for block_bytes in ["1024", "4096"] {
        let Some(image) = image(block_bytes) else {
            return;
        };
        let device = device(image);
        let fs = open(shared(&device));
        let directory = fs.mkdir(Ino::ROOT, b"dir", NEW).unwrap();
        let old = fs.create(directory, b"old", NEW).unwrap();
        fs.write(old, 0, &[1; 50_000]).unwrap();
        fs.sync().unwrap();
        let commits = count(&fs, "journal.commits");
        let new = fs.create(directory, b"new", NEW).unwrap();
        fs.write(new, 0, &[2; 30_000]).unwrap();
        fs.fsync(new).unwrap();
        let seen = after_a_cut(&device);
        assert_eq!(seen.entries[&b"dir/new"[..]].size, 30_000);
        fs.write(old, 40_000, &[3; 30_000]).unwrap();
        fs.fsync(old).unwrap();
        let flag = RenameFlag::Replace;
        fs.rename(directory, b"new", directory, b"renamed", flag)
            .unwrap();
        fs.fsync(new).unwrap();
        let seen = after_a_cut(&device);
        assert_eq!(seen.entries[&b"dir/old"[..]].size, 70_000);
        assert_eq!(seen.entries[&b"dir/renamed"[..]].size, 30_000);
        assert!(!seen.entries.contains_key(&b"dir/new"[..]));
        assert_eq!(count(&fs, "journal.commits"), commits, "no full commit");
        assert_eq!(count(&fs, "fsync.log_commits"), 3);
        assert_eq!(contents(&fs, new), [2; 30_000]);
        fs.close().unwrap();
        let after = by_lanefs(&device, tempfile::tempdir().unwrap().path());
        assert!(after.differences(&seen).is_empty());
    }
}
