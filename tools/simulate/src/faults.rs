//! Lets each request of a run fail: the n-th read, write or flush, for n = 0, 1, 2 and so on until a run ends before
//! that request. The request fails once, or it and all later ones of its kind do.
//!
//! After each run: the error has reached the caller or the next thread that syncs, nothing has panicked or hung, and
//! the image recovers to a state that the model allows.

use model::Op;

use crate::image::Image;
use crate::judge::ImageJudge;
use crate::sequences::{Explained, SequenceRecord, record};
use crate::sweep::{Explains, SweepCounts, caught, read, recover};
use crate::times::RunTimes;
use crate::{CowDevice, Fault, Recorder};

const KINDS: [fn(u64) -> Fault; 3] = [Fault::Read, Fault::Write, Fault::Flush];

/// Runs `ops` and a sync again and again. In each run, another request of the device fails.
///
/// # Errors
/// The first fault that leads to something wrong, and what that is.
pub fn run(
    image: &Image,
    judge: &mut ImageJudge,
    ops: &[Op],
    times: RunTimes,
    counts: &mut SweepCounts,
) -> Result<(), String> {
    let mut ops = ops.to_vec();
    ops.push(Op::Sync);
    let run = (ops.as_slice(), times);
    for kind in KINDS {
        for sticky in [false, true] {
            let mut n = 0;
            while one(image, judge, run, kind(n), sticky)? {
                n += 1;
                counts.faults += 1;
            }
        }
    }
    counts.judged = judge.judged;
    counts.checked = judge.checked;
    Ok(())
}

/// Runs the operations with one fault. Returns false if the run ended before the request that was to fail.
fn one(
    image: &Image,
    judge: &mut ImageJudge,
    run: (&[Op], RunTimes),
    fault: Fault,
    sticky: bool,
) -> Result<bool, String> {
    let say = |why: String| format!("{fault:?}{}: {why}", if sticky { " and on" } else { "" });
    let device = Recorder::over(&image.device).fails(fault, sticky);
    let recorded = caught(|| record(device, &image.tree, run.0, run.1)).map_err(say)?;
    if !recorded.recorder.has_failed() {
        return match recorded.broken {
            None => Ok(false),
            Some((index, why)) => Err(format!("operation {index} failed without a fault: {why}")),
        };
    }
    caught(|| judge_left(image, judge, run, &recorded)).map_err(say)?;
    Ok(true)
}

fn judge_left(
    image: &Image,
    judge: &mut ImageJudge,
    (ops, times): (&[Op], RunTimes),
    recorded: &SequenceRecord,
) -> Result<(), String> {
    let left: CowDevice = recorded.recorder.live();
    let recovered = recover(&left)?;
    let found = read(&recovered)?;
    let kind = (image.profile, times);
    let mut explained = Explained::new(&image.tree, ops, &recorded.done, kind, Vec::new());
    match &recorded.broken {
        Some((index, why)) => explained
            .check(*index, &found)
            .map_err(|mismatch| format!("operation {index} said {why:?}, and {mismatch}"))?,
        // No caller got an error, so the fault must have cost nothing.
        None => explained
            .check(ops.len(), &found)
            .map_err(|mismatch| format!("nobody was told, and {mismatch}"))?,
    }
    judge.judge_after_fault(&recovered, recovered.digest(&image.journal))
}

/// Recovers `left`, the state after a cut, again and again. In each recovery, another request of the device fails; the
/// next recovery without a fault must then leave the same tree as one that never failed.
///
/// # Errors
/// The first fault after which the next recovery leaves another tree, or an image with errors.
pub fn run_recovery(
    image: &Image,
    judge: &mut ImageJudge,
    left: &CowDevice,
    counts: &mut SweepCounts,
) -> Result<(), String> {
    let recovered = recover(left)?;
    let expected = recovered.digest(&image.journal);
    for kind in KINDS {
        let mut n = 0;
        loop {
            let fault = kind(n);
            let say = |why: String| format!("recovery, {fault:?}: {why}");
            let recorder = sync::Arc::new(Recorder::over(left).fails(fault, false));
            let shared: sync::Arc<dyn device::BlockDevice> = sync::Arc::clone(&recorder) as _;
            let opened = caught(|| {
                let fs = crate::image::open(&shared).map_err(|error| error.to_string())?;
                fs.close().map_err(|error| error.to_string())
            });
            if let Err(why) = &opened
                && why.starts_with("a panic")
            {
                return Err(say(why.clone()));
            }
            if !recorder.has_failed() {
                break;
            }
            let again = recover(&recorder.live()).map_err(say)?;
            let digest = again.digest(&image.journal);
            judge.check_after_fault(&again, digest).map_err(say)?;
            if digest != expected {
                // Numbers such as the count of mounts may differ, but the tree must be the same.
                let found = read(&again).map_err(say)?;
                let before = read(&recovered)?;
                before
                    .compare(&found)
                    .map_err(|difference| say(difference.to_string()))?;
            }
            counts.faults += 1;
            n += 1;
        }
    }
    counts.checked = judge.checked;
    Ok(())
}
