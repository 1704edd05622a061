//! A queue of bounded length between threads: a thread that adds waits while it is full, a thread that takes waits
//! while it is empty. Its lock ([`Rank::Queue`]) is held for one push or pop.

use std::collections::VecDeque;

use crate::{Condvar, Mutex, Rank};

/// A bounded first-in first-out queue for any number of senders and receivers.
#[derive(Debug)]
pub struct Queue<T> {
    /// [queue]
    state: Mutex<State<T>>,
    not_empty: Condvar,
    not_full: Condvar,
    capacity: usize,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    closed: bool,
}

impl<T> Queue<T> {
    /// An empty, open queue for `capacity` items (at least one).
    #[must_use]
    pub fn new(capacity: usize) -> Queue<T> {
        Queue {
            state: Mutex::new(
                Rank::Queue,
                State {
                    items: VecDeque::new(),
                    closed: false,
                },
            ),
            not_empty: Condvar::new(),
            not_full: Condvar::new(),
            capacity: capacity.max(1),
        }
    }

    /// Appends an item, waiting while the queue is full.
    ///
    /// # Errors
    /// Gives the item back when the queue is closed.
    pub fn push(&self, item: T) -> Result<(), T> {
        let mut state = self.state.lock();
        while state.items.len() >= self.capacity && !state.closed {
            self.not_full.wait(&mut state);
        }
        if state.closed {
            return Err(item);
        }
        state.items.push_back(item);
        drop(state);
        self.not_empty.notify_one();
        Ok(())
    }

    /// Takes the oldest item, waiting while the queue is empty and open. `None`: closed, and nothing is left.
    pub fn pop(&self) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            if let Some(item) = state.items.pop_front() {
                drop(state);
                self.not_full.notify_one();
                return Some(item);
            }
            if state.closed {
                return None;
            }
            self.not_empty.wait(&mut state);
        }
    }

    /// Takes the oldest item if there is one now.
    pub fn try_pop(&self) -> Option<T> {
        let item = self.state.lock().items.pop_front()?;
        self.not_full.notify_one();
        Some(item)
    }

    /// No item is accepted any more; those inside can still be taken. Wakes all waiting threads.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.not_empty.notify_all();
        self.not_full.notify_all();
    }

    /// Closes the queue and drops what is inside: the way out after an error.
    pub fn cancel(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let items = std::mem::take(&mut state.items);
        drop(state);
        drop(items);
        self.not_empty.notify_all();
        self.not_full.notify_all();
    }

    /// Closes the queue when the returned value is dropped, also by a panic, so that receivers never wait forever.
    #[must_use = "the queue is closed when this is dropped"]
    pub fn close_on_drop(&self) -> CloseOnDrop<'_, T> {
        CloseOnDrop(self)
    }
}

/// Closes a [`Queue`] when dropped.
#[derive(Debug)]
pub struct CloseOnDrop<'a, T>(&'a Queue<T>);

impl<T> Drop for CloseOnDrop<'_, T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_arrives_once_through_a_short_queue() {
        let queue = Queue::new(3);
        let total = crate::Counter::new();
        std::thread::scope(|scope| {
            let receivers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        while let Some(item) = queue.pop() {
                            total.add(item);
                        }
                    })
                })
                .collect();
            let _close = queue.close_on_drop();
            (1..=1000).for_each(|item| queue.push(item).unwrap());
            drop(_close);
            receivers.into_iter().for_each(|r| r.join().unwrap());
        });
        assert_eq!(total.sum(), 500_500);
        assert_eq!(queue.push(7), Err(7));
    }

    #[test]
    fn cancelling_wakes_a_sender_that_waits_for_room() {
        let queue = Queue::new(1);
        queue.push(1).unwrap();
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| queue.push(2));
            queue.cancel();
            assert_eq!(sender.join().unwrap(), Err(2));
        });
        assert_eq!(queue.pop(), None);
    }
}
