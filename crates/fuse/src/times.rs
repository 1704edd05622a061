//! Times as the fuser library has them.
//!
//! Before 1970 it takes the kernel's nanoseconds, which count forward, for ones that count backward when it reads, and
//! rightly when it writes; what is read is turned back here.

use lanefs::Timestamp;
use sync::clock::{Duration, HostTime};

const NANOSECONDS_MAX: u32 = 999_999_999;

/// A time for the kernel.
pub(crate) fn outgoing(time: Timestamp) -> HostTime {
    let nanoseconds = Duration::from_nanos(time.nanoseconds.min(NANOSECONDS_MAX).into());
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    match time.seconds < 0 {
        true => HostTime::UNIX_EPOCH - seconds + nanoseconds,
        false => HostTime::UNIX_EPOCH + seconds + nanoseconds,
    }
}

/// A time from the kernel, as the library read it.
pub(crate) fn incoming(time: HostTime) -> Timestamp {
    match time.duration_since(HostTime::UNIX_EPOCH) {
        Ok(after) => Timestamp {
            seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: after.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            Timestamp {
                seconds: i64::try_from(before.as_secs()).map_or(i64::MIN, |seconds| -seconds),
                nanoseconds: before.subsec_nanos(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        let time = |seconds, nanoseconds| Timestamp {
            seconds,
            nanoseconds,
        };
        // As the library reads -2 s and 300 ms: two seconds and 300 ms back.
        let read = HostTime::UNIX_EPOCH - Duration::new(2, 300_000_000);
        assert_eq!(incoming(read), time(-2, 300_000_000));
        let right = HostTime::UNIX_EPOCH - Duration::new(1, 700_000_000);
        assert_eq!(outgoing(time(-2, 300_000_000)), right);
        assert_eq!(incoming(outgoing(time(5, 7))), time(5, 7));
    }
}
