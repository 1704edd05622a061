//! Ioctls on a mount: their effect, judged by the programs that use them, and which users may call them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::hand::Hand;
use crate::served::{Served, can_mount, image, said, unmount_by_the_system};

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

#[test]
fn the_generation_is_what_lsattr_and_debugfs_show() {
    if !can_mount() || !Hand::is_there() || !testkit::have("lsattr") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let served = Served::start(&image, "");
    let (root, hand) = (served.path(), Hand::start());
    fs::create_dir(root.join("d")).unwrap();
    fs::write(root.join("d/f"), "x").unwrap();
    let mut generations = Vec::new();
    for name in ["d", "d/f"] {
        let path = root.join(name);
        let listed = testkit::run("lsattr", &["-dv", path.to_str().unwrap()]);
        let listed = String::from_utf8(listed.stdout).unwrap();
        let generation: u32 = listed.split_whitespace().next().unwrap().parse().unwrap();
        hand.run("check_version", &[&path.display(), &generation])
            .unwrap();
        generations.push((name, generation));
    }
    served.unmount();
    for (name, generation) in generations {
        let request = format!("stat /{name}");
        let said = testkit::debugfs(&["-R", &request, image.to_str().unwrap()]);
        let said = String::from_utf8(said.stdout).unwrap();
        assert!(
            said.contains(&format!("Generation: {generation} ")),
            "{said}"
        );
    }
}

#[test]
fn the_label_changes_on_the_mount_and_in_the_image() {
    if !can_mount() || !Hand::is_there() || !testkit::have("blkid") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &["-L", "before"]);
    let name = image.to_str().unwrap();
    let blkid = || {
        let said = testkit::run("blkid", &["-p", "-s", "LABEL", "-o", "value", name]);
        String::from_utf8(said.stdout).unwrap().trim().to_owned()
    };
    let hand = Hand::start();
    let served = Served::start(&image, "allow_other");
    let root = served.path().display();
    hand.run("label", &[&root, &"before", &"0123456789abcdef"])
        .unwrap();
    hand.run("label", &[&root, &"0123456789abcdef", &"-"])
        .unwrap();
    // Without an unmount.
    assert_eq!(blkid(), "0123456789abcdef");
    let error = hand.run("label", &[&root, &"0123456789abcdef", &"0123456789abcdefg"]);
    assert_eq!(error.unwrap_err().raw_os_error(), Some(22));
    hand.run("label", &[&root, &"0123456789abcdef", &"after"])
        .unwrap();
    // A crash leaves it.
    served.kill();
    let served = Served::start(&image, "allow_other");
    let root = served.path().display();
    hand.run("label", &[&root, &"after", &"-"]).unwrap();
    let refused = hand.run("as_user_ioctl", &[&root, &7, &0x4100_9432_u32, &256]);
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(1));
    served.unmount();
    testkit::e2fsck(&image);
    assert_eq!(blkid(), "after");
    let said = testkit::run("e2label", &[name]);
    assert_eq!(String::from_utf8_lossy(&said.stdout), "after\n");
    let served = Served::start(&image, "ro");
    let root = served.path().display();
    let refused = hand.run("label", &[&root, &"after", &"other"]);
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(30));
    served.unmount();
}

#[test]
fn projects_are_shown_where_the_image_has_them_and_else_refused() {
    if !can_mount() || !Hand::is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let hand = Hand::start();
    let without = image(folder.path(), "a.img", SIZE, &[]);
    let served = Served::start(&without, "");
    fs::write(served.path().join("f"), "x").unwrap();
    let path = served.path().join("f");
    hand.run("project", &[&path.display(), &0, &0]).unwrap();
    let refused = hand.run("project", &[&path.display(), &0, &5]);
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(95));
    served.unmount();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("f"), "x").unwrap();
    let options = ["-I", "256", "-O", "project", "-d", tree.to_str().unwrap()];
    let with = image(folder.path(), "b.img", SIZE, &options);
    let request = "set_inode_field /f projid 7";
    testkit::debugfs(&["-w", "-R", request, with.to_str().unwrap()]);
    let served = Served::start(&with, "ro");
    let path = served.path().join("f");
    let refused = hand.run("project", &[&path.display(), &7, &5]);
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(30));
    served.unmount();
}

/// docs/mount.md lists these: a newer kernel that passes them on fails this test.
#[test]
fn what_the_kernel_does_not_pass_on_gets_its_own_errors() {
    if !can_mount() || !Hand::is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let served = Served::start(&image, "");
    let (root, hand) = (served.path().display(), Hand::start());
    // FIFREEZE, FS_IOC_GETFSUUID.
    for (command, length, error) in [(0xc004_5877_u32, 4, 95), (0x8011_1500, 17, 25)] {
        let refused = hand.run("as_user_ioctl", &[&root, &0, &command, &length]);
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(error));
    }
    served.unmount();
}

#[test]
fn a_shut_down_mount_refuses_everything_and_loses_nothing_that_was_synced() {
    if !can_mount() || !Hand::is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let mut served = Served::start(&image, "allow_other,commit=600");
    let root = served.path().to_owned();
    let hand = Hand::start();
    let shut_down = |uid: u32| {
        hand.run(
            "as_user_ioctl",
            &[&root.display(), &uid, &0x8004_587d_u32, &4],
        )
    };
    assert_eq!(shut_down(7).unwrap_err().raw_os_error(), Some(1));
    fs::write(root.join("synced"), vec![5; 100_000]).unwrap();
    fs::File::open(root.join("synced"))
        .unwrap()
        .sync_all()
        .unwrap();
    fs::write(root.join("lost"), "lost").unwrap();
    shut_down(0).unwrap();
    let before = testkit::read_image(&image);
    for refused in [
        fs::write(root.join("new"), "new"),
        fs::remove_file(root.join("synced")),
        fs::create_dir(root.join("directory")),
        fs::read_dir(&root).and_then(|mut names| names.next().transpose().map(drop)),
        fs::File::open(root.join("synced")).map(drop),
    ] {
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(5));
    }
    unmount_by_the_system(&root);
    // It could not leave a clean image.
    assert!(!served.wait().success());
    assert!(
        testkit::read_image(&image) == before,
        "something was written"
    );
    let served = Served::start(&image, "");
    assert_eq!(
        fs::read(served.path().join("synced")).unwrap(),
        vec![5; 100_000]
    );
    assert!(!served.path().join("lost").exists());
    served.unmount();
    testkit::e2fsck(&image);
}
