//! All sequences of one and two operations, and a sample of those of three: each of an alphabet, followed by nothing or
//! by a sync of one kind, on two directories with two files each; recorded, cut everywhere, and compared with what the
//! model allows.

use std::collections::{HashMap, HashSet};

use device::BlockDevice;
use model::{
    Device, FallocateMode, History, ModelPath, ModelTree, Op, OpTarget, Random, RenameMode,
    XattrCondition,
};
use sync::Arc;
use sync::schedule::{self, SchedulePlan};

use crate::executor::{Executor, OpRefusal, brief, parts, within};
use crate::image::{Image, Profile, logging, open_with};
use crate::sweep::{Explains, Sweep, read};
use crate::times::RunTimes;
use crate::{CowDevice, Cut, Event, Recorder};

/// One operation and the sync behind it, if any.
pub type OpAndSync = Vec<Op>;

/// An operation, what a sync of its file names, and its directory.
struct Letter {
    op: Op,
    file: Option<ModelPath>,
    parent: ModelPath,
}

fn letter(op: Op, file: &str, parent: &str) -> Letter {
    Letter {
        op,
        file: (!file.is_empty()).then(|| ModelPath::new(file)),
        parent: ModelPath::new(parent),
    }
}

fn names() -> Vec<Letter> {
    let path = ModelPath::new;
    let rename = |from: &str, to: &str, flag: RenameMode| Op::Rename {
        from: path(from),
        to: path(to),
        flag,
    };
    let symlink = |len: usize| Op::Symlink {
        path: path("d0/n"),
        target: vec![b't'; len],
    };
    let create = Op::Create {
        path: path("d0/n"),
        mode: 0o644,
    };
    let mkdir = Op::Mkdir {
        path: path("d0/n"),
        mode: 0o755,
    };
    let mknod = Op::Mknod {
        path: path("d0/n"),
        mode: 0o600,
        device: Device::Char(1, 3),
    };
    let link = Op::Link {
        from: OpTarget::Path(path("d0/f0")),
        to: path("d1/n"),
    };
    let unlink = |name: &str| Op::Unlink { path: path(name) };
    let rmdir = Op::Rmdir { path: path("d0/e") };
    vec![
        letter(create, "d0/n", "d0"),
        letter(mkdir, "d0/n", "d0"),
        letter(mknod, "", "d0"),
        letter(symlink(20), "", "d0"),
        letter(symlink(300), "", "d0"),
        letter(link, "d1/n", "d1"),
        letter(unlink("d0/f0"), "", "d0"),
        letter(unlink("d1/f1"), "", "d1"),
        letter(rmdir, "", "d0"),
        letter(rename("d0/f0", "d1/n", RenameMode::NoReplace), "d1/n", "d1"),
        letter(rename("d0/f1", "d0/n", RenameMode::Replace), "d0/n", "d0"),
        letter(rename("d0/e", "d1/n", RenameMode::Replace), "d1/n", "d1"),
        letter(rename("d0/f0", "d1/f0", RenameMode::Replace), "d1/f0", "d1"),
        letter(rename("d0/e", "d1/e", RenameMode::Replace), "d1/e", "d0"),
        letter(
            rename("d0/f0", "d1/f1", RenameMode::Exchange),
            "d1/f1",
            "d1",
        ),
        letter(rename("d0/f1", "d1/e", RenameMode::Exchange), "d0/f1", "d0"),
        letter(
            rename("d0/f0", "d1/f0", RenameMode::Whiteout),
            "d1/f0",
            "d0",
        ),
        letter(rename("d0/f1", "d0/n", RenameMode::Whiteout), "d0/n", "d0"),
        letter(rename("d0/e", "d1/n", RenameMode::Whiteout), "d1/n", "d0"),
    ]
}

fn contents(has_extents: bool) -> Vec<Letter> {
    let file = |name: &str| OpTarget::Path(ModelPath::new(name));
    let write = |name: &str, offset: u64, len: usize, byte: u8| {
        let op = Op::Write {
            file: file(name),
            offset,
            bytes: vec![byte; len],
        };
        letter(op, name, "d0")
    };
    let truncate = |name: &str, size: u64| {
        let op = Op::Truncate {
            file: file(name),
            size,
        };
        letter(op, name, "d0")
    };
    let allocate = |mode: FallocateMode, offset: u64, len: u64| {
        let op = Op::Fallocate {
            file: file("d0/f1"),
            mode,
            offset,
            len,
        };
        letter(op, "d0/f1", "d0")
    };
    let mut letters = vec![
        write("d0/f0", 3000, 5000, b'A'),
        write("d0/f1", 9000, 300, b'B'),
        write("d0/f0", 100, 2000, b'C'),
        write("d0/f1", 1000, 6500, b'D'),
        write("d0/f0", 20_000, 100, b'E'),
        truncate("d0/f1", 1000),
        truncate("d0/f1", 0),
        truncate("d0/f0", 10_000),
        allocate(FallocateMode::Punch, 1000, 7500),
    ];
    if has_extents {
        letters.extend([
            allocate(FallocateMode::Allocate, 6000, 14_000),
            allocate(FallocateMode::KeepSize, 6000, 14_000),
            allocate(FallocateMode::Zero, 2000, 9000),
            allocate(FallocateMode::ZeroKeepSize, 2000, 9000),
            allocate(FallocateMode::Collapse, 0, 4096),
            allocate(FallocateMode::Insert, 4096, 4096),
        ]);
    }
    letters
}

fn attributes() -> Vec<Letter> {
    let set = |name: &str, attribute: &str, len: usize| {
        let op = Op::SetXattr {
            file: OpTarget::Path(ModelPath::new(name)),
            name: attribute.as_bytes().to_vec(),
            value: vec![b'v'; len],
            flag: XattrCondition::Any,
        };
        letter(op, name, "d0")
    };
    let remove = Op::RemoveXattr {
        file: OpTarget::Path(ModelPath::new("d0/f0")),
        name: b"user.a".to_vec(),
    };
    vec![
        set("d0/f0", "user.a", 20),
        set("d0/f0", "user.b", 300),
        set("d0", "user.d", 5),
        letter(remove, "d0/f0", "d0"),
    ]
}

/// All steps that a sequence may have at each place.
#[must_use]
pub fn alphabet(has_extents: bool) -> Vec<OpAndSync> {
    let mut letters = names();
    letters.extend(contents(has_extents));
    letters.extend(attributes());
    let mut steps = Vec::new();
    for Letter { op, file, parent } in letters {
        steps.push(vec![op.clone()]);
        if let Some(file) = file {
            let file = OpTarget::Path(file);
            let syncs = [Op::Fsync { file: file.clone() }, Op::Fdatasync { file }];
            steps.extend(syncs.map(|sync| vec![op.clone(), sync]));
        }
        let parent = OpTarget::Path(parent);
        let syncs = [Op::Fsync { file: parent }, Op::Sync];
        steps.extend(syncs.map(|sync| vec![op.clone(), sync]));
    }
    steps
}

/// The operations of the sequence of this length and number. What a write writes tells its place in the sequence, so
/// that one over another shows.
#[must_use]
pub fn sequence(alphabet: &[OpAndSync], length: usize, number: usize) -> Vec<Op> {
    let mut ops = Vec::new();
    let mut rest = number;
    for place in 0..length {
        let step = alphabet[rest % alphabet.len()].iter().cloned();
        ops.extend(step.map(|op| at_place(op, place)));
        rest /= alphabet.len();
    }
    ops
}

fn at_place(mut op: Op, place: usize) -> Op {
    if let Op::Write { bytes, .. } = &mut op {
        // Letters become small ones at the second place; the third has neither.
        let further = 32 * place as u8;
        bytes.iter_mut().for_each(|byte| *byte += further);
    }
    op
}

/// How many sequences there are of a length.
#[must_use]
pub fn count(alphabet: &[OpAndSync], length: u32) -> usize {
    alphabet.len().pow(length)
}

/// What samples of sequences are drawn from, once for all.
const SAMPLE: u64 = 0x7472_6970_6c65;

/// `size` different sequences of a length, by their numbers: a longer sample begins with the shorter one.
#[must_use]
pub fn sample(alphabet: &[OpAndSync], length: u32, size: usize) -> Vec<usize> {
    let count = count(alphabet, length);
    let mut random = Random::new(SAMPLE + u64::from(length));
    let (mut seen, mut drawn) = (HashSet::new(), Vec::new());
    while drawn.len() < size.min(count) {
        // Below the count, which is a `usize`.
        let number = random.below(count as u64) as usize;
        if seen.insert(number) {
            drawn.push(number);
        }
    }
    drawn
}

/// The states that may be found after a number of operations have returned, with the next one under way.
pub struct Explained<'a> {
    start: &'a ModelTree,
    ops: &'a [Op],
    /// Which operations the engine did, as far as it came.
    done: &'a [bool],
    profile: Profile,
    times: RunTimes,
    histories: HashMap<usize, History>,
    marks: Vec<usize>,
}

impl<'a> Explained<'a> {
    /// Of a run on such an image with such times; `marks` holds for each event how many operations had returned.
    #[must_use]
    pub fn new(
        start: &'a ModelTree,
        ops: &'a [Op],
        done: &'a [bool],
        kind: (Profile, RunTimes),
        marks: Vec<usize>,
    ) -> Explained<'a> {
        Explained {
            start,
            ops,
            done,
            profile: kind.0,
            times: kind.1,
            histories: HashMap::new(),
            marks,
        }
    }

    fn history(&self, returned: usize) -> Result<History, String> {
        let refused = |op: &Op, errno| format!("the model refuses {}: {errno:?}", brief(op));
        let mut history = self.profile.history(self.start.clone(), self.times);
        for (index, op) in self.ops.iter().enumerate().take(returned) {
            if self.done[index] {
                if let Some(first) = within(op, history.last()) {
                    let mut state = history.last().clone();
                    state.apply(&first).map_err(|errno| refused(op, errno))?;
                    history.push_of(&first, state);
                }
                history.complete(op).map_err(|errno| refused(op, errno))?;
            }
        }
        if let Some(op) = self.ops.get(returned)
            && self.done.get(returned) != Some(&false)
        {
            let before = history.last().clone();
            for part in parts(op, self.profile.unit, &before)
                .into_iter()
                .chain([op.clone()])
            {
                let mut state = before.clone();
                // Of an operation that failed midway, even the model may refuse a part.
                if state.apply(&part).is_ok() {
                    history.push_of(&part, state);
                }
            }
        }
        Ok(history)
    }
}

impl Explains for Explained<'_> {
    fn position(&mut self, event: usize) -> usize {
        self.marks.get(event).copied().unwrap_or(self.ops.len())
    }

    fn check(&mut self, position: usize, found: &ModelTree) -> Result<(), String> {
        if !self.histories.contains_key(&position) {
            let history = self.history(position)?;
            self.histories.insert(position, history);
        }
        let checked = self.histories[&position].check(found);
        checked
            .map(drop)
            .map_err(|mismatch| format!("{position} done: {mismatch}"))
    }
}

/// What a run of operations left.
pub struct SequenceRecord {
    /// The device.
    pub recorder: Arc<Recorder>,
    /// Whether each operation that returned was done or refused as the model refuses it.
    pub done: Vec<bool>,
    /// What ended the run early: the operation's number and what it said; the number of operations means closing.
    pub broken: Option<(usize, String)>,
}

/// Points after which a run counts as a livelock.
const POINTS: u64 = 3_000_000;

/// Runs operations on a device, one after another, and closes it: as a schedule of one thread, whose time is the run's
/// own.
///
/// # Errors
/// When the engine and the model say different things.
pub fn record(
    recorder: Recorder,
    start: &ModelTree,
    ops: &[Op],
    times: RunTimes,
) -> Result<SequenceRecord, String> {
    let plan = SchedulePlan {
        seed: 0,
        points: POINTS,
    };
    let (recorded, _) = schedule::run(plan, || record_scheduled(recorder, start, ops, times))?;
    recorded
}

fn record_scheduled(
    recorder: Recorder,
    start: &ModelTree,
    ops: &[Op],
    times: RunTimes,
) -> Result<SequenceRecord, String> {
    let recorder = Arc::new(recorder);
    let shared: Arc<dyn BlockDevice> = Arc::clone(&recorder) as _;
    let mut recorded = SequenceRecord {
        recorder: Arc::clone(&recorder),
        done: Vec::new(),
        broken: None,
    };
    let mut tree = start.clone();
    let fs = match open_with(&shared, &logging(), times.clock) {
        Ok(fs) => fs,
        Err(error) => {
            recorded.broken = Some((0, error.to_string()));
            return Ok(recorded);
        }
    };
    let mut executor = if times.are_seen {
        Executor::new(&fs)
    } else {
        Executor::without_looks(&fs)
    };
    for (index, op) in ops.iter().enumerate() {
        let expected = match executor.apply(op) {
            Err(OpRefusal::Broken(why)) => {
                recorded.broken = Some((index, why));
                return Ok(recorded);
            }
            // Refused by name: nothing happened.
            Err(OpRefusal::Unsupported(_)) => {
                recorded.done.push(false);
                Ok(())
            }
            Ok(()) => {
                recorded.done.push(true);
                tree.apply(op)
            }
            Err(OpRefusal::Errno(errno)) => {
                recorded.done.push(false);
                match tree.clone().apply(op) {
                    Err(other) if other == errno => Ok(()),
                    other => return Err(format!("{}: {errno:?}; the model: {other:?}", brief(op))),
                }
            }
        };
        expected.map_err(|errno| format!("{} was done; the model: {errno:?}", brief(op)))?;
        recorder.mark(index as u64 + 1);
    }
    drop(executor);
    if let Err(error) = fs.close() {
        recorded.broken = Some((ops.len(), error.to_string()));
    }
    Ok(recorded)
}

/// For each number of events how many operations had returned.
#[must_use]
pub fn marks(recorder: &Recorder) -> Vec<usize> {
    let mut returned = 0;
    let mut marks = vec![0];
    for event in recorder.cuts().events() {
        if let Event::Mark(mark) = event {
            returned = usize::try_from(*mark).unwrap_or(0);
        }
        marks.push(returned);
    }
    // A mark counts for the cut before it, too: the operation had returned.
    for index in (0..marks.len().saturating_sub(1)).rev() {
        if let Some(Event::Mark(_)) = recorder.cuts().events().get(index) {
            marks[index] = marks[index + 1];
        }
    }
    marks
}

/// Runs operations and cuts them everywhere. `with_close`: also closes the file system, cuts the close, and lets the
/// judges read the closed image. All random choices and the clock follow from the seed.
///
/// # Errors
/// The first thing that is wrong.
pub fn run(sweep: &mut Sweep<'_>, ops: &[Op], seed: u64, with_close: bool) -> Result<(), String> {
    let start = sweep.image.tree.clone();
    let times = RunTimes::of(seed);
    let recorded = record(Recorder::over(&sweep.image.device), &start, ops, times)?;
    if let Some((index, why)) = recorded.broken {
        return Err(format!("operation {index} failed without a fault: {why}"));
    }
    let end: CowDevice = recorded.recorder.live();
    let mut expected = start.clone();
    for (op, _) in ops.iter().zip(&recorded.done).filter(|(_, done)| **done) {
        expected
            .apply(op)
            .map_err(|errno| format!("{}: {errno:?}", brief(op)))?;
    }
    expected
        .recovered()
        .compare(&read(&end)?)
        .map_err(|difference| format!("at the end: {difference}"))?;
    let mut until = usize::MAX;
    if with_close {
        sweep.judge_final(&end)?;
    } else {
        let events = recorded.recorder.cuts().events().len();
        until = until.min(returned(&recorded.recorder, ops.len()).unwrap_or(events));
    }
    let kind = (sweep.image.profile, times);
    let marks = marks(&recorded.recorder);
    let mut explained = Explained::new(&start, ops, &recorded.done, kind, marks);
    sweep.run(recorded.recorder.cuts(), &[], &mut explained, until, seed)
}

/// The number of events when `ops` operations had returned.
fn returned(recorder: &Recorder, ops: usize) -> Option<usize> {
    let is_last = |event: &Event| *event == Event::Mark(ops as u64);
    recorder.cuts().events().iter().position(is_last)
}

/// What a cut leaves of operations that were all synced and never written home.
///
/// # Errors
/// As [`record`].
pub fn left_dirty(image: &Image, ops: &[Op]) -> Result<CowDevice, String> {
    let mut ops = ops.to_vec();
    ops.push(Op::Sync);
    let recorder = Recorder::over(&image.device);
    let recorded = record(recorder, &image.tree, &ops, RunTimes::PLAIN)?;
    let event = returned(&recorded.recorder, ops.len());
    let event = event.ok_or("the last operation did not return")?;
    Ok(recorded.recorder.cuts().state(Cut { event, seed: 0 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_over_the_same_write_shows() {
        let alphabet = alphabet(true);
        let is_write = |step: &OpAndSync| matches!(step[..], [Op::Write { .. }]);
        let write = alphabet.iter().position(is_write).unwrap();
        let number = write * (alphabet.len() * alphabet.len() + alphabet.len() + 1);
        let ops = sequence(&alphabet, 3, number);
        let fills = ops.iter().map(|op| match op {
            Op::Write { bytes, .. } => bytes[0],
            other => panic!("{other:?}"),
        });
        assert_eq!(fills.collect::<Vec<_>>(), [b'A', b'a', b'A' + 64]);
    }
}
