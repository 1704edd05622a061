//! Recovery: replays the journal of a file system that was not unmounted, into an overlay in memory or onto the device.
//!
//! [`scan_and_overlay`] only reads: it finds the journal, follows its log as the kernel does (scan, revoke, replay),
//! and returns a device that answers with the journal's newest copy of each block and with the image's own bytes
//! elsewhere. [`replay_to_device`] writes the same copies to their places and marks the journal clean; a crash on the
//! way leaves the journal as it was, so that the replay can be repeated.
//!
//! Everything on disk may be hostile. Bounds: a log of [`limits::LOG_BYTES_MAX`], a journal of
//! [`limits::JOURNAL_BLOCKS_MAX`] blocks in [`limits::RUNS_MAX`] runs, [`limits::RECORDS_MAX`] blocks and the
//! same number of revokes; about 200 MiB of memory at worst, a few KiB for an ordinary journal, because copies stay in
//! the journal and are read from there. No locks: an overlay never changes.

mod error;
mod fast;
pub mod limits;
mod log;
mod map;
mod open;
mod overlay;
mod replay;
mod report;
mod revokes;
mod scan;
mod write_home;

pub use error::{Error, UnsupportedLog};
pub use overlay::JournalOverlay;
pub use report::{JournalState, ReplayReport};
pub use write_home::{
    drop_fast_commits, empty_log, empty_sound_log, replay_sound_copies, replay_to_device,
};

use device::BlockDevice;
use ondisk::{Geometry, Superblock};
use sync::Arc;

use crate::recovery::replay::DamagedCopies;

/// A device as it is after replay.
pub struct Scanned {
    /// For reading only; the device itself where nothing needs replay.
    pub device: Arc<dyn BlockDevice>,
    /// What was found.
    pub report: ReplayReport,
    /// Blocks of the complete fast commits that follow the log, HEAD first, the last block up to where they end; empty
    /// if the journal has none. `device` does not show their changes.
    pub fast_commits: Vec<u8>,
}

/// Reads the journal of the file system on `device` and returns the device as it is after replay, for reading only.
///
/// `sb` and `geometry` are those found on `device`; the superblock may have a newer copy in the journal, so read it
/// again from the result. `external` is the device of an external journal; it is only looked at when the superblock
/// names one.
///
/// # Errors
/// When the journal can't be found, read or trusted (the kernel would refuse to mount), or has something that lanefs
/// can't read.
pub fn scan_and_overlay(
    device: Arc<dyn BlockDevice>,
    sb: &Superblock,
    geometry: &Geometry,
    external: Option<Arc<dyn BlockDevice>>,
) -> Result<Scanned, Error> {
    let replayed = replay::run(&device, sb, geometry, external, DamagedCopies::Refuse)?;
    let device: Arc<dyn BlockDevice> = match replayed.log {
        Some(log) if !log.copies.is_empty() => {
            Arc::new(JournalOverlay::new(device, log.map, log.copies))
        }
        _ => device,
    };
    Ok(Scanned {
        device,
        report: replayed.report,
        fast_commits: replayed.fast_commits,
    })
}
