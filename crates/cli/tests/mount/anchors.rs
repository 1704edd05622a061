//! A mount by root has a block device for the kernel: sync(1) reaches the server, umount(8) returns when the image is
//! clean, and a server that is killed leaves nothing that keeps others from the image.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use testkit::{KernelMount, LoopDevice};

use crate::served::{
    Served, can_mount, image, in_a_namespace, lanefs, said, unmount_by_the_system,
    without_namespaces,
};

const SIZE: u64 = 64 << 20;
/// Options of a mount whose server is stopped while other processes use a file on it as their device. With these
/// options, unlike over io_uring, those processes can be killed meanwhile.
const STOPPABLE: &str = "nofuseblk,io_uring=off";
/// Nothing is committed by itself while a test runs.
const NO_COMMITS: &str = "commit=300";
/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(40);
/// Far less than the commit interval.
const SOON: Duration = Duration::from_secs(4);

/// Whether the host has loop devices.
fn can_anchor() -> bool {
    if !can_mount() {
        return false;
    }
    if !Path::new("/dev/loop-control").exists() {
        testkit::skip("needs loop devices");
        return false;
    }
    true
}

fn is_clean(image: &Path) -> bool {
    let header = testkit::dumpe2fs(&["-h", image.to_str().unwrap()]);
    !String::from_utf8_lossy(&header.stdout).contains("needs_recovery")
}

/// Whether the server has not ended; it has no program any more once it has.
fn is_running(served: &Served) -> bool {
    fs::read_link(format!("/proc/{}/exe", served.process())).is_ok()
}

fn until(is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// `lanefs mount IMAGE DIRECTORY` in the background.
fn mount(image: &Path, directory: &Path) -> Output {
    let mut mount = lanefs();
    let mount = mount.arg("mount").arg(image).arg(directory);
    mount.output().unwrap()
}

fn output_of(program: &str, arguments: &[&str]) -> String {
    let output = testkit::run(program, arguments);
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What `lanefs tune DIR sync` says.
fn sync_of(served: &Served) -> String {
    let mut tune = lanefs();
    let output = tune.arg("tune").arg(served.path()).arg("sync").output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// How many loop devices stand for bytes of an image.
fn loop_devices(image: &Path) -> usize {
    let list = output_of("losetup", &["-n", "-O", "NAME", "-j", text(image)]);
    list.lines().count()
}

fn write_many(root: &Path) {
    fs::create_dir(root.join("d")).unwrap();
    for number in 0..200 {
        let bytes = vec![number; 1000 + usize::from(number) * 100];
        fs::write(root.join(format!("d/f{number}")), bytes).unwrap();
    }
    fs::rename(root.join("d/f3"), root.join("moved")).unwrap();
    fs::remove_file(root.join("d/f4")).unwrap();
    fs::hard_link(root.join("d/f5"), root.join("linked")).unwrap();
}

fn check_many(root: &Path) {
    assert_eq!(fs::read_dir(root.join("d")).unwrap().count(), 198);
    for number in (0..200).filter(|number| ![3, 4].contains(number)) {
        let found = fs::read(root.join(format!("d/f{number}"))).unwrap();
        assert!(found == vec![number; 1000 + usize::from(number) * 100]);
    }
    assert_eq!(fs::read(root.join("moved")).unwrap(), vec![3; 1300]);
    assert_eq!(fs::metadata(root.join("linked")).unwrap().nlink(), 2);
}

#[test]
fn what_sync_was_called_after_is_there_when_the_server_is_killed() {
    if !can_anchor() {
        return;
    }
    for way in ["sync -f", "syncfs"] {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path(), "a.img", SIZE, &[]);
        let served = Served::start(&image, NO_COMMITS);
        assert!(sync_of(&served).contains("all"), "{}", sync_of(&served));
        write_many(served.path());
        match way {
            "syncfs" => rustix::fs::syncfs(File::open(served.path()).unwrap()).unwrap(),
            _ => drop(testkit::run(
                "sync",
                &["-f", text(&served.path().join("moved"))],
            )),
        }
        fs::write(served.path().join("later"), "later").unwrap();
        served.kill();
        // The kernel replays the journal.
        let kernel = KernelMount::with(&image, "loop").unwrap();
        check_many(&kernel.path());
        drop(kernel);
        testkit::e2fsck(&image);
    }
}

#[test]
fn umount_returns_when_the_image_is_clean() {
    if !can_anchor() {
        return;
    }
    let _guard = without_namespaces();
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    for lazily in [false, true] {
        let mut served = Served::start(&image, NO_COMMITS);
        let root = served.path().to_owned();
        let open = lazily.then(|| File::create(root.join("open")).unwrap());
        fs::write(root.join("file"), [7; 100_000]).unwrap();
        match open {
            Some(mut open) => {
                testkit::run("umount", &["-l", text(&root)]);
                open.write_all(b"after").unwrap();
                assert!(is_running(&served));
                drop(open);
                // The last file is closed after the call that closes it has returned.
                served.wait();
            }
            None => unmount_by_the_system(&root),
        }
        assert!(is_clean(&image), "{lazily}");
        testkit::e2fsck(&image);
        assert!(served.wait().success());
        assert_eq!(loop_devices(&image), 0);
    }
    let kernel = KernelMount::read_only(&image).unwrap();
    assert_eq!(fs::read(kernel.path().join("open")).unwrap(), b"after");
}

#[test]
fn a_server_that_is_killed_keeps_nobody_from_the_image_and_its_mount_is_named() {
    if !can_anchor() {
        return;
    }
    let _guard = without_namespaces();
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let place = folder.path().join("place");
    let other = folder.path().join("other");
    for directory in [&place, &other] {
        fs::create_dir(directory).unwrap();
    }
    let mut server = lanefs();
    server.args(["mount", "-f"]).arg(&image).arg(&place);
    let mut server = server.spawn().unwrap();
    until(|| {
        let mut mountpoint = Command::new("mountpoint");
        mountpoint.arg("-q").arg(&place).status().unwrap().success()
    });
    assert_eq!(
        output_of("findmnt", &["-no", "FSTYPE", text(&place)]),
        "fuseblk.lanefs"
    );
    assert_eq!(loop_devices(&image), 1);
    fs::write(place.join("file"), "synced").unwrap();
    File::open(place.join("file")).unwrap().sync_all().unwrap();
    let refused = lanefs().arg("ls").arg(&image).output().unwrap();
    assert!(!refused.status.success());
    let reason = said(&refused);
    assert!(
        reason.contains(&format!("has it mounted on {}", place.display())),
        "{reason}"
    );
    server.kill().unwrap();
    server.wait().unwrap();
    // The mount is dead, its block device is there, and neither changes the image.
    assert_eq!(loop_devices(&image), 1);
    let shown = lanefs().arg("ls").arg(&image).output().unwrap();
    assert!(shown.status.success(), "{}", said(&shown));
    let umount = format!("umount {}", place.display());
    let again = mount(&image, &place);
    assert_eq!(again.status.code(), Some(32));
    assert!(said(&again).contains(&umount), "{}", said(&again));
    let beside = mount(&image, &other);
    assert!(beside.status.success(), "{}", said(&beside));
    assert!(said(&beside).contains(&umount), "{}", said(&beside));
    assert_eq!(fs::read(other.join("file")).unwrap(), b"synced");
    unmount_by_the_system(&place);
    unmount_by_the_system(&other);
    assert!(is_clean(&image));
    testkit::e2fsck(&image);
    until(|| loop_devices(&image) == 0);
}

/// A server that is stopped until this is dropped.
struct Stopped(String);

impl Stopped {
    /// Returns when all its threads have stopped, so that none has a request that it would leave half answered.
    fn new(served: &Served) -> Stopped {
        let stopped = Stopped(served.process().to_string());
        testkit::run("kill", &["-STOP", &stopped.0]);
        until(|| stopped.has_stopped());
        stopped
    }

    fn has_stopped(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.0)).unwrap();
        let mut states = threads.map(|thread| {
            let status = thread.unwrap().path().join("status");
            fs::read_to_string(status).unwrap_or_default()
        });
        states.all(|status| status.contains("State:\tT"))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        testkit::run("kill", &["-CONT", &self.0]);
    }
}

/// The image lies on a mount whose server is stopped: no read or write of it is ever answered.
#[test]
fn an_unmount_ends_although_the_images_device_never_answers() {
    if !can_anchor() {
        return;
    }
    // While another process waits for this file system in sync(2), the kernel does not begin to unmount it.
    let is_shown = (0..3).any(|_| ends_unanswered());
    assert!(is_shown, "umount did not end");
}

/// Unmounts an image whose device never answers; returns whether the unmount ended in time.
fn ends_unanswered() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let outer = image(folder.path(), "outer.img", 4 * SIZE, &[]);
    // With a block device, a close would wait for the stopped server, too.
    let disk = Served::start(&outer, STOPPABLE);
    let inner = image(disk.path(), "inner.img", SIZE, &[]);
    let mut served = Served::start(&inner, "commit=300,destroy_timeout=2");
    fs::write(served.path().join("synced"), "synced").unwrap();
    rustix::fs::syncfs(File::open(served.path()).unwrap()).unwrap();
    fs::write(served.path().join("file"), [1; 300_000]).unwrap();
    let stopped = Stopped::new(&disk);
    let begin = Instant::now();
    let mut umount = Command::new("umount").arg(served.path()).spawn().unwrap();
    while umount.try_wait().unwrap().is_none() && begin.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(20));
    }
    let took = begin.elapsed();
    if took >= PATIENCE {
        drop(stopped);
        assert!(umount.wait().unwrap().success());
        served.wait();
        disk.unmount();
        return false;
    }
    let status = served.wait();
    drop(stopped);
    assert!(umount.wait().unwrap().success());
    assert!(took >= Duration::from_secs(2), "{took:?}");
    assert_eq!(status.code(), Some(1));
    // It is as a crash leaves it.
    assert!(!is_clean(&inner));
    let again = Served::start(&inner, "");
    assert_eq!(fs::read(again.path().join("synced")).unwrap(), b"synced");
    again.unmount();
    testkit::e2fsck(&inner);
    disk.unmount();
    testkit::e2fsck(&outer);
    true
}

#[test]
fn a_server_that_is_killed_while_it_unmounts_ends() {
    if !can_anchor() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let outer = image(folder.path(), "outer.img", 4 * SIZE, &[]);
    // With a block device, a close would wait for the stopped server, too.
    let disk = Served::start(&outer, STOPPABLE);
    let inner = image(disk.path(), "inner.img", SIZE, &[]);
    let mut served = Served::start(&inner, NO_COMMITS);
    fs::write(served.path().join("file"), [1; 300_000]).unwrap();
    let stopped = Stopped::new(&disk);
    let server = served.process().to_string();
    // It unmounts, and waits for its own answer to that.
    testkit::run("kill", &["-TERM", &server]);
    std::thread::sleep(Duration::from_millis(500));
    testkit::run("kill", &["-KILL", &server]);
    let begin = Instant::now();
    served.wait();
    assert!(begin.elapsed() < Duration::from_secs(20));
    drop(stopped);
    let again = Served::start(&inner, "");
    again.unmount();
    testkit::e2fsck(&inner);
    disk.unmount();
}

#[test]
fn a_mount_in_another_namespace_keeps_the_image_open_until_that_is_gone() {
    if !can_anchor() || !testkit::have("unshare") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let mut served = Served::start(&image, NO_COMMITS);
    fs::write(served.path().join("file"), "file").unwrap();
    let _guard = in_a_namespace();
    let mut unshare = Command::new("unshare");
    let arguments = [
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        "echo; read x",
    ];
    let unshare = unshare.args(arguments).stdin(Stdio::piped());
    let mut namespace = unshare.stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0];
    let mut out = namespace.stdout.take().unwrap();
    std::io::Read::read_exact(&mut out, &mut ready).unwrap();
    unmount_by_the_system(served.path());
    assert!(is_running(&served));
    drop(namespace.stdin.take());
    namespace.wait().unwrap();
    assert!(served.wait().success());
    assert!(is_clean(&image));
    testkit::e2fsck(&image);
}

#[test]
fn without_a_block_device_changes_are_committed_when_nothing_follows_them() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let served = Served::start(&image, "nofuseblk");
    let said = sync_of(&served);
    assert!(
        said.contains("fsync only") && said.contains("nofuseblk"),
        "{said}"
    );
    write_many(served.path());
    // Before the commit interval has passed, which begins with the first change.
    std::thread::sleep(SOON - Duration::from_secs(1));
    served.kill();
    let kernel = KernelMount::with(&image, "loop").unwrap();
    check_many(&kernel.path());
    drop(kernel);
    testkit::e2fsck(&image);
}

#[test]
fn a_block_device_that_was_asked_for_is_there_or_the_mount_fails() {
    if !can_anchor() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    for options in ["fuseblk", "fuseblk,ro"] {
        let served = Served::start(&image, options);
        assert!(sync_of(&served).contains("all"));
        served.unmount();
    }
    // A namespace without loop devices, like that of a container. /dev/shm stays, because the image may be there.
    let script = r#"mkdir shm && mount --bind /dev/shm shm && mount -t tmpfs none /dev && mkdir /dev/shm &&
        mount --bind shm /dev/shm && cd "$PWD" && mknod /dev/fuse c 10 229 && mknod /dev/null c 1 3 || exit 77
        "$LANEFS" mount -o fuseblk a.img place && exit 1
        "$LANEFS" mount a.img place && "$LANEFS" tune place sync && "$LANEFS" umount place"#;
    fs::create_dir(folder.path().join("place")).unwrap();
    let _guard = in_a_namespace();
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .env("LANEFS", lanefs().get_program())
        .current_dir(folder.path())
        .output()
        .unwrap();
    if output.status.code() == Some(77) {
        testkit::skip("no namespace of our own");
        return;
    }
    let (out, reason) = (String::from_utf8_lossy(&output.stdout), said(&output));
    assert!(output.status.success(), "{reason}");
    assert!(out.contains("fsync only"), "{out}");
    assert!(
        reason.contains("fuseblk") && reason.contains("sync(1) does not reach"),
        "{reason}"
    );
    assert!(is_clean(&image));
}

/// With the helpers of mount(8) in a namespace of our own.
const FSTAB: &str = r#"
    mount -t overlay none -o "lowerdir=$PWD/sbin:/usr/sbin" /usr/sbin || exit 77
    for round in 1 2; do
        mount -a -T fstab
        for place in one two three; do test "$(findmnt -no FSTYPE -M "$PWD/$place")" = fuseblk.lanefs; done
    done
    test $(losetup -n -O NAME -j one.img | wc -l) = 1
    umount one
    umount two
    if FSTAB_FILE=fstab fsck -T -A -t fuseblk.lanefs; then exit 1; fi
    umount three
    FSTAB_FILE=fstab fsck -T -A -t fuseblk.lanefs | grep -q 'three.img: 11/'
    mount -t lanefs -o ro,noload one.img one && umount one
    mount -s -t lanefs -o rw,frobnicate one.img one && echo text > one/file && umount one
    mount -f -t lanefs one.img one && ! mountpoint -q one
    if mount -t lanefs -o nosiud one.img one 2> refused; then exit 1; fi
    grep -q 'did you mean `nosuid`' refused
"#;

#[test]
fn a_line_of_fstab_is_mounted_once() {
    if !can_anchor() || !testkit::have("unshare") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let images =
        ["one.img", "two.img", "three.img"].map(|name| image(folder.path(), name, SIZE, &[]));
    for name in ["sbin", "one", "two", "three"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    for name in [
        "mount.lanefs",
        "mount.fuse.lanefs",
        "mount.fuseblk.lanefs",
        "fsck.fuseblk.lanefs",
    ] {
        let link = folder.path().join("sbin").join(name);
        // Only the program itself knows by which name it was called; `lanefs()` may be a script with options.
        let program = assert_cmd::cargo::cargo_bin!("lanefs");
        std::os::unix::fs::symlink(program, link).unwrap();
    }
    let here = text(folder.path());
    let options = "rw,nofail,auto,_netdev,x-systemd.automount,commit=9";
    let lines = [
        format!("{here}/one.img {here}/one fuse.lanefs {options} 0 0\n"),
        format!("{here}/two.img {here}/two lanefs defaults 0 0\n"),
        format!("{here}/three.img {here}/three fuseblk.lanefs acl,barrier=1,data=ordered 0 2\n"),
    ];
    fs::write(folder.path().join("fstab"), lines.concat()).unwrap();
    let _guard = in_a_namespace();
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-ec", FSTAB])
        .current_dir(folder.path())
        .output()
        .unwrap();
    if output.status.code() == Some(77) {
        testkit::skip("no overlayfs");
        return;
    }
    assert!(output.status.success(), "{}", said(&output));
    for image in &images {
        assert!(is_clean(image));
        testkit::e2fsck(image);
    }
}

#[test]
fn an_image_and_a_directory_are_mounted_as_mount_fuse_asks_for_it() {
    if !can_anchor() {
        return;
    }
    let _guard = without_namespaces();
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let place = folder.path().join("place");
    fs::create_dir(&place).unwrap();
    let mut mount = lanefs();
    let mount = mount.args([&image, &place]).args(["-o", "rw,dev,suid"]);
    let output = mount.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    fs::write(place.join("file"), "file").unwrap();
    unmount_by_the_system(&place);
    assert!(is_clean(&image));
}

/// Whether the kernel refuses to open a block device exclusively.
fn is_claimed(device: &Path) -> bool {
    let flags = rustix::fs::OFlags::EXCL.bits().cast_signed();
    let opened = File::options().read(true).custom_flags(flags).open(device);
    opened.is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy)
}

#[test]
fn a_block_device_is_the_source_of_its_mount() {
    if !can_anchor() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let device = LoopDevice::over(&image, &[]).unwrap();
    let path = device.path();
    let mut served = Served::start(path, "");
    let found = output_of("findmnt", &["-no", "TARGET", "-S", text(path)]);
    assert_eq!(found, text(served.path()));
    assert_eq!(loop_devices(&image), 1);
    assert!(sync_of(&served).contains("all"));
    fs::write(served.path().join("file"), vec![7; 3_000_000]).unwrap();
    testkit::run("sync", &["-f", text(served.path())]);
    // The kernel holds it for the mount, and the server has its lock.
    assert!(is_claimed(path));
    for command in ["ls", "info"] {
        let refused = lanefs().arg(command).arg(path).output().unwrap();
        assert!(said(&refused).contains("in use"), "{}", said(&refused));
    }
    unmount_by_the_system(path);
    // Tests that make namespaces of mounts keep the mount until these end.
    assert!(served.wait().success());
    assert!(is_clean(&image));
    until(|| !is_claimed(path));
    testkit::e2fsck(path);

    // With other readers, and where the kernel has to give the mount another device.
    for options in ["ro", "nofuseblk"] {
        let served = Served::start(path, options);
        assert_eq!(
            fs::read(served.path().join("file")).unwrap(),
            vec![7; 3_000_000]
        );
        let mut found = Command::new("findmnt");
        let found = found
            .args(["-t", "fuseblk.lanefs", "-S"])
            .arg(path)
            .output();
        assert!(found.unwrap().stdout.is_empty(), "{options}");
        served.unmount();
        until(|| !is_claimed(path));
    }

    // A mount whose server was killed keeps the device until it is unmounted, and is named.
    let mut dead = Served::start(path, "");
    fs::write(dead.path().join("more"), "more").unwrap();
    testkit::run("sync", &["-f", text(dead.path())]);
    testkit::run("kill", &["-KILL", &dead.process().to_string()]);
    dead.wait();
    let place = folder.path().join("place");
    fs::create_dir(&place).unwrap();
    let refused = mount(path, &place);
    assert_eq!(refused.status.code(), Some(32));
    let umount = format!("umount {}", dead.path().display());
    assert!(said(&refused).contains(&umount), "{}", said(&refused));
    unmount_by_the_system(dead.path());
    until(|| !is_claimed(path));
    let served = Served::start(path, "");
    assert_eq!(fs::read(served.path().join("more")).unwrap(), b"more");
    served.unmount();
    testkit::e2fsck(path);
}
