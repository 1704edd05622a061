//! Mounting, using and unmounting.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use testkit::{KernelMount, Manifest};

use crate::served::{Served, can_mount, image, in_a_namespace, lanefs, said};

const SIZE: u64 = 64 << 20;

/// Whether an image's journal holds nothing.
fn is_clean(image: &Path) -> bool {
    let header = testkit::dumpe2fs(&["-h", image.to_str().unwrap()]);
    !String::from_utf8_lossy(&header.stdout).contains("needs_recovery")
}

#[test]
fn what_is_written_to_a_mount_is_there_for_the_kernel() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let served = Served::start(&image, "");
    let root = served.path();
    fs::create_dir(root.join("d")).unwrap();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(root.join("d/large"), &bytes).unwrap();
    fs::write(root.join("d/small"), "small").unwrap();
    fs::set_permissions(root.join("d/small"), fs::Permissions::from_mode(0o4711)).unwrap();
    std::os::unix::fs::symlink("small", root.join("d/link")).unwrap();
    fs::hard_link(root.join("d/small"), root.join("hard")).unwrap();
    for number in 0..300 {
        fs::write(root.join(format!("d/f{number}")), [1]).unwrap();
    }
    fs::rename(root.join("d/f7"), root.join("f7")).unwrap();
    fs::remove_file(root.join("d/f8")).unwrap();
    let file = fs::File::options().write(true).open(root.join("d/large"));
    let file = file.unwrap();
    file.write_all_at(b"changed", 1_000_000).unwrap();
    file.set_len(2_500_000).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(root.join("d/large")).unwrap().len(), 2_500_000);
    assert_eq!(fs::metadata(root.join("hard")).unwrap().nlink(), 2);
    assert_eq!(fs::read_dir(root.join("d")).unwrap().count(), 301);
    drop(file);
    let ours = Manifest::of(root).unwrap();
    served.unmount();
    testkit::e2fsck(&image);
    let kernel = KernelMount::read_only(&image).unwrap();
    let theirs = Manifest::of(&kernel.path()).unwrap();
    let differences = ours.differences(&theirs);
    assert!(differences.is_empty(), "{differences}");
}

#[test]
fn a_file_without_names_lives_until_it_is_closed_and_no_longer() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let served = Served::start(&image, "");
    let root = served.path();
    let path = root.join("gone");
    let mut file = fs::File::options()
        .create_new(true)
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    fs::remove_file(&path).unwrap();
    for number in 0..50 {
        // Numbers of inodes that are free are given out again; that of the open file is not.
        fs::write(root.join(format!("f{number}")), [8; 5000]).unwrap();
    }
    let mut found = vec![0; 100_000];
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found.iter().all(|byte| *byte == 7));
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all(b"more").unwrap();
    drop(file);
    served.unmount();
    testkit::e2fsck(&image);
    let listed = lanefs().args(["ls"]).arg(&image).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&listed.stdout).lines().count(), 51);
}

#[test]
fn the_command_returns_when_the_directory_is_ready_or_says_why_not() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let place = folder.path().join("place");
    fs::create_dir(&place).unwrap();
    let mount = |image: &Path, options: &str| {
        let mut command = lanefs();
        command
            .args(["mount", "-o", options])
            .arg(image)
            .arg(&place);
        command.stdout(Stdio::piped()).output().unwrap()
    };
    let output = mount(&image, "rw");
    assert!(output.status.success(), "{}", said(&output));
    fs::write(place.join("x"), "x").unwrap();

    let mut twice = lanefs();
    twice.args(["mount", "-f"]).arg(&image).arg(folder.path());
    let twice = twice.output().unwrap();
    let text = said(&twice);
    assert_eq!(twice.status.code(), Some(32), "{text}");
    assert!(
        text.contains("in use") && text.contains("lanefs (process"),
        "{text}"
    );
    let bind = format!("mount --bind {} DIR", place.display());
    assert!(text.contains(&bind), "{text}");

    let busy = fs::File::open(place.join("x")).unwrap();
    let refused = lanefs().arg("umount").arg(&place).output().unwrap();
    assert_eq!(refused.status.code(), Some(32));
    assert!(said(&refused).contains("in use"), "{}", said(&refused));
    drop(busy);
    let output = lanefs().arg("umount").arg(&place).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    testkit::e2fsck(&image);

    let again = lanefs().arg("umount").arg(&place).output().unwrap();
    assert!(
        said(&again).contains("no image is mounted"),
        "{}",
        said(&again)
    );
    let wrong = mount(&image, "frobnicate");
    assert_eq!(wrong.status.code(), Some(1));
    assert!(said(&wrong).contains("frobnicate"), "{}", said(&wrong));
    let mut nowhere = lanefs();
    nowhere
        .arg("mount")
        .arg(&image)
        .arg(folder.path().join("none"));
    let nowhere = nowhere.output().unwrap();
    assert_eq!(nowhere.status.code(), Some(32), "{}", said(&nowhere));
    assert!(is_clean(&image));
    let missing = mount(&folder.path().join("none"), "ro");
    assert_eq!(missing.status.code(), Some(32), "{}", said(&missing));
}

#[test]
fn an_image_behind_a_loop_device_is_refused_under_any_name() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let other = folder.path().join("b.img");
    fs::hard_link(&image, &other).unwrap();
    let Ok(kernel) = KernelMount::read_only(&image) else {
        testkit::skip("no loop device");
        return;
    };
    let mut command = lanefs();
    let output = command.args(["mount", "-f"]).arg(&other).arg(folder.path());
    let output = output.output().unwrap();
    assert_eq!(output.status.code(), Some(32));
    assert!(
        said(&output).contains("attached to /dev/loop"),
        "{}",
        said(&output)
    );
    drop(kernel);
}

#[test]
fn a_signal_unmounts_and_leaves_a_clean_image() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    for signal in ["TERM", "INT"] {
        let mut served = Served::start(&image, "");
        fs::write(served.path().join(signal), signal).unwrap();
        let process = served.process().to_string();
        testkit::run("kill", &[&format!("-{signal}"), &process]);
        assert!(served.wait().success());
        testkit::e2fsck(&image);
        assert!(is_clean(&image));
    }
    let served = Served::start(&image, "ro");
    assert_eq!(
        fs::read_to_string(served.path().join("TERM")).unwrap(),
        "TERM"
    );
    let refused = fs::write(served.path().join("no"), "no").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    served.unmount();
}

#[test]
fn umount_follows_a_symbolic_link_to_the_directory() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let mut served = Served::start(&image, "");
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(served.path(), &link).unwrap();
    let output = lanefs().arg("umount").arg(&link).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(served.wait().success());
    assert!(is_clean(&image));
}

#[test]
fn users_are_held_to_their_permissions_and_acls() {
    if !can_mount() || !testkit::have("setpriv") || !testkit::have("setfacl") {
        testkit::skip("needs setpriv and setfacl");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let served = Served::start(&image, "allow_other");
    let root = served.path();
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    let secret = root.join("secret");
    fs::write(&secret, "secret").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let reads = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"]);
        command.arg(&secret).stderr(Stdio::null()).output().unwrap()
    };
    assert!(!reads().status.success());
    testkit::run("setfacl", &["-m", "u:65534:r", secret.to_str().unwrap()]);
    assert_eq!(reads().stdout, b"secret");
    let shared = root.join("shared");
    fs::create_dir(&shared).unwrap();
    testkit::run(
        "setfacl",
        &["-d", "-m", "u:65534:rw", shared.to_str().unwrap()],
    );
    fs::write(shared.join("child"), "").unwrap();
    let list = testkit::run(
        "getfacl",
        &["-n", "-p", shared.join("child").to_str().unwrap()],
    );
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(list.contains("user:65534:rw"), "{list}");
    served.unmount();
    testkit::e2fsck(&image);
    let mut text = String::new();
    fs::File::open("/proc/self/mountinfo")
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert!(!text.contains(image.to_str().unwrap()));
}

#[test]
fn flags_are_changed_and_heeded_and_default_acls_come_before_the_umask() {
    if !can_mount() || !testkit::have("chattr") || !testkit::have("setfacl") {
        testkit::skip("needs chattr and setfacl");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    for options in ["", "allow_other"] {
        let served = Served::start(&image, options);
        let file = served.path().join("file");
        fs::write(&file, "bytes").unwrap();
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).current_dir(served.path());
            let output = command.output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        assert!(shell("chattr +Ai file && lsattr file").contains("----i--A"));
        let refused = fs::remove_file(&file).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
        shell("chattr -i file && rm file");
        let modes = "mkdir d && setfacl -d -m u:7:rwx,m:rwx d && umask 077 && touch d/f plain && stat -c %a d/f plain";
        assert_eq!(shell(modes), "664\n600\n");
        shell("rm -r d plain");
        served.unmount();
        testkit::e2fsck(&image);
    }
}

/// In namespaces of its own: of mounts, where every user may open /dev/fuse, as on most systems, and where no other
/// test's mount is kept alive; and of processes, which all end with it.
const AS_NOBODY: &str = r#"
for other in $(grep -E " fuse(blk)?.lanefs " /proc/self/mountinfo | cut -d " " -f 5); do umount -l "$other"; done
mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse || exit 77
setpriv --reuid=65534 --regid=65534 --clear-groups timeout 20 sh -ec '
    "$LANEFS" mount a.img place
    echo text > place/file
    grep -q "$PWD/place rw,nosuid,nodev.* fuse.lanefs" /proc/self/mountinfo
    if "$LANEFS" mount a.img place; then exit 1; fi
    "$LANEFS" umount place
    "$LANEFS" mount -f a.img place & server=$!
    until grep -q "$PWD/place rw" /proc/self/mountinfo; do sleep 0.05; done
    test "$(cat place/file)" = text
    kill -TERM $server
    wait $server
'
"#;

#[test]
fn any_user_mounts_and_unmounts_through_fusermount3() {
    let programs = ["fusermount3", "unshare", "setpriv"];
    if !can_mount() || !programs.iter().all(|program| testkit::have(program)) {
        testkit::skip("needs fusermount3, unshare and setpriv");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let owner = ["-E", "root_owner=65534:65534"];
    let image = image(folder.path(), "a.img", SIZE, &owner);
    let place = folder.path().join("place");
    fs::create_dir(&place).unwrap();
    for path in [folder.path(), &image, &place] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
    }
    // The program may lie where others may not look.
    let program = folder.path().join("lanefs");
    testkit::copy_program(lanefs().get_program(), &program);
    let _guard = in_a_namespace();
    let output = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["sh", "-c", AS_NOBODY])
        .current_dir(folder.path())
        .env("LANEFS", &program)
        .output()
        .unwrap();
    if output.status.code() == Some(77) {
        testkit::skip("no namespace of our own with a /dev/fuse for everybody");
        return;
    }
    assert!(output.status.success(), "{}", said(&output));
    testkit::e2fsck(&image);
    assert!(is_clean(&image));
}

#[test]
fn files_that_grow_in_turns_on_a_mount_lie_in_few_pieces() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &["-b", "4096"]);
    let served = Served::start(&image, "");
    let names = ["one", "two", "three"];
    let mut files = names.map(|name| fs::File::create(served.path().join(name)).unwrap());
    for step in 0..100 {
        for file in &mut files {
            file.write_all(&[step; 4096]).unwrap();
        }
    }
    drop(files);
    served.unmount();
    testkit::e2fsck(&image);
    let info = lanefs()
        .args(["info", "--frag", "--json"])
        .arg(&image)
        .output();
    let info: serde_json::Value = serde_json::from_slice(&info.unwrap().stdout).unwrap();
    let ours = info["fragmentation"]["files"]["extents"].as_u64().unwrap();
    let kernel = KernelMount::read_only(&image).unwrap();
    let theirs = names.map(|name| {
        let path = kernel.path().join(name);
        let said = testkit::run("filefrag", &[path.to_str().unwrap()]);
        let said = String::from_utf8(said.stdout).unwrap();
        let count = said.rsplit(": ").next().unwrap().split(' ').next();
        count.unwrap().parse::<u64>().unwrap()
    });
    assert_eq!(theirs.iter().sum::<u64>(), ours, "{theirs:?}");
    assert!(theirs.iter().all(|count| *count <= 9), "{theirs:?}");
}

#[test]
fn option_check_repairs_before_the_mount_and_refuses_what_needs_a_decision() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let path = image.to_str().unwrap();
    let change = |commands: &[&str]| {
        for command in commands {
            testkit::debugfs(&["-w", "-R", command, path]);
        }
    };
    // Not marked clean, and a group's count is wrong.
    change(&[
        "set_bg 0 free_inodes_count 7",
        "set_bg 0 checksum calc",
        "ssv state 0",
    ]);
    Served::start(&image, "check").unmount();
    testkit::e2fsck(&image);
    change(&["sif <11> size 5000", "ssv state 0"]);
    let before = testkit::read_image(&image);
    let directory = folder.path().join("m");
    fs::create_dir(&directory).unwrap();
    // -o check runs check -p, which replays the journal and leaves the wrong size: its exit status is 5.
    testkit::debugfs_script(&image, "jo\njw -b 4000 /dev/zero\njc\n");
    let mut command = lanefs();
    command.args(["mount", "-o", "check"]).arg(&image);
    let output = command.arg(&directory).output().unwrap();
    assert_eq!(output.status.code(), Some(32), "{}", said(&output));
    assert!(
        said(&output).contains("lanefs check -y"),
        "{}",
        said(&output)
    );
    testkit::write_image(&image, &before);
    for options in ["check", "check,ro"] {
        let mut command = lanefs();
        command.args(["mount", "-o", options]).arg(&image);
        let output = command.arg(&directory).output().unwrap();
        assert_eq!(output.status.code(), Some(32), "{}", said(&output));
        assert!(
            said(&output).contains("the size is 5000"),
            "{}",
            said(&output)
        );
        assert!(
            said(&output).contains("lanefs check -y"),
            "{}",
            said(&output)
        );
        // With `check` the error flag is set, so that the next check -p does not take the image for clean; nothing else
        // changes.
        let after = testkit::read_image(&image);
        let is_same = |range: std::ops::Range<usize>| after[range.clone()] == before[range];
        assert!(is_same(0..1024) && is_same(2048..before.len()), "{options}");
        let has_flag = after[1024 + 58] & 2 != 0;
        assert_eq!(has_flag, options == "check", "{options}: s_state");
        testkit::write_image(&image, &before);
    }
}

/// Linux shows it where the inode has room for it.
#[test]
fn the_time_of_birth_is_what_the_kernel_shows_of_the_image() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (inode, has_birth) in [("256", true), ("128", false)] {
        let image = image(folder.path(), &format!("{inode}.img"), SIZE, &["-I", inode]);
        let births = |root: &Path| {
            ["", "d", "d/f", "link"].map(|name| {
                let metadata = fs::symlink_metadata(root.join(name)).unwrap();
                (
                    metadata.created().ok(),
                    metadata.size(),
                    metadata.mode(),
                    metadata.ctime_nsec(),
                )
            })
        };
        let served = Served::start(&image, "");
        let root = served.path();
        fs::create_dir(root.join("d")).unwrap();
        fs::write(root.join("d/f"), "some").unwrap();
        std::os::unix::fs::symlink("d", root.join("link")).unwrap();
        let path = root.join("d/f");
        let before = births(root);
        // The kernel keeps it; what else it knows must stay right beside it.
        fs::write(&path, "some more").unwrap();
        let ours = births(root);
        assert_eq!(ours[2].0, before[2].0);
        assert_eq!(ours[2].0.is_some(), has_birth);
        let said = testkit::run("stat", &["-c", "%W", path.to_str().unwrap()]);
        let said: u64 = String::from_utf8(said.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        assert_eq!(said > 0, has_birth);
        served.unmount();
        let kernel = KernelMount::read_only(&image).unwrap();
        assert_eq!(births(&kernel.path()), ours);
    }
}

#[test]
fn the_kernel_reads_far_ahead_on_a_mount_by_root() {
    if !can_mount() || !testkit::is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    for (options, suffix) in [("fuseblk", "-fuseblk"), ("nofuseblk", "")] {
        let served = Served::start(&image, options);
        let device = rustix::fs::stat(served.path()).unwrap().st_dev;
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let set = |name: &str| {
            let file = format!("/sys/class/bdi/{major}:{minor}{suffix}/{name}");
            fs::read_to_string(&file).unwrap().trim().to_owned()
        };
        assert_eq!(set("read_ahead_kb"), "1024", "{options}");
        assert_eq!(set("max_ratio"), "20", "{options}");
        served.unmount();
    }
}
