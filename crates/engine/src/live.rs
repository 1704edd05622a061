//! Metadata blocks that change: their live bytes, the images of sealed epochs, and where readers find them.
//!
//! A [`LiveBlock`] belongs to whoever holds the lock of the inode that owns the block; that lock's holder alone
//! changes it, under a handle. Changing is copy-on-write: a reader's snapshot and a sealed image each cost one count,
//! and the bytes are copied only if one of them is still held. The table's shards ([`Rank::IcacheBucket`]) are held
//! for a look; no lock is held across I/O.
//!
//! A block stays in the table while a [`Pin`] holds it, while an epoch that changed it is not committed, and as long
//! as there is room. Once it left, the journal's newest image or the device has its contents, and the clean cache
//! must not hold older ones: the first change of a block in each epoch removes it there.
//!
//! What a crash leaves: nothing of this; only staged images reach the log.

use buffer::{Block, Tag};
use hashbrown::HashMap;
use journal::{Epoch, Handle, Object, Stageable};
use ondisk::FsBlock;
use sync::atomic::{AtomicUsize, Ordering};
use sync::{Arc, CachePadded, Mutex, Rank};

const SHARDS: usize = 64;

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

/// A live block held in memory, so that apply can change it without I/O. Dropping it lets the block go.
#[derive(Clone)]
pub(crate) struct Pin(Arc<LiveBlock>);

impl Pin {
    /// The block's bytes as they are now; they do not change under the reader.
    pub(crate) fn bytes(&self) -> Arc<Block> {
        self.0.contents.read(|contents| Arc::clone(&contents.bytes))
    }

    /// Changes the block in the handle's epoch. The caller holds the lock of the inode that owns it. The block's
    /// checksum is not the caller's affair. Uses one of the handle's blocks the first time in an epoch.
    pub(crate) fn change<R>(&self, handle: &Handle<'_>, change: impl FnOnce(&mut [u8]) -> R) -> R {
        handle.change(
            &self.0,
            |block| &block.contents,
            |contents| change(Arc::make_mut(&mut contents.bytes).bytes_mut()),
        )
    }

    /// Gives the block new bytes, which were prepared while its owner's lock was held, and the kind of checksum that
    /// belongs to them. As [`Pin::change`] otherwise.
    pub(crate) fn replace(&self, handle: &Handle<'_>, seal: Seal, bytes: Arc<Block>) {
        handle.change(
            &self.0,
            |block| &block.contents,
            |contents| *contents = Contents { seal, bytes },
        );
    }
}

type Shard = HashMap<u64, Arc<LiveBlock>>;

/// The table of live blocks.
pub(crate) struct Live {
    /// [shard]
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// Blocks in all shards. [atomic: Relaxed, hint; written under a shard's lock]
    count: CachePadded<AtomicUsize>,
    /// How many there may be before the next trim. [atomic: Relaxed, hint]
    trim_at: CachePadded<AtomicUsize>,
    /// How many are kept. [const]
    most: usize,
    seal_image: SealImage,
}

impl Live {
    /// An empty table that keeps about `most` blocks beyond those in use or not committed.
    pub(crate) fn new(seal_image: SealImage, most: usize) -> Live {
        let shard = || CachePadded::new(Mutex::new(Rank::IcacheBucket, Shard::new()));
        Live {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            count: CachePadded::new(AtomicUsize::new(0)),
            trim_at: CachePadded::new(AtomicUsize::new(most)),
            most,
            seal_image,
        }
    }

    fn shard(&self, number: FsBlock) -> &Mutex<Shard> {
        let mixed = number.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.shards[mixed as usize % SHARDS]
    }

    /// A block's live bytes, if it is in the table.
    pub(crate) fn snapshot(&self, number: FsBlock) -> Option<Arc<Block>> {
        let block = Arc::clone(self.shard(number).lock().get(&number.0)?);
        Some(block.contents.read(|contents| Arc::clone(&contents.bytes)))
    }

    /// Pins a block: the one in the table, or a new one with these bytes, if nobody else put it there first.
    pub(crate) fn pin(
        &self,
        number: FsBlock,
        seal: Seal,
        bytes: impl FnOnce() -> Arc<Block>,
    ) -> Pin {
        let mut shard = self.shard(number).lock();
        let block = shard.entry(number.0).or_insert_with(|| {
            // Relaxed: a hint; here and below.
            self.count.fetch_add(1, Ordering::Relaxed);
            let contents = Object::new(Contents {
                seal,
                bytes: bytes(),
            });
            Arc::new(LiveBlock {
                number,
                seal_image: self.seal_image,
                contents,
            })
        });
        Pin(Arc::clone(block))
    }

    /// Pins a block whose former contents don't matter. What the table held of it, when it was another file's, is
    /// forgotten: that was freed and committed before the block could be allocated.
    pub(crate) fn pin_new(&self, number: FsBlock, seal: Seal, tag: Tag, block_bytes: usize) -> Pin {
        let bytes = Arc::new(Block::new(tag, vec![0; block_bytes].into_boxed_slice()));
        let contents = Object::new(Contents { seal, bytes });
        let block = Arc::new(LiveBlock {
            number,
            seal_image: self.seal_image,
            contents,
        });
        let before = self
            .shard(number)
            .lock()
            .insert(number.0, Arc::clone(&block));
        // Relaxed: a hint.
        self.count
            .fetch_add(usize::from(before.is_none()), Ordering::Relaxed);
        Pin(block)
    }

    /// Whether there are more blocks than are kept.
    pub(crate) fn is_full(&self) -> bool {
        // Relaxed: hints, both.
        self.count.load(Ordering::Relaxed) > self.trim_at.load(Ordering::Relaxed)
    }

    /// Lets go of blocks that nobody pins and whose last change is committed, until three quarters of what may be kept
    /// are left. If that many can't go, the next trim waits until there are a quarter more.
    pub(crate) fn trim(&self, committed: Epoch) {
        let kept = self.most / 4 * 3;
        let mut count = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let before = shard.len();
            let mut too_many = before.saturating_sub(kept / SHARDS);
            // A count of one is the table's own: pins are made under this lock only, and an epoch's list holds one.
            shard.retain(|_, block| {
                let goes = too_many > 0
                    && Arc::strong_count(block) == 1
                    && block.contents.stamp() <= committed;
                too_many -= usize::from(goes);
                !goes
            });
            count += shard.len();
            // Relaxed: a hint.
            self.count
                .fetch_sub(before - shard.len(), Ordering::Relaxed);
        }
        // Relaxed: a hint.
        self.trim_at
            .store(self.most.max(count / 4 * 5), Ordering::Relaxed);
    }
}
