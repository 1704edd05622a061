//! Work units that idle threads take from one counter, in disk order.

use sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Runs `work` for every number below `units`, on `threads` threads. A thread that has finished a unit takes the next
/// one that nobody has taken. Ends early, between two units, once `cancelled` is set.
pub fn share_out(
    threads: usize,
    units: usize,
    cancelled: &AtomicBool,
    work: impl Fn(usize) + Sync,
) {
    let next = AtomicUsize::new(0);
    sync::thread::workers(threads.clamp(1, units.max(1)), |_| {
        loop {
            // Relaxed: only hands out numbers; what units write is published when the threads are joined.
            let unit = next.fetch_add(1, Ordering::Relaxed);
            // Relaxed: a late look at the flag only costs one unit more.
            if unit >= units || cancelled.load(Ordering::Relaxed) {
                break;
            }
            work(unit);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use sync::atomic::AtomicU64;

    #[test]
    fn every_unit_is_done_once_on_any_number_of_threads() {
        for threads in [0, 1, 3, 9] {
            let sum = AtomicU64::new(0);
            let cancelled = AtomicBool::new(false);
            share_out(threads, 100, &cancelled, |unit| {
                // Relaxed: a sum that is read after the threads are joined.
                sum.fetch_add(1 << (unit % 50), Ordering::Relaxed);
            });
            // Relaxed: the threads are joined.
            assert_eq!(sum.load(Ordering::Relaxed), 2 * ((1 << 50) - 1));
        }
    }
}
