//! Plans a layout: an image as a whole, or one whose geometry was settled before its data came.

use crate::{BlockRun, Error, Layout, Options, StreamGeometry};

impl Layout {
    /// Plans an image of `size_bytes` (rounded down to blocks), metadata placed as mke2fs does.
    ///
    /// # Errors
    /// Options that don't exist, contradict each other or can't be made, by name; a size too small for them.
    pub fn plan(size_bytes: u64, options: &Options) -> Result<Layout, Error> {
        Layout::plan_around(size_bytes, options, &[])
    }

    /// As [`Layout::plan`], with blocks that are taken already (ascending, whole clusters, out of those that
    /// [`crate::StreamGeometry`] gives): bitmaps, inode tables, journal and the other special files go into the gaps
    /// and behind.
    ///
    /// # Errors
    /// As `plan`; also when what is left is too small or too scattered.
    pub fn plan_around(
        size_bytes: u64,
        options: &Options,
        taken: &[BlockRun],
    ) -> Result<Layout, Error> {
        if let Some(sized) = options.stream.as_ref().and_then(StreamGeometry::as_sized) {
            return sized.layout(size_bytes, options);
        }
        Layout::plan_whole(size_bytes, options, taken)
    }
}
