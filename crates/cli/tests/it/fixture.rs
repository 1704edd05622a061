//! A tree of every kind of file, the image that mke2fs makes of it, and ways to run programs.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// The program under test.
pub fn lanefs() -> Command {
    testkit::heed_signals();
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lanefs"));
    command
        .env("COLUMNS", "100")
        .env("TZ", "UTC")
        .env_remove("NO_COLOR");
    command
}

/// Runs the program with arguments.
pub fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    lanefs().args(arguments).output().unwrap()
}

/// Runs the program, which must succeed; gives what it printed.
pub fn ok<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{}", error(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// What a program said on standard error.
pub fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a program that must succeed printed.
pub fn tool(command: &mut Command) -> String {
    let output = command
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .output()
        .unwrap();
    assert!(output.status.success(), "{command:?}: {}", error(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// A tree and the image that mke2fs made of it.
pub struct Fixture {
    pub folder: TempDir,
    pub source: PathBuf,
    pub image: PathBuf,
}

impl Fixture {
    /// Makes tree and image, or says why the test is skipped.
    pub fn new() -> Option<Fixture> {
        if !testkit::have("mke2fs") {
            testkit::skip("mke2fs is not installed");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source");
        fill(&source);
        let image = folder.path().join("disk.img");
        mke2fs(&source, &image);
        Some(Fixture {
            folder,
            source,
            image,
        })
    }

    /// As [`Fixture::new`], but skipped without root too.
    pub fn as_root() -> Option<Fixture> {
        if testkit::is_root() {
            return Fixture::new();
        }
        testkit::skip("the kernel mounts images for root only");
        None
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `IMAGE:PATH`.
    pub fn at(&self, path: &str) -> String {
        format!("{}:{path}", self.image.display())
    }
}

/// Makes an image of 32 MiB of a tree.
pub fn mke2fs(source: &Path, image: &Path) {
    let (source, image) = (source.to_str().unwrap(), image.to_str().unwrap());
    testkit::mke2fs(&["-t", "ext4", "-d", source, image, "32M"]);
}

/// Makes a tree with every kind of file that this user can make.
fn fill(root: &Path) {
    fs::create_dir_all(root.join("dir/sub/deeper")).unwrap();
    fs::create_dir_all(root.join(".hidden")).unwrap();
    fs::create_dir_all(root.join("empty")).unwrap();
    fs::write(root.join("hello.txt"), "hello, ext4\n").unwrap();
    fs::write(root.join("nothing"), "").unwrap();
    fs::write(root.join("dir/README.md"), "# read me\n".repeat(700)).unwrap();
    fs::write(root.join("dir/sub/deeper/x"), "x").unwrap();
    fs::write(root.join("n".repeat(255)), "a long name\n").unwrap();
    fs::write(root.join("umlaut ä and space"), "ä\n").unwrap();
    fs::hard_link(root.join("hello.txt"), root.join("dir/same.txt")).unwrap();
    symlink("hello.txt", root.join("fast")).unwrap();
    symlink("d/".repeat(50), root.join("slow")).unwrap();
    symlink("/dir/sub", root.join("absolute")).unwrap();
    let big: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 7 % 251) as u8).collect();
    fs::write(root.join("big"), &big).unwrap();
    let holes = fs::File::create(root.join("holes")).unwrap();
    holes.set_len(9 << 20).unwrap();
    std::os::unix::fs::FileExt::write_at(&holes, &[7; 5000], 4 << 20).unwrap();
    let mode = |name: &str, mode| {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap()
    };
    mode("dir/README.md", 0o640);
    mode("nothing", 0o4711);
    mode("empty", 0o1777);
    tool(Command::new("mkfifo").arg(root.join("fifo")));
    tool(
        Command::new("touch")
            .args(["-h", "-d", "2001-02-03 04:05:06"])
            .arg(root.join("hello.txt")),
    );
    let _ = Command::new("setfattr")
        .args(["-n", "user.note", "-v", "kept"])
        .arg(root.join("hello.txt"))
        .status();
    if testkit::is_root() {
        tool(
            Command::new("mknod")
                .arg(root.join("null"))
                .args(["c", "1", "3"]),
        );
        tool(
            Command::new("mknod")
                .arg(root.join("loop"))
                .args(["b", "7", "300"]),
        );
        std::os::unix::fs::chown(root.join("dir/README.md"), Some(1234), Some(70_000)).unwrap();
        let _ = Command::new("setfacl")
            .args(["-m", "u:99:rw"])
            .arg(root.join("dir/README.md"))
            .status();
        let _ = Command::new("setcap")
            .args(["cap_net_raw=ep"])
            .arg(root.join("big"))
            .status();
    }
}
