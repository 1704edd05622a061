//! The folder for the temporary files of tests. Many tests flush an image again and again, or unmount one. On a disk
//! they spend most of their time waiting for that; in memory they don't.

use std::fs;
use std::path::{Path, PathBuf};

/// The file system in memory that all users of a Linux machine share.
const MEMORY: &str = "/dev/shm";
/// Bytes that must be free there, and in memory. Tests took 2 GB at most.
const ROOM: u64 = 6 << 30;

/// A folder for one run, removed when this is dropped; or none.
pub(super) struct Scratch {
    path: Option<PathBuf>,
}

impl Scratch {
    /// Makes a folder in memory, unless TMPDIR is set or too little memory is free.
    pub(super) fn new() -> Scratch {
        let is_chosen = std::env::var_os("TMPDIR").is_some();
        let has_room = || free_bytes(Path::new(MEMORY)) >= ROOM && free_memory() >= ROOM;
        if is_chosen || !has_room() {
            return Scratch { path: None };
        }
        let path = Path::new(MEMORY).join(format!("lanefs-ci-{}", std::process::id()));
        let made = fs::create_dir(&path);
        Scratch {
            path: made.is_ok().then_some(path),
        }
    }

    /// The variable that points tests to the folder.
    pub(super) fn environment(&self) -> Option<(&'static str, &Path)> {
        self.path.as_deref().map(|path| ("TMPDIR", path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // A killed test may have left a mount in it; then the folder stays.
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// The bytes that an ordinary user may still write there; 0 if that is not known.
fn free_bytes(path: &Path) -> u64 {
    let found = rustix::fs::statvfs(path);
    found.map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize))
}

/// Memory that programs may take without swapping, as the kernel estimates it; 0 if that is not known.
fn free_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1 << 10)
}
