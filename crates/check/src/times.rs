//! Times of the superblock that lie in the future: a clock was wrong then, or is now.

use ondisk::Superblock;

use crate::problem::Code;
use crate::report::{Problem, Report};

/// How far a time may be ahead. A clock set to the wrong zone is wrong by less.
const DAY: u64 = 24 * 60 * 60;
/// The start of 2010. A clock that shows an earlier time was never set, so nothing is judged by it.
const SET: u64 = 1_262_304_000;

/// Adds the notes of a superblock's times to the report. `now` is in seconds since 1970.
pub fn add_future(report: &mut Report, sb: &Superblock, now: u64) {
    if now < SET {
        return;
    }
    let times = [
        (Code::FutureMount, sb.mount_time()),
        (Code::FutureWrite, sb.write_time()),
    ];
    let is_ahead = |time: u64| time > now.saturating_add(DAY);
    let ahead = times.into_iter().filter(|(_, time)| is_ahead(*time));
    let notes = ahead.map(|(code, time)| Problem::new(code).found(time).expected(now));
    report.put_first(notes.collect());
}
