//! Time: a monotonic clock for measuring and the wall clock for stamps on disk. No other code reads a clock, so a test
//! can pass its own times everywhere else. A scheduled thread sees its schedule's time, which passes only with what its
//! threads do.

pub use std::time::{Duration, Instant};

/// A moment by the wall clock in the type that other interfaces use. It is only converted; its `now` is never called.
pub use std::time::SystemTime as HostTime;

/// The monotonic clock.
#[must_use]
pub fn now() -> Instant {
    crate::turn::instant().unwrap_or_else(Instant::now)
}

/// Seconds and nanoseconds since 1970 by the wall clock (nanoseconds count forward, also before 1970).
#[must_use]
pub fn wall() -> (i64, u32) {
    if let Some(wall) = crate::turn::wall() {
        return wall;
    }
    let now = std::time::SystemTime::now();
    match now.duration_since(std::time::UNIX_EPOCH) {
        Ok(after) => (
            i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            after.subsec_nanos(),
        ),
        Err(_) => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_wall_clock_is_past_2020() {
        let (seconds, nanoseconds) = super::wall();
        assert!(seconds > 1_577_836_800 && nanoseconds < 1_000_000_000);
    }
}
