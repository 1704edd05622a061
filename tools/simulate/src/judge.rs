//! e2fsck's word on images that live in memory: one file in a folder in memory holds a base image, takes the pages in
//! which a state differs, is checked, and gets its own pages back. An image that was judged is not judged again.

use std::collections::HashSet;
use std::io::{Seek, SeekFrom, Write};
use std::process::Command;

use sync::Arc;

use crate::CowDevice;
use crate::image::{Image, memory_folder};

/// Bytes of a page of [`CowDevice`].
const PAGE: u64 = 4096;

/// Judges states over one base image.
pub struct Judge {
    file: tempfile::NamedTempFile,
    base: Arc<[u8]>,
    /// Digests of images found clean.
    clean: HashSet<u64>,
    /// How many images e2fsck read.
    pub judged: u64,
}

impl Judge {
    /// For states of this image.
    ///
    /// # Errors
    /// When the file can't be made.
    pub fn new(image: &Image) -> Result<Judge, String> {
        let said = |error: std::io::Error| error.to_string();
        Ok(Judge {
            file: sparse(&image.base).map_err(said)?,
            base: Arc::clone(&image.base),
            clean: HashSet::new(),
            judged: 0,
        })
    }

    /// Whether a state with this digest was found clean.
    #[must_use]
    pub fn knows(&self, digest: u64) -> bool {
        self.clean.contains(&digest)
    }

    /// Has e2fsck look at a closed image; `digest` tells it from others.
    ///
    /// # Errors
    /// What e2fsck found.
    pub fn judge(&mut self, state: &CowDevice, digest: u64) -> Result<(), String> {
        if self.knows(digest) {
            return Ok(());
        }
        let said = |error: std::io::Error| error.to_string();
        let pages = state.changed_pages();
        for (page, bytes) in &pages {
            write_page(&mut self.file, *page, bytes).map_err(said)?;
        }
        self.file.flush().map_err(said)?;
        let output = Command::new("e2fsck")
            .arg("-fn")
            .arg(self.file.path())
            .output()
            .map_err(|error| format!("e2fsck does not start: {error}"))?;
        self.judged += 1;
        for (page, bytes) in &pages {
            // Pages are within the base.
            let start = usize::try_from(page * PAGE).unwrap_or(0);
            let former = &self.base[start..start + bytes.len()];
            write_page(&mut self.file, *page, former).map_err(said)?;
        }
        let text = String::from_utf8_lossy(&output.stdout);
        // Sums that are wrong in the superblock alone are told, but are no error to e2fsck.
        if !output.status.success() || text.contains("count wrong") {
            return Err(format!("e2fsck: {}", text.trim().replace('\n', "; ")));
        }
        self.clean.insert(digest);
        Ok(())
    }

    /// Has e2fsck repair a state that a crash left without a journal.
    ///
    /// # Errors
    /// What e2fsck could not repair, or what must not be there to repair: blocks that several files claim.
    pub fn repair(&mut self, state: &CowDevice) -> Result<CowDevice, String> {
        let said = |error: std::io::Error| error.to_string();
        let file = sparse(&state.bytes()).map_err(said)?;
        let e2fsck = |option: &str| {
            let mut command = Command::new("e2fsck");
            command.args(["-f", option]).arg(file.path()).output()
        };
        self.judged += 1;
        for run in 0..2 {
            let repaired = e2fsck("-y").map_err(said)?;
            let text = String::from_utf8_lossy(&repaired.stdout);
            let text = text.trim().replace('\n', "; ");
            // Errors corrected, and perhaps the wish for a restart.
            if !matches!(repaired.status.code(), Some(0..=3)) {
                return Err(format!("e2fsck -y: {text}"));
            }
            if text.contains("ultiply-claimed") {
                return Err(format!("used again too early: {text}"));
            }
            // Where pass 3A of 1.47 can't pack a directory, it leaves the directory cut off and its number of blocks
            // as it was, and says so; the next run sets that right.
            if run > 0 || !text.contains("Failed to optimize directory") {
                break;
            }
        }
        let checked = e2fsck("-n").map_err(said)?;
        if !checked.status.success() {
            let text = String::from_utf8_lossy(&checked.stdout);
            return Err(format!("e2fsck -n after -y: {}", text.trim()));
        }
        let bytes = std::fs::read(file.path()).map_err(said)?;
        Ok(CowDevice::new(bytes.into()))
    }
}

/// A file in memory with these contents. Holes stay holes: less memory, and e2fsck reads them faster.
fn sparse(contents: &[u8]) -> std::io::Result<tempfile::NamedTempFile> {
    let mut file = tempfile::Builder::new()
        .prefix("lanefs-crash")
        .tempfile_in(memory_folder())?;
    file.as_file().set_len(contents.len() as u64)?;
    for (page, bytes) in contents.chunks(PAGE as usize).enumerate() {
        if bytes.iter().any(|byte| *byte != 0) {
            write_page(&mut file, page as u64, bytes)?;
        }
    }
    Ok(file)
}

fn write_page(file: &mut tempfile::NamedTempFile, page: u64, bytes: &[u8]) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(page * PAGE))?;
    file.write_all(bytes)
}
