//! Memory on an image with two million files: it is opened at once, and whatever is done on it, what is kept stays
//! within what the options say.

use std::path::Path;
use std::time::Duration;

use device::{BlockDevice, FileDevice};
use lanefs_engine::{FileType, Ino, InodeFs, MountOptions};
use sync::Arc;

use crate::{clock, new};

const DIRECTORIES: usize = 2_000;
const FILES_EACH: usize = 1_000;
/// Names the image to the process that measures.
const VARIABLE: &str = "LANEFS_MEASURED_IMAGE";
/// Beyond what the options bound: bitmaps of inodes of the groups that were used, the transaction that is being built,
/// stacks, what the allocator keeps.
const REST: usize = 32 << 20;

fn options() -> MountOptions {
    MountOptions {
        cache_bytes: 8 << 20,
        live_bytes: 8 << 20,
        group_bytes: 1 << 20,
        live_inodes: 8 << 10,
        staged_bytes: 16 << 20,
        ..MountOptions::default()
    }
}

fn bound() -> usize {
    let options = options();
    let inodes = options.live_inodes * 1024;
    options.cache_bytes + options.live_bytes + options.group_bytes + inodes + 16_777_216 + REST
}

/// Bytes from a line of the system's account of this process.
fn account(of: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(of)).unwrap();
    let kib = line.split_whitespace().nth(1).unwrap();
    kib.parse::<usize>().unwrap() * 1024
}

fn open(path: &Path, options: &MountOptions) -> InodeFs {
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(path).unwrap());
    InodeFs::open_for_writing(device, options, clock).unwrap()
}

fn populate(path: &Path) {
    std::fs::File::create(path)
        .unwrap()
        .set_len(8 << 30)
        .unwrap();
    let image = path.to_str().unwrap();
    let arguments = ["-t", "ext4", "-b", "4096", "-N", "2100000", image];
    testkit::mke2fs(&arguments);
    let fs = open(path, &MountOptions::default());
    for directory in 0..DIRECTORIES {
        let name = format!("directory-{directory}");
        let directory = fs.mkdir(Ino::ROOT, name.as_bytes(), new()).unwrap();
        for file in 0..FILES_EACH {
            let name = format!("file-{file}");
            fs.create(directory, name.as_bytes(), new()).unwrap();
        }
    }
    fs.close().unwrap();
}

/// Makes the image, and has another process measure.
#[test]
#[ignore = "measures: cargo xtask suites measure"]
fn two_million_files() {
    if !testkit::have("mke2fs") {
        return testkit::skip("needs mke2fs");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    populate(&path);
    testkit::e2fsck(&path);
    let program = std::env::current_exe().unwrap();
    let status = std::process::Command::new(program)
        .args([
            "--ignored",
            "--exact",
            "--nocapture",
            "memory::of_one_process",
        ])
        .env(VARIABLE, &path)
        .status()
        .unwrap();
    assert!(status.success());
    testkit::e2fsck(&path);
}

/// The process that measures; does nothing on its own.
#[test]
#[ignore = "the process that two_million_files starts"]
fn of_one_process() {
    let Some(path) = std::env::var_os(VARIABLE) else {
        return;
    };
    let before = account("VmRSS");
    let start = sync::clock::now();
    let fs = open(Path::new(&path), &options());
    let opened = sync::clock::now() - start;
    let told = |what: &str, since| {
        let (now, most) = (account("VmRSS") - before, account("VmHWM") - before);
        let time = sync::clock::now() - since;
        eprintln!(
            "{what}: {time:.1?}, {} MiB now, {} MiB at most",
            now >> 20,
            most >> 20
        );
        assert!(most < bound(), "{} of {} bytes", most, bound());
    };
    told("open", start);
    assert!(opened < Duration::from_secs(1), "{opened:?}");
    let start = sync::clock::now();
    let mut files = 0;
    let mut rest = vec![Ino::ROOT];
    while let Some(directory) = rest.pop() {
        for entry in fs.read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            // As `find -size` and `ls -l` do.
            match fs.metadata(entry.ino).unwrap().file_type {
                FileType::Directory => rest.push(entry.ino),
                _ => files += 1,
            }
        }
    }
    assert_eq!(files, DIRECTORIES * FILES_EACH);
    told("find and stat of all", start);
    let start = sync::clock::now();
    for file in 0..10_000_usize {
        let path = format!("directory-{}", file * 7 % DIRECTORIES);
        let directory = fs.resolve(path.as_bytes(), true).unwrap();
        let ino = fs
            .create(directory, format!("new-{file}").as_bytes(), new())
            .unwrap();
        fs.write(ino, 0, &[1; 5000]).unwrap();
    }
    fs.sync().unwrap();
    told("10,000 files created and written", start);
    fs.close().unwrap();
    eprintln!("bound: {} MiB", bound() >> 20);
}
