//! A run's states in order, what was promised to be durable when, and the check of what a crash left.
//!
//! The rules are those of a journal whose transactions hold every operation before them (data=ordered):
//!
//! 1. Names, sizes and attributes are those of one state of the run: some prefix of the operations happened.
//! 2. That state is not older than any promise: `sync` promises all; `fsync` the last change of that inode, its names
//!    included; `fdatasync` the last change of its size or allocation, so a rename before it may be lost.
//! 3. A sector of a file holds what it held in the state found or any later one: the commit flushed the data before
//!    it, and overwrites go to their place at once. So zeros of a tail that a later truncate zeroed may show under the
//!    old size.
//! 4. What is a hole or unwritten in the state found reads as zeros: nobody sees blocks that it did not write.
//!
//! An operation under way at the crash counts as a state if its effect may show; push the states between its steps too.
//! This module does not know threads: the caller orders the histories of several threads.

use std::collections::BTreeMap;
use std::fmt;

use crate::content::{BLOCK, SECTOR};
use crate::{Difference, FileBytes, Kind, ModelId, ModelPath, ModelTree, Op, OpTarget};

/// A run's states and promises.
#[derive(Clone, Debug)]
pub struct History {
    states: Vec<ModelTree>,
    /// For each node, the states that changed it in ascending order, and what they changed.
    changed: BTreeMap<ModelId, Vec<(usize, Changed)>>,
    /// No older state may be found.
    durable: usize,
    /// For each file, the state whose data are durable.
    durable_data: BTreeMap<ModelId, usize>,
    /// Whether a promise about one inode is about no other.
    is_each: bool,
    /// Whether a write in place may leave an inode's times as they are.
    keeps_times: bool,
    /// For each inode, the state that it may not be older than; where promises are about one.
    synced: BTreeMap<ModelId, usize>,
    /// The same for its names.
    synced_names: BTreeMap<ModelId, usize>,
}

/// What a state changed of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Changed {
    /// Its data in place, and not even its times.
    Data,
    /// Something, but neither size nor allocation.
    Inode,
    /// Its size or allocation.
    Shape,
}

/// Why what was found is none of the states allowed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// States that were allowed.
    pub allowed: std::ops::RangeInclusive<usize>,
    /// For the state that came nearest (the one that differs latest in the walk): its index and the difference.
    pub nearest: (usize, Difference),
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (state, difference) = &self.nearest;
        write!(
            f,
            "none of the states {} to {} was found; the nearest is {state}, but {difference}",
            self.allowed.start(),
            self.allowed.end()
        )
    }
}

impl History {
    /// A history that begins with a durable state.
    #[must_use]
    pub fn new(start: ModelTree) -> History {
        History {
            states: vec![start],
            changed: BTreeMap::new(),
            durable: 0,
            durable_data: BTreeMap::new(),
            is_each: false,
            keeps_times: false,
            synced: BTreeMap::new(),
            synced_names: BTreeMap::new(),
        }
    }

    /// As [`History::new`], where an fsync promises one inode and its names, and what was done before to others may be
    /// lost: rules 1 and 2 hold for each name and each inode by itself, from the last `sync` on.
    #[must_use]
    pub fn new_of_each(start: ModelTree) -> History {
        History {
            is_each: true,
            ..History::new(start)
        }
    }

    /// The same history where a write in place may leave the inode's times as they are: it changes nothing but data
    /// then, so an fsync behind it promises those, and nothing that others did before.
    #[must_use]
    pub fn with_times_kept(self) -> History {
        History {
            keeps_times: true,
            ..self
        }
    }

    /// The newest state.
    #[must_use]
    pub fn last(&self) -> &ModelTree {
        &self.states[self.states.len() - 1]
    }

    /// How many states there are.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // There is always the first one.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Adds a state that may be found from now on: the effect of an operation, or of a part of one.
    pub fn push(&mut self, state: ModelTree) {
        self.push_changed(state, Changed::Inode);
    }

    /// As [`History::push`], of the effect of this operation, or of a part of it.
    pub fn push_of(&mut self, op: &Op, state: ModelTree) {
        let least = match op {
            Op::Write { .. } if self.keeps_times => Changed::Data,
            _ => Changed::Inode,
        };
        self.push_changed(state, least);
    }

    fn push_changed(&mut self, state: ModelTree, least: Changed) {
        let index = self.states.len();
        let before = self.last().clone();
        for (id, node) in state.nodes() {
            if before.is_untouched(&state, id) {
                continue;
            }
            let shape = before
                .get(id)
                .is_none_or(|old| shape(&old.kind) != shape(&node.kind));
            let what = if shape { Changed::Shape } else { least };
            self.changed.entry(id).or_default().push((index, what));
        }
        self.states.push(state);
    }

    /// Applies `op`, adds the state after it, and records what it promises; call it when the operation has returned.
    ///
    /// # Errors
    /// The errors of [`ModelTree::apply`]; no state is added then.
    pub fn complete(&mut self, op: &Op) -> Result<(), crate::Errno> {
        let mut state = self.last().clone();
        state.apply(op)?;
        self.push_of(op, state);
        self.promise(op);
        Ok(())
    }

    /// Records what a synchronising operation that has returned promises about the newest state.
    pub fn promise(&mut self, op: &Op) {
        self.promise_called(op, self.states.len() - 1);
    }

    /// As [`History::promise`] for an operation that was called when `called` was the newest state: what other threads
    /// changed meanwhile is not promised.
    pub fn promise_called(&mut self, op: &Op, called: usize) {
        let (file, all) = match op {
            Op::Sync => {
                self.durable = self.durable.max(called);
                let files: Vec<ModelId> = self.states[called].nodes().map(|(id, _)| id).collect();
                for id in files {
                    self.promise_data(id, called);
                }
                return;
            }
            Op::Fsync { file } => (file, true),
            Op::Fdatasync { file } => (file, false),
            _ => return,
        };
        let Some(id) = self.synced_file(file, called) else {
            return;
        };
        let changes = self.changed.get(&id).into_iter().flatten();
        let is_promised = |what| match what {
            Changed::Data => false,
            Changed::Inode => all,
            Changed::Shape => true,
        };
        let promised = changes
            .rev()
            .find(|(index, what)| *index <= called && is_promised(*what));
        let promised = promised.map_or(0, |(index, _)| *index);
        let is_nameless = |state: &ModelTree| state.get(id).is_none_or(|node| node.links == 0);
        if self.is_each && self.states[called..].iter().any(is_nameless) {
            // Nothing of it is there after a crash, but perhaps a name that it had in the last full commit: an fsync
            // that finds the file without names, when called or a moment later, makes neither its state nor that
            // durable.
            return;
        }
        if self.is_each {
            let synced = self.synced.entry(id).or_insert(0);
            *synced = promised.max(*synced);
            if all {
                // What names it has is a change of theirs, not of the inode's alone.
                let names = self.synced_names.entry(id).or_insert(0);
                *names = called.max(*names);
            }
        } else {
            self.durable = self.durable.max(promised);
        }
        self.promise_data(id, called);
    }

    /// Which file an operation synchronises that has returned: what the caller has in a slot stays there meanwhile, but
    /// it may have been put there after `called`. A path that led elsewhere in between promises nothing.
    fn synced_file(&self, file: &OpTarget, called: usize) -> Option<ModelId> {
        let now = self.last().find(file).ok()?;
        let is_sure = match file {
            OpTarget::Slot(_) => true,
            OpTarget::Path(_) => self.states[called].find(file) == Ok(now),
        };
        is_sure.then_some(now)
    }

    fn promise_data(&mut self, id: ModelId, state: usize) {
        let durable = self.durable_data.entry(id).or_insert(state);
        *durable = state.max(*durable);
    }

    /// A state by its number.
    #[must_use]
    pub fn state(&self, index: usize) -> &ModelTree {
        &self.states[index]
    }

    /// Checks what was found after a crash and recovery; gives the index of the state that it is.
    ///
    /// # Errors
    /// When it is none of those allowed.
    pub fn check(&self, found: &ModelTree) -> Result<usize, Mismatch> {
        let newest = self.states.len() - 1;
        if self.is_each {
            return match self.check_each(found) {
                Ok(()) => Ok(newest),
                Err(difference) => Err(Mismatch {
                    allowed: self.durable..=newest,
                    nearest: (newest, difference),
                }),
            };
        }
        let mut nearest: Option<(usize, Difference)> = None;
        // The newest first: it is the likeliest, and its data rules are the strictest.
        for index in (self.durable..=newest).rev() {
            match self.check_state(index, found) {
                Ok(()) => return Ok(index),
                Err(difference)
                    if nearest
                        .as_ref()
                        .is_none_or(|(_, other)| other.path < difference.path) =>
                {
                    nearest = Some((index, difference));
                }
                Err(_) => {}
            }
        }
        let none = Difference {
            path: ModelPath(Vec::new()),
            what: "no state is allowed".into(),
        };
        Err(Mismatch {
            allowed: self.durable..=newest,
            nearest: nearest.unwrap_or((newest, none)),
        })
    }

    /// How what was found differs from each state that was allowed: what to read when [`History::check`] fails.
    #[must_use]
    pub fn differences(&self, found: &ModelTree) -> Vec<(usize, Difference)> {
        (self.durable..self.states.len())
            .filter_map(|index| Some((index, self.check_state(index, found).err()?)))
            .collect()
    }

    fn check_state(&self, index: usize, found: &ModelTree) -> Result<(), Difference> {
        let state = self.states[index].recovered();
        let numbers = state.compare_metadata(found)?;
        for (path, there) in found.walk() {
            let id = numbers[&there];
            if let (Kind::File(mine), Kind::File(theirs)) =
                (&state.node(id).kind, &found.node(there).kind)
            {
                let from = index.max(self.durable_data.get(&id).copied().unwrap_or(0));
                self.check_data(id, index, from, mine, theirs)
                    .map_err(|what| Difference {
                        path: path.clone(),
                        what,
                    })?;
            }
        }
        Ok(())
    }

    /// Rules 3 and 4 for one file.
    fn check_data(
        &self,
        id: ModelId,
        index: usize,
        from: usize,
        expected: &FileBytes,
        found: &FileBytes,
    ) -> Result<(), String> {
        let later: Vec<&FileBytes> = self.states[from.min(self.states.len() - 1)..]
            .iter()
            .filter_map(|state| match &state.get(id)?.kind {
                Kind::File(content) => Some(content),
                _ => None,
            })
            .collect();
        let shifted = self.shifts_after(id, index);
        let size = expected.size();
        for block in 0..size.div_ceil(BLOCK) {
            let actual = found.block(block);
            let candidates = candidates(expected, &later, block, shifted);
            let bytes = usize::try_from((size - block * BLOCK).min(BLOCK)).unwrap_or(0);
            for start in (0..bytes).step_by(SECTOR) {
                let sector = start..(start + SECTOR).min(bytes);
                let allowed = candidates
                    .iter()
                    .any(|known| known[sector.clone()] == actual[sector.clone()]);
                if !allowed {
                    let at = block * BLOCK + start as u64;
                    let what = if expected.is_data(block) {
                        "older or foreign data"
                    } else {
                        "data in a hole"
                    };
                    return Err(format!("the sector at byte {at} holds {what}"));
                }
            }
        }
        Ok(())
    }

    /// Whether an operation after state `index` may have moved this file's blocks to other places in it.
    fn shifts_after(&self, id: ModelId, index: usize) -> bool {
        self.states[index..].windows(2).any(|pair| {
            let sizes: Vec<Option<&FileBytes>> = pair
                .iter()
                .map(|state| match &state.get(id)?.kind {
                    Kind::File(content) => Some(content),
                    _ => None,
                })
                .collect();
            match sizes[..] {
                [Some(before), Some(after)] => before.moved_into(after),
                _ => false,
            }
        })
    }
}

/// What the sectors of a block may hold.
fn candidates(
    expected: &FileBytes,
    later: &[&FileBytes],
    block: u64,
    shifted: bool,
) -> Vec<std::rc::Rc<[u8]>> {
    let mut candidates = vec![expected.block(block)];
    if !expected.is_data(block) {
        return candidates;
    }
    if !later.is_empty() && !shifted {
        // Data known to be durable replace what the state itself held.
        candidates.clear();
    }
    for content in later {
        if shifted {
            candidates.extend(content.data_blocks());
        } else if content.is_data(block) || content.is_allocated(block) {
            candidates.push(content.block(block));
        } else {
            // Cut off or punched later: its sectors stay as they were until the commit.
            candidates.push(expected.block(block));
        }
    }
    if candidates.is_empty() {
        candidates.push(expected.block(block));
    }
    candidates
}

/// Size and allocation of a file, which fdatasync promises.
fn shape(kind: &Kind) -> Option<(u64, Vec<(u64, bool)>)> {
    match kind {
        Kind::File(content) => Some((content.size(), content.allocation())),
        _ => None,
    }
}

mod each;
#[cfg(test)]
mod tests;
