//! The verdicts of e2fsck and of our own checker on images in memory.
//!
//! e2fsck needs a file: one in a tmpfs contains a base image. The pages in which a state differs are written to it,
//! e2fsck reads it, and the base's pages are written back. An image that was judged is not judged again.

use std::collections::HashSet;
use std::io::{Seek, SeekFrom, Write};

use check::Code;

use crate::image::{Image, memory_folder};
use crate::verdict::{Verdict, check_verdict, e2fsck_verdict, joint};
use crate::{Base, CowDevice};

/// Bytes of a page of [`CowDevice`].
const PAGE: u64 = 4096;

/// What may be found in an image that is clean nevertheless.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Allowed {
    Nothing,
    /// That an error was recorded: a request failed.
    RecordedError,
}

impl Allowed {
    fn codes(self) -> &'static [Code] {
        match self {
            Allowed::Nothing => &[],
            Allowed::RecordedError => &[Code::ErrorsRecorded],
        }
    }
}

/// Digests of images that were found clean.
#[derive(Default)]
struct CleanImages {
    strictly: HashSet<u64>,
    /// Perhaps with a recorded error.
    after_fault: HashSet<u64>,
}

impl CleanImages {
    fn has(&self, digest: u64, allowed: Allowed) -> bool {
        let is_allowed = allowed == Allowed::RecordedError && self.after_fault.contains(&digest);
        is_allowed || self.strictly.contains(&digest)
    }

    fn add(&mut self, digest: u64, allowed: Allowed) {
        match allowed {
            Allowed::Nothing => self.strictly.insert(digest),
            Allowed::RecordedError => self.after_fault.insert(digest),
        };
    }
}

/// Judges states over one base image.
pub struct ImageJudge {
    file: tempfile::NamedTempFile,
    base: Base,
    /// Clean for both judges.
    clean: CleanImages,
    /// Clean for the checker.
    checked_clean: CleanImages,
    /// Number of images that e2fsck read.
    pub judged: u64,
    /// Number of images that the checker read.
    pub checked: u64,
}

impl ImageJudge {
    /// A judge of states of this image.
    ///
    /// # Errors
    /// If the file can't be made.
    pub fn new(image: &Image) -> Result<ImageJudge, String> {
        let said = |error: std::io::Error| error.to_string();
        Ok(ImageJudge {
            file: sparse(&image.base).map_err(said)?,
            base: image.base.clone(),
            clean: CleanImages::default(),
            checked_clean: CleanImages::default(),
            judged: 0,
            checked: 0,
        })
    }

    /// Whether both found a state with this digest clean.
    #[must_use]
    pub fn knows(&self, digest: u64) -> bool {
        self.clean.has(digest, Allowed::Nothing)
    }

    /// Whether the checker found a state with this digest clean.
    #[must_use]
    pub fn has_checked(&self, digest: u64) -> bool {
        self.checked_clean.has(digest, Allowed::Nothing)
    }

    /// Lets e2fsck and the checker judge a closed image, which `digest` identifies.
    ///
    /// # Errors
    /// The verdicts of both, unless both found nothing.
    pub fn judge(&mut self, state: &CowDevice, digest: u64) -> Result<(), String> {
        self.judge_allowing(state, digest, Allowed::Nothing)
    }

    /// The same after a request failed, which may be on record in the superblock.
    ///
    /// # Errors
    /// As [`ImageJudge::judge`].
    pub fn judge_after_fault(&mut self, state: &CowDevice, digest: u64) -> Result<(), String> {
        self.judge_allowing(state, digest, Allowed::RecordedError)
    }

    fn judge_allowing(
        &mut self,
        state: &CowDevice,
        digest: u64,
        allowed: Allowed,
    ) -> Result<(), String> {
        if self.clean.has(digest, allowed) {
            return Ok(());
        }
        joint(
            self.run_e2fsck(state)?,
            self.check_allowing(state, digest, allowed),
        )?;
        self.clean.add(digest, allowed);
        Ok(())
    }

    /// Lets only the checker judge a closed image, which `digest` identifies.
    ///
    /// # Errors
    /// What it found.
    pub fn check(&mut self, state: &CowDevice, digest: u64) -> Result<(), String> {
        let checked = self.check_allowing(state, digest, Allowed::Nothing);
        checked.map_err(|why| format!("check: {why}"))
    }

    /// The same after a request failed, which may be on record in the superblock.
    ///
    /// # Errors
    /// What it found.
    pub fn check_after_fault(&mut self, state: &CowDevice, digest: u64) -> Result<(), String> {
        let checked = self.check_allowing(state, digest, Allowed::RecordedError);
        checked.map_err(|why| format!("check: {why}"))
    }

    fn check_allowing(
        &mut self,
        state: &CowDevice,
        digest: u64,
        allowed: Allowed,
    ) -> Result<(), String> {
        if self.checked_clean.has(digest, allowed) {
            return Ok(());
        }
        self.checked += 1;
        check_verdict(state, allowed.codes())?;
        self.checked_clean.add(digest, allowed);
        Ok(())
    }

    /// Lets the checker judge an image whose file system is frozen: there may be orphans for the next mount, and the
    /// log may contain images that were written home.
    ///
    /// # Errors
    /// What it found.
    pub fn check_frozen(&mut self, state: &CowDevice) -> Result<(), String> {
        self.checked += 1;
        let checked = check_verdict(state, &[Code::OrphanCount, Code::JournalNotReplayed]);
        checked.map_err(|why| format!("check: {why}"))
    }

    /// The verdict of e2fsck on an image; an error if e2fsck can't be run.
    fn run_e2fsck(&mut self, state: &CowDevice) -> Result<Verdict, String> {
        let said = |error: std::io::Error| error.to_string();
        let pages = state.changed_pages();
        for (page, bytes) in &pages {
            write_page(&mut self.file, *page, bytes).map_err(said)?;
        }
        self.file.flush().map_err(said)?;
        let output = testkit::e2fsck_with(&["-fn"], self.file.path());
        self.judged += 1;
        for (page, bytes) in &pages {
            // The state has no page behind the base's end.
            let start = usize::try_from(page * PAGE).unwrap_or(0);
            let former = &self.base[start..start + bytes.len()];
            write_page(&mut self.file, *page, former).map_err(said)?;
        }
        Ok(e2fsck_verdict(&output))
    }

    /// Lets e2fsck repair a state that a crash left on an image without a journal.
    ///
    /// # Errors
    /// Damage that e2fsck could not repair, blocks that several files claim, which must never happen, or what either
    /// judge finds after the repair. A name that stands in two blocks of a directory without an index is not an error:
    /// without a journal a crash leaves it where a new block was written and the old one was not, and e2fsck looks for
    /// a name twice only in one block.
    pub fn repair(&mut self, state: &CowDevice) -> Result<CowDevice, String> {
        let said = |error: std::io::Error| error.to_string();
        let file = sparse(&state.bytes()).map_err(said)?;
        let e2fsck = |option| testkit::e2fsck_with(&["-f", option], file.path());
        self.judged += 1;
        for run in 0..2 {
            let repaired = e2fsck("-y");
            let text = String::from_utf8_lossy(&repaired.stdout);
            let text = text.trim().replace('\n', "; ");
            // Errors were corrected; e2fsck may ask for a restart.
            if !matches!(repaired.status.code(), Some(0..=3)) {
                return Err(format!("e2fsck -y: {text}"));
            }
            if text.contains("ultiply-claimed") {
                return Err(format!("used again too early: {text}"));
            }
            // If pass 3A of e2fsck 1.47 can't optimise a directory, it truncates the directory but not its block count,
            // and reports that. The next run corrects the count.
            if run > 0 || !text.contains("Failed to optimize directory") {
                break;
            }
        }
        let output = e2fsck("-n");
        let repaired = CowDevice::new(std::fs::read(file.path()).map_err(said)?.into());
        self.checked += 1;
        let checked = check_verdict(&repaired, &[Code::NameInTwoBlocks]);
        joint(e2fsck_verdict(&output), checked).map_err(|why| format!("after -y: {why}"))?;
        Ok(repaired)
    }
}

/// Makes a file in memory with these contents. Zeros become holes, which take no memory and which e2fsck reads faster.
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

#[cfg(test)]
mod tests {
    use device::BlockDevice;

    use super::*;
    use crate::image::{PROFILES, have_programs, make, two_directories};

    /// An image of this kind with two directories; `None` if mke2fs or e2fsck is missing.
    fn image(profile: usize) -> Option<Image> {
        if !have_programs() {
            eprintln!("skipped: needs mke2fs and e2fsck");
            return None;
        }
        Some(make(PROFILES[profile], &two_directories()).unwrap())
    }

    /// The image with some bytes changed.
    fn damaged(image: &Image, offset: u64, bytes: &[u8]) -> CowDevice {
        let state = image.device.clone();
        state.write_at(offset, bytes).unwrap();
        state
    }

    #[test]
    fn a_clean_image_is_read_once_by_each_judge() {
        let Some(image) = image(1) else { return };
        let mut judge = ImageJudge::new(&image).unwrap();
        judge.check(&image.device, 0).unwrap();
        assert_eq!((judge.judged, judge.checked), (0, 1));
        for _ in 0..2 {
            judge.judge(&image.device, 0).unwrap();
            judge.check(&image.device, 0).unwrap();
        }
        assert_eq!((judge.judged, judge.checked), (1, 1));
    }

    #[test]
    fn what_is_clean_after_a_fault_alone_is_judged_again_without_one() {
        let Some(image) = image(2) else { return };
        // s_state: clean, with an error on record.
        let state = damaged(&image, 1024 + 58, &[3, 0]);
        let mut judge = ImageJudge::new(&image).unwrap();
        for _ in 0..2 {
            judge.check_after_fault(&state, 1).unwrap();
        }
        assert_eq!(judge.checked, 1, "it is read once");
        assert!(!judge.has_checked(1));
        assert!(judge.check(&state, 1).is_err());
        judge.check(&image.device, 0).unwrap();
        judge.check_after_fault(&image.device, 0).unwrap();
        assert_eq!(
            judge.checked, 3,
            "what is strictly clean is so after a fault"
        );
    }

    #[test]
    fn what_both_judges_find_is_told_in_the_words_of_both() {
        let Some(image) = image(2) else { return };
        // The root's link count (inode 2). This kind of image has no checksums.
        let table = u64::from(u32::from_le_bytes(
            image.base[2048 + 8..2048 + 12].try_into().unwrap(),
        ));
        let state = damaged(&image, table * 1024 + 256 + 26, &[99, 0]);
        let mut judge = ImageJudge::new(&image).unwrap();
        let why = judge.judge(&state, 1).unwrap_err();
        let (e2fsck, check) = why.split_once("; check: ").unwrap();
        assert!(e2fsck.contains("Inode 2 ref count is 99"), "{why}");
        assert!(check.contains("the link count is 99"), "{why}");
        assert!(judge.check(&state, 1).is_err(), "a bad image is forgotten");
        assert!(!judge.knows(1) && !judge.has_checked(1));
    }

    #[test]
    fn a_wrong_sum_in_the_superblock_is_damage_to_both_judges() {
        let Some(image) = image(2) else { return };
        // s_free_blocks_count.
        let state = damaged(&image, 1024 + 12, &[1, 0, 0, 0]);
        let mut judge = ImageJudge::new(&image).unwrap();
        let why = judge.judge(&state, 1).unwrap_err();
        let (e2fsck, check) = why.split_once("; check: ").unwrap();
        assert!(e2fsck.contains("Free blocks count wrong"), "{why}");
        assert!(check.contains("the superblock says 1 free blocks"), "{why}");
    }

    #[test]
    fn judges_that_disagree_are_a_failure() {
        let Some(image) = image(2) else { return };
        // The first block of the journal's log, which e2fsck does not read.
        let journal = image.area.blocks[0];
        let state = damaged(&image, journal + 20, &u32::MAX.to_be_bytes());
        let mut judge = ImageJudge::new(&image).unwrap();
        let why = judge.judge(&state, 1).unwrap_err();
        assert!(
            why.starts_with("e2fsck: clean; check: the journal's log"),
            "{why}"
        );
        assert!(judge.check(&state, 1).is_err());
    }
}
