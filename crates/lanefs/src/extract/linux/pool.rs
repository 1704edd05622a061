//! Work that makes more work: batches of files, and directories that give batches and further directories.
//!
//! Batches go first, so that few directories are open at once; a thread that finds many batches waiting does its own
//! at once, which bounds the memory. The work is done when nothing waits and nobody works.

use sync::{Condvar, Mutex, Rank};

/// How many batches may wait. Beyond that, the thread that makes a batch does it itself.
const MAX_WAITING: usize = 256;

struct State<D, B> {
    directories: Vec<D>,
    batches: Vec<B>,
    /// Threads that may still add work.
    working: usize,
}

/// The work of one extraction.
pub struct Pool<D, B> {
    /// `[queue]`
    state: Mutex<State<D, B>>,
    changed: Condvar,
}

/// A piece of work.
pub enum Work<D, B> {
    /// Read this directory.
    Directory(D),
    /// Extract these.
    Batch(B),
}

impl<D, B> Pool<D, B> {
    /// A pool without work.
    pub fn new() -> Pool<D, B> {
        let state = State {
            directories: Vec::new(),
            batches: Vec::new(),
            working: 0,
        };
        Pool {
            state: Mutex::new(Rank::Queue, state),
            changed: Condvar::new(),
        }
    }

    /// Adds a directory to read.
    pub fn add_directory(&self, directory: D) {
        self.state.lock().directories.push(directory);
        self.changed.notify_one();
    }

    /// Adds a batch, or gives it back when too many wait.
    pub fn add_batch(&self, batch: B) -> Option<B> {
        let mut state = self.state.lock();
        if state.batches.len() >= MAX_WAITING {
            return Some(batch);
        }
        state.batches.push(batch);
        drop(state);
        self.changed.notify_one();
        None
    }

    /// Has `threads` threads do all work, and what comes from it.
    pub fn run(&self, threads: usize, work: impl Fn(Work<D, B>) + Sync)
    where
        D: Send,
        B: Send,
    {
        sync::thread::workers(threads, |_| {
            while let Some(next) = self.take() {
                // A panic in `work` must not leave the others waiting.
                let _done = Done(self);
                work(next);
            }
        });
    }

    /// The next piece of work; waits while there may be more; none when all is done.
    fn take(&self) -> Option<Work<D, B>> {
        let mut state = self.state.lock();
        loop {
            let next = match state.batches.pop() {
                Some(batch) => Some(Work::Batch(batch)),
                None => state.directories.pop().map(Work::Directory),
            };
            if next.is_some() {
                state.working += 1;
                return next;
            }
            if state.working == 0 {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }
}

struct Done<'a, D, B>(&'a Pool<D, B>);

impl<D, B> Drop for Done<'_, D, B> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.working -= 1;
        let over = state.working == 0 && state.batches.is_empty() && state.directories.is_empty();
        drop(state);
        if over {
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use sync::Counter;

    use super::*;

    #[test]
    fn work_that_makes_work_is_done_to_its_end() {
        let pool: Pool<u32, u32> = Pool::new();
        let (directories, batches) = (Counter::new(), Counter::new());
        pool.add_directory(10);
        pool.run(4, |work| match work {
            Work::Directory(depth) => {
                directories.add(1);
                for _ in 0..depth.min(2) {
                    pool.add_directory(depth - 1);
                    if pool.add_batch(depth).is_some() {
                        batches.add(1);
                    }
                }
            }
            Work::Batch(_) => batches.add(1),
        });
        assert_eq!((directories.sum(), batches.sum()), (1535, 1534));
    }
}
