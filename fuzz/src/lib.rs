//! What all targets share: an allocator that counts, so that an input which makes a target take more memory than any
//! image may is a find, to the byte and with any compiler (`-malloc_limit_mb` needs a sanitizer).

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that reading one input may take at once.
const LIMIT: usize = 256 << 20;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);

struct Counting;

fn more(bytes: usize) {
    // Relaxed: a count of its own, which orders nothing.
    let live = LIVE
        .fetch_add(bytes, Ordering::Relaxed)
        .saturating_add(bytes);
    // Relaxed: a limit of its own, which orders nothing.
    if live > MOST.load(Ordering::Relaxed) {
        // Relaxed: a limit of its own, which orders nothing. It is lifted so that the message may allocate.
        MOST.store(usize::MAX, Ordering::Relaxed);
        // libFuzzer's hook ends the process at once, so that nothing unwinds out of the allocator.
        panic!("{bytes} bytes more are {live} bytes in all: too many");
    }
}

// SAFETY: everything is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        // SAFETY: the caller's layout, for which the caller answers.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        // SAFETY: the caller's layout, for which the caller answers.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // Relaxed: a count of its own, which orders nothing.
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's pointer and layout, for which the caller answers; all memory is the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        more(size);
        // Relaxed: a count of its own, which orders nothing.
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's pointer and layout, for which the caller answers; all memory is the system allocator's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Gives an input to a target. The first time goes uncounted: a target may unpack the images that it changes.
///
/// # Panics
/// When the target does, or takes more than 256 MiB.
pub fn bounded(target: fn(&[u8]) -> bool, data: &[u8]) {
    // Relaxed, both: libFuzzer runs one input at a time.
    let base = LIVE.load(Ordering::Relaxed);
    let first = MOST.load(Ordering::Relaxed) == usize::MAX;
    if first {
        target(data);
    }
    let base = if first {
        LIVE.load(Ordering::Relaxed)
    } else {
        base
    };
    MOST.store(base.saturating_add(LIMIT), Ordering::Relaxed);
    if !first {
        target(data);
    }
    // So that libFuzzer's own bytes do not count, but the next run does.
    MOST.store(usize::MAX - 1, Ordering::Relaxed);
}
