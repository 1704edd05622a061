//! Records which failed writes each handle of an open file has reported: every handle reports each failure once, as in
//! Linux.
//!
//! A handle's number contains the count of failures when it was opened, and whether it writes synchronously. A handle
//! that has reported a failure is entered in a table until it is closed. The table's lock is held for one access.

use std::collections::HashMap;

use sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sync::{Mutex, Rank};

/// The bit of a handle's number for a file that is written synchronously.
const SYNCHRONOUS: u64 = 1 << 32;

/// The open files of a mount.
pub(crate) struct Handles {
    /// The next handle's own part of its number. [atomic: Relaxed]
    next: AtomicU32,
    /// Whether the table holds anything, or did. [atomic: Release, Acquire]
    is_used: AtomicBool,
    /// The failures that handles have reported since they were opened. [leaf]
    told: Mutex<HashMap<u64, u32>>,
}

impl Handles {
    pub(crate) fn new() -> Handles {
        Handles {
            next: AtomicU32::new(0),
            is_used: AtomicBool::new(false),
            told: Mutex::new(Rank::Leaf, HashMap::new()),
        }
    }

    /// A handle whose file had `seen` failures when it was opened, with `O_SYNC` or `O_DSYNC` or without.
    pub(crate) fn open(&self, seen: u32, is_synchronous: bool) -> u64 {
        // Relaxed: each number once; nothing else hangs on it.
        let own = self.next.fetch_add(1, Ordering::Relaxed);
        let synchronous = if is_synchronous { SYNCHRONOUS } else { 0 };
        u64::from(own) << 33 | synchronous | u64::from(seen)
    }

    /// Whether what is done by a handle is to be durable when it is done.
    pub(crate) fn is_synchronous(handle: u64) -> bool {
        handle & SYNCHRONOUS != 0
    }

    /// How many failures a handle has reported.
    pub(crate) fn seen(&self, handle: u64) -> u32 {
        // The low half is the count at the beginning.
        let first = handle as u32;
        // Acquire: pairs with the Release in `set_seen`.
        if self.is_used.load(Ordering::Acquire) {
            self.told.lock().get(&handle).copied().unwrap_or(first)
        } else {
            first
        }
    }

    /// Records that a handle has reported `seen` failures.
    pub(crate) fn set_seen(&self, handle: u64, seen: u32) {
        self.told.lock().insert(handle, seen);
        // Release: pairs with the Acquire loads.
        self.is_used.store(true, Ordering::Release);
    }

    /// A handle is closed.
    pub(crate) fn close(&self, handle: u64) {
        // Acquire: pairs with the Release in `set_seen`.
        if self.is_used.load(Ordering::Acquire) {
            self.told.lock().remove(&handle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_handle_keeps_its_own_count() {
        let handles = Handles::new();
        let (one, other) = (handles.open(0, false), handles.open(0, true));
        assert_ne!(one, other);
        handles.set_seen(one, 3);
        assert_eq!((handles.seen(one), handles.seen(other)), (3, 0));
        let late = handles.open(3, false);
        assert_eq!(handles.seen(late), 3);
        assert!(Handles::is_synchronous(other) && !Handles::is_synchronous(late));
        handles.close(one);
        assert!(handles.told.lock().is_empty());
    }
}
