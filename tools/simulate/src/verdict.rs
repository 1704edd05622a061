//! The verdicts on an image: e2fsck's, and that of our own checker, which shares no code with the engine. If only one
//! of them finds something, one of them is wrong.

use std::process::Output;

use check::Code;
use device::BlockDevice;
use sync::atomic::AtomicBool;

/// The verdict of a judge on an image: what it found, or nothing.
pub(crate) type Verdict = Result<(), String>;

/// The verdict of a run of `e2fsck -fn`.
pub(crate) fn e2fsck_verdict(output: &Output) -> Verdict {
    let text = String::from_utf8_lossy(&output.stdout);
    // e2fsck prints wrong sums in the superblock, but its exit status does not report them.
    if output.status.success() && !text.contains("count wrong") {
        Ok(())
    } else {
        Err(text.trim().replace('\n', "; "))
    }
}

/// The verdict of the checker on an image that was closed or is frozen. Notes count as damage, except those in
/// `allowed`.
pub(crate) fn check_verdict(image: &dyn BlockDevice, allowed: &[Code]) -> Verdict {
    let options = check::Options {
        // One thread: the other cores run other parts of the simulation.
        threads: 1,
        memory: None,
        superblock: None,
        is_replayed: false,
        cancelled: &AtomicBool::new(false),
        progress: &|_| {},
        trace: None,
    };
    let report = check::check(image, &options).map_err(|error| error.to_string())?;
    let is_wrong = |code: &Code| !allowed.contains(code);
    if !report.counts.keys().any(is_wrong) {
        return Ok(());
    }
    let problems = report.problems.iter();
    let found: Vec<String> = problems.map(ToString::to_string).collect();
    Err(found.join("; "))
}

/// The joint verdict on one image: clean if neither judge found anything, else what each of them found.
pub(crate) fn joint(e2fsck: Verdict, check: Verdict) -> Verdict {
    if e2fsck.is_ok() && check.is_ok() {
        return Ok(());
    }
    let text = |verdict: Verdict| verdict.err().unwrap_or_else(|| "clean".into());
    Err(format!("e2fsck: {}; check: {}", text(e2fsck), text(check)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_judge_that_finds_something_is_enough() {
        let bad = |text: &str| Err(text.to_owned());
        assert_eq!(joint(Ok(()), Ok(())), Ok(()));
        assert_eq!(joint(bad("a"), Ok(())), bad("e2fsck: a; check: clean"));
        assert_eq!(joint(Ok(()), bad("b")), bad("e2fsck: clean; check: b"));
        assert_eq!(joint(bad("a"), bad("b")), bad("e2fsck: a; check: b"));
    }
}
