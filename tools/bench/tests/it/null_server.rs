//! The server without an image, over both transports: what workloads do on it, and its end.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

/// Whether the kernel offers FUSE over io_uring, to be read and set.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
const PATIENCE: Duration = Duration::from_secs(30);
const FILES: u64 = 50;

fn null_server() -> Command {
    testkit::heed_signals();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lanefs-bench"));
    command.arg("null-server");
    command
}

/// A server that is killed, and whose directory is unmounted, whatever the test does.
struct Served(Child, tempfile::TempDir);

impl Served {
    fn start(options: &str) -> Served {
        let directory = tempfile::tempdir().unwrap();
        let words = ["-o", options, "--tree", "2,3,5000", "--stream", "1000000"];
        let server = null_server().arg(directory.path()).args(words).spawn();
        let mut served = Served(server.unwrap(), directory);
        let begin = Instant::now();
        let wanted = format!(" {} ", served.1.path().display());
        while !fs::read_to_string("/proc/self/mountinfo")
            .unwrap()
            .contains(&wanted)
        {
            assert_eq!(served.0.try_wait().unwrap(), None);
            assert!(begin.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(5));
        }
        served
    }

    fn unmount(mut self) {
        testkit::run("umount", &[self.1.path().to_str().unwrap()]);
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let mut umount = Command::new("umount");
        let umount = umount.arg("-l").arg(self.1.path());
        let _ = umount.stderr(std::process::Stdio::null()).status();
    }
}

/// What the server counted of a kind of message.
fn counted(root: &Path, kind: &str) -> u64 {
    let mut counters = vec![0; 1 << 16];
    let len = rustix::fs::getxattr(root, "lanefs.counters", &mut counters[..]).unwrap();
    let text = String::from_utf8(counters[..len].to_vec()).unwrap();
    let name = format!("messages.{kind} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap_or("0").parse().unwrap()
}

fn work(root: &Path) {
    assert_eq!(fs::read(root.join("d1/f2")).unwrap(), vec![0; 5000]);
    assert_eq!(fs::read(root.join("stream")).unwrap().len(), 1_000_000);
    fs::create_dir(root.join("own")).unwrap();
    let name = |number: u64| root.join(format!("own/{number}"));
    for number in 0..FILES {
        fs::write(name(number), vec![1; 10_240]).unwrap();
        assert_eq!(name(number).metadata().unwrap().len(), 10_240);
    }
    assert_eq!(counted(root, "create"), FILES);
    assert_eq!(
        fs::read_dir(root.join("own")).unwrap().count() as u64,
        FILES
    );
    fs::rename(name(1), name(2)).unwrap();
    std::os::unix::fs::symlink("0", root.join("own/link")).unwrap();
    assert_eq!(
        fs::read_link(root.join("own/link")).unwrap(),
        Path::new("0")
    );
    File::open(name(0)).unwrap().sync_all().unwrap();
    assert!(fs::remove_dir(root.join("own")).is_err());
    fs::remove_dir_all(root.join("own")).unwrap();
    assert!(root.join("own").metadata().is_err());
}

fn can_mount() -> bool {
    let device = File::options().read(true).write(true).open("/dev/fuse");
    let can = testkit::is_root() && device.is_ok();
    if !can {
        testkit::skip("mounting needs root and /dev/fuse");
    }
    can
}

#[test]
fn the_null_server_serves_by_dev_fuse() {
    if !can_mount() {
        return;
    }
    for options in ["io_uring=off", "default_permissions,no_open"] {
        let served = Served::start(options);
        work(served.1.path());
        served.unmount();
    }
}

#[test]
fn the_null_server_serves_by_io_uring() {
    if !can_mount() {
        return;
    }
    let Ok(parameter) = File::open(PARAMETER) else {
        return testkit::skip("needs FUSE over io_uring (Linux 6.14)");
    };
    // Tests of other programs set it, too.
    flock(&parameter, FlockOperation::LockExclusive).unwrap();
    let before = fs::read_to_string(PARAMETER).unwrap();
    fs::write(PARAMETER, "Y").unwrap();
    let served = std::panic::catch_unwind(|| {
        let served = Served::start("io_uring=on");
        // The kernel reads it once more when the server answers INIT.
        fs::metadata(served.1.path()).unwrap();
        served
    });
    fs::write(PARAMETER, before.trim()).unwrap();
    drop(parameter);
    let served = served.unwrap();
    work(served.1.path());
    served.unmount();
}

#[test]
fn a_null_server_that_can_not_be_had_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("absent");
    for (words, status, said) in [
        (vec!["-o", "magic"], 2, "expected default_permissions"),
        (vec!["--tree", "1,2"], 2, "three numbers"),
        (vec![], 1, "No such file"),
    ] {
        let output = null_server().arg(&absent).args(words).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{text}");
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn mounts_are_measured_beside_each_other() {
    if !can_mount() || !testkit::have("mke2fs") || !testkit::have("git") {
        return testkit::skip("measuring mounts needs root, mke2fs and git");
    }
    testkit::heed_signals();
    let words = "mounts --rounds 1 --scale 0.0005 --json";
    let mut bench = Command::new(env!("CARGO_BIN_EXE_lanefs-bench"));
    let output = bench.args(words.split(' ')).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if error.contains("MiB of memory") {
        return testkit::skip("measuring mounts needs 2 GiB in /dev/shm");
    }
    assert!(output.status.success(), "{error}");
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let tables = value["bench"]["benches"][0]["tables"].as_array().unwrap();
    let keys: Vec<_> = tables
        .iter()
        .map(|table| table["key"].as_str().unwrap())
        .collect();
    assert_eq!(keys, ["mounts", "mounts-trees", "mounts-goals"]);
    let columns = tables[0]["columns"].as_array().unwrap();
    let place = |label: &str| columns.iter().position(|column| column["label"] == label);
    for row in tables[0]["rows"].as_array().unwrap() {
        for column in [place("kernel").unwrap(), place("null").unwrap()] {
            let value = &row["cells"][column]["samples"][0]["value"];
            assert!(value.as_f64() > Some(0.0), "{row}");
        }
    }
}
