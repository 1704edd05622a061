//! What is kept: alone, and with several threads in many orders, one of which draws everything back now and then.

use super::*;
use crate::space::group::GroupRun;

fn aside(start: u64, len: u32) -> Aside {
    Aside::of(GroupRun {
        start: FsBlock(start),
        len,
    })
}

fn of(blocks: Aside) -> (u64, u32) {
    (blocks.run().start.0, blocks.run().len)
}

#[test]
fn a_piece_is_used_from_any_block_on_and_the_rest_stays() {
    let (kept, file) = (Preallocations::new(Preallocation::On), OfFile::new());
    let keep = |logical, blocks| kept.keep(Ino(12), &file, logical, blocks);
    assert_eq!(keep(100, aside(5000, 20)), (None, None));
    assert_eq!(kept.blocks(), 20);
    assert!(kept.take(&file, 99, 5).is_none() && kept.take(&file, 120, 5).is_none());
    let around = file.neighbors(99);
    assert_eq!((around.before, around.behind), (0, 100));
    assert_eq!(of(kept.take(&file, 105, 3).unwrap()), (5005, 3));
    assert_eq!(of(kept.take(&file, 100, 9).unwrap()), (5000, 5));
    let around = file.neighbors(106);
    assert_eq!((around.before, around.behind), (0, 108));
    assert_eq!(of(kept.take(&file, 119, 1).unwrap()), (5019, 1));
    assert_eq!(of(kept.take(&file, 108, 100).unwrap()), (5008, 11));
    assert!(file.is_empty());
    assert_eq!((kept.blocks(), kept.hits.sum()), (0, 4));
}

#[test]
fn a_file_keeps_a_few_pieces_and_a_list_has_a_few_files() {
    let kept = Preallocations::new(Preallocation::On);
    let file = OfFile::new();
    for piece in 0..PIECES as u64 {
        assert!(
            kept.keep(Ino(1), &file, piece * 10, aside(piece * 10, 2))
                .0
                .is_none()
        );
    }
    let (over, _) = kept.keep(Ino(1), &file, 500, aside(500, 2));
    assert_eq!(of(over.unwrap()), (0, 2));
    let (over, _) = kept.keep(Ino(1), &file, 5, aside(900, 2));
    assert_eq!(of(over.unwrap()), (10, 2));
    let files: Vec<OfFile> = (0..FILES).map(|_| OfFile::new()).collect();
    let longest: Vec<Ino> = (0..)
        .zip(&files)
        .filter_map(|(number, file)| kept.keep(Ino(2 + number), file, 0, aside(1, 1)).1)
        .collect();
    assert_eq!(longest, [Ino(1)]);
    assert_eq!(kept.drain(&file, true).len(), PIECES);
    assert_eq!(kept.take_listed().len(), FILES);
    // On no list any more, it is put on one again.
    for file in &files {
        kept.drain(file, true)
            .into_iter()
            .for_each(|blocks| assert_eq!(of(blocks), (1, 1)));
    }
    assert_eq!(
        (kept.blocks(), kept.keep(Ino(9), &files[0], 0, aside(1, 1))),
        (0, (None, None))
    );
    assert_eq!(kept.take_listed(), [Ino(9)]);
}

#[test]
fn a_thread_keeps_a_run_for_each_part_of_the_volume() {
    let kept = Preallocations::new(Preallocation::On);
    assert!(matches!(kept.take_near(0, 5), Err(None)));
    for home in 0..RUNS as u32 {
        assert!(
            kept.keep_near(home, aside(1000 * u64::from(home), 10))
                .is_none()
        );
    }
    assert_eq!(of(kept.take_near(1, 4).unwrap()), (1000, 4));
    // What lies behind it goes on with it; what doesn't does not.
    assert!(kept.take_at(FsBlock(1003), 1).is_none());
    assert_eq!(of(kept.take_at(FsBlock(1004), 3).unwrap()), (1004, 3));
    let Err(Some(rest)) = kept.take_near(1, 4) else {
        panic!("3 are less than 4");
    };
    assert_eq!(of(rest), (1007, 3));
    assert!(kept.keep_near(9, aside(9000, 1)).is_none());
    // The one that was used longest ago goes.
    assert_eq!(of(kept.keep_near(10, aside(9500, 1)).unwrap()), (0, 10));
    assert_eq!(kept.blocks(), 22);
    assert_eq!(kept.take_runs().len(), RUNS);
    assert_eq!((kept.blocks(), kept.lane_hits.sum()), (0, 2));
}

/// Threads that keep, use, draw back and meet the end of space: every block has one owner at a time, and all are used.
mod schedules {
    use super::*;
    use sync::atomic::{AtomicBool, Ordering};
    use sync::schedule::{self, SchedulePlan};
    use sync::thread::workers;

    const BLOCKS: usize = 60;
    const THREADS: usize = 3;

    /// The bitmaps: whether each block is free. [group]
    struct Pool(Mutex<Vec<bool>>);

    impl Pool {
        /// The first free blocks in a row, up to `want`.
        fn take(&self, want: usize) -> Option<Aside> {
            let mut free = self.0.lock();
            let start = free.iter().position(|is_free| *is_free)?;
            let behind = free[start..].iter().take(want);
            let len = behind.take_while(|is_free| **is_free).count();
            free[start..start + len].fill(false);
            Some(aside(start as u64, len as u32))
        }

        fn give_back(&self, blocks: Aside) {
            let (start, len) = of(blocks);
            for block in &mut self.0.lock()[start as usize..start as usize + len as usize] {
                assert!(!*block, "a block is given back twice");
                *block = true;
            }
        }
    }

    struct World {
        kept: Preallocations,
        files: Vec<OfFile>,
        pool: Pool,
        used: Vec<AtomicBool>,
    }

    impl World {
        fn new() -> World {
            World {
                kept: Preallocations::new(Preallocation::On),
                files: (0..THREADS).map(|_| OfFile::new()).collect(),
                pool: Pool(Mutex::new(Rank::Group, vec![true; BLOCKS])),
                used: (0..BLOCKS).map(|_| AtomicBool::new(false)).collect(),
            }
        }

        /// Does what a thread does that finds no space; returns whether there may be some now.
        fn draw_back(&self) -> bool {
            let mut runs = self.kept.take_runs();
            for ino in self.kept.take_listed() {
                runs.extend(self.kept.drain(&self.files[ino.0 as usize], true));
            }
            let any = !runs.is_empty();
            runs.into_iter().for_each(|run| self.pool.give_back(run));
            any
        }

        fn take_out(&self, want: usize) -> Option<Aside> {
            match self.pool.take(want) {
                None if self.draw_back() => self.pool.take(want),
                taken => taken,
            }
        }

        /// One block for a thread's file at a logical block, as the data path takes it.
        fn block(&self, thread: usize, at: u64, is_small: bool) -> Option<Aside> {
            let file = &self.files[thread];
            if let Some(blocks) = self.kept.take(file, at, 1) {
                return Some(blocks);
            }
            if is_small && let Ok(blocks) = self.kept.take_near(0, 1) {
                return Some(blocks);
            }
            let mut blocks = self.take_out(6)?;
            let Some(wanted) = cut(&mut blocks, 1) else {
                return Some(blocks);
            };
            if is_small {
                if let Some(over) = self.kept.keep_near(0, blocks) {
                    self.pool.give_back(over);
                }
                return Some(wanted);
            }
            let (over, longest) = self.kept.keep(Ino(thread as u32), file, at + 1, blocks);
            assert!(over.is_none() && longest.is_none());
            Some(wanted)
        }

        fn note(&self, blocks: Aside) {
            let (start, len) = of(blocks);
            assert_eq!(len, 1);
            // Relaxed: one thread runs at a time.
            let before = self.used[start as usize].swap(true, Ordering::Relaxed);
            assert!(!before, "block {start} has two owners");
        }
    }

    #[test]
    fn every_block_has_one_owner_and_none_is_left_when_space_ends() {
        for seed in 0..400 {
            let work = || {
                let world = World::new();
                workers(THREADS, |thread| {
                    let mut at = 0;
                    // Some jump about, one gives back now and then as at a release, one draws back all.
                    for step in 0..4 * BLOCKS as u64 {
                        let is_small = (step + thread as u64).is_multiple_of(4);
                        let Some(blocks) = world.block(thread, at, is_small) else {
                            return;
                        };
                        world.note(blocks);
                        at += 1 + step % 2 * (thread as u64 % 2);
                        if step % 7 == 6 && thread == 1 {
                            let runs = world.kept.drain(&world.files[thread], false);
                            runs.into_iter().for_each(|run| world.pool.give_back(run));
                        }
                        if step % 5 == 4 && thread == 2 {
                            world.draw_back();
                        }
                    }
                });
                assert_eq!(world.kept.blocks(), 0);
                // Relaxed: the threads have ended.
                let used = world
                    .used
                    .iter()
                    .filter(|used| used.load(Ordering::Relaxed));
                assert_eq!(used.count(), BLOCKS);
            };
            let plan = SchedulePlan {
                seed,
                points: 100_000,
            };
            schedule::run(plan, work).unwrap();
        }
    }
}
