//! Devices that fail: the error reaches the caller, nothing panics or hangs, and what was promised is there.

use device::BlockDevice;
use lanefs_engine::{Allocate, Error, InodeFs, MountOptions};
use model::History;
use simulate::{CowDevice, Fault, Recorder};
use sync::Arc;

use crate::cuts::{found, history, op, parts};
use crate::files::{Change, judge_image, with_files};
use crate::image::{clock, open};

fn changes() -> Vec<Change> {
    vec![
        Change::Write(100, vec![1; 9000]),
        Change::Write(50_000, vec![2; 20_000]),
        Change::Truncate(60_001),
        Change::Allocate(Allocate::Grow, 70_000, 30_000),
        Change::Write(72_000, vec![3; 5000]),
        Change::Allocate(Allocate::Punch, 52_000, 9000),
        Change::Write(200, vec![4; 5000]),
    ]
}

/// Does the changes and syncs after each until something fails; says how many returned.
fn run(device: Arc<dyn BlockDevice>, changes: &[Change]) -> (usize, Result<(), Error>) {
    let mut done = 0;
    let work = || {
        let fs = InodeFs::open_for_writing(device, &MountOptions::default(), clock)?;
        let ino = fs.resolve(b"one", true)?;
        for change in changes {
            match change {
                Change::Write(offset, bytes) => {
                    let written = fs.write(ino, *offset, bytes)?;
                    if written < bytes.len() {
                        // The rest says why.
                        fs.write(ino, offset + written as u64, &bytes[written..])?;
                    }
                }
                Change::Truncate(size) => fs.truncate(ino, *size)?,
                Change::Allocate(how, offset, len) => fs.allocate(ino, *how, *offset, *len)?,
            }
            fs.fsync(ino)?;
            done += 1;
        }
        fs.close()
    };
    let outcome = work();
    (done, outcome)
}

/// What may be found after `done` changes were synced and the next one may have failed anywhere.
fn allowed(changes: &[Change], done: usize) -> History {
    let mut history = history(&changes[..done], done);
    history.promise(&model::Op::Sync);
    for change in &changes[done..changes.len().min(done + 1)] {
        for part in parts(change).iter().chain([change]) {
            let mut state = history.last().clone();
            state.apply(&op(part)).unwrap();
            history.push(state);
        }
    }
    history
}

#[test]
fn every_failing_request_is_reported_and_costs_nothing_that_was_synced() {
    let Some(image) = with_files(&["-b", "4096"], 8 << 20, &["one"]) else {
        return;
    };
    let changes = changes();
    for fault in [Fault::Read as fn(u64) -> Fault, Fault::Write, Fault::Flush] {
        for sticky in [false, true] {
            let mut n = 0;
            loop {
                let device = Arc::new(Recorder::failing(&image, fault(n), sticky));
                let (done, outcome) = run(Arc::clone(&device) as Arc<dyn BlockDevice>, &changes);
                let has_failed = device.has_failed();
                if !has_failed {
                    outcome.unwrap();
                    assert!(n > 3);
                    break;
                }
                let after = Arc::new(CowDevice::new(device.contents().into()));
                let fs = open(Arc::clone(&after) as Arc<dyn BlockDevice>);
                let tree = found(&fs);
                if let Err(mismatch) = allowed(&changes, done).check(&tree) {
                    panic!(
                        "{:?}, sticky {sticky}, {done} done, {outcome:?}: {mismatch}",
                        fault(n)
                    );
                }
                fs.close().unwrap();
                if n % 5 == 0 {
                    judge_image(&after);
                }
                n += 1;
            }
        }
    }
}
