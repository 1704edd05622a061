//! Where a file has data: SEEK_DATA, SEEK_HOLE and FIEMAP. Each holds the file's data lock, so that the map does not
//! change meanwhile. Seeking treats unwritten blocks as holes, as Linux does for blocks without cached pages.

use std::ops::Range;

use ondisk::Ino;

use crate::core::Error;
use crate::inode::MountedFs;
use crate::map::{Mapping, Mappings};

/// The first byte at or after `offset` that is data or, if `hole` is set, that is in a hole. The end of the file counts
/// as a hole. `None` if `offset` is at or after the end, or if no data follow.
pub(crate) fn seek(
    mounted: &MountedFs,
    ino: Ino,
    offset: u64,
    hole: bool,
) -> Result<Option<u64>, Error> {
    super::under_data_lock(mounted, ino, |inode| {
        let volume = mounted.volume();
        let (size, bytes) = (volume.geometry().block_size(), inode.bytes(volume));
        if offset >= bytes {
            return Ok(None);
        }
        if inode.is_inline() {
            return Ok(Some(if hole { bytes } else { offset }));
        }
        for run in Mappings::new(volume, inode, offset >> size.bits()..size.blocks_for(bytes))? {
            let run = run?;
            if run.is_data() != hole {
                let found = offset.max(run.logical << size.bits());
                return Ok(Some(found.min(bytes)));
            }
        }
        Ok(hole.then_some(bytes))
    })
}

/// The runs of a file's blocks in a range of blocks, as they were at one moment.
pub(crate) fn mappings(
    mounted: &MountedFs,
    ino: Ino,
    blocks: Range<u64>,
) -> Result<Vec<Mapping>, Error> {
    super::under_data_lock(mounted, ino, |inode| {
        Mappings::new(mounted.volume(), inode, blocks)?.collect()
    })
}
