//! What several threads did, in the order in which it took effect, and what a crash may leave of it.
//!
//! Every operation takes effect under a handle, and what does not commute is done under common locks; so the order in
//! which handles begin is one in which the operations happened, and it never goes against the journal's epochs. An
//! operation of several handles (a write into holes, a truncation) takes effect with one of them, and before that
//! partly; which one, the table in [`usual`] says, and where that explains nothing, every other place within the call
//! is tried. What reads only takes effect somewhere between call and return.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use model::{Errno, History, ModelTree, Op};
use sync::schedule::Handled;

use crate::executor::{OpRefusal, brief, parts, within};
use crate::image::Profile;
use crate::times::RunTimes;

/// One call of one thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// The thread's number in the schedule.
    pub thread: usize,
    /// What was asked for.
    pub op: Op,
    /// When it was called ([`sync::gauge::Reading::at`]).
    pub called: u64,
    /// When it returned.
    pub returned: u64,
    /// What it returned.
    pub result: Result<(), OpRefusal>,
}

impl Call {
    /// Whether it never returned.
    fn is_cut_off(&self) -> bool {
        self.returned == u64::MAX
    }
}

/// What happens at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Call(usize),
    Return(usize),
    /// The n-th handle of a call begins, and when it ends.
    Handle(usize, usize, u64),
}

/// All calls of a run.
#[derive(Clone, Debug)]
pub struct Trace {
    calls: Vec<Call>,
    /// How many handles each call began.
    handles: Vec<usize>,
    timeline: Vec<(u64, Step)>,
    profile: Profile,
    times: RunTimes,
    /// What explained something last: tried first.
    known: RefCell<Places>,
}

/// Why an explanation failed, and how much of the timeline it explained.
type Unexplained = (usize, String);

/// Places where calls take effect, other than the usual ones.
type Places = BTreeMap<usize, usize>;

/// A history, and which of its states was the newest when each call began and ended.
struct Built {
    history: History,
    called: BTreeMap<usize, usize>,
    returned: BTreeMap<usize, usize>,
    /// For each call that is partly done, the last state before its parts.
    partly: BTreeMap<usize, usize>,
    /// For each call, the oldest state that a reader without a lock may still have seen when the call began: the last
    /// one before any handle that was open.
    seen: BTreeMap<usize, usize>,
    /// For each state, when the handle that made it ended.
    ended: Vec<u64>,
}

/// Pairs of unusual places that are tried before a run counts as unexplained.
const TRIES: usize = 2000;
/// Places of all calls under way that are tried then.
const TRIES_UNDER_WAY: usize = 20_000;
/// How often one more unusual place is sought that explains more.
const ROUNDS: usize = 8;

impl Trace {
    /// Of what the threads logged, and the handles that they began ([`sync::schedule::handled`]). On an image of
    /// this kind, with such times.
    #[must_use]
    pub fn new(mut calls: Vec<Call>, handled: &[Handled], kind: (Profile, RunTimes)) -> Trace {
        calls.sort_by_key(|call| call.called);
        let mut handles = vec![0; calls.len()];
        let mut timeline = Vec::new();
        for (index, call) in calls.iter().enumerate() {
            timeline.push((call.called, Step::Call(index)));
            timeline.push((call.returned, Step::Return(index)));
        }
        for handle in handled {
            let of = |call: &Call| {
                call.thread == handle.thread
                    && call.called < handle.begun
                    && handle.begun < call.returned
            };
            // A handle outside of all calls belongs to opening or closing the file system.
            if let Some(index) = calls.iter().position(of) {
                let step = Step::Handle(index, handles[index], handle.ended);
                timeline.push((handle.begun, step));
                handles[index] += 1;
            }
        }
        timeline.sort_by_key(|(at, _)| *at);
        Trace {
            calls,
            handles,
            timeline,
            profile: kind.0,
            times: kind.1,
            known: RefCell::default(),
        }
    }

    /// Takes calls that a failing device broke for calls that never returned: they were done, partly done, or not.
    pub fn never_returned(&mut self) {
        for (index, call) in self.calls.iter_mut().enumerate() {
            if matches!(call.result, Err(OpRefusal::Broken(_))) {
                call.result = Ok(());
                call.returned = u64::MAX;
                self.timeline
                    .retain(|(_, step)| *step != Step::Return(index));
            }
        }
    }

    /// The calls in the order in which they began.
    #[must_use]
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// How much of the trace lies before a moment: equal for moments between which nothing happened.
    #[must_use]
    pub fn position(&self, at: u64) -> usize {
        self.timeline.partition_point(|(when, _)| *when < at)
    }

    /// Whether a tree that was found is what a crash at this position may leave of a run that began with `start`.
    ///
    /// # Errors
    /// Why not.
    pub fn check(
        &self,
        start: &ModelTree,
        position: usize,
        found: &ModelTree,
    ) -> Result<(), String> {
        self.explain(start, position, &|built| {
            let Err(mismatch) = built.history.check(found) else {
                return Ok(());
            };
            let mut text = mismatch.to_string();
            for (state, difference) in built.history.differences(found) {
                text += &format!("\n  state {state}: {difference}");
            }
            Err((usize::MAX, text))
        })
    }

    /// Whether every call returned what it should have, and the tree at the end is what it should be.
    ///
    /// # Errors
    /// Why not.
    pub fn check_whole(&self, start: &ModelTree, found: &ModelTree) -> Result<(), String> {
        self.explain(start, self.timeline.len(), &|built| {
            self.check_refusals(built)?;
            let last = built.history.last().recovered();
            last.compare(found)
                .map_err(|difference| (usize::MAX, format!("after all calls: {difference}")))
        })
    }

    fn explain(
        &self,
        start: &ModelTree,
        position: usize,
        check: &dyn Fn(&Built) -> Result<(), Unexplained>,
    ) -> Result<(), String> {
        let attempt = |places: &Places| check(&self.build(start, position, places)?);
        let mut places = self.known.borrow().clone();
        let Err((mut best, why)) = attempt(&places) else {
            return Ok(());
        };
        if !places.is_empty() && attempt(&Places::new()).is_ok() {
            self.known.take();
            return Ok(());
        }
        let choices = self.choices(start, position, &places);
        for _ in 0..ROUNDS {
            let mut better = None;
            for (index, place) in &choices {
                let mut changed = places.clone();
                changed.insert(*index, *place);
                match attempt(&changed) {
                    Ok(()) => {
                        self.known.replace(changed);
                        return Ok(());
                    }
                    Err((explained, _)) if explained > best => {
                        best = explained;
                        better = Some(changed);
                    }
                    Err(_) => {}
                }
            }
            let Some(changed) = better else {
                break;
            };
            places = changed;
        }
        let explained = self.explain_by_pairs(&choices, &attempt);
        explained
            .or_else(|| self.explain_by_those_under_way(position, &choices, &attempt))
            .ok_or(why)
    }

    /// Changes the places of any of the calls that were under way when the power failed, as far as
    /// [`TRIES_UNDER_WAY`] allows: each thread has one at most.
    fn explain_by_those_under_way(
        &self,
        position: usize,
        choices: &[(usize, usize)],
        attempt: &dyn Fn(&Places) -> Result<(), Unexplained>,
    ) -> Option<()> {
        let end = self.timeline.get(position).map_or(u64::MAX, |(at, _)| *at);
        let mut of_calls: BTreeMap<usize, Vec<Option<usize>>> = BTreeMap::new();
        for (index, place) in choices {
            if self.calls[*index].returned >= end {
                // At first the usual place.
                let places = of_calls.entry(*index).or_insert_with(|| vec![None]);
                places.push(Some(*place));
            }
        }
        let all: usize = of_calls.values().map(Vec::len).product();
        let changed = (0..all.min(TRIES_UNDER_WAY))
            .map(|mut number| {
                let mut changed = Places::new();
                for (index, places) in &of_calls {
                    let place = places[number % places.len()];
                    number /= places.len();
                    changed.extend(place.map(|place| (*index, place)));
                }
                changed
            })
            .find(|changed| attempt(changed).is_ok())?;
        self.known.replace(changed);
        Some(())
    }

    /// Changes two places at once, as far as [`TRIES`] allows.
    fn explain_by_pairs(
        &self,
        choices: &[(usize, usize)],
        attempt: &dyn Fn(&Places) -> Result<(), Unexplained>,
    ) -> Option<()> {
        let pairs = choices.iter().enumerate().flat_map(|(index, first)| {
            choices[index + 1..]
                .iter()
                .map(move |second| [*first, *second])
        });
        let changed = pairs
            .filter(|[first, second]| first.0 != second.0)
            .take(TRIES)
            .map(Places::from)
            .find(|changed| attempt(changed).is_ok())?;
        self.known.replace(changed);
        Some(())
    }

    /// Every other place than these, or the usual ones, of calls that others overlap.
    fn choices(&self, start: &ModelTree, position: usize, places: &Places) -> Vec<(usize, usize)> {
        let end = self.timeline.get(position).map_or(u64::MAX, |(at, _)| *at);
        let mut choices = Vec::new();
        for (index, call) in self.calls.iter().enumerate().rev() {
            let overlaps = |other: &Call| {
                other.thread != call.thread
                    && other.called < call.returned
                    && call.called < other.returned
            };
            if call.called < end && (self.handles[index] > 1 || self.calls.iter().any(overlaps)) {
                let usual = usual(&call.op, self.handles[index]);
                // What explained something last need not explain this.
                let now = places.get(&index).copied().unwrap_or(usual);
                let more = match (self.handles[index], call.is_cut_off()) {
                    (_, true) => 2 * self.parts(index, start),
                    (0 | 1, false) => 0,
                    _ => self.parts(index, start),
                };
                let others = 0..self.handles[index] + 2 + more;
                choices.extend(
                    others
                        .filter(|place| *place != now)
                        .map(|place| (index, place)),
                );
            }
        }
        choices
    }

    /// How many parts, at most, the first handle of a call may have done besides one.
    fn parts(&self, index: usize, start: &ModelTree) -> usize {
        parts(&self.calls[index].op, self.profile.unit, start).len() + 1
    }

    fn build(
        &self,
        start: &ModelTree,
        position: usize,
        places: &Places,
    ) -> Result<Built, Unexplained> {
        let mut built = Built {
            history: self.profile.history(start.clone(), self.times),
            called: BTreeMap::new(),
            returned: BTreeMap::new(),
            seen: BTreeMap::new(),
            partly: BTreeMap::new(),
            ended: vec![0],
        };
        let mut applied = vec![false; self.calls.len()];
        for (explained, (at, step)) in self.timeline[..position].iter().enumerate() {
            let (Step::Call(index) | Step::Return(index) | Step::Handle(index, ..)) = *step;
            let because = |why: String| (explained, why);
            let call = &self.calls[index];
            let usual = usual(&call.op, self.handles[index]);
            let chosen = places.get(&index).copied().unwrap_or(usual);
            // Beyond all places: the usual one, and how many parts more than one its first handle did.
            let parts_of = |more: usize| match more.checked_sub(self.parts(index, start)) {
                // Never wholly, for it did not return.
                Some(more) => (self.handles[index], more),
                None => (usual, more),
            };
            let (place, more) = match chosen.checked_sub(self.handles[index] + 2) {
                Some(more) => parts_of(more),
                None => (chosen, 0),
            };
            let newest = built.history.len() - 1;
            let now = match *step {
                Step::Handle(_, nth, _) => nth,
                Step::Return(_) => self.handles[index],
                Step::Call(_) => self.handles[index] + 1,
            };
            if matches!(step, Step::Call(_)) {
                // How much of what is partly done was done before this call is not known.
                let known = built.partly.values().copied().min().unwrap_or(newest);
                let open = built.ended.iter().position(|ended| ended > at);
                let seen = open.map_or(newest, |state| state.saturating_sub(1).min(newest));
                built.seen.insert(index, seen);
                // Nor does it wait for what a handle does that is open now: that call has not returned.
                built.called.insert(index, known.min(seen));
            }
            if call.result.is_ok() {
                if now == place {
                    apply(&mut built.history, &call.op).map_err(because)?;
                    applied[index] = true;
                    built.partly.remove(&index);
                } else if now < place && (place < self.handles[index] || call.is_cut_off()) {
                    built.partly.entry(index).or_insert(newest);
                    let first = if now == 0 { 0 } else { more + now };
                    self.apply_parts(&mut built.history, &call.op, first..=more + now)
                        .map_err(because)?;
                }
            }
            let ended = match step {
                Step::Handle(_, _, ended) => *ended,
                _ => *at,
            };
            built.ended.resize(built.history.len(), ended);
            if let Step::Return(_) = step {
                if call.result.is_ok() {
                    let called = built.called[&index];
                    built.history.promise_called(&call.op, called);
                }
                built.returned.insert(index, built.history.len() - 1);
            }
        }
        self.add_future(&mut built, &applied);
        Ok(built)
    }

    /// What calls under way may have written in place already.
    fn add_future(&self, built: &mut Built, applied: &[bool]) {
        for index in built.called.keys() {
            let call = &self.calls[*index];
            let writes = matches!(
                call.op,
                Op::Write { .. } | Op::Truncate { .. } | Op::Fallocate { .. }
            );
            if !applied[*index] && writes && call.result.is_ok() {
                let mut all = parts(&call.op, self.profile.unit, built.history.last());
                all.push(call.op.clone());
                for op in all {
                    // A part that the model refuses now wrote nothing.
                    let _ = apply(&mut built.history, &op);
                }
            }
        }
    }

    fn apply_parts(
        &self,
        history: &mut History,
        op: &Op,
        wanted: RangeInclusive<usize>,
    ) -> Result<(), String> {
        let parts = parts(op, self.profile.unit, history.last());
        let wanted = parts
            .iter()
            .enumerate()
            .filter(|(index, _)| wanted.contains(index));
        wanted
            .map(|(_, part)| part)
            .try_for_each(|part| apply(history, part))
    }

    /// Whether what was refused was refused rightly at some moment of its call.
    fn check_refusals(&self, built: &Built) -> Result<(), Unexplained> {
        for (index, call) in self.calls.iter().enumerate() {
            let Err(OpRefusal::Errno(errno)) = &call.result else {
                continue;
            };
            if *errno == Errno::ENOSPC {
                // The model has all the space in the world; whether there was some was asked then and there.
                continue;
            }
            let states = built.seen[&index]..=built.returned[&index];
            let refuses = |state: usize| {
                let mut tree = built.history.state(state).clone();
                tree.apply(&call.op).err() == Some(*errno)
            };
            if !states.clone().any(refuses) {
                let mut tree = built.history.state(*states.end()).clone();
                let explained = self.position(call.returned);
                let why = format!(
                    "{} of thread {} was refused with {errno:?}; the model says {:?}",
                    brief(&call.op),
                    call.thread,
                    tree.apply(&call.op)
                );
                return Err((explained, why));
            }
        }
        Ok(())
    }
}

fn apply(history: &mut History, op: &Op) -> Result<(), String> {
    if let Some(first) = within(op, history.last()) {
        let mut state = history.last().clone();
        if state.apply(&first).is_ok() {
            history.push_of(&first, state);
        }
    }
    let mut state = history.last().clone();
    state
        .apply(op)
        .map_err(|errno| format!("the model refuses {}: {errno:?}", brief(op)))?;
    history.push_of(op, state);
    Ok(())
}

/// With which of its handles (from 0; their number means its return) a call takes effect.
fn usual(op: &Op, handles: usize) -> usize {
    match op {
        // Grows step by step; its last step completes it.
        Op::Write { .. } | Op::Fallocate { .. } => handles.saturating_sub(1),
        // The rest frees what no reader sees any more.
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use model::{ModelPath, RenameMode};

    use super::*;
    use crate::image::PROFILES;

    /// With full commits. Three renames are under way, each between its two handles, while a fourth thread makes a file
    /// and syncs.
    #[test]
    fn three_calls_that_are_under_way_may_all_be_undone() {
        let mut start = ModelTree::new();
        let mut calls = Vec::new();
        let mut handled = Vec::new();
        let call = |thread, op, called, returned| Call {
            thread,
            op,
            called,
            returned,
            result: Ok(()),
        };
        let create = |name: &str| Op::Create {
            path: ModelPath::new(name),
            mode: 0o644,
        };
        for thread in 0..3 {
            let (from, to) = (format!("a{thread}"), format!("b{thread}"));
            start.apply(&create(&from)).unwrap();
            let op = Op::Rename {
                from: ModelPath::new(&from),
                to: ModelPath::new(&to),
                flag: RenameMode::NoReplace,
            };
            let at = thread as u64;
            calls.push(call(thread, op, 10 + at, 100 + at));
            for begun in [20 + at, 90 + at] {
                let ended = begun;
                handled.push(Handled {
                    thread,
                    begun,
                    ended,
                });
            }
        }
        calls.push(call(3, create("new"), 30, 40));
        let (begun, ended) = (35, 35);
        handled.push(Handled {
            thread: 3,
            begun,
            ended,
        });
        calls.push(call(3, Op::Sync, 50, 60));
        let trace = Trace::new(calls, &handled, (PROFILES[0], RunTimes::of(0)));
        let position = trace.position(70);
        let mut found = start.clone();
        found.apply(&create("new")).unwrap();
        trace.check(&start, position, &found).unwrap();
        // A name that no call made is there in no order.
        found.apply(&create("other")).unwrap();
        assert!(trace.check(&start, position, &found).is_err());
    }
}
