//! The fuzz target of the checker: every image gets a verdict.

use sync::atomic::AtomicBool;

use super::edited;
use crate::overlay::PatchedBytes;

/// An image with changed numbers, as for [`super::image`], checked with and without a bound on memory. Returns whether
/// a clean one is sound.
pub fn check(data: &[u8]) -> bool {
    edited(data, |image, _| {
        let verdict = verdict(image, None);
        let in_little = self::verdict(image, Some(1));
        assert_eq!(verdict, in_little, "the verdict depends on the memory");
        verdict == Some(true)
    })
}

/// Whether the image is clean; `None` without a verdict.
fn verdict(image: &PatchedBytes, memory: Option<u64>) -> Option<bool> {
    let options = check::Options {
        threads: 1,
        memory,
        superblock: None,
        is_replayed: false,
        cancelled: &AtomicBool::new(false),
        progress: &|_| {},
        trace: None,
    };
    let report = check::check(image, &options).ok()?;
    // Every problem that was found must be printable.
    for problem in &report.problems {
        assert!(!problem.to_string().is_empty());
    }
    Some(report.is_clean())
}
