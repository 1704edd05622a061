//! How many messages the kernel sends for an operation, and that a mount which nobody uses does nothing.
//!
//! docs/mount.md has the same table.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::stat;

use crate::served::{Served, can_mount, image};

/// How often each operation is done.
const COUNT: usize = 100;
/// How long a server may take until it polls.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of each file.
const BYTES: usize = 10_240;
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/mount.md");

/// Does an operation `COUNT` times in a directory that the mount has.
type Work = fn(&Path);

/// An operation; what it is counted without; the most messages with no option, with `default_permissions`, and with
/// `no_open`; and the kinds of the first number.
struct Row(&'static str, Work, [u64; 3], &'static str);

const ROWS: &[Row] = &[
    Row(
        "create, close and unlink a file",
        |dir| {
            for number in 0..COUNT {
                let path = dir.join(format!("pair{number}"));
                drop(File::create_new(&path).unwrap());
                fs::remove_file(path).unwrap();
            }
        },
        [5, 7, 4],
        "LOOKUP, CREATE, RELEASE, UNLINK, FORGET",
    ),
    Row(
        "untar a file of 10 KiB",
        |dir| {
            let archive = dir.parent().unwrap().join("files.tar");
            let (archive, dir) = (archive.to_str().unwrap(), dir.to_str().unwrap());
            testkit::run("tar", &["-xf", archive, "-C", dir]);
        },
        [11, 12, 10],
        "LOOKUP, CREATE, up to 3 WRITE, 2 GETXATTR, 3 SETATTR, RELEASE",
    ),
    Row(
        "stat a file that the kernel knows",
        |dir| each(dir, |path| assert!(stat(path).is_ok())),
        [0, 0, 0],
        "",
    ),
    Row(
        "ask such a file's time of birth (stat(1))",
        |dir| {
            each(dir, |path| {
                assert!(path.metadata().unwrap().created().is_ok())
            })
        },
        [1, 1, 1],
        "STATX",
    ),
    Row(
        "append 4 bytes to an open file",
        |dir| {
            let path = dir.join("f0");
            let mut file = File::options().append(true).open(path).unwrap();
            (0..COUNT).for_each(|_| file.write_all(b"abcd").unwrap());
        },
        [1, 1, 1],
        "WRITE",
    ),
    Row(
        "list a directory a second time",
        |dir| {
            let list = || fs::read_dir(dir).unwrap().count();
            assert!((0..COUNT).all(|_| list() >= COUNT));
        },
        [0, 0, 0],
        "",
    ),
    Row(
        "look for a name that does not exist, a second time",
        |dir| {
            let absent = dir.join("absent");
            assert!((0..COUNT).all(|_| !absent.exists()));
        },
        [0, 0, 0],
        "",
    ),
    Row(
        "read a symbolic link a second time",
        |dir| {
            let link = dir.join("link");
            (0..COUNT).for_each(|_| assert!(fs::read_link(&link).is_ok()));
        },
        [0, 0, 0],
        "",
    ),
];

/// After another mount of the image.
const COLD: &[Row] = &[
    Row(
        "stat a file that the kernel does not know",
        |dir| each(dir, |path| assert!(stat(path).is_ok())),
        [1, 1, 1],
        "LOOKUP",
    ),
    Row(
        "open, read and close a file of 10 KiB",
        |dir| {
            let mut bytes = vec![0; BYTES];
            each(dir, |path| {
                File::open(path).unwrap().read_exact(&mut bytes).unwrap();
            });
        },
        [3, 3, 1],
        "OPEN, READ, RELEASE",
    ),
    Row(
        "open, read and close it again",
        |dir| {
            let mut bytes = vec![0; BYTES];
            each(dir, |path| {
                File::open(path).unwrap().read_exact(&mut bytes).unwrap();
            });
        },
        [2, 2, 0],
        "OPEN, RELEASE",
    ),
];

fn each(dir: &Path, mut work: impl FnMut(&Path)) {
    (0..COUNT).for_each(|number| work(&dir.join(format!("f{number}"))));
}

/// What was sent since the mount, by kind. Asking is one GETXATTR, and sometimes another message.
fn sent(root: &Path) -> BTreeMap<String, u64> {
    counted(root, "messages.")
}

/// The counters of the mount whose names begin with `prefix`, by the rest of the name.
fn counted(root: &Path, prefix: &str) -> BTreeMap<String, u64> {
    let mut value = vec![0; 1 << 16];
    let len = rustix::fs::getxattr(root, "lanefs.counters", &mut value[..]).unwrap();
    let text = std::str::from_utf8(&value[..len]).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
    let counted = lines.filter_map(|line| line.split_once(' '));
    counted
        .map(|(name, count)| (name.to_owned(), count.parse().unwrap()))
        .collect()
}

/// The messages of one operation on the average, after some were done that count as the beginning.
fn measured(root: &Path, work: impl FnOnce()) -> (f64, String) {
    let before = sent(root);
    let asking: u64 = {
        let now = sent(root);
        now.values().sum::<u64>() - before.values().sum::<u64>()
    };
    let before = sent(root);
    work();
    let after = sent(root);
    let more: BTreeMap<_, _> = after
        .iter()
        .map(|(name, count)| (name, count - before[name]))
        .filter(|(_, count)| *count > 0)
        .collect();
    let sum = more.values().sum::<u64>() - asking;
    (sum as f64 / COUNT as f64, format!("{more:?}"))
}

fn archive(folder: &Path) -> std::path::PathBuf {
    let source = folder.join("source");
    fs::create_dir(&source).unwrap();
    for number in 0..COUNT {
        fs::write(source.join(format!("f{number}")), vec![7; BYTES]).unwrap();
    }
    let path = folder.join("files.tar");
    let (path_text, source) = (path.to_str().unwrap(), source.to_str().unwrap());
    testkit::run("tar", &["-cf", path_text, "-C", source, "."]);
    path
}

fn verify(root: &Path, rows: &[Row], column: usize, option: &str) {
    let dir = root.join("dir");
    for Row(name, work, most, _) in rows {
        let (found, kinds) = measured(root, || work(&dir));
        // What is done once for all is less than a tenth of a message.
        let most = most[column] as f64 + 0.1;
        assert!(found <= most, "`{option}`: {name}: {found}, {kinds}");
        // The table says no more than there is.
        assert!(found > most - 1.1, "`{option}`: {name}: {found}, {kinds}");
    }
}

#[test]
fn an_operation_takes_as_many_messages_as_the_manual_says() {
    if !can_mount() {
        return;
    }
    if !testkit::have("tar") {
        return testkit::skip("needs tar");
    }
    let folder = tempfile::tempdir().unwrap();
    let archive = archive(folder.path());
    for (column, option) in ["", "default_permissions", "no_open"]
        .into_iter()
        .enumerate()
    {
        let image = image(folder.path(), &format!("{column}.img"), 64 << 20, &[]);
        let served = Served::start(&image, option);
        let (root, dir) = (served.path(), served.path().join("dir"));
        fs::copy(&archive, root.join("files.tar")).unwrap();
        fs::create_dir(&dir).unwrap();
        std::os::unix::fs::symlink("f0", dir.join("link")).unwrap();
        // What the kernel learns once: that opening needs no message, the listing, and names.
        assert!(fs::read(root.join("files.tar")).is_ok() && !dir.join("absent").exists());
        let (first, others) = ROWS.split_at(2);
        verify(root, first, column, option);
        assert!(fs::read_dir(&dir).unwrap().count() > COUNT && dir.join("link").exists());
        each(&dir, |path| assert!(stat(path).is_ok()));
        drop(
            File::options()
                .append(true)
                .open(dir.join("f0"))
                .unwrap()
                .write(b"x"),
        );
        assert!(fs::read_link(dir.join("link")).is_ok() && !dir.join("absent").exists());
        assert!(fs::read_dir(&dir).unwrap().count() > COUNT);
        verify(root, others, column, option);
        served.unmount();
        let served = Served::start(&image, option);
        let root = served.path();
        assert!(fs::read(root.join("files.tar")).is_ok());
        verify(root, COLD, column, option);
        served.unmount();
        testkit::e2fsck(&image);
    }
    let page = fs::read_to_string(PAGE).unwrap();
    for Row(name, _, [plain, checked, unasked], kinds) in ROWS.iter().chain(COLD) {
        let kinds = match kinds {
            &"" => plain.to_string(),
            kinds => format!("{plain}: {kinds}"),
        };
        let line = format!("| {name} | {kinds} | {checked} | {unasked} |");
        assert!(page.contains(&line), "docs/mount.md lacks the line\n{line}");
    }
}

/// Every thread of a process by its number, with how often it gave its core away or lost it, and the time it ran.
fn activity(process: u32) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let mut all: Vec<_> = tasks
        .map(|task| {
            let path = task.unwrap().path();
            let status = fs::read_to_string(path.join("status")).unwrap();
            let switches = status.lines().filter(|line| line.contains("ctxt_switches"));
            let name = fs::read_to_string(path.join("comm")).unwrap();
            let thread = format!("{} {}", path.display(), name.trim());
            (thread, switches.collect::<Vec<_>>().join(" "))
        })
        .collect();
    all.sort();
    all
}

/// Fails if a thread of the server ran during four seconds without a request.
///
/// sync(1) and df(1) of any process reach every mount, so a period with a request of others does not count. Nor does
/// one in which the thread ends that waited for a disk for such a request: it stays for some seconds.
fn assert_idle(served: &Served, options: &str) {
    let requests = || sent(served.path()).values().sum::<u64>();
    for _ in 0..10 {
        let first = requests();
        let before = requests();
        let asking = before - first;
        // Gives the thread that answered `requests` time to fall asleep.
        std::thread::sleep(Duration::from_millis(500));
        let active = activity(served.process());
        std::thread::sleep(Duration::from_secs(4));
        let now = activity(served.process());
        let is_waiting = |(thread, _): &&(String, String)| thread.ends_with(" lanefs-waiter");
        let waiters = |all: &[_]| all.iter().filter(is_waiting).count();
        if requests() == before + asking && waiters(&active) == waiters(&now) {
            return assert_eq!(active, now, "`{options}`");
        }
    }
    testkit::skip("other processes ask something of every mount all the time");
}

#[test]
fn a_mount_that_nobody_uses_does_nothing() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let idle = |name: &str, options: &str| {
        let image = image(folder.path(), name, 64 << 20, &[]);
        let served = Served::start(&image, options);
        fs::create_dir(served.path().join("d")).unwrap();
        fs::write(served.path().join("d/f"), [1; 100_000]).unwrap();
        fs::remove_file(served.path().join("d/f")).unwrap();
        if options.contains("poll=") && !served.is_over_ring() {
            ask_until_polled(&served);
        }
        // Two commit intervals, in which all is committed and the threads fall asleep.
        std::thread::sleep(Duration::from_secs(11));
        assert_idle(&served, options);
        // The next change wakes the thread that commits.
        fs::write(served.path().join("d/g"), "later").unwrap();
        std::thread::sleep(Duration::from_millis(2500));
        let copy = folder.path().join(format!("{name}.crashed"));
        testkit::run(
            "cp",
            &[
                "--sparse=always",
                image.to_str().unwrap(),
                copy.to_str().unwrap(),
            ],
        );
        let mounted = testkit::KernelMount::with(&copy, "loop").unwrap();
        assert_eq!(
            fs::read(mounted.path().join("d/g")).unwrap(),
            b"later",
            "`{options}`"
        );
        drop(mounted);
        served.unmount();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| idle("a.img", "commit=1"));
        scope.spawn(|| idle("b.img", "nofuseblk"));
        scope.spawn(|| idle("c.img", "commit=1,poll=1000"));
    });
}

/// Sends requests one after the other until the server has found some by polling.
fn ask_until_polled(served: &Served) {
    let begin = Instant::now();
    while counted(served.path(), "polling.")["hits"] < 10 {
        assert!(begin.elapsed() < PATIENCE, "never polled");
        for _ in 0..200 {
            let path = served.path().join("d/p");
            drop(File::create_new(&path).unwrap());
            fs::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn a_server_polls_only_if_its_options_allow_that() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 24 << 20, &[]);
    for options in ["poll=1000", "poll=1000,threads=1", "poll=off"] {
        let served = Served::start(&image, options);
        if served.is_over_ring() {
            testkit::skip("no thread polls over io_uring");
            return served.unmount();
        }
        fs::create_dir(served.path().join("d")).unwrap();
        if options == "poll=off" {
            for number in 0..500 {
                let path = served.path().join(format!("d/f{number}"));
                fs::write(&path, "a").unwrap();
            }
            let polls = counted(served.path(), "polling.");
            assert!(polls.values().all(|count| *count == 0), "{polls:?}");
        } else {
            ask_until_polled(&served);
        }
        fs::remove_dir_all(served.path().join("d")).unwrap();
        served.unmount();
    }
    testkit::e2fsck(&image);
}

#[test]
fn files_come_and_go_without_a_futex_call() {
    if !can_mount() {
        return;
    }
    if !testkit::have("strace") {
        return testkit::skip("needs strace");
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 64 << 20, &[]);
    let served = Served::start(&image, "threads=1");
    let pairs = |count: usize| {
        for number in 0..count {
            let path = served.path().join(format!("f{number}"));
            fs::write(&path, [1; 5000]).unwrap();
            fs::remove_file(&path).unwrap();
        }
    };
    pairs(100);
    let list = folder.path().join("calls");
    let mut strace = Command::new("strace")
        .args(["-f", "-e", "trace=futex", "-o"])
        .arg(&list)
        .args(["-p", &served.process().to_string()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It says that it has attached to each thread.
    let mut said = strace.stderr.take().unwrap();
    said.read_exact(&mut [0; 10]).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    pairs(500);
    let process = rustix::process::Pid::from_child(&strace);
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    strace.wait().unwrap();
    let calls = fs::read_to_string(&list).unwrap().matches("futex(").count();
    // Those around a commit, which some runs meet.
    assert!(calls < 50, "{calls} futex calls for 500 files");
    served.unmount();
    testkit::e2fsck(&image);
}
