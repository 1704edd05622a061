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
    testkit::copy_mounted_image(image, &copy);
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

/// What a crash leaves of names and contents directly after calls that returned: with each option, and without.
#[test]
fn sync_makes_all_changes_durable_and_dirsync_those_of_names() {
    if !can_mount() {
        return;
    }
    for (option, names, contents) in [
        ("sync", true, true),
        ("dirsync", true, false),
        ("async", false, false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path(), "image", 64 << 20, &["-J", "size=8"]);
        let served = Served::start(&path, &format!("commit=300,{option}"));
        let list = fs::read_to_string("/proc/self/mounts").unwrap();
        let place = served.path().to_str().unwrap();
        let line = list.lines().find(|line| line.contains(place)).unwrap();
        let shown = line.split(' ').nth(3).unwrap();
        assert_eq!(shown.split(',').any(|word| word == option), names, "{line}");
        let at = |name: &str| served.path().join(name);
        let crash = |what: &str, expected: bool, is_there: &dyn Fn(&Path) -> bool| {
            // Where nothing is promised, one look shows that the others mean something.
            if option == "async" && what != "write" {
                return;
            }
            crashed(&path, |root| {
                assert_eq!(is_there(root), expected, "{option}: {what}");
            });
        };
        fs::create_dir(at("d")).unwrap();
        crash("mkdir", names, &|root| root.join("d").exists());
        let file = File::create(at("d/f")).unwrap();
        crash("create", names, &|root| root.join("d/f").exists());
        file.set_len(0).unwrap();
        (&file).write_all(&[5; 5000]).unwrap();
        let len = |root: &Path, name: &str| fs::metadata(root.join(name)).map_or(0, |of| of.len());
        crash("write", contents, &|root| len(root, "d/f") == 5000);
        // Before what makes the write durable too.
        file.set_len(100).unwrap();
        crash("truncate", contents, &|root| len(root, "d/f") == 100);
        fs::rename(at("d/f"), at("g")).unwrap();
        crash("rename", names, &|root| root.join("g").exists());
        fs::hard_link(at("g"), at("d/link")).unwrap();
        crash("link", names, &|root| root.join("d/link").exists());
        std::os::unix::fs::symlink("g", at("symlink")).unwrap();
        crash("symlink", names, &|root| root.join("symlink").is_symlink());
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o604);
        fs::set_permissions(at("g"), mode).unwrap();
        let mode = |root: &Path| {
            let metadata = fs::metadata(root.join("g"));
            metadata.map_or(0, |of| std::os::unix::fs::MetadataExt::mode(&of) & 0o7777)
        };
        crash("chmod", contents, &|root| mode(root) == 0o604);
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(at("g"), "user.a", b"v", flags).unwrap();
        crash("setxattr", contents, &|root| {
            rustix::fs::getxattr(root.join("g"), "user.a", &mut [0_u8; 8][..]) == Ok(1)
        });
        fs::remove_file(at("d/link")).unwrap();
        crash("unlink", names, &|root| {
            root.join("d").exists() && !root.join("d/link").exists()
        });
        fs::remove_dir(at("d")).unwrap();
        crash("rmdir", names, &|root| {
            root.join("g").exists() && !root.join("d").exists()
        });
        drop(file);
        served.unmount();
        testkit::e2fsck(&path);
    }
}

#[test]
fn nodiratime_leaves_times_of_access_of_directories_alone() {
    if !can_mount() {
        return;
    }
    for (options, changes) in [("strictatime", true), ("strictatime,nodiratime", false)] {
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path(), "image", 64 << 20, &[]);
        let served = Served::start(&path, options);
        let dir = served.path().join("d");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("f"), "contents").unwrap();
        let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1 << 30);
        let times = fs::FileTimes::new().set_accessed(long_ago);
        File::open(&dir).unwrap().set_times(times).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        served.unmount();
        let mounted = testkit::KernelMount::read_only(&path).unwrap();
        let accessed = fs::metadata(mounted.path().join("d")).unwrap().accessed();
        assert_eq!(accessed.unwrap() != long_ago, changes, "{options}");
    }
}
