//! Which processes may use an image at the same time, what can't be written to, and what umount reports of an image
//! that is not clean.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use testkit::{KernelMount, LoopDevice};

use crate::served::{Served, can_mount, image, lanefs, said};

const SIZE: u64 = 64 << 20;
/// How long an unmount may find the mount in use.
const PATIENCE: Duration = Duration::from_secs(20);

fn mount(image: &Path, options: &str, place: &Path) -> Output {
    let mut command = lanefs();
    command.args(["mount", "-o", options]).arg(image).arg(place);
    command.stdout(Stdio::piped()).output().unwrap()
}

fn umount(place: &Path) -> Output {
    lanefs().arg("umount").arg(place).output().unwrap()
}

/// Unmounts, which must go well. Programs of other tests that look at all mounts hold this one for a moment.
fn unmount(place: &Path) {
    let begin = Instant::now();
    loop {
        let output = umount(place);
        if output.status.success() {
            return;
        }
        let is_passing = said(&output).contains("is in use") && begin.elapsed() < PATIENCE;
        assert!(is_passing, "{}", said(&output));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn those_who_only_read_share_an_image_and_nobody_else_does() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    {
        let Ok(kernel) = KernelMount::with(&image, "loop") else {
            return testkit::skip("no loop device");
        };
        fs::write(kernel.path().join("x"), "x").unwrap();
    }
    let places = ["one", "two", "three"].map(|name| folder.path().join(name));
    for place in &places {
        fs::create_dir(place).unwrap();
    }
    let [one, two, three] = &places;
    let refused = |options: &str| {
        let output = mount(&image, options, three);
        assert_eq!(output.status.code(), Some(32), "{}", said(&output));
        assert!(said(&output).contains("in use"), "{}", said(&output));
    };
    for place in [one, two] {
        let output = mount(&image, "ro", place);
        assert!(output.status.success(), "{}", said(&output));
    }
    refused("rw");
    // To read is still allowed, by commands too; to change is not.
    let listed = lanefs().arg("ls").arg(&image).output().unwrap();
    assert!(listed.status.success(), "{}", said(&listed));
    let mut touch = lanefs();
    let touched = touch.arg("touch").arg(format!("{}:/y", image.display()));
    let touched = touched.output().unwrap();
    assert_eq!(touched.status.code(), Some(1), "{}", said(&touched));
    for place in [one, two] {
        assert_eq!(fs::read(place.join("x")).unwrap(), b"x");
        let written = fs::write(place.join("y"), "y").unwrap_err();
        assert_eq!(written.raw_os_error(), Some(30));
        assert!(umount(place).status.success());
    }
    let output = mount(&image, "rw", one);
    assert!(output.status.success(), "{}", said(&output));
    refused("rw");
    refused("ro");
    assert!(umount(one).status.success());
    testkit::e2fsck(&image);
}

#[test]
fn a_reader_of_a_dirty_image_leaves_it_so_and_umount_is_content() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let served = Served::start(&image, "");
    let file = fs::File::create(served.path().join("x")).unwrap();
    file.sync_all().unwrap();
    drop(file);
    served.kill();
    let before = testkit::read_image(&image);
    let place = folder.path().join("place");
    fs::create_dir(&place).unwrap();
    let output = mount(&image, "ro", &place);
    assert!(output.status.success(), "{}", said(&output));
    assert!(place.join("x").exists());
    let output = umount(&place);
    assert!(output.status.success(), "{}", said(&output));
    assert!(testkit::read_image(&image) == before);
    // Without its journal it can't be written to.
    let output = mount(&image, "noload", &place);
    assert_eq!(output.status.code(), Some(32));
    assert!(
        said(&output).contains("must be replayed"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_clean_image_is_mounted_without_its_journal() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let served = Served::start(&image, "noload");
    fs::write(served.path().join("x"), "x").unwrap();
    served.unmount();
    testkit::e2fsck(&image);
    // Killed, it is e2fsck's.
    let served = Served::start(&image, "noload");
    fs::write(served.path().join("y"), "y").unwrap();
    served.kill();
    let output = mount(&image, "rw", folder.path());
    assert_eq!(output.status.code(), Some(32));
    assert!(said(&output).contains("e2fsck"), "{}", said(&output));
}

#[test]
fn umount_of_one_of_two_directories_of_a_mount_does_not_wait_for_the_other() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let bound = folder.path().join("bound");
    fs::create_dir(&bound).unwrap();
    for (options, first_goes) in [("", false), ("", true), ("nofuseblk", false)] {
        let mut served = Served::start(&image, options);
        let first = served.path().to_owned();
        testkit::run(
            "mount",
            &["--bind", first.to_str().unwrap(), bound.to_str().unwrap()],
        );
        let (going, staying) = if first_goes {
            (&first, &bound)
        } else {
            (&bound, &first)
        };
        let mut command = Command::new("timeout");
        command
            .arg("10")
            .arg(lanefs().get_program())
            .args(["umount"]);
        let output = command.arg(going).output().unwrap();
        // Only one is at its directory still, whatever the command said.
        fs::write(staying.join("x"), options).unwrap();
        let last = umount(staying);
        assert!(output.status.success(), "{}", said(&output));
        let note = format!("is still mounted at {}", staying.display());
        assert!(said(&output).contains(&note), "{}", said(&output));
        assert!(last.status.success(), "{}", said(&last));
        assert!(served.wait().success());
        testkit::e2fsck(&image);
    }
}

#[test]
fn umount_tries_again_while_a_program_uses_the_mount_for_a_moment() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let mut served = Served::start(&image, "");
    let open = fs::File::create(served.path().join("x")).unwrap();
    let output = umount(served.path());
    assert_eq!(output.status.code(), Some(32), "{}", said(&output));
    assert!(said(&output).contains("is in use"), "{}", said(&output));
    let place = served.path().to_owned();
    let unmounting = std::thread::spawn(move || umount(&place));
    std::thread::sleep(Duration::from_millis(200));
    drop(open);
    let output = unmounting.join().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(served.wait().success());
    testkit::e2fsck(&image);
}

#[test]
fn umount_leaves_what_another_program_mounts_while_it_tries_again() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image_of = |name| image(folder.path(), name, SIZE, &[]);
    let (first, second) = (image_of("a.img"), image_of("b.img"));
    let mut served = Served::start(&first, "");
    let place = served.path().to_owned();
    let open = fs::File::create(place.join("x")).unwrap();
    let unmounting = std::thread::spawn({
        let place = place.clone();
        move || umount(&place)
    });
    std::thread::sleep(Duration::from_millis(200));
    let detached = Command::new("umount").arg("-l").arg(&place).output();
    assert!(detached.unwrap().status.success());
    let mounted = mount(&second, "rw", &place);
    assert!(mounted.status.success(), "{}", said(&mounted));
    drop(open);
    let output = unmounting.join().unwrap();
    let is_there = place.join("lost+found").exists();
    let last = umount(&place);
    assert!(output.status.success(), "{}", said(&output));
    assert!(is_there && last.status.success(), "{}", said(&last));
    assert!(served.wait().success());
    testkit::e2fsck(&first);
}

/// Tries to change the image on a loop device.
fn touch(device: &LoopDevice) -> Output {
    let mut touch = lanefs();
    let touch = touch
        .arg("touch")
        .arg(format!("{}:/touched", device.name()));
    touch.output().unwrap()
}

#[test]
fn a_device_that_refuses_writes_is_named_and_mounted_to_be_read() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let Ok(device) = LoopDevice::over(&image, &["-r"]) else {
        return testkit::skip("no loop device");
    };
    let output = touch(&device);
    assert_eq!(output.status.code(), Some(1));
    let text = said(&output);
    assert!(text.contains("is a read-only block device"), "{text}");
    assert!(text.contains("--setrw"), "{text}");
    let place = folder.path().join("place");
    fs::create_dir(&place).unwrap();
    let output = mount(device.path(), "rw", &place);
    assert!(output.status.success(), "{}", said(&output));
    assert!(
        said(&output).contains("mounted read-only"),
        "{}",
        said(&output)
    );
    unmount(&place);
}

#[test]
fn a_read_only_mount_reports_the_forms_that_it_does_not_use() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let place = folder.path().join("place");
    fs::create_dir(&place).unwrap();
    let reported = |options: &str| {
        let output = mount(&image, options, &place);
        let text = said(&output);
        assert!(output.status.success(), "{options}: {text}");
        unmount(&place);
        text
    };
    let text = reported("ro,inode_lookup=locked");
    let expected = "inode_lookup=locked has no effect on a read-only mount";
    assert!(text.contains(expected), "{text}");
    let text = reported("ro,orphan=list,inode_lookup=locked");
    let expected = "orphan=list,inode_lookup=locked has no effect on a read-only mount";
    assert!(text.contains(expected), "{text}");
    for options in ["ro", "inode_lookup=locked"] {
        let text = reported(options);
        assert!(!text.contains("has no effect"), "{options}: {text}");
    }
}

#[test]
fn an_image_in_use_is_in_use_through_loop_devices_too() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let refused = |output: Output, why: &str| {
        let text = said(&output);
        assert!(!output.status.success(), "{text}");
        assert!(text.contains("in use") && text.contains(why), "{text}");
    };
    // The file is mounted by lanefs, and a device is made of it then.
    let served = Served::start(&image, "rw");
    let Ok(one) = LoopDevice::over(&image, &[]) else {
        served.unmount();
        return testkit::skip("no loop device");
    };
    refused(touch(&one), "lanefs");
    let listed = lanefs().arg("ls").arg(one.path()).output().unwrap();
    refused(listed, "");
    served.unmount();
    // No other process uses it now.
    let output = touch(&one);
    assert!(output.status.success(), "{}", said(&output));
    // Two devices on the same bytes, one of them mounted by lanefs, then by the kernel.
    let served = Served::start(one.path(), "rw");
    let two = LoopDevice::over(&image, &[]).unwrap();
    refused(touch(&two), "");
    served.unmount();
    {
        let _kernel = KernelMount::with(one.path(), "rw").unwrap();
        refused(touch(&two), one.name());
    }
    drop(two);
    // Other bytes are another image.
    let beyond = fs::File::options().write(true).open(&image).unwrap();
    beyond.set_len(2 * SIZE).unwrap();
    drop(beyond);
    let behind = SIZE.to_string();
    let two = LoopDevice::over(&image, &["-o", &behind]).unwrap();
    drop(one);
    let one = LoopDevice::over(&image, &["--sizelimit", &behind]).unwrap();
    testkit::mke2fs(&["-t", "ext4", two.name()]);
    for device in [&one, &two] {
        let output = touch(device);
        assert!(output.status.success(), "{}", said(&output));
        testkit::e2fsck(device.path());
    }
}

#[test]
fn an_image_with_features_that_are_only_read_is_mounted_to_be_read() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("place");
    fs::create_dir(&place).unwrap();
    let kinds = [
        ("quota", ["-O", "quota"]),
        ("bigalloc", ["-O", "bigalloc"]),
        ("Hurd", ["-o", "hurd"]),
    ];
    for (named, options) in kinds {
        let image = image(folder.path(), "a.img", SIZE, &options);
        let before = testkit::read_image(&image);
        let output = mount(&image, "noatime", &place);
        let text = said(&output);
        assert!(output.status.success(), "{named}: {text}");
        assert!(
            text.contains(named) && text.contains("mounted read-only"),
            "{text}"
        );
        assert!(place.join("lost+found").exists());
        let refused = fs::write(place.join("x"), "x").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        unmount(&place);
        assert!(testkit::read_image(&image) == before, "{named}");
    }
}

/// The error about an image that may not be written to says so, and not that it is unreadable.
#[test]
fn a_file_that_may_not_be_written_to_is_told_from_one_that_may_not_be_read() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let place = folder.path().join("place");
    fs::create_dir(&place).unwrap();
    let mount = |options: &[&str]| {
        Command::new("mount")
            .args(options)
            .arg(&place)
            .status()
            .unwrap()
            .success()
    };
    assert!(mount(&["--bind", folder.path().to_str().unwrap()]));
    let is_bound = mount(&["-o", "remount,bind,ro"]);
    let bound = place.join("a.img");
    let mut touch = lanefs();
    let output = touch.arg("touch").arg(format!("{}:/y", bound.display()));
    let output = output.output().unwrap();
    assert!(
        Command::new("umount")
            .arg(&place)
            .status()
            .unwrap()
            .success()
    );
    assert!(is_bound);
    drop(image);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("mounted read-only: work on a copy"), "{text}");
}

/// The image lies on a file system that is full, so that what is committed can't be written home.
#[test]
fn umount_fails_where_the_image_could_not_be_written_home() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let small = folder.path().join("small");
    fs::create_dir(&small).unwrap();
    let tmpfs = [
        "-t",
        "tmpfs",
        "-o",
        "size=12m",
        "tmpfs",
        small.to_str().unwrap(),
    ];
    testkit::run("mount", &tmpfs);
    let outcome = std::panic::catch_unwind(|| {
        let image = image(&small, "a.img", 256 << 20, &["-J", "size=4"]);
        let served = Served::start(&image, "");
        // What is left on the host goes.
        let mut filler = fs::File::create(small.join("filler")).unwrap();
        while std::io::Write::write_all(&mut filler, &[1; 4096]).is_ok() {}
        let directory = served.path();
        let mut results = Vec::new();
        for number in 0..400 {
            let made = fs::create_dir(directory.join(number.to_string()));
            results.push(made);
        }
        assert!(results.iter().any(Result::is_ok));
        let output = umount(directory);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(32), "{text}");
        assert!(
            text.contains("not everything could be written home"),
            "{text}"
        );
        drop(served);
        fs::remove_file(small.join("filler")).unwrap();
        // What was committed can be read from a copy with more room.
        let copy = image.with_file_name("b.img");
        fs::rename(&image, &copy).unwrap();
        let output = testkit::e2fsck_with(&["-fy"], &copy);
        assert!(
            output.status.code().is_some_and(|code| code <= 1),
            "{output:?}"
        );
    });
    testkit::run("umount", &["-l", small.to_str().unwrap()]);
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// The error for a user without the right to do it, by the file's mode and what else is closed.
#[test]
fn a_user_who_may_not_is_told_why_and_nothing_that_is_not_so() {
    if !can_mount() || !testkit::have("setpriv") {
        return testkit::skip("needs setpriv");
    }
    use std::os::unix::fs::{PermissionsExt, chown};
    let folder = tempfile::tempdir().unwrap();
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode(folder.path(), 0o755);
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let place = folder.path().join("place");
    fs::create_dir(&place).unwrap();
    chown(&place, Some(65534), Some(65534)).unwrap();
    // The program may lie where others may not look.
    let program = folder.path().join("lanefs");
    testkit::copy_program(lanefs().get_program(), &program);
    let told = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        let output = command.arg(&program).args(words).output().unwrap();
        (output.status.code(), said(&output))
    };
    let (file, at) = (image.to_str().unwrap(), place.to_str().unwrap());
    for words in [
        &["mount", file, at][..],
        &["mount", "-o", "ro", file, at],
        &["ls", file],
    ] {
        let status = Some(if words[0] == "mount" { 32 } else { 1 });
        let fails = |reason: &str| {
            let (code, text) = told(words);
            assert_eq!(code, status, "{words:?}: {text}");
            assert!(text.contains(reason), "{words:?}: {text}");
            let first = text.lines().next().unwrap();
            assert!(first.contains("Permission denied"), "{words:?}: {text}");
            assert!(!text.contains("may only be read"), "{words:?}: {text}");
        };
        set_mode(&image, 0o000);
        fails("you may not read it: ask its owner");
        chown(&image, Some(65534), Some(65534)).unwrap();
        fails(&format!("chmod u+rw {file}"));
        chown(&image, Some(0), Some(0)).unwrap();
        set_mode(&image, 0o644);
        set_mode(folder.path(), 0o711);
        let closed = folder.path().join("closed");
        fs::create_dir(&closed).unwrap();
        set_mode(&closed, 0o700);
        let (code, text) = told(&["ls", closed.join("a.img").to_str().unwrap()]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("a folder on the way to it"), "{text}");
        fs::remove_dir(&closed).unwrap();
    }
    // It may be read, but the mount itself may be refused: only a mounted image is reported as mounted.
    let (code, text) = told(&["mount", file, at]);
    let is_said = text.contains("may only be read, so it is mounted read-only");
    assert_eq!(is_said, code == Some(0), "{text}");
    if code == Some(0) {
        unmount(&place);
    } else {
        assert!(text.contains("hint:"), "{text}");
    }
}
