//! Loop devices, and small file systems in memory that fill up. Both need root.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A loop device over a file, detached when dropped.
#[derive(Debug)]
pub struct LoopDevice(PathBuf);

impl LoopDevice {
    /// Attaches a free loop device to `file`, with options of losetup(8).
    ///
    /// # Errors
    /// If all devices are in use, or this user may not attach one; the message is losetup's.
    pub fn over(file: &Path, options: &[&str]) -> io::Result<LoopDevice> {
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .args(options)
            .arg(file)
            .output()?;
        let name = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() && !name.is_empty() {
            Ok(LoopDevice(name.into()))
        } else {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(io::Error::other(text))
        }
    }

    /// The path of the device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of the device as text.
    ///
    /// # Panics
    /// Never: the kernel's names are UTF-8.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.to_str().expect("a plain path")
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = Command::new("losetup")
            .arg("--detach")
            .arg(&self.0)
            .output();
        if !detached.is_ok_and(|output| output.status.success()) {
            eprintln!("{} is still attached", self.0.display());
        }
    }
}

/// A file system in memory with a limited size, unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one at a directory; `size` is as for tmpfs(5), such as `4m`.
    ///
    /// # Errors
    /// If the system refuses; the message is mount's.
    pub fn mount(at: &Path, size: &str) -> io::Result<SmallDisk> {
        let size = format!("size={size}");
        mount(&["-t", "tmpfs", "-o", &size, "tmpfs"], at)?;
        Ok(SmallDisk(at.to_path_buf()))
    }

    /// Changes its options, such as `ro`.
    ///
    /// # Errors
    /// If the system refuses; the message is mount's.
    pub fn remount(&self, options: &str) -> io::Result<()> {
        mount(&["-o", &format!("remount,{options}")], &self.0)
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmount = |options: &[&str]| {
            let output = Command::new("umount").args(options).arg(&self.0).output();
            output.is_ok_and(|output| output.status.success())
        };
        // A program that another test is just starting holds our files for a moment, between fork and exec.
        if !unmount(&[]) && !unmount(&["--lazy"]) {
            eprintln!("{} is still mounted", self.0.display());
        }
    }
}

fn mount(arguments: &[&str], at: &Path) -> io::Result<()> {
    let output = Command::new("mount").args(arguments).arg(at).output()?;
    if output.status.success() {
        Ok(())
    } else {
        Err(io::Error::other(
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ))
    }
}
