//! Windows: which numbers they hold, in which order they give them out, and that none is lost or given twice whatever
//! threads do at once.

use sync::Mutex;
use sync::schedule::{self, SchedulePlan};
use sync::thread::workers;

use super::*;
use crate::space::group::DescriptorInodes;

const LEN: u32 = 512;
const GROUP: Group = Group(0);

fn inodes() -> Arc<InodeNumbers> {
    let said = DescriptorInodes {
        inodes: LEN,
        ..DescriptorInodes::default()
    };
    let inodes = Arc::new(InodeNumbers::new(&[said], 0));
    let bits = InodeBits::new(&[0; 64], LEN, 0, LEN);
    inodes.insert(GROUP, Ok(bits)).unwrap();
    inodes
}

/// Fills a window from the group's bits and takes a number.
fn fill(inodes: &InodeNumbers, window: &Window, size: u32, beside: &[u32]) -> Option<u32> {
    let share = inodes.share_for_window(size);
    let filling = Filling {
        group: GROUP,
        bits: inodes.loaded(GROUP)?,
        share,
        beside,
        names: 0,
        all_at: None,
    };
    let (taken, rest, _) = window.fill_and_take(&filling, None, 0);
    inodes.give_back_share(rest);
    taken.map(|(_, index)| index)
}

/// As [`fill`], of a directory whose names were all seen when they had changed so often.
fn fill_all_seen(inodes: &InodeNumbers, window: &Window, size: u32, names: u32, at: u64) {
    let filling = Filling {
        group: GROUP,
        bits: inodes.loaded(GROUP).unwrap(),
        share: inodes.share_for_window(size),
        beside: &[],
        names,
        all_at: Some(at),
    };
    let (_, rest, _) = window.fill_and_take(&filling, None, 0);
    inodes.give_back_share(rest);
}

fn drain(window: &Window) -> Vec<u32> {
    std::iter::from_fn(|| window.take(None, 0))
        .map(|(_, index)| index)
        .collect()
}

#[test]
fn windows_of_two_directories_do_not_mix() {
    let inodes = inodes();
    let (a, b) = (Window::new(&inodes), Window::new(&inodes));
    assert_eq!(fill(&inodes, &a, 16, &[]), Some(0));
    assert_eq!(fill(&inodes, &b, 16, &[]), Some(16));
    assert_eq!(drain(&a), (1..16).collect::<Vec<_>>());
    assert_eq!(drain(&b), (17..32).collect::<Vec<_>>());
    // All of a window of many words; and the next one behind it.
    assert_eq!(fill(&inodes, &a, 200, &[]), Some(64));
    assert_eq!(drain(&a), (65..264).collect::<Vec<_>>());
    assert_eq!(fill(&inodes, &b, 16, &[]), Some(32));
    // The numbers in a window are available.
    assert_eq!(inodes.sum(), u64::from(LEN - 32 - 200 - 1));
    drop(b);
    assert_eq!(fill(&inodes, &a, 8, &[]), Some(264));
    assert_eq!(inodes.sum(), u64::from(LEN - 32 - 200 - 2));
    assert_eq!(a.draw_back(), 7);
    assert_eq!(inodes.sum(), u64::from(LEN - 32 - 200 - 2));
}

#[test]
fn a_directory_that_only_got_files_of_its_window_is_known() {
    let inodes = inodes();
    let window = Window::new(&inodes);
    assert_eq!(window.names(Some(0)), (0, false));
    fill_all_seen(&inodes, &window, 4, 3, 7);
    // The number that was taken got a name, or will.
    assert_eq!(window.names(Some(8)), (4, true));
    assert_eq!(window.names(Some(7)), (4, true));
    // Another name was added, or one was removed; or it is not known.
    assert_eq!(window.names(Some(9)), (4, false));
    assert_eq!(window.names(None), (4, false));
    assert_eq!(drain(&window).len(), 3);
    assert_eq!(window.names(Some(11)), (7, true));
    assert_eq!(window.names(Some(12)), (7, false));
    // Filled again, and not all were seen.
    fill(&inodes, &window, 4, &[]);
    assert!(!window.names(Some(13)).1);
    // They were.
    drain(&window);
    fill_all_seen(&inodes, &window, 4, 6, 20);
    assert_eq!(window.names(Some(21)), (7, true));
    window.forget();
    assert_eq!(window.names(Some(0)), (0, false));
}

#[test]
fn numbers_beside_those_of_the_slot_come_first() {
    let inodes = inodes();
    let (a, b) = (Window::new(&inodes), Window::new(&inodes));
    fill(&inodes, &a, 8, &[]);
    fill(&inodes, &b, 64, &[]);
    a.draw_back();
    b.draw_back();
    // A directory that was not in memory has the file 64: what is free behind it in its block of the table, not the
    // hole before.
    let window = Window::new(&inodes);
    assert_eq!(fill(&inodes, &window, 16, &[64]), Some(65));
    assert_eq!(drain(&window), (66..80).collect::<Vec<_>>());
}

#[test]
fn a_directorys_own_numbers_are_taken_again_and_not_its_neighbours() {
    let inodes = inodes();
    let (a, b) = (Window::new(&inodes), Window::new(&inodes));
    fill(&inodes, &a, 8, &[]);
    fill(&inodes, &b, 8, &[]);
    drain(&a);
    drain(&b);
    let free = |numbers: &[u32]| {
        for index in numbers {
            inodes.loaded(GROUP).unwrap().give_back_one(*index);
            inodes.give_back_share(1);
        }
    };
    // Of both in turns, in one block of the table.
    free(&[1, 3, 4, 6, 9, 11, 12, 14]);
    assert_eq!(fill(&inodes, &b, 8, &[8]), Some(9));
    assert_eq!(drain(&b), [11, 12, 14]);
    assert_eq!(fill(&inodes, &a, 8, &[0]), Some(1));
    assert_eq!(drain(&a), [3, 4, 6]);
    // When none is free, others are set aside; those that the window had are known after it was drawn back.
    assert_eq!(fill(&inodes, &a, 8, &[0]), Some(16));
    assert_eq!(a.draw_back(), 7);
    free(&[9, 10]);
    assert_eq!(fill(&inodes, &a, 8, &[0]), Some(17));
    assert_eq!(drain(&a), (18..24).collect::<Vec<_>>());
}

#[test]
fn numbers_follow_the_hashes_of_names_that_come_in_any_order() {
    let inodes = inodes();
    let window = Window::new(&inodes);
    fill(&inodes, &window, 129, &[]);
    let mut taken: Vec<(u32, u32)> = (0..64_u32)
        .map(|name| {
            let hash = name.wrapping_mul(0x9e37_79b9);
            (hash, window.take(Some(hash), 0).unwrap().1)
        })
        .collect();
    taken.sort_unstable();
    let descents = taken.windows(2).filter(|two| two[0].1 > two[1].1).count();
    assert!(descents <= 4, "{descents} of 63: {taken:?}");
}

#[test]
fn a_window_that_nobody_uses_goes_back_after_some_ticks() {
    let inodes = inodes();
    let window = Window::new(&inodes);
    fill(&inodes, &window, 16, &[]);
    window.take(None, 5).unwrap();
    assert_eq!(
        (window.draw_back_idle(10, 6), window.draw_back_idle(11, 6)),
        (0, 14)
    );
    assert_eq!(inodes.loaded(GROUP).unwrap().free(), LEN - 2);
}

/// Three threads fill and empty windows of their own and a common one, free, and draw all windows back, in many orders:
/// no number is given twice, and at rest the sum is what is clear.
#[test]
fn no_number_is_given_twice_and_none_is_lost() {
    for seed in 0..300 {
        let work = || {
            let inodes = inodes();
            let common = Window::new(&inodes);
            let owned = Mutex::new(Rank::Leaf, std::collections::BTreeSet::new());
            workers(3, |thread| {
                let own = Window::new(&inodes);
                for step in 0..12 {
                    let window = if (step + thread) % 2 == 0 {
                        &own
                    } else {
                        &common
                    };
                    let taken = window.take(None, 0).map(|(_, index)| index);
                    let taken = taken.or_else(|| fill(&inodes, window, 1 << (step % 8), &[]));
                    let fresh = taken.map(|index| (index, owned.lock().insert(index)));
                    assert!(fresh.is_none_or(|(_, fresh)| fresh), "{fresh:?}");
                    if step % 5 == thread {
                        common.draw_back();
                    }
                    let leaves = (step % 3 == 0).then(|| owned.lock().pop_first()).flatten();
                    if let Some(index) = leaves {
                        let bits = inodes.loaded(GROUP).unwrap();
                        bits.give_back_one(index);
                        inodes.give_back_share(1);
                    }
                }
            });
            drop(common);
            let owned = owned.into_inner().len() as u32;
            assert_eq!(inodes.loaded(GROUP).unwrap().free(), LEN - owned);
            assert_eq!(inodes.sum(), u64::from(LEN - owned));
        };
        let plan = SchedulePlan {
            seed,
            points: 200_000,
        };
        schedule::run(plan, work).unwrap();
    }
}
