//! The verdicts on an image: e2fsck's, and that of our own checker, which reads ext4 without the engine's code. Where
//! only one of the two finds something, one of them is wrong.

use std::process::Output;

use check::Code;
use device::BlockDevice;
use sync::atomic::AtomicBool;

/// What a judge found wrong with an image.
pub(crate) type Verdict = Result<(), String>;

/// What a run of `e2fsck -fn` said.
pub(crate) fn e2fsck_verdict(output: &Output) -> Verdict {
    let text = String::from_utf8_lossy(&output.stdout);
    // Sums that are wrong in the superblock alone are told, but are no error to e2fsck.
    match output.status.success() && !text.contains("count wrong") {
        true => Ok(()),
        false => Err(text.trim().replace('\n', "; ")),
    }
}

/// What the checker says of an image that was closed or is frozen. Notes count as damage, except those of these kinds:
/// e2fsck's exit status does not tell wrong sums either.
pub(crate) fn check_verdict(image: &dyn BlockDevice, allowed: &[Code]) -> Verdict {
    let options = check::Options {
        // The simulation uses the other cores for its other parts.
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

/// The verdict of both on one image: clean if neither found anything, else what each of them found.
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
