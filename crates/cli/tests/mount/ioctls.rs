//! Ioctls on a mount: their effect, judged by the programs that use them, and which users may call them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::served::{Served, can_mount, image, said};

const SIZE: u64 = 64 << 20;

/// Bytes of the disk that a file takes.
fn allocated(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

/// The bytes that `fstrim -v` counted.
fn trimmed(output: &Output) -> u64 {
    assert!(output.status.success(), "{}", said(output));
    let text = String::from_utf8_lossy(&output.stdout);
    let (_, count) = text.split_once('(').unwrap_or_else(|| panic!("{text}"));
    let (count, _) = count.split_once(' ').unwrap();
    count.parse().unwrap()
}

#[test]
fn fstrim_gives_the_space_of_removed_files_back() {
    if !can_mount() || !testkit::have("fstrim") || !testkit::have("setpriv") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &["-b", "4096"]);
    let served = Served::start(&image, "allow_other,nodiscard");
    let root = served.path();
    let fstrim = |before: &[&str], after: &[&str]| {
        let mut words = before.to_vec();
        words.extend(["fstrim", "-v"]);
        words.extend(after);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(root).output().unwrap()
    };
    fs::write(root.join("kept"), vec![5; 3 << 20]).unwrap();
    fs::write(root.join("large"), vec![7; 20 << 20]).unwrap();
    testkit::run("sync", &["-f", root.to_str().unwrap()]);
    let full = allocated(&image);

    for user in [
        &["setpriv", "--reuid=7", "--regid=7", "--clear-groups"][..],
        // Root without CAP_SYS_ADMIN.
        &["setpriv", "--bounding-set=-sys_admin"],
    ] {
        let refused = fstrim(user, &[]);
        assert!(
            said(&refused).contains("Operation not permitted"),
            "{}",
            said(&refused)
        );
    }
    assert_eq!(allocated(&image), full);

    fs::remove_file(root.join("large")).unwrap();
    let count = trimmed(&fstrim(&[], &[]));
    let free = rustix::fs::statvfs(root).unwrap();
    let left = free.f_bfree * free.f_frsize;
    // Some blocks are kept for the file that was written last.
    assert!(count <= left && count > left - (4 << 20), "{count} {left}");
    let given_back = full - allocated(&image);
    assert!(given_back >= 19 << 20, "{given_back} bytes");
    assert_eq!(fs::read(root.join("kept")).unwrap(), vec![5; 3 << 20]);

    assert!(trimmed(&fstrim(&[], &["-o", "1M", "-l", "8M"])) <= 8 << 20);
    // No group has a free run of this length: the tables take some blocks.
    assert_eq!(trimmed(&fstrim(&[], &["-m", "128M"])), 0);
    let refused = fstrim(&[], &["-m", "129M"]);
    assert!(
        said(&refused).contains("Invalid argument"),
        "{}",
        said(&refused)
    );
    served.unmount();
    testkit::e2fsck(&image);
}

#[test]
fn a_mount_that_only_reads_discards_nothing() {
    if !can_mount() || !testkit::have("fstrim") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let served = Served::start(&image, "ro");
    let refused = Command::new("fstrim").arg(served.path()).output().unwrap();
    assert!(
        said(&refused).contains("Read-only file system"),
        "{}",
        said(&refused)
    );
    served.unmount();
}
