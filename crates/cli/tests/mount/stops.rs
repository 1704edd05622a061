//! A mount that stops accepting changes reports it when it happens, when it is asked, and when it is unmounted.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::{DiskState, FailingDisk};

use crate::served::{Served, can_mount, image, in_a_namespace, lanefs, said};

const PATIENCE: Duration = Duration::from_secs(30);

/// A small tmpfs: the disk under a sparse image, which fills up before the image does.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(size: &str) -> SmallDisk {
        let place = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let path = place.path().to_str().unwrap();
        testkit::run("mount", &["-t", "tmpfs", "-o", &options, "tmpfs", path]);
        SmallDisk(place)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// A mount in the foreground whose messages go to a file.
struct Watched {
    server: Child,
    place: tempfile::TempDir,
    messages: PathBuf,
}

impl Watched {
    fn start(image: &Path, messages: PathBuf, options: &str) -> Watched {
        let place = tempfile::tempdir().unwrap();
        let file = fs::File::create(&messages).unwrap();
        let mut command = lanefs();
        command.args(["mount", "-f", "-o", options]).arg(image);
        let server = command.arg(place.path()).stderr(file).spawn().unwrap();
        let watched = Watched {
            server,
            place,
            messages,
        };
        let wanted = format!(" {} ", watched.place.path().display());
        until(|| {
            fs::read_to_string("/proc/self/mountinfo")
                .unwrap()
                .contains(&wanted)
        });
        watched
    }

    fn messages(&self) -> String {
        fs::read_to_string(&self.messages).unwrap()
    }

    fn state(&self) -> String {
        let mut tune = lanefs();
        let output = tune
            .arg("tune")
            .arg(self.place.path())
            .arg("state")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// The stop is shown with a cause by the server, when asked, and by `umount`.
    fn check_stopped(mut self, image: &Path, cause: &str) {
        until(|| self.messages().contains("stopped accepting changes at "));
        assert!(self.messages().contains(cause), "{}", self.messages());
        assert!(self.messages().contains(image.to_str().unwrap()));
        let state = self.state();
        assert!(
            state.starts_with("stopped accepting changes at "),
            "{state}"
        );
        assert!(state.contains(cause), "{state}");
        let refused = fs::write(self.place.path().join("refused"), "").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(30), "EROFS");
        let umount = lanefs()
            .arg("umount")
            .arg(self.place.path())
            .output()
            .unwrap();
        assert_eq!(umount.status.code(), Some(32), "{umount:?}");
        let text = said(&umount);
        assert!(
            text.contains(cause) && text.contains("before then are lost"),
            "{text}"
        );
        self.server.wait().unwrap();
        // Once, however many changes were refused.
        assert_eq!(self.messages().matches("stopped accepting").count(), 1);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.place.path())
            .stderr(Stdio::null())
            .status();
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn until(is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Writes until the disk beneath is full and a commit has failed.
fn fill(directory: &Path) {
    let mut file = fs::File::create(directory.join("large")).unwrap();
    let block = vec![7; 1 << 20];
    while file.write_all(&block).is_ok() {}
    for number in 0..2000 {
        let Ok(file) = fs::File::create(directory.join(format!("f{number}"))) else {
            return;
        };
        if file.sync_all().is_err() {
            return;
        }
    }
}

#[test]
fn a_full_disk_under_the_image_stops_the_mount_which_says_so() {
    if !can_mount() {
        return;
    }
    for options in [&[][..], &["-O", "^has_journal"]] {
        let disk = SmallDisk::new("24M");
        let folder = tempfile::tempdir().unwrap();
        let image = image(disk.0.path(), "a.img", 1 << 30, options);
        let watched = Watched::start(&image, folder.path().join("messages"), "commit=1");
        assert_eq!(watched.state(), "writing");
        fill(watched.place.path());
        watched.check_stopped(&image, "No space left on device");
    }
}

/// An image whose directory `d` is garbage.
fn corrupt(folder: &Path) -> PathBuf {
    let image = image(folder, "a.img", 64 << 20, &["-b", "4096"]);
    let path = image.to_str().unwrap();
    testkit::debugfs(&["-w", "-R", "mkdir d", path]);
    let blocks = testkit::debugfs(&["-R", "blocks /d", path]);
    let block: u64 = String::from_utf8_lossy(&blocks.stdout)
        .trim()
        .parse()
        .unwrap();
    let file = fs::File::options().write(true).open(&image).unwrap();
    file.write_all_at(&[0xa5; 4096], block * 4096).unwrap();
    image
}

#[test]
fn corruption_stops_the_mount_where_it_is_to_which_says_so() {
    if !can_mount() {
        return;
    }
    for errors in ["remount-ro", "panic"] {
        let folder = tempfile::tempdir().unwrap();
        let image = corrupt(folder.path());
        let options = format!("errors={errors}");
        let watched = Watched::start(&image, folder.path().join("messages"), &options);
        fs::read_dir(watched.place.path().join("d"))
            .unwrap()
            .for_each(drop);
        watched.check_stopped(&image, "directory");
    }
    let folder = tempfile::tempdir().unwrap();
    let image = corrupt(folder.path());
    let watched = Watched::start(&image, folder.path().join("messages"), "errors=continue");
    fs::read_dir(watched.place.path().join("d"))
        .unwrap()
        .for_each(drop);
    fs::write(watched.place.path().join("f"), "").unwrap();
    assert_eq!(watched.state(), "writing");
}

#[test]
fn a_mount_to_be_read_only_says_that() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 64 << 20, &[]);
    let watched = Watched::start(&image, folder.path().join("messages"), "ro");
    assert_eq!(watched.state(), "read-only");
}

#[test]
fn a_disk_that_fails_to_write_stops_the_mount_which_says_so() {
    if !can_mount() {
        return;
    }
    for (writes, options) in [(0, &[][..]), (40, &[]), (10, &["-O", "^has_journal"])] {
        let folder = tempfile::tempdir().unwrap();
        let disk = image(folder.path(), "disk.img", 24 << 20, options);
        let disk = FailingDisk::of(&disk).unwrap();
        let image = disk.path();
        let watched = Watched::start(&image, folder.path().join("messages"), "commit=1");
        fs::write(watched.place.path().join("kept"), "kept").unwrap();
        fs::File::open(watched.place.path().join("kept"))
            .unwrap()
            .sync_all()
            .unwrap();
        disk.fail_after(writes);
        fill(watched.place.path());
        watched.check_stopped(&image, "Input/output error");
        // Nothing that was synced is lost, once the disk works again.
        disk.set(DiskState::Works);
        if options.is_empty() {
            let served = Served::start(&image, "");
            let kept = fs::read(served.path().join("kept")).unwrap();
            assert_eq!(kept, b"kept");
            served.unmount();
            let copy = folder.path().join("copy.img");
            testkit::write_image(&copy, &disk.bytes());
            testkit::e2fsck(&copy);
        }
    }
}

/// In a mount namespace with a system's log of its own: a mount in the background stops, and writes that to the log.
const BACKGROUND: &str = "
set -e
mount --make-rprivate /
mkdir -p $T/dev/shm $T/disk $T/mnt
for name in fuse null urandom zero; do touch $T/dev/$name; mount --bind /dev/$name $T/dev/$name; done
mount --bind /dev/shm $T/dev/shm
mount --rbind $T/dev /dev
mount -t tmpfs -o size=24M tmpfs $T/disk
python3 -c 'import socket, sys
log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
log.bind(\"/dev/log\")
out = open(sys.argv[1], \"ab\", 0)
while True: out.write(log.recv(65536) + b\"\\n\")' $T/log & log=$!
trap 'kill $log; umount -l $T/mnt || true' EXIT
while ! [ -S /dev/log ]; do sleep 0.05; done
truncate -s 1G $T/disk/i
mke2fs -q -F -t ext4 $T/disk/i
$L mount -o commit=1 $T/disk/i $T/mnt
dd if=/dev/zero of=$T/mnt/z bs=1M count=300 2>/dev/null || true
for at in $(seq 100); do
    echo >$T/mnt/f$at || true
    sync $T/mnt/f$at || true
    if grep -q stopped $T/log; then break; fi
    sleep 0.1
done
$L umount $T/mnt && exit 9 || [ $? = 32 ]
sleep 0.3
";

#[test]
fn a_mount_in_the_background_tells_the_systems_log_that_it_stopped() {
    if !can_mount() {
        return;
    }
    if !testkit::have("python3") || !testkit::have("unshare") {
        return testkit::skip("needs python3 and unshare");
    }
    let folder = tempfile::tempdir().unwrap();
    let _guard = in_a_namespace();
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", BACKGROUND])
        .env("T", folder.path())
        .env("L", lanefs().get_program())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    // Facility 3 (daemon), severity 3 (error).
    let line = log
        .lines()
        .find(|line| line.contains("stopped accepting changes"));
    let line = line.unwrap_or_else(|| panic!("{log}"));
    assert!(
        line.starts_with("<27>") && line.contains(" lanefs["),
        "{line}"
    );
    assert!(line.contains("No space left on device"), "{line}");
}
