//! `SOURCE_DATE_EPOCH`: the time that a command uses for its changes, so that the same work gives the same bytes.
//!
//! Every command that changes an image uses it. A mount does not, because other programs decide when the image changes.

use lanefs::tune::Clock;
use lanefs::{Fs, Timestamp};

use crate::context::Context;
use crate::failure::Failure;

const NAME: &str = "SOURCE_DATE_EPOCH";

/// The seconds that ext4 can store: from 1901 to 2446.
const STORED: std::ops::RangeInclusive<i64> = -(1 << 31)..=(1 << 34) - (1 << 31) - 1;

/// The size of inodes that have no room for more than 32 bits of a time.
const SMALL_INODE: u16 = 128;

/// Warns once that a time was stored as the nearest time that the image's inodes can hold.
pub fn warn_of_cut_time(context: &Context, fs: &Fs, seconds: i64) {
    let is_late = seconds > i64::from(i32::MAX);
    if is_late && fs.inodes().superblock().inode_size() == SMALL_INODE {
        context.warn_once(
            "inodes of 128 bytes hold no times after 2038-01-19: later ones are stored as that",
        );
    } else if !STORED.contains(&seconds) {
        context.warn_once(
            "ext4 holds times from 1901-12-13 to 2446-05-10: others are stored as the nearest of these",
        );
    }
}

/// Warns if a file system is made with small inodes.
pub fn warn_of_small_inodes(context: &Context, inode_size: Option<u16>) {
    if inode_size == Some(SMALL_INODE) {
        context.warn_once(
            "inodes of 128 bytes hold no times after 2038-01-19: later ones are stored as that; leave out -I 128",
        );
    }
}

/// The seconds since 1970 in the environment variable; `None` if it is not set.
///
/// # Errors
/// A usage failure when the value is not a time that can be stored.
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

/// The value of [`source_date`] as a time stamp.
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

/// The clock for changes: always that time if it is set, else the wall clock.
///
/// # Errors
/// As [`source_date`].
pub fn clock() -> Result<Clock, Failure> {
    Ok(stamp()?.map_or(Clock::Ask(lanefs::now), Clock::Fixed))
}
