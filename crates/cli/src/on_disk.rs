//! Opens images for `info`, `dump` and `map`, which show them as they lie on the disk.

use std::path::Path;

use device::{BlockDevice, Incomplete};
use inspect::{RawImage, geometry_of};
use ondisk::{GeometryError, Superblock};
use sync::Arc;

use crate::advice::{damaged, warn_of_cut};
use crate::args::FsArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::open::{location, open_for, open_fs};

/// Opens the image that the options name; the superblock in use must verify. An image that ends before its file
/// system is shown as far as it goes, with a warning.
pub fn open(context: &Context, path: &Path, options: &FsArgs) -> Result<RawImage, Failure> {
    let (device, superblock) = read_superblock(context, path, options)?;
    let geometry = geometry_of(&superblock).map_err(|error| {
        let failure = Failure::new(error).at(path.display());
        match (error, options.superblock) {
            (GeometryError::Corrupt(_), None) => {
                damaged(failure, path, &device, location(&options.image))
            }
            _ => failure,
        }
    })?;
    let (needed, present) = (geometry.bytes(), device.size());
    let device: Arc<dyn BlockDevice> = if present < needed {
        warn_of_cut(context, path, needed, present, "");
        Arc::new(Incomplete::new(device, needed))
    } else {
        device
    };
    Ok(RawImage::new(
        device,
        superblock,
        geometry,
        options.superblock,
    ))
}

/// The same image with its journal replayed in memory, if there is something to replay and the options don't forbid it.
/// If the replay fails, the user gets the reason, and the state on disk is used.
pub fn replayed(
    raw: &RawImage,
    context: &Context,
    path: &Path,
    options: &FsArgs,
) -> Option<RawImage> {
    if !raw.needs_recovery() || options.no_replay || options.superblock.is_some() {
        return None;
    }
    let fs = match open_fs(context, path, options) {
        Ok(fs) => fs,
        Err(failure) => {
            context.warn(format!(
                "{}; so changes in the journal are not shown",
                failure.text()
            ));
            return None;
        }
    };
    let inodes = fs.inodes();
    let device = Arc::clone(inodes.device());
    Some(RawImage::new(
        device,
        *inodes.superblock(),
        *inodes.geometry(),
        None,
    ))
}

/// The device that the options name, and the superblock in use, unchecked.
pub fn read_superblock(
    context: &Context,
    path: &Path,
    options: &FsArgs,
) -> Result<(Arc<dyn BlockDevice>, Superblock), Failure> {
    let device = open_for(context, path, options)?;
    let offset = match options.superblock {
        None => Superblock::OFFSET,
        Some(kib) => kib.saturating_mul(1024),
    };
    let mut bytes = [0; Superblock::SIZE];
    device
        .read_at(offset, &mut bytes)
        .map_err(|error| Failure::new(error).at(path.display()))?;
    Ok((device, *Superblock::view(&bytes)))
}
