//! One thread's part of random work: its calls, and what it does beside them that the model knows nothing of, such as
//! checkpoints and other forms of mechanisms. Freezing is a sync to the model, and what is on the device meanwhile is
//! kept to be looked at.

use engine::InodeFs;
use model::{Errno, FallocateMode, Op, OpTarget};
use sync::atomic::{AtomicBool, Ordering};
use sync::{gauge, schedule};

use super::work::{OTHERS, Work};
use crate::executor::{Executor, OpRefusal};
use crate::times::RunTimes;
use crate::trace::Call;
use crate::{CowDevice, Recorder, setting};

/// Operations of each thread, besides those that begin and end its work.
const STEPS: u64 = 14;
/// One in this number of threads freezes the file system once.
const FREEZES_ONE_IN: u64 = 24;
/// How long it stays frozen: how often the thread that did it lets others run.
const FROZEN_TURNS: u64 = 12;
/// With more free blocks than this, no call may return ENOSPC: the three other threads hold fewer in all.
const SLACK_BLOCKS: u64 = 64;
/// With more free inodes than this, no call may return ENOSPC.
const SLACK_INODES: u64 = 4;

/// What threads share.
pub(super) struct Shared<'a> {
    pub(super) fs: &'a InodeFs,
    pub(super) times: RunTimes,
    pub(super) recorder: &'a Recorder,
    /// Whether one of them froze the file system. [atomic: AcqRel]
    pub(super) is_frozen: AtomicBool,
}

/// The device while the file system was frozen.
pub struct Frozen {
    /// A moment of that.
    pub at: u64,
    /// What was on it.
    pub device: CowDevice,
}

/// What one thread did.
#[derive(Default)]
pub(super) struct Part {
    pub(super) calls: Vec<Call>,
    pub(super) frozen: Vec<Frozen>,
}

/// Runs one thread's part, and returns its calls with their results.
pub(super) fn run(shared: &Shared<'_>, work: &mut Work) -> Part {
    let mut executor = if shared.times.are_seen {
        Executor::new(shared.fs)
    } else {
        Executor::without_looks(shared.fs)
    };
    let mut part = Part::default();
    let first = work.own(work.thread);
    let (slot, other) = (2 * work.thread as u8, 2 * work.thread as u8 + 1);
    let start = [
        Op::Create {
            path: first.clone(),
            mode: 0o644,
        },
        Op::Open { path: first, slot },
    ];
    let mut rest = vec![Op::Close { slot }, Op::Close { slot: other }];
    if work.is_syncing {
        let slot = OTHERS + work.thread as u8;
        rest.push(Op::Close { slot });
    }
    let freezes = work.random.one_in(FREEZES_ONE_IN);
    let freezes_at = freezes.then(|| work.random.below(STEPS));
    for op in start {
        part.calls
            .push(call(&mut executor, shared, work.thread, op));
    }
    for step in 0..STEPS {
        if let Some(Call {
            result: Err(OpRefusal::Broken(_)),
            ..
        }) = part.calls.last()
        {
            // The device failed under it: it is as if it had never returned, and this thread gives up.
            return part;
        }
        unmodelled(shared.fs, work);
        if freezes_at == Some(step) {
            freeze(shared, work.thread, &mut part);
        }
        let op = work.next();
        let opens = matches!(op, Op::Open { .. });
        let call = call(&mut executor, shared, work.thread, op);
        work.has_opened |= opens && call.result.is_ok();
        part.calls.push(call);
    }
    for op in rest {
        part.calls
            .push(call(&mut executor, shared, work.thread, op));
    }
    part
}

/// What a thread does besides the operations of the model.
fn unmodelled(fs: &InodeFs, work: &mut Work) {
    if work.random.one_in(12) {
        // The journal's blocks are written home while others work; a failure is reported to the next caller that
        // changes something.
        let _ = fs.checkpoint();
    }
    if work.is_switching && work.random.one_in(6) {
        let switch = setting::switch(&mut work.random);
        if let Err(why) = fs.choose(&switch) {
            panic!("{switch}: {why}");
        }
    }
}

/// Freezes and thaws, unless another thread is about that.
fn freeze(shared: &Shared<'_>, thread: usize, part: &mut Part) {
    // AcqRel: one thread at a time goes on; pairs with the Release below.
    if shared.is_frozen.swap(true, Ordering::AcqRel) {
        return;
    }
    let called = gauge::read().at;
    let result = shared.fs.freeze().map_err(OpRefusal::from);
    let returned = gauge::read().at;
    let is_frozen = result.is_ok();
    let call = |result| Call {
        thread,
        op: Op::Sync,
        called,
        returned,
        result,
    };
    part.calls.push(call(result));
    if is_frozen {
        let events = shared.recorder.events_so_far();
        part.frozen.push(Frozen {
            at: returned + 1,
            device: shared.recorder.live(),
        });
        (0..FROZEN_TURNS).for_each(|_| sync::thread::yield_now());
        let more = shared.recorder.events_so_far() - events;
        let thawed = shared.fs.thaw().map_err(OpRefusal::from);
        let still = match more {
            0 => Ok(()),
            _ => Err(OpRefusal::Broken(format!("{more} requests while frozen"))),
        };
        if let Err(why) = thawed.and(still) {
            part.calls.push(call(Err(why)));
        }
    }
    // Release: pairs with the swap above.
    shared.is_frozen.store(false, Ordering::Release);
}

fn call(executor: &mut Executor<'_>, shared: &Shared<'_>, thread: usize, op: Op) -> Call {
    let called = gauge::read().at;
    let result = match op {
        // Which file a name leads to is one moment of this run, and not two.
        Op::Open { .. } => schedule::undisturbed(|| executor.apply(&op)),
        _ => executor.apply(&op),
    };
    let (op, result) = match result {
        Err(OpRefusal::Errno(Errno::ENOSPC)) => without_space(executor, shared.fs, op),
        other => (op, other),
    };
    let returned = gauge::read().at;
    Call {
        thread,
        op,
        called,
        returned,
        result,
    }
}

/// An operation that was refused for want of space: what of it was done, if any, as an operation of its own; or why it
/// should not have been refused.
fn without_space(executor: &Executor<'_>, fs: &InodeFs, mut op: Op) -> (Op, Result<(), OpRefusal>) {
    let refused = Err(OpRefusal::Errno(Errno::ENOSPC));
    if let Ok(left) = fs.statfs()
        && left.available > SLACK_BLOCKS
        && left.free_files > SLACK_INODES
    {
        let (blocks, inodes) = (left.available, left.free_files);
        let why = format!("no space, though {blocks} blocks and {inodes} inodes are free");
        return (op, Err(OpRefusal::Broken(why)));
    }
    let result = match &mut op {
        Op::Write { bytes, .. } if executor.written() > 0 => {
            bytes.truncate(executor.written());
            Ok(())
        }
        Op::Fallocate {
            file: OpTarget::Slot(slot),
            mode: mode @ (FallocateMode::Allocate | FallocateMode::KeepSize),
            offset,
            len,
        } => match reached(executor, fs, *slot, *offset..*offset + *len) {
            Ok((_, 0)) => refused,
            Ok((grown, done)) => {
                if *mode == FallocateMode::Allocate {
                    *mode = grown;
                }
                *len = done;
                Ok(())
            }
            Err(error) => Err(error.into()),
        },
        Op::Create { .. }
        | Op::Mkdir { .. }
        | Op::Mknod { .. }
        | Op::Symlink { .. }
        | Op::Link { .. }
        | Op::Rename { .. }
        | Op::Write { .. }
        | Op::Fallocate {
            mode: FallocateMode::Insert,
            ..
        }
        | Op::SetXattr { .. }
        | Op::OpenTemp { .. } => refused,
        _ => Err(OpRefusal::Broken(
            "what needs no space was refused for want of it".into(),
        )),
    };
    (op, result)
}

/// How much of a range has blocks from its start on, and whether the file's size has grown with it. Nobody else changes
/// the file's blocks.
fn reached(
    executor: &Executor<'_>,
    fs: &InodeFs,
    slot: u8,
    range: std::ops::Range<u64>,
) -> Result<(FallocateMode, u64), engine::Error> {
    let ino = executor.slot(slot).ok_or(engine::Error::NotFound)?;
    let block = fs.geometry().block_size().bytes_u64();
    let size = fs.metadata(ino)?.size;
    let mut end = range.start;
    for run in fs.mappings_in(ino, range.start / block..range.end.div_ceil(block))? {
        if run.physical.is_none() || run.logical * block > end {
            break;
        }
        end = range.end.min((run.logical + run.len) * block);
    }
    Ok(match size {
        size if size >= end => (FallocateMode::Allocate, end - range.start),
        // What is behind the size had its blocks before.
        size if size > range.start => (FallocateMode::Allocate, size - range.start),
        _ => (FallocateMode::KeepSize, end - range.start),
    })
}
