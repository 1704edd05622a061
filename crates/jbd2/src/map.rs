//! Where the journal's blocks are: in an inode of the file system, or on a device of its own. Fixed while open.

use device::{BlockDevice, DeviceError};
use ondisk::{BlockSize, FsBlock};
use sync::Arc;

/// Maps blocks of the journal to blocks of a device, and reads and writes them.
#[derive(Clone)]
pub struct LogMap {
    device: Arc<dyn BlockDevice>,
    block_size: BlockSize,
    /// First journal block, first device block, and length of each run; ascending and without gaps from 0.
    runs: Vec<(u32, FsBlock, u32)>,
}

impl LogMap {
    /// The journal whose blocks are, in order, these runs of device blocks.
    #[must_use]
    pub fn new(
        device: Arc<dyn BlockDevice>,
        block_size: BlockSize,
        runs: &[(FsBlock, u32)],
    ) -> LogMap {
        let mut first = 0_u32;
        let runs = runs
            .iter()
            .map(|(start, len)| {
                let run = (first, *start, *len);
                first = first.saturating_add(*len);
                run
            })
            .collect();
        LogMap {
            device,
            block_size,
            runs,
        }
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// The device that holds the log.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// How many blocks are mapped.
    #[must_use]
    pub fn len_blocks(&self) -> u32 {
        self.runs
            .last()
            .map_or(0, |(first, _, len)| first.saturating_add(*len))
    }

    /// Calls `work` with the device's byte and the range of `len` bytes for each contiguous part.
    fn parts(
        &self,
        block: u32,
        len: usize,
        mut work: impl FnMut(u64, std::ops::Range<usize>) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let bytes = self.block_size.bytes();
        let (mut at, mut done) = (block, 0);
        while done < len {
            let index = self
                .runs
                .partition_point(|(first, _, _)| *first <= at)
                .saturating_sub(1);
            let run = self
                .runs
                .get(index)
                .filter(|(first, _, count)| at - first < *count);
            let Some((first, start, count)) = run else {
                return Err(DeviceError::OutOfRange {
                    operation: "log access",
                    offset: u64::from(at) * bytes as u64,
                    len: (len - done) as u64,
                    size: u64::from(self.len_blocks()) * bytes as u64,
                });
            };
            let within = at - first;
            let here = ((count - within) as usize * bytes).min(len - done);
            work(
                FsBlock(start.0 + u64::from(within)).offset(self.block_size),
                done..done + here,
            )?;
            done += here;
            // A part is at most as long as its run, whose length fits.
            at += u32::try_from(here / bytes).unwrap_or(u32::MAX);
        }
        Ok(())
    }

    /// Writes whole blocks from `block` on.
    ///
    /// # Errors
    /// When the journal is shorter, or its device fails.
    pub fn write(&self, block: u32, data: &[u8]) -> Result<(), DeviceError> {
        self.parts(block, data.len(), |offset, range| {
            self.device.write_at(offset, &data[range])
        })
    }

    /// Writes the beginning of a block: the superblock, which is shorter than most blocks.
    ///
    /// # Errors
    /// As [`LogMap::write`].
    pub fn write_bytes(&self, block: u32, data: &[u8]) -> Result<(), DeviceError> {
        self.parts(
            block,
            data.len().min(self.block_size.bytes()),
            |offset, range| self.device.write_at(offset, &data[range]),
        )
    }

    /// Reads whole blocks from `block` on.
    ///
    /// # Errors
    /// As [`LogMap::write`].
    pub fn read(&self, block: u32, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.parts(block, buf.len(), |offset, range| {
            self.device.read_at(offset, &mut buf[range])
        })
    }
}
