//! What a mount by lanefs reports: whether it accepts changes, and if not, since when and why.

use std::fmt;
use std::path::Path;

use lanefs::{Stopped, Timestamp};
use rustix::fs::getxattr;
use rustix::io::Errno;

use crate::format;

/// What is reported in place of a server that has ended.
const GONE: &str = "gone";
/// Bytes that the answer may have.
const ANSWER_BYTES: usize = 1 << 12;

/// Whether a mount accepts changes.
pub enum MountState {
    /// It does.
    Writing,
    /// It was mounted to be read only.
    ReadOnly,
    /// It did, until something failed.
    Stopped(Stopped),
    /// Its server has ended, or the connection to it was cut.
    Gone,
}

/// What a mount reports of one thing; an error where lanefs has not mounted the directory, or the server is gone.
fn asked(directory: &Path, attribute: &str) -> Result<String, Errno> {
    let mut answer = vec![0; ANSWER_BYTES];
    let len = getxattr(directory, attribute, &mut answer[..])?;
    answer.truncate(len);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// What makes changes durable on a mount: `all` (sync(1) and umount(8), too), or `fsync only`, and why.
pub fn sync_of(directory: &Path) -> Option<String> {
    let answer = asked(directory, "lanefs.sync").ok()?;
    let mut lines = answer.lines();
    let what = lines.next()?;
    Some(match lines.next() {
        Some(why) => format!("{what} ({why})"),
        None => what.to_owned(),
    })
}

/// What a mount reports of its state, for [`MountState::parse`]; `None` as for [`MountState::of`].
pub fn reported_state(directory: &Path) -> Option<String> {
    match asked(directory, "lanefs.state") {
        Ok(report) => Some(report),
        Err(Errno::NOTCONN | Errno::CONNABORTED) => Some(GONE.to_owned()),
        Err(_) => None,
    }
}

impl MountState {
    /// Asks a mount; `None` if the directory is not a mount by lanefs.
    pub fn of(directory: &Path) -> Option<MountState> {
        MountState::parse(&reported_state(directory)?)
    }

    /// What a report says; `None` if it is none.
    pub fn parse(report: &str) -> Option<MountState> {
        let mut lines = report.lines();
        match lines.next()? {
            "writing" => Some(MountState::Writing),
            "read-only" => Some(MountState::ReadOnly),
            GONE => Some(MountState::Gone),
            "stopped" => {
                let since = Timestamp {
                    seconds: lines.next()?.parse().ok()?,
                    nanoseconds: 0,
                };
                let cause = lines.next().unwrap_or("").into();
                Some(MountState::Stopped(Stopped { cause, since }))
            }
            _ => None,
        }
    }
}

impl fmt::Display for MountState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountState::Writing => f.write_str("writing"),
            MountState::ReadOnly => f.write_str("read-only"),
            MountState::Gone => f.write_str("its server has ended"),
            MountState::Stopped(stopped) => f.write_str(&described(stopped)),
        }
    }
}

/// That no change is accepted any more, since when and why.
pub fn described(stopped: &Stopped) -> String {
    let since = format::time_seconds(stopped.since);
    format!("stopped accepting changes at {since}: {}", stopped.cause)
}

/// What became of changes, for a message behind [`described`].
pub const WHAT_IS_LOST: &str = "changes that were neither synced nor committed before then are lost; all others are in \
    the image or in its journal, which is replayed when it is opened next (without a journal, run e2fsck)";
