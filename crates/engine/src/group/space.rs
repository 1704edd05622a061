//! How many blocks (or inodes) can be had, exactly: the sum over all groups, from which an allocation takes its share
//! before it looks for bits, and what uncommitted frees will add.
//!
//! The plain form: one word each, on a line of its own. Bits are clear before the sum counts them and set after it
//! stopped counting them, so that whoever has a share finds as many clear bits. No lock; nothing of it is on disk.

use sync::CachePadded;
use sync::atomic::{AtomicI64, Ordering};

/// The sum; see the module.
#[derive(Default)]
pub(crate) struct Space {
    /// Free now, and nobody's share. Below 0 only where descriptors promised more than bitmaps hold. [atomic: Relaxed,
    /// exact]
    free: CachePadded<AtomicI64>,
    /// Freed by epochs that are not durable yet. [atomic: Relaxed, exact at rest]
    pending: CachePadded<AtomicI64>,
}

impl Space {
    /// With so many free.
    pub(crate) fn new(free: u64) -> Space {
        let space = Space::default();
        space.add(i64::try_from(free).unwrap_or(i64::MAX));
        space
    }

    /// Takes a share of up to `want` that leaves at least `floor` for others; 0 if there is none.
    pub(crate) fn share(&self, want: u32, floor: u64) -> u32 {
        let floor = i64::try_from(floor).unwrap_or(i64::MAX);
        let share = |free: i64| i64::from(want).min(free.saturating_sub(floor)).max(0);
        let take = |free| Some(free - share(free)).filter(|left| *left < free);
        // Relaxed: the number is all that matters; bits have their group's lock.
        let before = self
            .free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        // At most `want`.
        before.map_or(0, |free| share(free) as u32)
    }

    /// So many more are free, or (negative) fewer.
    pub(crate) fn add(&self, count: i64) {
        // Relaxed: as in `share`.
        self.free.fetch_add(count, Ordering::Relaxed);
    }

    /// So many were freed by an epoch that is not durable.
    pub(crate) fn freed(&self, count: u32) {
        // Relaxed: as in `share`.
        self.pending.fetch_add(count.into(), Ordering::Relaxed);
    }

    /// The epoch that freed them is durable, and their bits are clear.
    pub(crate) fn durable(&self, count: u32) {
        // Free first: in between they are counted twice, which is better than not at all.
        self.add(count.into());
        // Relaxed: as in `share`.
        self.pending.fetch_sub(count.into(), Ordering::Relaxed);
    }

    /// All that can be had, once what was freed is durable.
    pub(crate) fn sum(&self) -> u64 {
        // Relaxed: as in `share`; exact when nothing is under way.
        let pending = self.pending.load(Ordering::Relaxed);
        // Relaxed: as above.
        let free = self.free.load(Ordering::Relaxed);
        u64::try_from(free.saturating_add(pending)).unwrap_or(0)
    }

    /// Whether a commit would give something to a request that must leave `floor`.
    pub(crate) fn commit_helps(&self, floor: u64) -> bool {
        // Relaxed: as in `share`; a free that comes later is not owed to this request.
        self.pending.load(Ordering::Relaxed) > 0 && self.sum() > floor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_leave_the_floor_and_add_up() {
        let space = Space::new(100);
        assert_eq!(space.share(30, 50), 30);
        assert_eq!(space.share(30, 50), 20);
        assert_eq!(space.share(30, 50), 0);
        assert_eq!(space.share(1, 0), 1);
        space.freed(10);
        assert_eq!(space.sum(), 59);
        assert!(space.commit_helps(50) && !space.commit_helps(59));
        space.durable(10);
        assert_eq!((space.sum(), space.share(100, 0)), (59, 59));
        assert!(!space.commit_helps(0));
    }

    #[test]
    fn no_block_is_shared_twice() {
        let space = Space::new(10_000);
        let taken = AtomicI64::new(0);
        sync::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    loop {
                        match space.share(3, 7) {
                            0 => break,
                            // Relaxed: a count.
                            got => taken.fetch_add(got.into(), Ordering::Relaxed),
                        };
                    }
                });
            }
        });
        // Relaxed: the threads have ended.
        assert_eq!(taken.load(Ordering::Relaxed), 9_993);
        assert_eq!(space.sum(), 7);
    }
}
