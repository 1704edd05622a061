//! `SOURCE_DATE_EPOCH`: the moment at which a command makes its changes, where the same work is to give the same bytes.
//!
//! Every command that changes an image takes it; a mount does not, since others decide when it changes what.

use lanefs::Timestamp;
use lanefs::tune::Clock;

use crate::failure::Failure;

const NAME: &str = "SOURCE_DATE_EPOCH";

/// Seconds that ext4 can store: from 1901 to 2446.
const STORED: std::ops::RangeInclusive<i64> = -(1 << 31)..=(1 << 34) - (1 << 31) - 1;

/// The seconds since 1970 that the environment asks for, if it does.
///
/// # Errors
/// A usage failure when that is not a time that can be stored.
pub fn source_date() -> Result<Option<i64>, Failure> {
    let Some(text) = std::env::var_os(NAME) else {
        return Ok(None);
    };
    let seconds = text.to_str().and_then(|text| text.parse().ok());
    match seconds.filter(|seconds| STORED.contains(seconds)) {
        Some(seconds) => Ok(Some(seconds)),
        None => {
            let shown = text.to_string_lossy();
            let failure = Failure::usage(format!("invalid {NAME} `{shown}`"));
            Err(failure.hint("give it as seconds since 1970 before the year 2446, or unset it"))
        }
    }
}

/// As a time stamp.
///
/// # Errors
/// As [`source_date`].
pub fn stamp() -> Result<Option<Timestamp>, Failure> {
    let seconds = source_date()?;
    Ok(seconds.map(|seconds| Timestamp {
        seconds,
        nanoseconds: 0,
    }))
}

/// The clock of changes: that moment, else the wall clock.
///
/// # Errors
/// As [`source_date`].
pub fn clock() -> Result<Clock, Failure> {
    Ok(stamp()?.map_or(Clock::Ask(lanefs::now), Clock::Fixed))
}
