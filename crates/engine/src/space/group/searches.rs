//! What searches for blocks met, counted on each thread's own lines.

use sync::Counter;

/// How a run of blocks is looked for, from what is quick to what finds any; [`crate::space::mballoc`] describes each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Criterion {
    Goal,
    PowerOfTwo,
    GoalFast,
    BestAvailable,
    GoalSlow,
    Any,
}

/// The counters' names, in the order of the criteria.
const FOUND: [&str; 6] = [
    "mballoc.found_at_goal",
    "mballoc.found_power_of_two",
    "mballoc.found_goal_fast",
    "mballoc.found_best_available",
    "mballoc.found_goal_slow",
    "mballoc.found_any",
];

/// See the module.
#[derive(Default)]
pub(crate) struct Searches {
    /// Searches that began.
    pub(crate) tries: Counter,
    /// Groups whose lock was taken, or tried to be.
    pub(crate) scanned: Counter,
    /// Runs that were found, by criterion.
    found: [Counter; FOUND.len()],
}

impl Searches {
    /// A run was found.
    pub(crate) fn found(&self, by: Criterion) {
        self.found[by as usize].add(1);
    }

    /// What was counted so far.
    pub(crate) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let found = self.found.iter().map(Counter::sum);
        let all = [
            ("mballoc.searches", self.tries.sum()),
            ("mballoc.groups_scanned", self.scanned.sum()),
        ];
        all.into_iter().chain(FOUND.into_iter().zip(found))
    }
}
