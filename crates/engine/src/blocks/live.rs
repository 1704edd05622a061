//! Metadata blocks that change: their live bytes, the images of sealed epochs, and the table where readers find them.
//!
//! A [`LiveBlock`] belongs to the thread that holds the lock of the inode that owns the block; only that thread changes
//! it, under a handle. Changing is copy-on-write: a reader's snapshot and a sealed image each cost one count, and the
//! bytes are copied only if one of them is still held. A block is found without a lock; a bucket of the table
//! ([`Rank::IcacheBucket`]) is locked to add a block, and while a hand ([`Rank::Hand`]) looks for blocks that may
//! leave.
//!
//! A block stays in the table while a [`Pin`] holds it, while an epoch that changed it is not committed, and otherwise
//! as long as the table has room. Once it has left, the journal's newest image or the device has its contents. The
//! clean cache must not hold older contents then: the first change of a block in each epoch removes the block there.
//!
//! CRASH: nothing of the table remains; only staged images reach the log.
//!
//! Memory: a removed block is dropped by the table's domain after every reader that may see it has ended
//! ([`sync::rcu`]), or by the last snapshot. Interleavings: the tests of [`sync::rcu`], and the schedules of
//! `tools/simulate`.

use buffer::{Block, Tag};
use journal::{Epoch, Handle, Object, Stageable};
use ondisk::FsBlock;
use sync::rcu::{CountedTable, Hand, Keyed};
use sync::{Arc, CachePadded, Hint, Lanes, Mutex, OwnThread, Rank};

/// The number of buckets of a new table.
const BUCKETS: usize = 1 << 12;
/// How many blocks a thread adds before it checks whether the table has too many.
const UNSEEN: usize = 256;

/// How a block's checksum is computed when an image of it is staged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seal {
    /// It has none.
    None,
    /// In the tail of a directory's block of entries; the seed is the directory's.
    Entries(u32),
    /// In the tail of a directory index's root.
    IndexRoot(u32),
    /// In the tail of another block of a directory's index.
    IndexNode(u32),
    /// In the tail of an extent block; the seed is the file's.
    Extents(u32),
    /// In the header of an attribute block; the seed is the file system's.
    Xattrs(u32),
}

/// Writes the checksum of a block's image; one function a kind, so that `live` need not know their formats.
pub(crate) type SealImage = fn(Seal, FsBlock, &mut [u8]);

/// A metadata block that may change.
pub(crate) struct LiveBlock {
    number: FsBlock,
    seal_image: SealImage,
    /// [the owning inode's lock; read: any time, by snapshot]
    contents: Object<Contents>,
}

impl Keyed for LiveBlock {
    fn key(&self) -> u64 {
        self.number.0
    }
}

#[derive(Clone)]
struct Contents {
    seal: Seal,
    bytes: Arc<Block>,
}

impl Stageable for LiveBlock {
    fn block(&self) -> FsBlock {
        self.number
    }

    fn is_whole_block(&self) -> bool {
        true
    }

    fn stage(&self, sealed: Epoch, image: &mut [u8]) {
        let contents = self.contents.take_sealed(sealed);
        image.copy_from_slice(&contents.bytes);
        (self.seal_image)(contents.seal, self.number, image);
    }
}

/// A live block held in memory, so that apply can change it without I/O. Dropping it releases the block.
#[derive(Clone)]
pub(crate) struct Pin(Arc<LiveBlock>);

impl Pin {
    /// The kind of metadata as which the block was verified.
    pub(crate) fn tag(&self) -> Tag {
        self.0.contents.read(|contents| contents.bytes.tag())
    }

    /// The block's bytes as they are now. Later changes of the block do not change them.
    pub(crate) fn bytes(&self) -> Arc<Block> {
        self.0.contents.read(|contents| Arc::clone(&contents.bytes))
    }

    /// Changes the block in the handle's epoch. The caller holds the lock of the inode that owns the block. `change`
    /// need not compute the block's checksum. The first change in an epoch uses one of the handle's blocks.
    pub(crate) fn change<R>(&self, handle: &Handle<'_>, change: impl FnOnce(&mut [u8]) -> R) -> R {
        handle.change(
            &self.0,
            |block| &block.contents,
            |contents| change(Arc::make_mut(&mut contents.bytes).bytes_mut()),
        )
    }

    /// Replaces the block's bytes by new ones, which were prepared while the owner's lock was held, and sets the kind
    /// of checksum that belongs to them. As [`Pin::change`] otherwise.
    pub(crate) fn replace(&self, handle: &Handle<'_>, seal: Seal, bytes: Arc<Block>) {
        handle.change(
            &self.0,
            |block| &block.contents,
            |contents| *contents = Contents { seal, bytes },
        );
    }
}

/// The table of live blocks.
pub(crate) struct Live {
    /// [icache bucket, a lock for each bucket; read: rcu]
    table: CountedTable<LiveBlock>,
    /// Where the next trim continues. [hand]
    hand: Mutex<Hand>,
    /// Blocks that each thread added since it last checked. [written by that thread]
    unseen: Lanes<OwnThread<usize>>,
    /// How many blocks may be in memory before the next trim. [atomic: Relaxed, hint; written by the trim]
    trim_at: CachePadded<Hint<usize>>,
    /// The most blocks that are kept. [const]
    most: usize,
    seal_image: SealImage,
}

impl Live {
    /// An empty table that keeps about `most` blocks beyond those in use or not committed.
    pub(crate) fn new(seal_image: SealImage, most: usize) -> Live {
        Live {
            table: CountedTable::new(Rank::IcacheBucket, BUCKETS),
            hand: Mutex::new(Rank::Hand, Hand::new(0, 1)),
            unseen: Lanes::new(),
            trim_at: CachePadded::new(Hint::new(most)),
            most,
            seal_image,
        }
    }

    fn block(&self, number: FsBlock, seal: Seal, bytes: Arc<Block>) -> Arc<LiveBlock> {
        Arc::new(LiveBlock {
            number,
            seal_image: self.seal_image,
            contents: Object::new(Contents { seal, bytes }),
        })
    }

    /// Counts a block that this thread added.
    fn added(&self) {
        let unseen = self.unseen.mine();
        let count = unseen.get();
        unseen.set(count.saturating_add(1));
    }

    /// A block's live bytes, if it is in the table.
    pub(crate) fn snapshot(&self, number: FsBlock) -> Option<Arc<Block>> {
        let block = self.table.find(number.0)?;
        Some(block.contents.read(|contents| Arc::clone(&contents.bytes)))
    }

    /// Pins a block that is in the table.
    pub(crate) fn find(&self, number: FsBlock) -> Option<Pin> {
        self.table.find(number.0).map(Pin)
    }

    /// Pins a block: the one in the table, or a new one with these bytes, unless another thread was first; also returns
    /// whether it is new.
    pub(crate) fn pin(
        &self,
        number: FsBlock,
        seal: Seal,
        bytes: impl FnOnce() -> Arc<Block>,
    ) -> (Pin, bool) {
        if let Some(block) = self.table.find(number.0) {
            return (Pin(block), false);
        }
        let new = self.block(number, seal, bytes());
        let there = self.table.locked(number.0, |bucket| {
            let there = bucket.get();
            if there.is_none() {
                bucket.insert(Arc::clone(&new));
            }
            there
        });
        match there {
            Some(block) => (Pin(block), false),
            None => {
                self.added();
                (Pin(new), true)
            }
        }
    }

    /// Pins a block whose former contents don't matter. Forgets what the table holds of the block from its former
    /// owner; the freeing of the block was committed before the block could be allocated again.
    pub(crate) fn pin_new(&self, number: FsBlock, seal: Seal, tag: Tag, block_bytes: usize) -> Pin {
        let bytes = Arc::new(Block::new(tag, vec![0; block_bytes].into_boxed_slice()));
        let new = self.block(number, seal, bytes);
        let entry = Arc::clone(&new);
        self.table.locked(number.0, |bucket| bucket.insert(entry));
        self.added();
        Pin(new)
    }

    /// Whether the calling thread has added enough blocks since its last check to check again whether the table has too
    /// many.
    pub(crate) fn is_look_due(&self) -> bool {
        let unseen = self.unseen.mine();
        let is_due = unseen.get() >= UNSEEN.min(self.most / 16);
        if is_due {
            unseen.set(0);
        }
        is_due
    }

    /// Whether the table has more blocks than are to be kept. Reads all threads' counts.
    pub(crate) fn is_full(&self) -> bool {
        self.table.len() as usize > self.trim_at.get()
    }

    /// Drops blocks that are not pinned and whose last change is committed, until three quarters of the number to be
    /// kept are left. If too few can be dropped, the next trim waits until the table has a quarter more. Does nothing
    /// while another thread trims.
    pub(crate) fn trim(&self, committed: Epoch) {
        let Some(mut hand) = self.hand.try_lock() else {
            return;
        };
        let too_many = (self.table.len() as usize).saturating_sub(self.most / 4 * 3);
        // A pin counts the block, and so does an epoch's list; the table drops a block that only the table counts.
        let mut may_go = |block: &LiveBlock| block.contents.stamp() <= committed;
        let swept = self.table.sweep(&mut hand, too_many, &mut may_go);
        // A sweep that could not look at all blocks does not show how few can be dropped.
        let left = if swept.is_blocked {
            0
        } else {
            self.table.len() as usize
        };
        self.trim_at.set(self.most.max(left / 4 * 5));
    }
}
