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
        let mut file = tempfile::Builder::new()
            .prefix("lanefs-crash")
            .tempfile_in(memory_folder())
            .map_err(said)?;
        file.as_file()
            .set_len(image.base.len() as u64)
            .map_err(said)?;
        // Holes stay holes: less memory, and e2fsck reads them faster.
        for (page, bytes) in image.base.chunks(PAGE as usize).enumerate() {
            if bytes.iter().any(|byte| *byte != 0) {
                write_page(&mut file, page as u64, bytes).map_err(said)?;
            }
        }
        Ok(Judge {
            file,
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
}

fn write_page(file: &mut tempfile::NamedTempFile, page: u64, bytes: &[u8]) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(page * PAGE))?;
    file.write_all(bytes)
}
