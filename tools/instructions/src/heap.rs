//! The program's allocator. An allocation takes the same number of instructions whatever was allocated before.
//!
//! # Why
//!
//! The C library's allocator joins and splits free pieces, so what a call costs depends on the length of every string
//! that the program ever held, its own path included; and how its pieces are aligned decides how many instructions a
//! copy takes. Counts of one program differed by 2 % for that.
//!
//! # Invariants
//!
//! Sizes are rounded up to a power of two, from [`LEAST`] to [`MOST`], each of which has a list of free pieces. A piece
//! is aligned to its size, up to [`ALIGNED`], and never changes its size. Each thread has lists of its own; a piece
//! that another thread frees joins that thread's list. Larger pieces are the system's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;

/// Bytes of the smallest pieces: a cache line.
const LEAST: usize = 64;
/// Bytes of the largest pieces that have a list.
const MOST: usize = 1 << 20;
/// Bytes that the larger pieces are aligned to.
const ALIGNED: usize = 4096;
/// Sizes that have a list.
const SIZES: usize = (MOST / LEAST).ilog2() as usize + 1;

/// A free piece holds the address of the next one of its size.
type Free = *mut u8;

thread_local! {
    /// The free pieces of each size.
    static FREE: [Cell<Free>; SIZES] = const { [const { Cell::new(ptr::null_mut()) }; SIZES] };
}

/// See the module.
pub struct FixedHeap;

/// The list of a layout, by the exponent of its size; `None` for what is the system's.
fn list_of(layout: Layout) -> Option<usize> {
    let size = layout.size().max(LEAST);
    if size > MOST || layout.align() > LEAST {
        return None;
    }
    Some((size.next_power_of_two() / LEAST).ilog2() as usize)
}

/// What a new piece of a list is asked for with.
fn piece(list: usize) -> Option<Layout> {
    let size = LEAST << list;
    Layout::from_size_align(size, size.min(ALIGNED)).ok()
}

// SAFETY: a piece of a list is at least as long and as aligned as the layout asks for, and it is on a list only while
// it is free; all other memory is allocated and freed by the system.
unsafe impl GlobalAlloc for FixedHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(list) = list_of(layout) else {
            // SAFETY: the caller's promise is the system's.
            return unsafe { System.alloc(layout) };
        };
        let free = FREE.with(|lists| lists[list].get());
        if free.is_null() {
            // SAFETY: a piece is not empty.
            return piece(list).map_or(ptr::null_mut(), |piece| unsafe { System.alloc(piece) });
        }
        // SAFETY: a piece on a list is nobody else's, aligned to `LEAST`, and holds the address that `dealloc` wrote.
        let next = unsafe { free.cast::<Free>().read() };
        FREE.with(|lists| lists[list].set(next));
        free
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        let Some(list) = list_of(layout) else {
            // SAFETY: `alloc` got it from the system with this layout.
            return unsafe { System.dealloc(memory, layout) };
        };
        FREE.with(|lists| {
            // SAFETY: the piece has at least `LEAST` bytes, is aligned to them, and nobody uses it any more.
            unsafe { memory.cast::<Free>().write(lists[list].get()) };
            lists[list].set(memory);
        });
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Ok(larger) = Layout::from_size_align(size, layout.align()) else {
            return ptr::null_mut();
        };
        match (list_of(layout), list_of(larger)) {
            // SAFETY: the system gave it, with this layout.
            (None, None) => unsafe { System.realloc(memory, layout, size) },
            (one, other) if one == other => memory,
            // SAFETY: the new piece is another one, and both have as many bytes as are copied.
            _ => unsafe {
                let new = self.alloc(larger);
                if !new.is_null() {
                    ptr::copy_nonoverlapping(memory, new, layout.size().min(size));
                    self.dealloc(memory, layout);
                }
                new
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn a_freed_piece_is_given_out_again_for_its_size_and_for_no_other() {
        // SAFETY: each piece is freed once, with the layout it was allocated with.
        unsafe {
            let one = FixedHeap.alloc(layout(5000, 8));
            assert_eq!(one.addr() % ALIGNED, 0);
            FixedHeap.dealloc(one, layout(5000, 8));
            let other = FixedHeap.alloc(layout(4096, 8));
            assert_ne!(one, other);
            let again = FixedHeap.alloc(layout(8192, 64));
            assert_eq!(one, again);
            FixedHeap.dealloc(other, layout(4096, 8));
            FixedHeap.dealloc(again, layout(8192, 64));
        }
    }

    #[test]
    fn what_grows_keeps_its_bytes_from_list_to_list_and_to_the_system() {
        let sizes = [1, 64, 65, 4096, 4097, MOST, MOST + 1, 3 * MOST, 10, 1];
        // SAFETY: the memory is freed once, with the size that it has last; each byte that is read was written before.
        unsafe {
            let mut memory = FixedHeap.alloc(layout(1, 1));
            memory.write(0x5a);
            for sizes in sizes.windows(2) {
                memory = FixedHeap.realloc(memory, layout(sizes[0], 1), sizes[1]);
                assert_eq!(memory.read(), 0x5a);
                memory.add(sizes[1] - 1).write(0x5a);
            }
            FixedHeap.dealloc(memory, layout(1, 1));
        }
    }
}
