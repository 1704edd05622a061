//! A server that is stopped for a while, and one whose clock is set: nothing is lost, and nothing waits for a time that
//! does not come. The clock is moved for the server alone, by a library in front of libc.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use crate::served::{Served, can_mount, image, lanefs};

const SOURCE: &str = include_str!("clock.c");
const SIZE: u64 = 64 << 20;
const DAY: i64 = 86_400;
/// How far the clock is set, in turns: forward, back to before the mount, and to the present.
const JUMPS: [i64; 3] = [3650 * DAY, -400 * DAY, 0];
/// How long a commit may take to come.
const PATIENCE: Duration = Duration::from_secs(20);

/// A clock for servers, which tests set.
struct Clock {
    library: PathBuf,
    offset: PathBuf,
}

impl Clock {
    /// Builds the library in a folder; `None` if that can't be done here, which is reported.
    fn new(folder: &Path) -> Option<Clock> {
        if !testkit::have("cc") {
            testkit::skip("needs cc");
            return None;
        }
        let source = folder.join("clock.c");
        fs::write(&source, SOURCE).unwrap();
        let clock = Clock {
            library: folder.join("clock.so"),
            offset: folder.join("offset"),
        };
        let mut cc = Command::new("cc");
        let cc = cc.args(["-shared", "-fPIC", "-o"]).arg(&clock.library);
        assert!(cc.arg(&source).arg("-ldl").status().unwrap().success());
        clock.set(0);
        Some(clock)
    }

    fn set(&self, seconds: i64) {
        // In one step, so that no program reads half of it.
        let new = self.offset.with_extension("new");
        fs::write(&new, seconds.to_string()).unwrap();
        fs::rename(&new, &self.offset).unwrap();
    }

    /// The program with this clock.
    fn given(&self, mut command: Command) -> Command {
        command.env("LD_PRELOAD", &self.library);
        command.env("LANEFS_TEST_CLOCK", &self.offset);
        command
    }
}

/// How many seconds a file's time of change is after the host's time.
fn ahead(path: &Path) -> i64 {
    let changed = std::os::unix::fs::MetadataExt::ctime(&fs::metadata(path).unwrap());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    changed - now.unwrap().as_secs() as i64
}

/// Whether a copy of the image, as a crash would leave it now, has a file with these bytes.
fn crash_leaves(image: &Path, name: &str, bytes: &[u8]) -> bool {
    let copy = image.with_extension("crashed");
    let (from, to) = (image.to_str().unwrap(), copy.to_str().unwrap());
    testkit::run("cp", &["--sparse=always", from, to]);
    let mounted = testkit::KernelMount::with(&copy, "loop").unwrap();
    fs::read(mounted.path().join(name)).is_ok_and(|found| found == bytes)
}

#[test]
fn a_clock_that_is_set_changes_times_of_files_and_delays_no_commit() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(clock) = Clock::new(folder.path()) else {
        return;
    };
    for (name, options) in [("a.img", "commit=1"), ("b.img", "nofuseblk")] {
        clock.set(0);
        let image = image(folder.path(), name, SIZE, &[]);
        let mut served = Served::start_by(clock.given(lanefs()), &image, options);
        for jump in JUMPS {
            clock.set(jump);
            let name = format!("at{jump}");
            let path = served.path().join(&name);
            let begin = Instant::now();
            let mut file = File::create(&path).unwrap();
            file.write_all(name.as_bytes()).unwrap();
            file.sync_all().unwrap();
            drop(file);
            assert!(begin.elapsed() < Duration::from_secs(5), "{name}");
            let off = ahead(&path) - jump;
            assert!((-60..=60).contains(&off), "{name}: {off} s");
            // Committed by the interval, or because nothing follows it.
            let later = format!("later{jump}");
            fs::write(served.path().join(&later), &name).unwrap();
            let begin = Instant::now();
            while !crash_leaves(&image, &later, name.as_bytes()) {
                assert!(begin.elapsed() < PATIENCE, "{options}: {jump}");
                std::thread::sleep(Duration::from_millis(300));
            }
        }
        // The time that a signal leaves to open files is measured by another clock.
        clock.set(-400 * DAY);
        let open = File::open(served.path().join("at0")).unwrap();
        let begin = Instant::now();
        testkit::run("kill", &["-TERM", &served.process().to_string()]);
        std::thread::sleep(Duration::from_secs(1));
        clock.set(0);
        served.wait();
        assert!(begin.elapsed() < Duration::from_secs(30));
        drop(open);
        testkit::e2fsck(&image);
        let again = Served::start(&image, "");
        for jump in JUMPS {
            let name = format!("at{jump}");
            let found = fs::read(again.path().join(&name)).unwrap();
            assert_eq!(found, name.as_bytes());
        }
        again.unmount();
    }
}

/// Continues a server that a test has stopped, when dropped.
struct Stopped(String);

impl Stopped {
    fn new(served: &Served) -> Stopped {
        let process = served.process().to_string();
        testkit::run("kill", &["-STOP", &process]);
        Stopped(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-CONT", &self.0]).status();
    }
}

#[test]
fn a_server_that_was_stopped_goes_on_and_one_that_stays_stopped_can_be_killed() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let promised = folder.path().join("promised");
    // A writer that syncs each file under its last name, and notes it then; it ends with the first error.
    let write = |served: &Served, from: u32, to: u32| {
        let script = format!(
            "set -e; for i in $(seq {from} {to}); do echo $i > new; mv new $i; sync $i .; echo $i >> $0; done"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(&promised);
        command.current_dir(served.path()).spawn().unwrap()
    };
    let is_kept = |served: &Served| {
        let names = fs::read_to_string(&promised).unwrap();
        assert!(names.lines().count() > 3, "{names}");
        for name in names.lines() {
            let found = fs::read_to_string(served.path().join(name)).unwrap();
            assert_eq!(found.trim(), name);
        }
    };
    for options in ["commit=1", "commit=1,nofuseblk"] {
        let mut served = Served::start(&image, options);
        if served.is_over_ring() {
            testkit::skip("a server with io_uring is not stopped");
            return served.unmount();
        }
        let mut writer = write(&served, 1, 400);
        std::thread::sleep(Duration::from_millis(200));
        let stopped = Stopped::new(&served);
        std::thread::sleep(Duration::from_secs(3));
        assert!(writer.try_wait().unwrap().is_none(), "it does not wait");
        // What comes while it is stopped takes effect later.
        testkit::run("kill", &["-TERM", &served.process().to_string()]);
        std::thread::sleep(Duration::from_millis(300));
        assert!(served.poll().unwrap().is_none());
        drop(stopped);
        // The signal waits until the writer is done or ten seconds are over.
        writer.wait().unwrap();
        served.wait();
        testkit::e2fsck(&image);
        let served = Served::start(&image, options);
        is_kept(&served);
        // Killed while it is stopped: programs that wait get an error.
        let mut writer = write(&served, 1000, 9000);
        std::thread::sleep(Duration::from_millis(300));
        let stopped = Stopped::new(&served);
        std::thread::sleep(Duration::from_millis(300));
        served.kill();
        drop(stopped);
        let begin = Instant::now();
        assert!(!writer.wait().unwrap().success());
        assert!(begin.elapsed() < Duration::from_secs(5));
        let served = Served::start(&image, options);
        is_kept(&served);
        served.unmount();
        testkit::e2fsck(&image);
    }
}
