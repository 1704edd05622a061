//! A mounted image under test: the process that serves it, and its end, whatever the test does.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long a mount or its end may take.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// Whether images can be mounted here; says why not.
pub fn can_mount() -> bool {
    let device = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse");
    if !testkit::is_root() || device.is_err() {
        testkit::skip("mounting needs root and /dev/fuse");
        return false;
    }
    if !testkit::have("mke2fs") || !testkit::have("e2fsck") {
        testkit::skip("needs mke2fs and e2fsck");
        return false;
    }
    true
}

/// Held for writing while a test has a mount namespace, and for reading while one relies on the end of a mount by
/// umount(8). A new namespace has copies of all mounts, so an unmount elsewhere does not end their file systems.
static NAMESPACES: RwLock<()> = RwLock::new(());

/// To be held by a test while it has a mount namespace.
pub fn in_a_namespace() -> RwLockWriteGuard<'static, ()> {
    NAMESPACES.write().unwrap_or_else(PoisonError::into_inner)
}

/// To be held by a test from the mount to a umount(8) that must return when the image is closed.
pub fn without_namespaces() -> RwLockReadGuard<'static, ()> {
    NAMESPACES.read().unwrap_or_else(PoisonError::into_inner)
}

/// Unmounts by umount(8), again while programs that other tests start hold this process's files for a moment.
pub fn unmount_by_the_system(place: &Path) {
    let start = Instant::now();
    loop {
        let output = Command::new("umount").arg(place).output().unwrap();
        if output.status.success() {
            return;
        }
        let is_passing = said(&output).contains("busy") && start.elapsed() < PATIENCE;
        assert!(is_passing, "{}", said(&output));
        std::thread::sleep(PAUSE);
    }
}

/// The program under test.
pub fn lanefs() -> Command {
    testkit::heed_signals();
    Command::new(&*PROGRAM)
}

/// Options that every mount has before its own: `io_uring=on` runs all tests over io_uring.
const OPTIONS: &str = "LANEFS_MOUNT_OPTIONS";

/// The program, or a script that gives it these options.
static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
    use std::os::unix::fs::PermissionsExt;
    let program = assert_cmd::cargo::cargo_bin!("lanefs").to_owned();
    let Ok(options) = std::env::var(OPTIONS) else {
        return program;
    };
    let name = format!("lanefs-{}", std::process::id());
    let script = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let program = program.display();
    let text = format!(
        "#!/bin/sh\n[ \"$1\" != mount ] && exec {program} \"$@\"\n\
         shift\nexec {program} mount -o {options} \"$@\"\n"
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    script
});

/// Makes an image in a folder.
pub fn image(folder: &Path, name: &str, size: u64, options: &[&str]) -> PathBuf {
    let path = folder.join(name);
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    let mut arguments = vec!["-t", "ext4"];
    arguments.extend(options);
    arguments.push(path.to_str().unwrap());
    testkit::mke2fs(&arguments);
    path
}

/// What a program said on standard error.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// An image that is served in the foreground of a process of ours.
pub struct Served {
    process: Child,
    directory: TempDir,
}

impl Served {
    /// Mounts with options for `-o`, and waits until it answers.
    pub fn start(image: &Path, options: &str) -> Served {
        Served::start_by(lanefs(), image, options)
    }

    /// As [`Served::start`], by a command with an environment of its own.
    pub fn start_by(mut command: Command, image: &Path, options: &str) -> Served {
        let directory = tempfile::tempdir().unwrap();
        command.args(["mount", "-f"]);
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        let process = command.arg(image).arg(directory.path()).spawn().unwrap();
        let mut served = Served { process, directory };
        let start = Instant::now();
        while !served.is_mounted() {
            let ended = served.process.try_wait().unwrap();
            assert!(ended.is_none(), "lanefs mount ended: {ended:?}");
            assert!(start.elapsed() < PATIENCE, "lanefs mount does not begin");
            std::thread::sleep(PAUSE);
        }
        // The server answers once it has noted the mount in the image, which it does after mount(2).
        rustix::fs::statfs(served.path()).unwrap();
        served
    }

    fn is_mounted(&self) -> bool {
        let list = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let place = format!(" {} ", self.directory.path().display());
        list.contains(&place)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The process that serves it.
    pub fn process(&self) -> u32 {
        self.process.id()
    }

    /// Whether it takes requests over io_uring, where no thread polls, and a program that waits for a stopped server
    /// can't be killed.
    pub fn is_over_ring(&self) -> bool {
        let mut text = [0; 4096];
        let len = rustix::fs::getxattr(self.path(), "lanefs.options", &mut text[..]).unwrap();
        String::from_utf8_lossy(&text[..len]).contains("transport=io_uring")
    }

    /// The status of the process, if it has ended.
    pub fn poll(&mut self) -> std::io::Result<Option<ExitStatus>> {
        self.process.try_wait()
    }

    /// Waits until the process has ended by itself.
    pub fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "lanefs mount does not end");
            std::thread::sleep(PAUSE);
        }
    }

    /// Unmounts, and waits until the image is closed, which must go well.
    pub fn unmount(mut self) {
        let start = Instant::now();
        loop {
            let output = lanefs().arg("umount").arg(self.path()).output().unwrap();
            if output.status.success() {
                break;
            }
            // Programs that other tests start hold this process's files for a moment.
            let is_passing = said(&output).contains("is in use") && start.elapsed() < PATIENCE;
            assert!(is_passing, "{}", said(&output));
            std::thread::sleep(PAUSE);
        }
        assert!(self.wait().success());
    }

    /// Kills the process as it is.
    pub fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // What is left of a mount whose server is gone, or of a test that failed.
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.directory.path())
            .stderr(Stdio::null())
            .status();
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
