//! The tree compared with a map, used by one thread, and by several under schedules.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sync::schedule::{self, SchedulePlan};
use sync::thread::workers;

use super::*;

/// So small that a few items make several levels.
const NODE: usize = 64;

fn items(tree: &LogTree<u64, Vec<u8>>) -> Vec<(u64, Vec<u8>)> {
    let mut all = Vec::new();
    tree.scan(0, |key, value| {
        all.push((*key, value.clone()));
        true
    });
    all
}

proptest! {
    #[test]
    fn it_holds_what_a_map_holds(
        steps in prop::collection::vec((0_u8..4, 0_u64..200, 0_usize..24), 1..600)
    ) {
        let (tree, mut map) = (LogTree::new(NODE, Vec::len), BTreeMap::new());
        for (what, key, len) in steps {
            let value = vec![len as u8; len];
            match what {
                0 | 1 => {
                    let was_there = tree.insert(key, value.clone(), |old, new| *old = new);
                    prop_assert_eq!(was_there, map.insert(key, value).is_some());
                }
                2 => {
                    let halve = |value: &mut Vec<u8>| value.truncate(value.len() / 2);
                    let changed = tree.update(&key, halve).is_some();
                    prop_assert_eq!(changed, map.get_mut(&key).map(halve).is_some());
                }
                _ => prop_assert_eq!(tree.remove(&key), map.remove(&key).is_some()),
            }
            prop_assert_eq!(tree.get(&key, Clone::clone), map.get(&key).cloned());
        }
        prop_assert_eq!(items(&tree), map.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn an_update_never_locks_a_parent_for_writing_and_never_splits() {
    let tree = LogTree::new(NODE, Vec::len);
    (0..500).for_each(|key| assert!(!tree.insert(key * 7 % 500, vec![0; 8], |_, _| ())));
    let counters = tree.counters();
    let before = (
        counters.parent_write_locks.sum(),
        counters.leaf_splits.sum() + counters.node_splits.sum(),
    );
    assert!(before.0 >= 500 && before.1 > 100, "{before:?}");
    for key in 0..500 {
        assert_eq!(tree.update(&key, |value| value[0] = 1), Some(()));
    }
    assert_eq!(tree.update(&500, |_| ()), None);
    let after = (
        counters.parent_write_locks.sum(),
        counters.leaf_splits.sum() + counters.node_splits.sum(),
    );
    assert_eq!((before, counters.updates.sum()), (after, 500));
    // In the other form (`log_update=insert`), the same changes lock each leaf's parent, as inserts do.
    for key in 0..500 {
        assert!(tree.insert(key, vec![0; 8], |old, new| *old = new));
    }
    assert!(counters.parent_write_locks.sum() >= after.0 + 500);
}

#[test]
fn threads_that_insert_update_and_scan_at_once_lose_nothing() {
    for seed in 0..150 {
        let work = || {
            let tree = LogTree::new(NODE, Vec::len);
            (0..12_u64).for_each(|key| {
                tree.insert(key * 10, vec![0; 8], |_, _| ());
            });
            workers(3, |thread| {
                for step in 0..6_u64 {
                    match thread {
                        0 => assert!(!tree.insert(step * 20 + 1, vec![1; 16], |_, _| ())),
                        1 => {
                            let add = |value: &mut Vec<u8>| value[0] += 1;
                            assert_eq!(tree.update(&(step % 3 * 40), add), Some(()));
                        }
                        _ => {
                            let mut last = None;
                            let mut old = 0;
                            tree.scan(0, |key, _| {
                                assert!(last < Some(*key), "{last:?} before {key}");
                                last = Some(*key);
                                old += usize::from(key % 10 == 0);
                                true
                            });
                            // Keys that exist all the time are found, whatever splits meanwhile.
                            assert_eq!(old, 12);
                        }
                    }
                }
            });
            let all = items(&tree);
            assert_eq!(all.len(), 18);
            let counts = [0, 40, 80].map(|key| tree.get(&key, |value| value[0]));
            assert_eq!(counts, [Some(2); 3]);
        };
        let plan = SchedulePlan {
            seed,
            points: 1_000_000,
        };
        schedule::run(plan, work).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}
