//! Every command beside everything that can hold an image: what writes is refused and changes nothing, what reads is
//! refused where the image may change.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use testkit::{KernelMount, LoopDevice, have, is_root, skip};

use crate::served::{Served, can_mount, lanefs};

const MIB: u64 = 1 << 20;

/// Something that holds an image until it is dropped.
#[expect(dead_code, reason = "most fields are only dropped")]
enum Holder {
    Served(Served),
    Mounted(KernelMount),
    Loop(LoopDevice),
    Loops(LoopDevice, LoopDevice),
    MountedLoop(KernelMount, LoopDevice),
    Lock(File),
    Process(Process),
}

/// A file that the kernel swaps to until this is dropped.
struct Swap(PathBuf);

impl Drop for Swap {
    fn drop(&mut self) {
        testkit::run("swapoff", &[self.0.to_str().unwrap()]);
    }
}

fn attach(options: &[&str], file: &Path) -> LoopDevice {
    LoopDevice::over(file, options).unwrap()
}

/// A program that has the image open as its standard input and does nothing.
struct Process(Child);

impl Process {
    fn with(file: File) -> Process {
        let mut sleep = Command::new("sleep");
        Process(sleep.arg("600").stdin(file).spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn read_write(image: &Path) -> File {
    File::options().read(true).write(true).open(image).unwrap()
}

/// Runs commands beside one another; gives each one's arguments, whether it succeeded, and what it said.
fn run_all(commands: &[Vec<String>]) -> Vec<(String, bool, String)> {
    let start = |words: &Vec<String>| {
        let mut command = lanefs();
        let command = command.args(words).stdin(Stdio::null());
        command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<Child> = commands.iter().map(start).collect();
    let end = |(words, child): (&Vec<String>, Child)| {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (words.join(" "), output.status.success(), said)
    };
    commands.iter().zip(children).map(end).collect()
}

fn words(line: &str, image: &Path, folder: &Path) -> Vec<String> {
    let image = image.to_str().unwrap();
    let folder = folder.to_str().unwrap();
    let word = |word: &str| word.replace("IMAGE", image).replace("FOLDER", folder);
    line.split(' ').map(word).collect()
}

const WRITING: [&str; 12] = [
    "build FOLDER/source IMAGE",
    "mkfs -F IMAGE 8M",
    "mkfs -F IMAGE",
    "tune IMAGE label=other",
    "cp FOLDER/source/a IMAGE:/b",
    "rm IMAGE:/a",
    "mkdir IMAGE:/d",
    "chmod 600 IMAGE:/a",
    "edit IMAGE FOLDER/script",
    "edit --atomic IMAGE FOLDER/script",
    "extract --overwrite FOLDER/other.img FOLDER/image.tar",
    "cp FOLDER/other.img:/a IMAGE",
];

const READING: [&str; 11] = [
    "ls IMAGE",
    "info IMAGE",
    "cat IMAGE:/a",
    "stat IMAGE:/a",
    "find IMAGE",
    "tree IMAGE",
    "df IMAGE",
    "du IMAGE",
    "map IMAGE",
    "dump IMAGE superblock",
    "tune IMAGE",
];

/// Makes an image with other names and all that the commands need; gives it and its folder.
fn prepared() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name);
    fs::create_dir(path("source")).unwrap();
    fs::write(path("source/a"), "a").unwrap();
    fs::write(path("script"), "mkdir /e\nrm /a\n").unwrap();
    // The name of a tar, which `extract` replaces.
    let image = path("image.tar");
    for image in [&image, &path("other.img")] {
        let mut build = lanefs();
        let build = build
            .args(["build", "-q", "--size", "16M"])
            .arg(path("source"));
        assert!(build.arg(image).status().unwrap().success());
    }
    std::os::unix::fs::symlink("image.tar", path("symbolic")).unwrap();
    fs::hard_link(&image, path("hard")).unwrap();
    (folder, image)
}

type Hold = Box<dyn Fn(&Path) -> Holder>;

/// Every way to hold an image: its name, whether the image may change meanwhile, and how it is held.
fn holders() -> Vec<(&'static str, bool, Hold)> {
    vec![
        (
            "lanefs",
            true,
            Box::new(|i| Holder::Served(Served::start(i, ""))),
        ),
        (
            "lanefs, ro",
            false,
            Box::new(|i| Holder::Served(Served::start(i, "ro"))),
        ),
        (
            "Linux, ro",
            false,
            Box::new(|i| Holder::Mounted(KernelMount::read_only(i).unwrap())),
        ),
        ("loop", true, Box::new(|i| Holder::Loop(attach(&[], i)))),
        (
            "loop, ro",
            false,
            Box::new(|i| Holder::Loop(attach(&["-r"], i))),
        ),
        (
            "loop of a part",
            true,
            Box::new(|i| Holder::Loop(attach(&["-o", "4M"], i))),
        ),
        (
            "loop on loop",
            true,
            Box::new(|i| {
                let below = attach(&[], i);
                Holder::Loops(attach(&[], below.path()), below)
            }),
        ),
        (
            "Linux, by a loop device of its own",
            true,
            Box::new(|i| {
                let device = attach(&[], i);
                let mounted = KernelMount::with(device.path(), "rw,noinit_itable");
                Holder::MountedLoop(mounted.unwrap(), device)
            }),
        ),
        (
            "fcntl",
            true,
            Box::new(|i| {
                let file = read_write(i);
                rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
                    .unwrap();
                Holder::Lock(file)
            }),
        ),
        (
            "a writer",
            true,
            Box::new(|i| Holder::Process(Process::with(read_write(i)))),
        ),
    ]
}

#[test]
fn a_command_heeds_every_holder_of_an_image() {
    if !can_mount() || !have("losetup") {
        return skip("holding an image in every way needs root");
    }
    let (folder, image) = prepared();
    for (name, is_changing, hold) in &holders() {
        let held = hold(&image);
        check(name, &image, folder.path(), *is_changing);
        // A server that is dropped is killed, and leaves an image that Linux does not mount read-only.
        match held {
            Holder::Served(served) => served.unmount(),
            held => drop(held),
        }
    }
    // Nothing holds it, but a program that only reads.
    let _reader = Process::with(File::open(&image).unwrap());
    let commands = [words("rm IMAGE:/a", &image, folder.path())];
    let (_, succeeded, said) = &run_all(&commands)[0];
    assert!(succeeded, "{said}");
    testkit::e2fsck(&image);
}

#[test]
fn a_program_with_a_lock_is_named() {
    let (folder, image) = prepared();
    let file = File::open(&image).unwrap();
    rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockShared).unwrap();
    let (_, succeeded, said) = &run_all(&[words("rm IMAGE:/a", &image, folder.path())])[0];
    let name = format!("(process {}) has it open", std::process::id());
    assert!(!succeeded && said.contains(&name), "{said}");
    let (_, succeeded, said) = &run_all(&[words("ls IMAGE", &image, folder.path())])[0];
    assert!(succeeded, "{said}");
}

#[test]
fn swap_is_not_overwritten() {
    if !is_root() || !have("swapon") || !have("mkswap") {
        return skip("swap needs root");
    }
    let (folder, image) = prepared();
    fs::write(&image, vec![0; MIB as usize]).unwrap();
    fs::set_permissions(&image, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    testkit::run("mkswap", &["-q", image.to_str().unwrap()]);
    let on = Command::new("swapon").arg(&image).output().unwrap();
    if !on.status.success() {
        return skip("no swap on this file system");
    }
    let _swap = Swap(image.clone());
    let before = testkit::read_image(&image);
    for line in [
        "build FOLDER/source IMAGE",
        "mkfs -F IMAGE",
        "mkfs -F IMAGE 8M",
    ] {
        let (_, succeeded, said) = &run_all(&[words(line, &image, folder.path())])[0];
        assert!(
            !succeeded && said.contains("in use: used as swap"),
            "{line}: {said}"
        );
    }
    assert!(testkit::read_image(&image) == before);
}

#[test]
fn a_mounted_image_that_was_deleted_does_not_hold_its_successor() {
    if !can_mount() {
        return;
    }
    let (folder, image) = prepared();
    let _served = Served::start(&image, "");
    fs::remove_file(&image).unwrap();
    fs::copy(folder.path().join("other.img"), &image).unwrap();
    for line in ["ls IMAGE", "rm IMAGE:/a", "build FOLDER/source IMAGE"] {
        let (_, succeeded, said) = &run_all(&[words(line, &image, folder.path())])[0];
        assert!(succeeded, "{line}: {said}");
    }
    // The other name is still that of the mounted one.
    let (_, succeeded, said) = &run_all(&[words("rm FOLDER/hard:/a", &image, folder.path())])[0];
    assert!(!succeeded && said.contains("in use"), "{said}");
}

/// Runs all commands on the image by all its names; `is_changing` is whether the holder may change it.
fn check(name: &str, image: &Path, folder: &Path, is_changing: bool) {
    let (before, inode) = (
        testkit::read_image(image),
        fs::metadata(image).unwrap().ino(),
    );
    for path in [image, &folder.join("symbolic"), &folder.join("hard")] {
        let commands: Vec<Vec<String>> = WRITING
            .iter()
            .map(|line| words(line, path, folder))
            .collect();
        for (command, succeeded, said) in run_all(&commands) {
            assert!(
                !succeeded && said.contains("in use"),
                "{name}: {command}: {said}"
            );
        }
    }
    assert_eq!(fs::metadata(image).unwrap().ino(), inode, "{name}");
    assert!(
        testkit::read_image(image) == before,
        "{name}: the image changed"
    );
    let commands: Vec<Vec<String>> = READING
        .iter()
        .map(|line| words(line, image, folder))
        .collect();
    for (command, succeeded, said) in run_all(&commands) {
        assert_eq!(succeeded, !is_changing, "{name}: {command}: {said}");
        assert_eq!(
            said.contains("in use"),
            is_changing,
            "{name}: {command}: {said}"
        );
    }
    let with = |line: &&str| words(&line.replacen(' ', " --in-use ", 1), image, folder);
    let commands: Vec<Vec<String>> = READING.iter().map(with).collect();
    for (command, succeeded, said) in run_all(&commands) {
        let warnings = said.matches("is in use").count();
        assert!(succeeded, "{name}: {command}: {said}");
        assert_eq!(
            warnings,
            usize::from(is_changing),
            "{name}: {command}: {said}"
        );
    }
}
