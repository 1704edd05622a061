//! The program's allocator. A worker gets memory from a region of its own, which no thread used before and none will
//! use later; all other memory comes from the system's allocator. So one address is one object as long as threads are
//! watched, and objects of two threads are never neighbours. Lines that the allocator itself shares are therefore not
//! seen.
//!
//! No locks; regions are entered into a table by compare-and-swap and never leave it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use sync::atomic::{AtomicUsize, Ordering};

use super::record;

/// The size of a region, and the alignment of its address.
const REGION: usize = 8 << 20;
/// The most regions: 16 GiB.
const REGIONS: usize = 2048;

/// The addresses of all regions. [atomic: Relaxed, set once]
static TABLE: [AtomicUsize; REGIONS] = [const { AtomicUsize::new(0) }; REGIONS];

thread_local! {
    /// The unused rest of the thread's region.
    static REST: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// The allocator; see the module.
pub struct WatchedHeap;

fn slot(region: usize) -> usize {
    (region / REGION).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// Enters a region into the table; returns false when the table is full.
fn enter(region: usize) -> bool {
    (0..REGIONS).any(|step| {
        let place = &TABLE[(slot(region) + step) % REGIONS];
        // Relaxed: only the number itself is used; a thread that frees memory of the region got that memory from the
        // region's own thread; pairs with the load in `is_ours`.
        place
            .compare_exchange(0, region, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    })
}

fn is_ours(address: usize) -> bool {
    let region = address & !(REGION - 1);
    for step in 0..REGIONS {
        // Relaxed: as in `enter`.
        match TABLE[(slot(region) + step) % REGIONS].load(Ordering::Relaxed) {
            0 => return false,
            found if found == region => return true,
            _ => {}
        }
    }
    false
}

fn take(layout: Layout) -> Option<*mut u8> {
    if layout.size() > REGION / 4 {
        return None;
    }
    let (start, end) = REST.try_with(Cell::get).ok()?;
    // Objects are aligned to 16: neighbours of one thread may share a line, as with any allocator.
    let align = layout.align().max(16);
    let at = start.next_multiple_of(align);
    if start != 0 && at + layout.size() <= end {
        REST.set((at + layout.size(), end));
        return Some(std::ptr::with_exposed_provenance_mut(at));
    }
    let whole = Layout::from_size_align(REGION, REGION).ok()?;
    // SAFETY: the layout is not empty.
    let region = unsafe { System.alloc(whole) };
    if region.is_null() || !enter(region.expose_provenance()) {
        return None;
    }
    REST.set((
        region.expose_provenance(),
        region.expose_provenance() + REGION,
    ));
    take(layout)
}

// SAFETY: memory comes from the system, or is a part of a region that is given out once and never taken back.
unsafe impl GlobalAlloc for WatchedHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if record::has_own_memory()
            && let Some(memory) = take(layout)
        {
            return memory;
        }
        // SAFETY: the caller's promise is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // While a worker is watched, memory is not freed, so that no address is used twice.
        if !record::is_watched() && !is_ours(memory.addr()) {
            // SAFETY: not part of a region, so the system's allocator gave it.
            unsafe { System.dealloc(memory, layout) }
        }
    }
}
