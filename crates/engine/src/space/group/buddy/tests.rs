//! The buddy compared with a plain list of blocks, whose runs and chunks are counted from the start after each change.

use model::Random;

use super::*;

/// One flag for each block: whether it is free.
struct Naive(Vec<bool>);

impl Naive {
    fn runs(&self) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for (block, is_free) in (0..).zip(&self.0) {
            match runs.last_mut() {
                Some(run) if *is_free && run.end == block => run.end += 1,
                _ if *is_free => runs.push(block..block + 1),
                _ => {}
            }
        }
        runs
    }

    fn is_free(&self, start: u32, order: u32) -> bool {
        let end = start as usize + (1 << order);
        end <= self.0.len() && self.0[start as usize..end].iter().all(|free| *free)
    }

    /// How many chunks of each order are counted: free ones that are not part of a free chunk of the next order.
    fn counts(&self) -> [u32; ORDERS] {
        let mut counts = [0; ORDERS];
        for (order, count) in (0..).zip(&mut counts) {
            for start in (0..self.0.len() as u32).step_by(1 << order) {
                let above = order + 1;
                let is_part = self.is_free(start >> above << above, above);
                *count += u32::from(self.is_free(start, order) && !is_part);
            }
        }
        counts
    }
}

fn agree(buddy: &mut Buddy, naive: &Naive, want: u32) {
    let runs = naive.runs();
    let longest = runs
        .iter()
        .map(|run| run.end - run.start)
        .max()
        .unwrap_or(0);
    let free: u32 = runs.iter().map(|run| run.end - run.start).sum();
    assert_eq!((buddy.free(), buddy.runs), (free, runs.len() as u32));
    assert_eq!(buddy.counts, naive.counts());
    assert!(buddy.longest() >= longest);
    let fits = |run: &Range<u32>| {
        runs.iter()
            .any(|at| at.start <= run.start && run.end <= at.end)
    };
    let is_there = longest >= want;
    for found in [buddy.find(want), buddy.find_behind(0, want)] {
        assert_eq!(found.is_some(), is_there);
        assert!(found.is_none_or(|run| fits(&run) && run.end - run.start == want));
    }
    let first = runs.iter().find(|run| run.end - run.start >= want);
    let start = first.map(|run| run.start);
    assert_eq!(buddy.find_behind(0, want).map(|run| run.start), start);
    let chunk = buddy.find_chunk(want);
    let order = order_holding(want);
    assert!(
        chunk
            .as_ref()
            .is_none_or(|run| fits(run) && run.start.is_multiple_of(1 << order))
    );
    assert_eq!(
        chunk.is_some(),
        buddy
            .largest_order()
            .is_some_and(|largest| largest >= order)
    );
    let found = buddy.find_longest();
    assert_eq!(found.map_or(0, |run| run.end - run.start), longest);
    assert!(buddy.longest() >= longest);
}

#[test]
fn it_agrees_with_a_plain_list_of_blocks() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let len = [8, 64, 100, 256, 509, 1024][random.below(6) as usize];
        let bytes: Vec<u8> = (0..u64::from(len).div_ceil(8))
            .map(|_| match random.below(4) {
                0 => 0,
                1 => 0xff,
                _ => random.below(256) as u8,
            })
            .collect();
        let mut buddy = Buddy::new(&bytes, len);
        let mut naive = Naive((0..len).map(|block| !bitmap::test(&bytes, block)).collect());
        for _ in 0..60 {
            agree(&mut buddy, &naive, 1 + random.below(u64::from(len)) as u32);
            let at = random.below(u64::from(len)) as u32;
            let longest = if random.below(3) == 0 { 300 } else { 9 };
            let most = 1 + random.below(longest) as u32;
            let is_free = naive.0[at as usize];
            let same = (at..len.min(at + most)).take_while(|at| naive.0[*at as usize] == is_free);
            let range = at..at + same.count() as u32;
            if is_free {
                assert_eq!(buddy.run_at(at, most), Some(range.clone()));
                buddy.take(range.clone());
            } else {
                assert_eq!(buddy.run_at(at, most), None);
                buddy.put(range.clone());
            }
            range.for_each(|block| naive.0[block as usize] = !is_free);
        }
    }
}

#[test]
fn the_bound_on_runs_never_hides_one() {
    let mut buddy = Buddy::new(&[0b0001_1000, 0xff, 0, 0xff], 32);
    assert_eq!(buddy.find(9), None);
    assert_eq!(buddy.longest(), 8);
    assert_eq!(buddy.find(8), Some(16..24));
    buddy.take(16..24);
    assert_eq!(buddy.find_longest(), Some(0..3));
    buddy.put(8..16);
    assert_eq!((buddy.longest(), buddy.find(11)), (11, Some(5..16)));
    buddy.put(16..20);
    assert_eq!((buddy.find(16), buddy.find(15)), (None, Some(5..20)));
}

#[test]
fn the_largest_groups_are_chunks_of_the_largest_order() {
    let len = 1 << 19;
    let mut buddy = Buddy::new(&vec![0; len as usize / 8], len);
    assert_eq!(buddy.largest_order(), Some(19));
    assert_eq!((buddy.average_run(), buddy.longest()), (len, len));
    buddy.take(5..6);
    assert_eq!(buddy.find_chunk(1 << 18), Some(1 << 18..len));
    buddy.put(5..6);
    assert_eq!(buddy.counts[19], 1);
    // The two bitmaps take three bits for each block.
    let bytes = buddy.used.len() + buddy.chunks.len();
    assert!(bytes < len as usize / 8 * 3 + ORDERS);
}
