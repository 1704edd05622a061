//! The fsync log: what was fsynced is there after a cut, by lanefs's replay, the kernel's and e2fsck's.

use std::collections::BTreeMap;
use std::path::Path;

use device::BlockDevice;
use lanefs_engine::{Ino, InodeFs, MountOptions, RenameFlag};
use simulate::{CowDevice, Fault, Recorder};
use sync::Arc;
use testkit::{KernelMount, Manifest, sha256};

use crate::files::contents;
use crate::image::{clock, make, open};
use crate::interop::manifest;

pub use crate::image::NEW;

/// A counter's value.
pub fn count(fs: &InodeFs, name: &str) -> u64 {
    let counters: BTreeMap<_, _> = fs.counters().into_iter().collect();
    counters[name]
}

/// An image with an area for fast commits.
pub fn image(block_bytes: &str) -> Option<Vec<u8>> {
    make(
        &["-b", block_bytes, "-O", "fast_commit", "-J", "size=8"],
        64 << 20,
    )
}

pub fn device(image: Vec<u8>) -> Arc<CowDevice> {
    Arc::new(CowDevice::new(image.into()))
}

pub fn shared(device: &Arc<CowDevice>) -> Arc<dyn BlockDevice> {
    Arc::clone(device) as Arc<dyn BlockDevice>
}

/// Types, links, sizes and contents: what a log promises of a file, without times.
pub fn plain(mut manifest: Manifest) -> Manifest {
    for entry in manifest.entries.values_mut() {
        entry.mtime = 0;
    }
    manifest.without_lost_found()
}

/// What a cut device shows after lanefs's own replay, which must leave an image that e2fsck calls clean.
pub fn by_lanefs(cut: &CowDevice, directory: &Path) -> Manifest {
    let device = Arc::new(cut.clone());
    let reader = InodeFs::open(shared(&device), &MountOptions::default()).unwrap();
    let seen = plain(manifest(&reader));
    drop(reader);
    let fs = open(shared(&device));
    let written = plain(manifest(&fs));
    assert!(seen.differences(&written).is_empty());
    fs.close().unwrap();
    let path = directory.join("lanefs.img");
    testkit::write_image(&path, &device.bytes());
    testkit::e2fsck(&path);
    seen
}

/// After e2fsck's replay, whose bitmaps its own later passes set right.
fn by_e2fsck(cut: &CowDevice, directory: &Path) -> Manifest {
    let path = directory.join("e2fsck.img");
    testkit::write_image(&path, &cut.bytes());
    let replay = testkit::e2fsck_with(&["-fy"], &path);
    let text = String::from_utf8_lossy(&replay.stdout);
    assert!(replay.status.code() < Some(2), "{text}");
    // What it may mend: bitmaps and counts. Nothing is lost, found or cut.
    for word in ["lost+found", "Unattached", "Clear?", "ref count is"] {
        assert!(!text.contains(word), "{text}");
    }
    testkit::e2fsck(&path);
    let bytes = testkit::read_image(&path);
    let device = Arc::new(CowDevice::new(bytes.into()));
    plain(manifest(
        &InodeFs::open(device, &MountOptions::default()).unwrap(),
    ))
}

/// After the kernel's replay; `None` without root.
fn by_kernel(cut: &CowDevice, directory: &Path) -> Option<Manifest> {
    if !testkit::is_root() {
        testkit::skip("mounting needs root");
        return None;
    }
    let path = directory.join("kernel.img");
    testkit::write_image(&path, &cut.bytes());
    let mounted = KernelMount::with(&path, "loop").unwrap();
    let seen = plain(Manifest::of(&mounted.path()).unwrap());
    drop(mounted);
    testkit::e2fsck(&path);
    Some(seen)
}

/// All three, which agree.
pub fn after_a_cut(cut: &CowDevice) -> Manifest {
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
    for (block_bytes, form) in [("1024", "inplace"), ("4096", "inplace"), ("4096", "insert")] {
        let Some(image) = image(block_bytes) else {
            return;
        };
        let device = device(image);
        let fs = open(shared(&device));
        fs.choose(&format!("log_update={form}")).unwrap();
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
        // The two inodes' records, and what of them was there: `new`, at its second fsync.
        let in_place = count(&fs, "fsync.items_in_place");
        assert_eq!(in_place > 0, form == "inplace", "{in_place}");
        assert_eq!(contents(&fs, new), [2; 30_000]);
        fs.close().unwrap();
        let after = by_lanefs(&device, tempfile::tempdir().unwrap().path());
        assert!(after.differences(&seen).is_empty());
    }
}

/// e2fsck makes a map anew for each file whose ranges it replays. Where that takes a block for an index, it takes one
/// that is free so far, be it another file's further on in the area.
#[test]
fn f15_a_map_with_an_index_is_committed_in_full() {
    for block_bytes in ["1024", "4096"] {
        let Some(image) = image(block_bytes) else {
            return;
        };
        let device = device(image);
        let fs = open(shared(&device));
        let size: u64 = block_bytes.parse().unwrap();
        let block = |byte: u8| vec![byte; size as usize];
        let sparse = fs.create(Ino::ROOT, b"sparse", NEW).unwrap();
        for place in 0..6 {
            fs.write(sparse, 2 * place * size, &block(b's')).unwrap();
        }
        fs.fsync(sparse).unwrap();
        assert_eq!(count(&fs, "fsync.full_unloggable"), 1);
        for round in 0..10_u8 {
            let name = format!("file{round}");
            let file = fs.create(Ino::ROOT, name.as_bytes(), NEW).unwrap();
            fs.write(file, 0, &block(b'0' + round)).unwrap();
            fs.fsync(file).unwrap();
        }
        let logged = count(&fs, "fsync.log_commits");
        assert_eq!(logged, 10);
        let seen = after_a_cut(&device);
        assert_eq!(seen.entries[&b"file9"[..]].size, size);
        // Written in place, it is logged, because no range is.
        fs.write(sparse, 0, &block(b't')).unwrap();
        fs.fsync(sparse).unwrap();
        after_a_cut(&device);
        // Nor does one that grows piece by piece, as long as the pieces meet: e2fsck joins them.
        let grown = fs.create(Ino::ROOT, b"grown", NEW).unwrap();
        for round in 0..6_u8 {
            fs.write(grown, u64::from(round) * size, &block(b'g'))
                .unwrap();
            fs.fsync(grown).unwrap();
            let name = format!("beside{round}");
            let file = fs.create(Ino::ROOT, name.as_bytes(), NEW).unwrap();
            fs.write(file, 0, &block(b'b')).unwrap();
            fs.fsync(file).unwrap();
        }
        assert!(count(&fs, "fsync.log_commits") >= logged + 12);
        after_a_cut(&device);
        let logged = count(&fs, "fsync.log_commits");
        // Four pieces need no index.
        let few = fs.create(Ino::ROOT, b"few", NEW).unwrap();
        for place in 0..4 {
            fs.write(few, 2 * place * size, &block(b'f')).unwrap();
        }
        fs.fsync(few).unwrap();
        assert!(count(&fs, "fsync.log_commits") > logged);
        after_a_cut(&device);
    }
}

/// A directory with files of 20,000 bytes in a full commit, and what came of fsyncs since.
struct Directory {
    device: Arc<CowDevice>,
    fs: InodeFs,
    ino: Ino,
    commits: u64,
    logged: u64,
}

impl Directory {
    fn new(block_bytes: &str) -> Option<Directory> {
        let device = device(image(block_bytes)?);
        let fs = open(shared(&device));
        let ino = fs.mkdir(Ino::ROOT, b"dir", NEW).unwrap();
        for name in [b"one", b"two", b"six"] {
            let file = fs.create(ino, name, NEW).unwrap();
            fs.write(file, 0, &[name[0]; 20_000]).unwrap();
        }
        fs.sync().unwrap();
        let commits = count(&fs, "journal.commits");
        let logged = 0;
        Some(Directory {
            device,
            fs,
            ino,
            commits,
            logged,
        })
    }

    /// Full commits and log commits since the last call.
    fn took(&mut self) -> (u64, u64) {
        let now = (
            count(&self.fs, "journal.commits"),
            count(&self.fs, "fsync.log_commits"),
        );
        let took = (now.0 - self.commits, now.1 - self.logged);
        (self.commits, self.logged) = now;
        took
    }
}

#[test]
fn an_fsync_of_a_directory_logs_the_names_that_changed() {
    for (block_bytes, form) in [("1024", "inplace"), ("4096", "inplace"), ("4096", "insert")] {
        let Some(mut dir) = Directory::new(block_bytes) else {
            return;
        };
        dir.fs.choose(&format!("log_update={form}")).unwrap();
        let new = dir.fs.create(dir.ino, b"new", NEW).unwrap();
        dir.fs.write(new, 0, &[9; 5000]).unwrap();
        dir.fs.fsync(dir.ino).unwrap();
        assert_eq!(dir.took(), (0, 1));
        let seen = after_a_cut(&dir.device);
        assert_eq!(seen.entries[&b"dir/new"[..]].size, 5000);
        dir.fs.fsync(dir.ino).unwrap();
        assert_eq!(dir.took(), (0, 0), "nothing changed");
        let two = dir.fs.lookup(dir.ino, b"two").unwrap();
        let flag = RenameFlag::Replace;
        dir.fs
            .rename(dir.ino, b"one", dir.ino, b"uno", flag)
            .unwrap();
        dir.fs.link(two, dir.ino, b"too").unwrap();
        dir.fs.unlink(dir.ino, b"two").unwrap();
        dir.fs.fdatasync(dir.ino).unwrap();
        assert_eq!(dir.took(), (0, 1));
        let seen = after_a_cut(&dir.device);
        let names: Vec<_> = seen.entries.keys().map(|path| path.as_slice()).collect();
        let expected = ["", "dir", "dir/new", "dir/six", "dir/too", "dir/uno"];
        assert_eq!(names, expected.map(str::as_bytes));
        dir.fs.close().unwrap();
    }
}

#[test]
fn an_fsync_of_a_directory_leaves_out_what_the_fsync_of_a_file_logged() {
    let Some(mut dir) = Directory::new("4096") else {
        return;
    };
    let new = dir.fs.create(dir.ino, b"new", NEW).unwrap();
    dir.fs.write(new, 0, &[9; 5000]).unwrap();
    dir.fs.fsync(new).unwrap();
    assert_eq!(dir.took(), (0, 1));
    dir.fs.fsync(dir.ino).unwrap();
    assert_eq!(dir.took(), (0, 0));
    // Then it is one of two names that changed.
    dir.fs.link(new, dir.ino, b"link").unwrap();
    dir.fs.create(dir.ino, b"other", NEW).unwrap();
    dir.fs.fsync(dir.ino).unwrap();
    assert_eq!(dir.took(), (0, 1));
    let seen = after_a_cut(&dir.device);
    for name in ["dir/new", "dir/link", "dir/other"] {
        assert!(seen.entries.contains_key(name.as_bytes()), "{name}");
    }
    assert!(seen.entries[&b"dir/new"[..]].link_of.is_some());
}

#[test]
fn an_fdatasync_of_what_is_in_the_log_logs_no_times_and_no_name() {
    let Some(dir) = Directory::new("4096") else {
        return;
    };
    let fs = &dir.fs;
    let took = |work: &dyn Fn()| {
        let count = || (count(fs, "fsync.log_commits"), count(fs, "journal.flushes"));
        let before = count();
        work();
        let after = count();
        (after.0 - before.0, after.1 - before.1)
    };
    let file = fs.create(dir.ino, b"new", NEW).unwrap();
    fs.write(file, 0, &[9; 9000]).unwrap();
    let data = || fs.fdatasync(file).unwrap();
    assert_eq!(took(&data).0, 1, "the map and the size changed");
    // A program that read the times must see others after the write.
    fs.metadata(file).unwrap();
    fs.write(file, 100, &[8; 3000]).unwrap();
    assert_eq!(took(&data), (0, 1), "data in place");
    let flag = RenameFlag::Replace;
    fs.rename(dir.ino, b"new", dir.ino, b"known", flag).unwrap();
    assert_eq!(took(&data).0, 0, "a name changed");
    let seen = after_a_cut(&dir.device);
    let expected = [&[9; 100][..], &[8; 3000], &[9; 5900]].concat();
    assert_eq!(seen.entries[&b"dir/new"[..]].contents, sha256(&expected));
    fs.write(file, 9000, &[7; 100]).unwrap();
    assert_eq!(took(&data).0, 1, "the size changed");
    let seen = after_a_cut(&dir.device);
    let grown = [expected, vec![7; 100]].concat();
    assert_eq!(seen.entries[&b"dir/known"[..]].contents, sha256(&grown));
}

#[test]
fn a_directory_of_which_more_than_names_changed_is_committed_in_full() {
    let Some(mut dir) = Directory::new("4096") else {
        return;
    };
    let times = lanefs_engine::SetAttributes {
        mtime: Some(
            lanefs_engine::Timestamp {
                seconds: 1_234_567,
                nanoseconds: 0,
            }
            .into(),
        ),
        ..Default::default()
    };
    dir.fs.create(dir.ino, b"new", NEW).unwrap();
    dir.fs.set_attributes(dir.ino, &times).unwrap();
    dir.fs.fsync(dir.ino).unwrap();
    assert_eq!(dir.took(), (1, 0), "times");
    let reader = InodeFs::open(
        shared(&Arc::new(CowDevice::clone(&dir.device))),
        &MountOptions::default(),
    )
    .unwrap();
    assert_eq!(reader.metadata(dir.ino).unwrap().mtime.seconds, 1_234_567);
    drop(reader);
    dir.fs.mkdir(dir.ino, b"sub", NEW).unwrap();
    dir.fs.fsync(dir.ino).unwrap();
    assert_eq!(dir.took(), (1, 0), "a directory in it");
    dir.fs.symlink(dir.ino, b"short", b"one", NEW).unwrap();
    dir.fs.fsync(dir.ino).unwrap();
    assert_eq!(dir.took(), (1, 0), "a link in it");
    for number in 0..300 {
        let name = format!("name{number}");
        dir.fs.create(dir.ino, name.as_bytes(), NEW).unwrap();
    }
    dir.fs.fsync(dir.ino).unwrap();
    let (commits, logged) = dir.took();
    assert!(commits > 0 && logged == 0, "more names than are logged");
    let seen = after_a_cut(&dir.device);
    assert_eq!(seen.entries.len(), 2 + 3 + 3 + 300);
    dir.fs.close().unwrap();
}

/// The file's own names are as they were, so it brings no directory.
#[test]
fn a_file_below_a_directory_that_was_renamed_is_where_that_was_until_a_full_commit() {
    let Some(image) = image("4096") else {
        return;
    };
    let device = device(image);
    let fs = open(shared(&device));
    let directory = fs.mkdir(Ino::ROOT, b"old", NEW).unwrap();
    let file = fs.create(directory, b"file", NEW).unwrap();
    fs.sync().unwrap();
    fs.rename(Ino::ROOT, b"old", Ino::ROOT, b"new", RenameFlag::Replace)
        .unwrap();
    fs.write(file, 0, &[1; 9000]).unwrap();
    let commits = count(&fs, "journal.commits");
    fs.fsync(file).unwrap();
    assert_eq!(count(&fs, "journal.commits"), commits);
    let seen = after_a_cut(&device);
    assert_eq!(seen.entries[&b"old/file"[..]].size, 9000);
    fs.fsync(Ino::ROOT).unwrap();
    assert_eq!(count(&fs, "journal.commits"), commits + 1);
    let seen = after_a_cut(&device);
    assert_eq!(seen.entries[&b"new/file"[..]].size, 9000);
    assert!(!seen.entries.contains_key(&b"old"[..]));
    fs.close().unwrap();
}

#[test]
fn names_that_go_are_gone_after_an_fsync_of_their_directory() {
    let Some(mut dir) = Directory::new("4096") else {
        return;
    };
    // A name that was added and removed is in no record; that a file lost its last name can't be logged for e2fsck.
    for (name, took) in [(b"new", (0, 1)), (b"one", (1, 0))] {
        if name == b"new" {
            dir.fs.create(dir.ino, name, NEW).unwrap();
            dir.fs.create(dir.ino, b"other", NEW).unwrap();
        }
        dir.fs.unlink(dir.ino, name).unwrap();
        dir.fs.fsync(dir.ino).unwrap();
        assert_eq!(dir.took(), took);
    }
    let flag = RenameFlag::Replace;
    dir.fs
        .rename(dir.ino, b"two", dir.ino, b"six", flag)
        .unwrap();
    dir.fs.fsync(dir.ino).unwrap();
    assert_eq!(dir.took(), (1, 0));
    // Nor if it was logged, or is open.
    let last = dir.fs.create(dir.ino, b"last", NEW).unwrap();
    dir.fs.fsync(last).unwrap();
    dir.fs.hold(last).unwrap();
    dir.fs.unlink(dir.ino, b"last").unwrap();
    dir.fs.fsync(dir.ino).unwrap();
    assert_eq!(dir.took(), (1, 1));
    let seen = after_a_cut(&dir.device);
    let names: Vec<_> = seen.entries.keys().map(Vec::as_slice).collect();
    assert_eq!(names, [&b""[..], b"dir", b"dir/other", b"dir/six"]);
}

#[test]
fn a_first_log_block_that_a_cut_tore_is_the_logs_end_to_everyone() {
    for block_bytes in ["1024", "4096"] {
        let Some(image) = image(block_bytes) else {
            return;
        };
        let device = device(image);
        let fs = open(shared(&device));
        let directory = fs.mkdir(Ino::ROOT, b"dir", NEW).unwrap();
        fs.sync().unwrap();
        let new = fs.create(directory, b"new", NEW).unwrap();
        fs.write(new, 0, &[2; 3000]).unwrap();
        // Records that need more than one sector.
        for byte in b"abc" {
            fs.link(new, directory, &[*byte; 200]).unwrap();
        }
        fs.fsync(new).unwrap();
        let seen = after_a_cut(&device);
        assert_eq!(seen.entries[&b"dir/new"[..]].size, 3000);
        let bytes = device.bytes();
        let block: usize = block_bytes.parse().unwrap();
        // HEAD: its tag, its length, no features.
        let is_head = |block: &[u8]| block.starts_with(&[9, 0, 8, 0, 0, 0, 0, 0]);
        let at = block * bytes.chunks(block).position(is_head).unwrap();
        for old in [0, 0xff] {
            let mut torn = testkit::copy_image(&bytes);
            torn[at + 512..at + block].fill(old);
            let seen = after_a_cut(&CowDevice::new(torn.into()));
            assert!(seen.entries.contains_key(&b"dir"[..]));
            assert!(!seen.entries.contains_key(&b"dir/new"[..]));
        }
    }
}

#[test]
fn data_written_over_others_are_flushed_by_each_fsync_though_nothing_else_changed() {
    let Some(image) = image("4096") else { return };
    let fs = open(shared(&device(image)));
    let file = fs.create(Ino::ROOT, b"file", NEW).unwrap();
    fs.write(file, 0, &[1; 8192]).unwrap();
    fs.sync().unwrap();
    for round in 0..50 {
        let before = count(&fs, "journal.flushes");
        fs.write(file, 0, &[round; 4096]).unwrap();
        match round % 2 {
            0 => fs.fsync(file).unwrap(),
            _ => fs.fdatasync(file).unwrap(),
        }
        assert!(count(&fs, "journal.flushes") > before, "{round}");
    }
    fs.close().unwrap();
}

#[test]
fn data_written_over_others_are_flushed_by_a_sync_of_all_though_nothing_else_changed() {
    let Some(image) = image("4096") else { return };
    let fs = open(shared(&device(image)));
    let file = fs.create(Ino::ROOT, b"file", NEW).unwrap();
    fs.write(file, 0, &[1; 8192]).unwrap();
    fs.sync().unwrap();
    for round in 0..10 {
        let before = count(&fs, "journal.flushes");
        fs.write(file, 0, &[round; 4096]).unwrap();
        fs.sync().unwrap();
        assert!(count(&fs, "journal.flushes") > before, "{round}");
    }
    fs.close().unwrap();
}

/// A wipe that failed ends the journal; where the device failed but once, e2fsck finds no old log all the same.
#[test]
fn the_log_is_wiped_though_the_device_fails_once() {
    let Some(image) = image("1024") else {
        return;
    };
    let start = CowDevice::new(image.into());
    let directory = tempfile::tempdir().unwrap();
    let mut failed = 0;
    for number in 0..40 {
        let recorder = Arc::new(Recorder::over(&start).fails(Fault::Write(number), false));
        let device = Arc::clone(&recorder) as Arc<dyn BlockDevice>;
        let Ok(fs) = InodeFs::open_for_writing(device, &MountOptions::default(), clock) else {
            continue;
        };
        let fsynced = fs.create(Ino::ROOT, b"file", NEW).and_then(|file| {
            fs.write(file, 0, &[7; 5000])?;
            fs.fsync(file)
        });
        if fsynced.is_err() || count(&fs, "fsync.log_commits") == 0 || fs.sync().is_ok() {
            continue;
        }
        drop(fs);
        failed += 1;
        let seen = by_e2fsck(&recorder.live(), directory.path());
        assert!(seen.entries.contains_key(b"file".as_slice()), "{number}");
    }
    assert!(failed > 0);
}
