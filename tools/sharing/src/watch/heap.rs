//! The program's allocator: the system's, but a worker gets memory that nobody had before and nobody gets later, from a
//! region of its own. So one address is one object for as long as anybody watches, and no two
//! threads' objects are neighbours. What the allocator itself shares is therefore not seen.
//!
//! No locks; regions are entered into a table by compare-and-swap and never leave it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use sync::atomic::{AtomicUsize, Ordering};

use super::record;

/// Bytes of a region, and what its address is a multiple of.
const REGION: usize = 8 << 20;
/// The most regions: 16 GiB.
const REGIONS: usize = 2048;

/// The addresses of all regions. [atomic: Relaxed, set once]
static TABLE: [AtomicUsize; REGIONS] = [const { AtomicUsize::new(0) }; REGIONS];

thread_local! {
    /// The free rest of the thread's region.
    static REST: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// See the module.
pub struct WatchedHeap;

fn slot(region: usize) -> usize {
    (region / REGION).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// Enters a region; false when the table is full.
fn enter(region: usize) -> bool {
    (0..REGIONS).any(|step| {
        let place = &TABLE[(slot(region) + step) % REGIONS];
        // Relaxed: only the number itself counts; a thread that frees memory of the region got that memory from the
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
    // Objects begin on addresses of 16: neighbours of one thread may share a line, as they would with any allocator.
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

// SAFETY: memory is the system's, or a part of a region that is given out once and never taken back.
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
            // SAFETY: not of a region, so the system gave it.
            unsafe { System.dealloc(memory, layout) }
        }
    }
}
