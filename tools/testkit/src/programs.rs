//! Programs that judge an image: e2fsck, the kernel through a loop mount, and whatever a test runs.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::e2fsprogs::e2fsck_with;

/// The number that a variable of the environment has, the usual one without it or if it is none.
#[must_use]
pub fn number_in(variable: &str, usual: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value.and_then(|value| value.parse().ok()).unwrap_or(usual)
}

/// Whether the tests run as root.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether a program is on the path or in the system's `sbin` directories.
#[must_use]
pub fn have(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/sbin".into(), "/usr/sbin".into()])
        .any(|directory| directory.join(program).exists())
}

/// Says why a test does not run. The word `skipped` is what `cargo xtask ci` counts.
pub fn skip(reason: &str) {
    eprintln!("skipped: {reason}");
}

/// Runs a program to its end.
///
/// # Panics
/// When it cannot be started or fails; the message holds what it printed.
pub fn run(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{program} did not start: {error}"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Has e2fsck read the whole image without changing it.
///
/// # Panics
/// When it finds anything wrong; the message holds what it printed.
pub fn e2fsck(image: &Path) {
    let output = e2fsck_with(&["-fn"], image);
    assert!(
        found_nothing(&output),
        "e2fsck of {}: {}\n{}{}",
        image.display(),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Whether e2fsck found nothing at all. Sums that are wrong in the superblock alone it tells, but with status 0.
#[must_use]
pub fn found_nothing(e2fsck: &Output) -> bool {
    e2fsck.status.success() && !String::from_utf8_lossy(&e2fsck.stdout).contains("count wrong")
}

const UNMOUNT_TRIES: u32 = 20;
const UNMOUNT_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// An image mounted read-only by the kernel, until dropped.
#[derive(Debug)]
pub struct KernelMount {
    directory: tempfile::TempDir,
}

impl KernelMount {
    /// Mounts `image` through a loop device. Needs root.
    ///
    /// # Errors
    /// When the kernel refuses; the message is mount's.
    pub fn read_only(image: &Path) -> io::Result<KernelMount> {
        KernelMount::with(image, "ro,loop")
    }

    /// Mounts `image` with mount's `-o` options. Needs root.
    ///
    /// # Errors
    /// When the kernel refuses; the message is mount's.
    pub fn with(image: &Path, options: &str) -> io::Result<KernelMount> {
        let directory = tempfile::tempdir()?;
        let output = Command::new("mount")
            .args(["-t", "ext4", "-o", options])
            .arg(image)
            .arg(directory.path())
            .output()?;
        if output.status.success() {
            Ok(KernelMount { directory })
        } else {
            Err(io::Error::other(
                String::from_utf8_lossy(&output.stderr).into_owned(),
            ))
        }
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.path().to_path_buf()
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        // A program that another test is just starting holds our files for a moment, between fork and exec.
        for _ in 0..UNMOUNT_TRIES {
            let output = Command::new("umount").arg(self.directory.path()).output();
            if output.is_ok_and(|output| output.status.success()) {
                return;
            }
            std::thread::sleep(UNMOUNT_PAUSE);
        }
        eprintln!("{} is still mounted", self.directory.path().display());
    }
}

/// Copies a program to be run from there.
///
/// Linux runs no program whose file is open for writing, and a process that another thread starts meanwhile has every
/// file of ours open until it runs its own program. So cp(1) does the writing.
///
/// # Panics
/// When it cannot be copied.
pub fn copy_program(from: impl AsRef<OsStr>, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status();
    // cp(1) is on every system that the tests run on.
    assert!(copied.unwrap().success(), "cp to {}", to.display());
}

/// Writes a shell script that can be run at once: see [`copy_program`].
///
/// # Panics
/// When it cannot be written.
pub fn write_script(path: &Path, text: &str) {
    let mut writer = Command::new("sh");
    writer.args(["-c", "printf %s \"$2\" > \"$1\" && chmod 755 \"$1\"", "sh"]);
    let written = writer.arg(path).arg(text).status();
    // sh(1) is on every system that the tests run on.
    assert!(written.unwrap().success(), "writing {}", path.display());
}
