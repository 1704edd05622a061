//! What the journal asks of the file system above it.

use std::collections::BTreeMap;

use ondisk::FsBlock;

use crate::abort::JournalError;
use crate::epoch::Epoch;

/// The file system's part of a commit. Called by the committing thread only, which holds no lock of the journal.
pub trait Client: Sync {
    /// Folds what was changed without locks in a sealed epoch into the images of its blocks: all sets, then all
    /// clears. The next epoch is open meanwhile.
    ///
    /// # Errors
    /// When a block can't be read; the journal then aborts.
    fn fold(&self, sealed: Epoch, folded: &mut Folded<'_>) -> Result<(), JournalError>;

    /// The epoch's transaction is about to be written: after this returns, no thread writes fast commits of it. Returns
    /// whether there are any.
    fn end_fast_log(&self, _sealed: Epoch) -> bool {
        false
    }

    /// The epoch is durable: what it freed may be used again, from now on.
    fn committed(&self, epoch: Epoch);

    /// The newest contents of a block that no transaction in memory holds: from the cache or the device.
    ///
    /// # Errors
    /// When the device fails.
    fn read_home(&self, block: FsBlock, buf: &mut [u8]) -> Result<(), JournalError>;
}

/// The images of a transaction while they are built.
pub struct Folded<'a> {
    pub(crate) images: BTreeMap<FsBlock, Vec<u8>>,
    pub(crate) block_bytes: usize,
    #[allow(clippy::type_complexity)] // One closure; naming its type would say nothing more.
    pub(crate) base: &'a dyn Fn(FsBlock, &mut [u8]) -> Result<(), JournalError>,
}

impl Folded<'_> {
    /// The blocks whose images are being built so far.
    pub fn blocks(&self) -> impl Iterator<Item = FsBlock> {
        self.images.keys().copied()
    }

    /// The image of a block: what this transaction has made of it so far, else the newest committed one.
    ///
    /// # Errors
    /// When its home can't be read.
    pub fn image(&mut self, block: FsBlock) -> Result<&mut [u8], JournalError> {
        use std::collections::btree_map::Entry;
        match self.images.entry(block) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let mut image = vec![0; self.block_bytes];
                (self.base)(block, &mut image)?;
                Ok(entry.insert(image))
            }
        }
    }

    /// The image of a block whose former contents don't matter: zeros, unless this transaction has made one.
    pub fn new_image(&mut self, block: FsBlock) -> &mut [u8] {
        let bytes = self.block_bytes;
        self.images.entry(block).or_insert_with(|| vec![0; bytes])
    }
}
