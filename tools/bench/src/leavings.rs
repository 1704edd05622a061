//! What a run that does not reach its end leaves in the directories that it measured.
//!
//! A bench removes what it made, as part of the work; one that fails or is interrupted does not get there. All that a
//! process makes has its number in its name.

use std::path::{Path, PathBuf};

/// What this process makes in a directory: `lanefs-bench.`, its number, and which of its workers or trees it is for.
pub(crate) fn name(of: impl std::fmt::Display) -> String {
    format!("lanefs-bench.{}.{of}", std::process::id())
}

/// Where images for other programs lie, under such a name.
#[must_use]
pub fn scratch() -> PathBuf {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() {
        shared.to_path_buf()
    } else {
        std::env::temp_dir()
    }
}

/// Removes all that this process made in these directories and that still exists; returns whether nothing is left.
#[must_use]
pub fn clear(directories: &[PathBuf]) -> bool {
    // All of them, whatever came of the ones before.
    let left = directories.iter().filter(|path| !is_cleared(path));
    left.count() == 0
}

fn is_cleared(directory: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return false;
    };
    let prefix = name("");
    let ours = entries.flatten().filter(|entry| {
        let name = entry.file_name();
        name.as_encoded_bytes().starts_with(prefix.as_bytes())
    });
    let kept = ours.filter(|entry| {
        let path = entry.path();
        std::fs::remove_dir_all(&path).is_err() && std::fs::remove_file(&path).is_err()
    });
    kept.count() == 0
}
