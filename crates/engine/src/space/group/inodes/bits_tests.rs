//! Bitmaps of inodes: against a plain set, and with several threads at once in many orders.

use sync::atomic::AtomicU32;

use super::*;

fn clear(len: u32) -> InodeBits {
    InodeBits::new(&vec![0; len.div_ceil(64) as usize * 8], len, 0, len)
}

fn take(bits: &InodeBits) -> Option<u32> {
    bits.take_lowest(1).0.map(Chunk::first)
}

#[test]
fn what_the_image_has_follows_the_committer() {
    let bits = InodeBits::new(&[1, 0, 0, 0, 0, 0, 0, 0], 16, 0, 16);
    assert_eq!(bits.free(), 15);
    assert_eq!(take(&bits), Some(1));
    assert!(bits.is_in_image(0) && !bits.is_in_image(1));
    bits.fold(&[1, 2], &[0, 2]);
    assert!(!bits.is_in_image(0) && bits.is_in_image(1) && !bits.is_in_image(2));
    bits.give_back_one(0);
    assert_eq!(bits.free(), 15);
}

#[test]
fn numbers_come_from_the_lowest_on_and_none_beyond_the_end() {
    let image = [[0xff; 7].as_slice(), &[0x7f, 0xfe], &[0; 7]].concat();
    let bits = InodeBits::new(&image, 72, 0, 72);
    let take = || take(&bits);
    assert_eq!((take(), take(), take()), (Some(63), Some(64), None));
    assert_eq!(bits.free(), 0);
    bits.give_back_one(70);
    bits.give_back_one(5);
    assert_eq!((take(), take(), take()), (Some(5), Some(70), None));
}

#[test]
fn a_full_beginning_is_looked_at_once() {
    let bits = clear(8192);
    let mut looked = 0;
    for index in 0..8192 {
        let (taken, words) = bits.take_lowest(1);
        assert_eq!(taken.map(Chunk::first), Some(index));
        looked += words;
    }
    // One look a number, and one more at each word's end; from bit 0 it would be 8192 * 64.
    assert!(looked <= 8192 + 128, "{looked}");
}

#[test]
fn chunks_are_aligned_and_fill_what_was_in_use_before_they_go_farther() {
    let image = [
        [0x03, 0, 0xff, 0, 0xf0, 0xff, 0xff, 0xff].as_slice(),
        &[0; 56],
    ]
    .concat();
    let bits = InodeBits::new(&image, 512, 0, 512);
    let chunk = |size| {
        bits.take_chunk(size)
            .0
            .map(|chunk| (chunk.first(), chunk.len()))
    };
    assert_eq!(bits.used_end(), 64);
    assert_eq!(chunk(8), Some((8, 8)));
    assert_eq!(chunk(16), Some((24, 8)));
    // Neither sixteen nor eight in a row are left there.
    assert_eq!(chunk(16), Some((64, 16)));
    assert_eq!(chunk(4), Some((4, 4)));
    assert_eq!(chunk(64), Some((128, 64)));
    assert_eq!(chunk(32), Some((96, 32)));
    let words = bits.take_chunk(64).1;
    assert!(words <= 6, "{words}");
    assert_eq!(bits.take_behind(255, 2).map(Chunk::first), Some(256));
    // Too far from what is in use.
    assert_eq!(bits.take_behind(400, 16), None);
    // In the end all of it goes, whatever was asked for.
    let mut rest = bits.free();
    while let Some((_, len)) = chunk(64) {
        rest -= len;
    }
    assert_eq!((rest, bits.free()), (0, 0));
}

#[test]
fn numbers_whose_records_were_never_written_are_not_given_out() {
    let bits = InodeBits::new(&[0; 64], 512, 5, 16);
    assert_eq!(bits.take_chunk(16).0.map(Chunk::len), Some(16));
    assert_eq!((bits.take_chunk(16).0, take(&bits)), (None, None));
    bits.set_written(80);
    assert_eq!(bits.take_chunk(64).0.map(Chunk::first), Some(16));
    assert_eq!(bits.used_end(), 64);
    assert_eq!(bits.take_chunk(16).0.map(Chunk::first), Some(64));
    assert_eq!((bits.used_end(), take(&bits)), (80, None));
}

/// Threads that take, give back, leave and stay: every number has one owner at a time, and the counts come out.
mod schedules {
    use super::*;
    use sync::schedule::{self, SchedulePlan};
    use sync::thread::workers;

    const LEN: u32 = 70;

    fn plan(seed: u64) -> SchedulePlan {
        SchedulePlan {
            seed,
            points: 100_000,
        }
    }

    #[test]
    fn no_number_has_two_owners_and_none_is_lost() {
        for seed in 0..400 {
            let work = || {
                let bits = clear(LEN);
                let owned: Vec<AtomicU32> = (0..LEN).map(|_| AtomicU32::new(0)).collect();
                workers(3, |thread| {
                    let mut mine = Vec::new();
                    for step in 0..30 {
                        if let Some(index) = take(&bits) {
                            // Relaxed: one thread runs at a time.
                            let before = owned[index as usize].swap(1, Ordering::Relaxed);
                            assert_eq!(before, 0, "{index}");
                            mine.push(index);
                        }
                        if (step + thread) % 3 == 0
                            && let Some(index) = mine.pop()
                        {
                            // Relaxed: one thread runs at a time.
                            owned[index as usize].store(0, Ordering::Relaxed);
                            bits.give_back_one(index);
                        }
                    }
                });
                let taken = owned
                    .iter()
                    .map(|one| one.load(Ordering::Relaxed))
                    .sum::<u32>();
                assert_eq!(bits.free(), LEN - taken);
                // At rest the bound hides nothing.
                for _ in taken..LEN {
                    let first = bits.head.first.load(Ordering::Relaxed) as u32;
                    let index = take(&bits).unwrap();
                    assert!(first <= index / 64);
                }
                assert_eq!(take(&bits), None);
            };
            schedule::run(plan(seed), work).unwrap();
        }
    }
}
