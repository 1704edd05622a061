//! Synchronous writes and fsyncs on a mount whose image has an area for fast commits: what they promise is in the image
//! when they return, by the fsync log and without a full commit.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags};

use crate::served::{Served, can_mount, image, lanefs, said};

fn counted(directory: &Path, name: &str) -> u64 {
    let output = lanefs()
        .arg("tune")
        .arg(directory)
        .arg(name)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

/// What a crash now would leave, after the kernel's replay, after which e2fsck finds nothing wrong.
fn crashed(image: &Path, look: impl FnOnce(&Path)) {
    let copy = image.with_extension("crashed");
    let (from, to) = (image.to_str().unwrap(), copy.to_str().unwrap());
    testkit::run("cp", &["--sparse=always", from, to]);
    let mounted = testkit::KernelMount::with(&copy, "loop").unwrap();
    look(&mounted.path());
    drop(mounted);
    testkit::e2fsck(&copy);
}

#[test]
fn what_is_synced_on_a_mount_is_in_the_image_without_a_full_commit() {
    if !can_mount() {
        return;
    }
    for form in ["inplace", "insert"] {
        let folder = tempfile::tempdir().unwrap();
        let options = ["-O", "fast_commit", "-J", "size=8"];
        let path = image(folder.path(), "image", 64 << 20, &options);
        let served = Served::start(&path, &format!("commit=300,log_update={form}"));
        let dir = served.path().join("dir");
        fs::create_dir(&dir).unwrap();
        File::open(&dir).unwrap().sync_all().unwrap();
        let full = counted(served.path(), "journal.commits");
        let mut logged = counted(served.path(), "fsync.log_commits");
        let mut has_logged = |what: &str| {
            let now = counted(served.path(), "fsync.log_commits");
            assert!(now > logged, "{form}, {what}");
            logged = now;
        };
        for (name, flags) in [("sync", OFlags::SYNC), ("dsync", OFlags::DSYNC)] {
            // Within the bits of an open's flags.
            let flags = flags.bits() as i32;
            let mut options = File::options();
            options.create_new(true).append(true).custom_flags(flags);
            let mut file = options.open(dir.join(name)).unwrap();
            for round in 1..4 {
                file.write_all(&[round; 5000]).unwrap();
                has_logged(name);
                crashed(&path, |root| {
                    let written = fs::read(root.join("dir").join(name)).unwrap();
                    assert_eq!(written.len(), 5000 * usize::from(round), "{form}, {name}");
                    assert_eq!(written[written.len() - 5000..], [round; 5000]);
                });
            }
        }
        fs::rename(dir.join("sync"), dir.join("renamed")).unwrap();
        fs::write(dir.join("new"), "its name is promised").unwrap();
        File::open(&dir).unwrap().sync_all().unwrap();
        has_logged("directory");
        crashed(&path, |root| {
            let mut names: Vec<_> = fs::read_dir(root.join("dir"))
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            names.sort();
            assert_eq!(names, ["dsync", "new", "renamed"]);
        });
        assert_eq!(counted(served.path(), "journal.commits"), full, "{form}");
        served.unmount();
        testkit::e2fsck(&path);
    }
}

/// The kernel asks a FUSE server for an fsync behind a write, and behind nothing else.
#[test]
fn what_a_synchronous_handle_allocates_or_copies_is_in_the_image() {
    if !can_mount() {
        return;
    }
    for (name, flags) in [("sync", OFlags::SYNC), ("dsync", OFlags::DSYNC)] {
        let folder = tempfile::tempdir().unwrap();
        let options = ["-O", "fast_commit", "-J", "size=8"];
        let path = image(folder.path(), "image", 64 << 20, &options);
        let served = Served::start(&path, "commit=300");
        let from = served.path().join("from");
        fs::write(&from, [7; 5000]).unwrap();
        // Within the bits of an open's flags.
        let flags = flags.bits() as i32;
        let mut options = File::options();
        options.create_new(true).write(true).custom_flags(flags);
        let file = options.open(served.path().join(name)).unwrap();
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 9000).unwrap();
        crashed(&path, |root| {
            assert_eq!(fs::metadata(root.join(name)).unwrap().len(), 9000, "{name}");
        });
        let from = File::open(&from).unwrap();
        let copied = rustix::fs::copy_file_range(&from, None, &file, None, 5000).unwrap();
        crashed(&path, |root| {
            let bytes = fs::read(root.join(name)).unwrap();
            assert_eq!(bytes[..copied], [7; 5000][..copied], "{name}");
        });
        drop((file, from));
        served.unmount();
        testkit::e2fsck(&path);
    }
}
