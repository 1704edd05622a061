//! Runs of blocks, each a pair of its first block and its length.

/// Sorts runs, and joins those that overlap or touch.
pub fn merged(mut runs: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    runs.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (first, len) in runs {
        match merged.last_mut() {
            Some((start, known)) if first <= *start + *known => {
                *known = (*known).max(first + len - *start);
            }
            _ => merged.push((first, len)),
        }
    }
    merged
}

/// Whether any of the `count` blocks from `first` on is in `runs`, which must be [`merged`].
pub fn overlap(runs: &[(u64, u64)], first: u64, count: u64) -> bool {
    let at = runs.partition_point(|(start, len)| start + len <= first);
    let run = runs.get(at);
    run.is_some_and(|(start, _)| *start < first + count)
}
