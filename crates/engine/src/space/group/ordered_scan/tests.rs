//! The order lists against looking at each group, and changed by many threads at once.

use model::Random;

use super::*;

#[test]
fn the_next_group_is_the_first_one_with_enough() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let len = 1 + random.below(700) as usize;
        let sparse = 1 + random.below(40);
        let mut byte = || match random.below(sparse) {
            0 => random.below(21) as u8,
            _ => 0,
        };
        let mut bytes: Vec<u8> = (0..len).map(|_| byte()).collect();
        let orders = Orders::new(bytes.clone().into_iter());
        let changes: Vec<u8> = (0..len).map(|_| byte()).collect();
        for round in 0..2 {
            for least in [1, 2, 7, 20] {
                for start in (0..len).step_by(37) {
                    let end = len - (len - start) / 3;
                    let has = |group: &u32| bytes[*group as usize] >= least;
                    let range = start as u32..end as u32;
                    let expected = range.clone().find(has).map(Group);
                    assert_eq!(orders.next(range, least), expected);
                }
            }
            if round == 0 {
                for (group, new) in (0..).zip(&changes) {
                    orders.change(Group(group), bytes[group as usize], *new);
                }
                bytes.clone_from(&changes);
            }
        }
    }
}

#[test]
fn threads_that_change_neighbours_leave_each_others_orders_alone() {
    let groups = 24;
    let orders = Orders::new((0..groups).map(|_| 0));
    sync::thread::workers(3, |thread| {
        let mut random = Random::new(thread as u64);
        let mut own = [0; 8];
        for _ in 0..20_000 {
            let at = random.below(8) as usize;
            let new = random.below(21) as u8;
            let group = Group((at * 3 + thread) as u32);
            orders.change(group, own[at], new);
            own[at] = new;
        }
        for (at, order) in own.into_iter().enumerate() {
            let group = (at * 3 + thread) as u32;
            assert!(order == 0 || orders.next(group..group + 1, order).is_some());
            assert_eq!(orders.next(group..group + 1, order + 1), None);
        }
    });
}
