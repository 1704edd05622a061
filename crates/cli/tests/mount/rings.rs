//! Mounts over io_uring: they do the same as mounts that read their requests from /dev/fuse.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FlockOperation, StatxFlags, flock, statx};
use rustix::thread::{CpuSet, sched_setaffinity};
use testkit::{DiskState, FailingDisk};

use crate::served::{Served, can_mount, image, lanefs, said};

/// The parameter of the module fuse that turns FUSE over io_uring on.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
/// The longest time of an answer while other requests wait for the disk.
const SOON: Duration = Duration::from_millis(10);

/// Calls `start` with the parameter set to a value, then restores it; `None` if the kernel does not have the parameter.
fn with_parameter<T>(value: &str, start: impl FnOnce() -> T) -> Option<T> {
    let Ok(parameter) = File::open(PARAMETER) else {
        testkit::skip("needs FUSE over io_uring (Linux 6.14)");
        return None;
    };
    // Tests of other programs set it, too.
    flock(&parameter, FlockOperation::LockExclusive).unwrap();
    let before = fs::read_to_string(PARAMETER).unwrap();
    fs::write(PARAMETER, value).unwrap();
    let started = std::panic::catch_unwind(std::panic::AssertUnwindSafe(start));
    fs::write(PARAMETER, before.trim()).unwrap();
    Some(started.unwrap())
}

/// Mounts with the parameter set to a value, which is kept until a first request has been answered: the kernel reads it
/// again when the server answers INIT.
fn start_with(value: &str, image: &Path, options: &str) -> Option<Served> {
    with_parameter(value, || Served::start(image, options))
}

/// Mounts while the kernel offers FUSE over io_uring; `None` if it does not have it.
pub fn start(image: &Path, options: &str) -> Option<Served> {
    let for_all = std::env::var("LANEFS_MOUNT_OPTIONS");
    if for_all.is_ok_and(|options| options.contains("io_uring=on")) {
        // `cargo xtask suites uring` has set the parameter and holds its lock until all tests have ended.
        return Some(Served::start(image, options));
    }
    start_with("Y", image, options)
}

/// The names of a process's threads.
fn threads(process: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let name = |task: std::io::Result<fs::DirEntry>| {
        fs::read_to_string(task.unwrap().path().join("comm")).unwrap()
    };
    tasks.map(|task| name(task).trim().to_owned()).collect()
}

fn cpus() -> usize {
    std::thread::available_parallelism().unwrap().get()
}

/// Pins the calling thread to a CPU.
fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).unwrap();
}

/// The work of one client, in its own directory.
fn work(root: &Path, cpu: usize) {
    pin(cpu);
    let own = root.join(format!("cpu{cpu}"));
    fs::create_dir(&own).unwrap();
    // Too large for one request.
    let bytes: Vec<u8> = (0..3_000_001_u32)
        .map(|at| (at / 7 + cpu as u32) as u8)
        .collect();
    fs::write(own.join("large"), &bytes).unwrap();
    for number in 0..300 {
        let name = own.join(format!("{number}-{}", "x".repeat(100)));
        fs::write(&name, number.to_string()).unwrap();
        if number % 3 == 0 {
            fs::remove_file(&name).unwrap();
        }
    }
    std::os::unix::fs::symlink("large", own.join("link")).unwrap();
    rustix::fs::setxattr(
        own.join("large"),
        "user.a",
        &[9; 500],
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    let mut file = File::options().write(true).open(own.join("large")).unwrap();
    file.write_all(b"begin").unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read_dir(&own).unwrap().count(), 202);
    assert!(own.join("absent").metadata().is_err());
}

fn compare(root: &Path, cpu: usize) {
    let own = root.join(format!("cpu{cpu}"));
    let mut found = Vec::new();
    File::open(own.join("link"))
        .unwrap()
        .read_to_end(&mut found)
        .unwrap();
    assert!(found.starts_with(b"begin") && found.len() == 3_000_001);
    assert!((5..found.len()).all(|at| found[at] == (at / 7 + cpu) as u8));
    let mut value = [0; 500];
    let len = rustix::fs::getxattr(own.join("large"), "user.a", &mut value[..]).unwrap();
    assert_eq!((len, value), (500, [9; 500]));
    assert_eq!(fs::read_dir(&own).unwrap().count(), 202);
}

#[test]
fn requests_of_each_cpu_are_answered_by_its_queue() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 128 << 20, &[]);
    for options in [
        "io_uring=on",
        "io_uring=on,default_permissions,no_open,nofuseblk",
    ] {
        let Some(served) = start(&image, options) else {
            return;
        };
        let named = threads(served.process());
        for cpu in 0..cpus() {
            assert!(named.contains(&format!("lanefs-{cpu}")), "{named:?}");
        }
        std::thread::scope(|scope| {
            let root = served.path();
            (0..cpus()).for_each(|cpu| drop(scope.spawn(move || work(root, cpu))));
        });
        (0..cpus()).for_each(|cpu| compare(served.path(), cpu));
        served.unmount();
        testkit::e2fsck(&image);
        let served = start(&image, options).unwrap();
        (0..cpus()).for_each(|cpu| compare(served.path(), cpu));
        (0..cpus())
            .for_each(|cpu| fs::remove_dir_all(served.path().join(format!("cpu{cpu}"))).unwrap());
        served.unmount();
        testkit::e2fsck(&image);
    }
}

#[test]
fn a_mount_has_queues_where_it_asks_for_them_and_the_kernel_offers_them() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 64 << 20, &[]);
    // Without queues there are as many threads as with /dev/fuse, which is at least four.
    for (value, options, has_queues) in [
        ("Y", "", false),
        ("Y", "io_uring=auto", true),
        ("Y", "io_uring=off", false),
        ("Y", "io_uring=auto,threads=5", false),
        ("N", "io_uring=auto", false),
    ] {
        let Some(served) = start_with(value, &image, options) else {
            return;
        };
        // Gives the server time to start its other threads.
        fs::write(served.path().join("f"), "x").unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let named = threads(served.process());
        let workers = named.iter().filter(|name| {
            let number = name.strip_prefix("lanefs-");
            number.is_some_and(|number| number.parse::<usize>().is_ok())
        });
        let possible = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
        let is_of_queues = possible.trim() == format!("0-{}", workers.count() - 1);
        let mut tune = lanefs();
        let shown = tune.arg("tune").arg(served.path()).arg("transport");
        let shown = String::from_utf8(shown.output().unwrap().stdout).unwrap();
        let expected = match (has_queues, value) {
            (true, _) => "io_uring",
            (false, "N") => "/dev/fuse (no io_uring: the kernel does not offer it)",
            (false, _) => "/dev/fuse",
        };
        assert_eq!(shown.trim(), expected, "`{value}`, `{options}`");
        // A machine with four CPUs has four threads either way.
        if cpus() < 4 {
            assert_eq!(is_of_queues, has_queues, "`{options}`: {named:?}");
        }
        served.unmount();
    }
    let other = with_parameter("N", || {
        let mut command = lanefs();
        command.args(["mount", "-o", "io_uring=auto"]).arg(&image);
        command.arg(folder.path()).output().unwrap()
    });
    let other = said(&other.unwrap());
    assert!(
        other.contains("not over io_uring: the kernel does not offer it"),
        "{other}"
    );
    let umount = lanefs().arg("umount").arg(folder.path()).output().unwrap();
    assert!(umount.status.success(), "{}", said(&umount));
    let refused = with_parameter("N", || {
        let mut command = lanefs();
        command.args(["mount", "-o", "io_uring=on"]).arg(&image);
        command.arg(folder.path()).output().unwrap()
    });
    let refused = refused.unwrap();
    assert_eq!(refused.status.code(), Some(32));
    assert!(
        said(&refused).contains("enable_uring"),
        "{}",
        said(&refused)
    );
    testkit::e2fsck(&image);
}

/// Measures a statx(2) that the kernel passes on to the server.
fn asked(path: &Path) -> Duration {
    let begin = Instant::now();
    statx(
        CWD,
        path,
        AtFlags::STATX_FORCE_SYNC,
        StatxFlags::BASIC_STATS,
    )
    .unwrap();
    begin.elapsed()
}

fn answers_while_fsyncs_wait(served: &Served, disk: &FailingDisk, waiting: usize) {
    let root = served.path();
    let files: Vec<File> = (0..waiting)
        .map(|number| {
            let mut file = File::create_new(root.join(format!("f{number}"))).unwrap();
            file.write_all(b"new").unwrap();
            file
        })
        .collect();
    // From now on the attributes are in the server's memory.
    asked(root);
    disk.set(DiskState::Hangs);
    std::thread::scope(|scope| {
        let sync = |(number, file): (usize, &File)| {
            pin(number % cpus());
            file.sync_all().unwrap();
        };
        let files = files.iter().enumerate();
        let syncs: Vec<_> = files.map(|one| scope.spawn(move || sync(one))).collect();
        std::thread::sleep(Duration::from_millis(500));
        assert!(syncs.iter().all(|sync| !sync.is_finished()));
        for cpu in 0..cpus() {
            let least = scope.spawn(move || {
                pin(cpu);
                // The fastest counts: other programs of the machine delay some.
                (0..50).map(|_| asked(root)).min().unwrap()
            });
            let least = least.join().unwrap();
            assert!(least < SOON, "{least:?} on CPU {cpu}");
        }
        disk.set(DiskState::Works);
    });
}

#[test]
fn while_many_fsyncs_wait_for_the_disk_each_cpu_is_answered() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // Those that read /dev/fuse wait themselves where no more threads may be started to wait for them; queues never do.
    for (options, waiting) in [("io_uring=off", 64), ("io_uring=on", 100)] {
        let image = image(folder.path(), options, 32 << 20, &[]);
        let disk = FailingDisk::of(&image).unwrap();
        let Some(served) = start(&disk.path(), options) else {
            return;
        };
        answers_while_fsyncs_wait(&served, &disk, waiting);
        served.unmount();
    }
}

#[test]
fn a_server_that_is_killed_lets_its_clients_go() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 32 << 20, &[]);
    let disk = FailingDisk::of(&image).unwrap();
    let Some(served) = start(&disk.path(), "io_uring=on") else {
        return;
    };
    let mut file = File::create_new(served.path().join("f")).unwrap();
    file.write_all(b"new").unwrap();
    disk.set(DiskState::Hangs);
    let root = served.path().to_owned();
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| file.sync_all().is_err());
        std::thread::sleep(Duration::from_millis(300));
        assert!(!sync.is_finished());
        let pid = rustix::process::Pid::from_raw(served.process() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        // A thread of the server waits for the disk in the kernel, and ends only when the disk answers.
        disk.set(DiskState::Works);
        let begin = Instant::now();
        while !sync.is_finished() {
            assert!(begin.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(sync.join().unwrap());
    });
    assert!(root.join("f").metadata().is_err());
    served.kill();
}

#[test]
fn a_server_that_may_lock_no_memory_uses_dev_fuse_and_says_so() {
    if !can_mount() || !testkit::is_root() || !testkit::have("setpriv") || !testkit::have("prlimit")
    {
        return testkit::skip("needs root, setpriv and prlimit");
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 64 << 20, &[]);
    let command = || {
        let mut command = Command::new("prlimit");
        command.args(["--memlock=0:0", "setpriv", "--bounding-set=-ipc_lock"]);
        command.arg(lanefs().get_program());
        command
    };
    let served = with_parameter("Y", || {
        Served::start_by(command(), &image, "io_uring=auto,nofuseblk")
    });
    let Some(served) = served else { return };
    let mut tune = lanefs();
    let shown = tune.arg("tune").arg(served.path()).arg("transport");
    let shown = String::from_utf8(shown.output().unwrap().stdout).unwrap();
    // Kernels that do not count rings as locked memory have one.
    let is_as_expected = shown.trim() == "io_uring" || shown.contains("limit of locked memory");
    assert!(is_as_expected, "{shown}");
    fs::write(served.path().join("f"), "x").unwrap();
    served.unmount();
}

#[test]
fn a_mount_over_io_uring_shows_that_among_its_options() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 64 << 20, &[]);
    let Some(served) = start(&image, "io_uring=on,default_permissions,nofuseblk") else {
        return;
    };
    let shown = |name: &str| {
        let mut tune = lanefs();
        let output = tune.arg("tune").arg(served.path()).arg(name).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    assert_eq!(shown("transport").trim(), "io_uring");
    // One for each possible CPU.
    assert!(shown("threads").trim().parse::<usize>().unwrap() >= cpus());
    assert!(shown("idle_commit").contains("last change"));
    assert!(shown("options").contains("default_permissions"));
    served.unmount();
}
