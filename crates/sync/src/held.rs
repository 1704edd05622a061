//! Each thread's stack of held locks, in builds with debug assertions; in others every type here is empty.

#[cfg(debug_assertions)]
pub(crate) use checked::{Held, Kept};
#[cfg(not(debug_assertions))]
pub(crate) use unchecked::{Held, Kept};

#[cfg(debug_assertions)]
mod checked {
    use std::cell::{Cell, RefCell};
    use std::panic::Location;

    use crate::Rank;

    struct Entry {
        number: u64,
        rank: (Rank, u64),
        site: &'static Location<'static>,
    }

    thread_local! {
        static STACK: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
        static NEXT: Cell<u64> = const { Cell::new(0) };
    }

    /// A lock's rank and its order among the locks of that rank; the lock stores it.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Kept(Rank, u64);

    impl Kept {
        pub(crate) const fn new(rank: Rank) -> Kept {
            Kept(rank, 0)
        }

        pub(crate) const fn keyed(rank: Rank, key: u64) -> Kept {
            Kept(rank, key)
        }
    }

    /// One entry of the thread's stack, removed when dropped; guards are not sent to other threads.
    #[derive(Debug)]
    pub(crate) struct Held(u64);

    impl Held {
        /// Checks the order before waiting for a lock of this rank.
        #[track_caller]
        pub(crate) fn check(kept: Kept) {
            STACK.with_borrow(|stack| {
                if let Some(outer) = stack.iter().max_by_key(|entry| entry.rank) {
                    assert!(
                        outer.rank < (kept.0, kept.1),
                        "lock order: {:?} is waited for at {} while {:?} is held since {}",
                        kept.0,
                        Location::caller(),
                        outer.rank.0,
                        outer.site,
                    );
                }
            });
        }

        /// Notes that a lock of this rank is held.
        #[track_caller]
        pub(crate) fn push(kept: Kept) -> Held {
            let number = NEXT.get();
            NEXT.set(number.wrapping_add(1));
            let site = Location::caller();
            STACK.with_borrow_mut(|stack| {
                stack.push(Entry {
                    number,
                    rank: (kept.0, kept.1),
                    site,
                });
            });
            Held(number)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            // If the guard is stored in another thread-local value, the stack may already have been destroyed.
            let _ = STACK.try_with(|stack| {
                let mut stack = stack.borrow_mut();
                if let Some(at) = stack.iter().rposition(|entry| entry.number == self.0) {
                    stack.remove(at);
                }
            });
        }
    }
}

#[cfg(not(debug_assertions))]
mod unchecked {
    use crate::Rank;

    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Kept;

    impl Kept {
        pub(crate) const fn new(_: Rank) -> Kept {
            Kept
        }

        pub(crate) const fn keyed(_: Rank, _: u64) -> Kept {
            Kept
        }
    }

    #[derive(Debug)]
    pub(crate) struct Held;

    impl Held {
        #[inline]
        pub(crate) fn check(_: Kept) {}

        #[inline]
        pub(crate) fn push(_: Kept) -> Held {
            Held
        }
    }
}
