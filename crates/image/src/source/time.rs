//! A point in time as ext4 can store it: seconds from 1901 to 2446 and nanoseconds, packed into eight bytes.

/// Seconds and nanoseconds since 1970 within the range of a 256-byte inode; what lies outside is clamped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The earliest second that ext4 can store.
    pub const MIN_SECONDS: i64 = -(1 << 31);
    /// The latest second that ext4 can store with 34 bits.
    pub const MAX_SECONDS: i64 = (1 << 34) - (1 << 31) - 1;
    /// 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self::new(0, 0);

    /// The time `seconds` and `nanoseconds` (at most 999,999,999) after 1970, moved into ext4's range.
    #[must_use]
    pub const fn new(seconds: i64, nanoseconds: u32) -> Self {
        let (seconds, nanoseconds) = if seconds < Self::MIN_SECONDS {
            (Self::MIN_SECONDS, 0)
        } else if seconds > Self::MAX_SECONDS {
            (Self::MAX_SECONDS, 999_999_999)
        } else if nanoseconds > 999_999_999 {
            (seconds, 999_999_999)
        } else {
            (seconds, nanoseconds)
        };
        // The difference lies within 0..2^34, so the shift keeps every bit and the order of times.
        let from_min = (seconds - Self::MIN_SECONDS).cast_unsigned();
        Self(from_min << 30 | nanoseconds as u64)
    }

    /// Whole seconds since 1970, rounded down.
    #[must_use]
    pub const fn seconds(self) -> i64 {
        (self.0 >> 30).cast_signed() + Self::MIN_SECONDS
    }

    /// Nanoseconds within the second.
    #[must_use]
    pub const fn nanoseconds(self) -> u32 {
        (self.0 & ((1 << 30) - 1)) as u32
    }

    /// Whether `seconds` can be stored as it is.
    #[must_use]
    pub const fn fits(seconds: i64) -> bool {
        seconds >= Self::MIN_SECONDS && seconds <= Self::MAX_SECONDS
    }
}

impl std::fmt::Debug for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:09}", self.seconds(), self.nanoseconds())
    }
}

#[cfg(test)]
mod tests {
    use super::Time;

    #[test]
    fn times_keep_their_parts_and_order_and_are_clamped_to_ext4s_range() {
        for (s, ns) in [
            (0, 0),
            (-1, 999_999_999),
            (Time::MIN_SECONDS, 1),
            (Time::MAX_SECONDS, 7),
        ] {
            let time = Time::new(s, ns);
            assert_eq!((time.seconds(), time.nanoseconds()), (s, ns));
        }
        assert!(Time::new(-1, 999_999_999) < Time::EPOCH);
        assert_eq!(Time::new(i64::MIN, 5), Time::new(Time::MIN_SECONDS, 0));
        assert_eq!(Time::new(i64::MAX, 0).seconds(), Time::MAX_SECONDS);
        assert_eq!(Time::new(1, u32::MAX).nanoseconds(), 999_999_999);
    }
}
