//! From a device to a volume: the superblock, and the journal if it has something to say.

use device::BlockDevice;
use ondisk::{Feature, Geometry, Superblock};
use sync::Arc;

use crate::error::Error;
use crate::limits;
use crate::sb::{self, Volume};

/// What to do with a journal that has changes not yet written home.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Journal {
    /// Replay it in memory; the device is left alone.
    #[default]
    Replay,
    /// Read what is home, as if there were no journal (`noload`). It may contradict itself.
    Ignore,
}

/// How to open a file system.
#[derive(Clone)]
pub struct OpenOptions {
    /// Which superblock to use: `None` for the first, else the place of a copy in units of 1 KiB, as mount's `sb=`.
    pub superblock: Option<u64>,
    /// The device that holds the journal, where it is not in the file system.
    pub journal_device: Option<Arc<dyn BlockDevice>>,
    /// What to do with changes in the journal.
    pub journal: Journal,
    /// Bytes of metadata blocks to keep.
    pub cache_bytes: usize,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            superblock: None,
            journal_device: None,
            journal: Journal::Replay,
            cache_bytes: limits::CACHE_BYTES,
        }
    }
}

/// Opens a volume: with its journal's changes, and what replaying them found, if there were any to replay.
pub(crate) fn mount(
    device: Arc<dyn BlockDevice>,
    options: &OpenOptions,
) -> Result<(Volume, Option<recovery::Report>), Error> {
    let mut superblock = sb::read_superblock(&*device, options.superblock)?;
    let mut device = device;
    let mut report = None;
    if options.journal == Journal::Replay && needs_replay(&superblock) {
        let geometry = Geometry::new(&superblock, device.size())?;
        let external = options.journal_device.clone();
        let (overlay, found) =
            recovery::scan_and_overlay(device, &superblock, &geometry, external)?;
        // The journal may hold a newer superblock; a copy that was asked for stays in use.
        superblock = sb::read_superblock(&*overlay, options.superblock)?;
        device = overlay;
        report = Some(found);
    }
    let volume = Volume::new(device, superblock, options.superblock, options.cache_bytes)?;
    Ok((volume, report))
}

fn needs_replay(superblock: &Superblock) -> bool {
    let features = superblock.features();
    features.has(Feature::NEEDS_RECOVERY) && features.has(Feature::HAS_JOURNAL)
}
