//! The cache of metadata blocks: blocks are found without a lock, and evicted by hands that pass over the table. The
//! bytes in the cache are bounded from its creation on.
//!
//! A reader that finds a block counts it on the block's own cache line, and writes nothing else. A bucket's lock
//! ([`Rank::CacheShard`]) is held to add or remove a block. A hand's lock ([`Rank::Hand`]) is held while the hand looks
//! for blocks that no reader found since it last passed.

use std::ops::Deref;

use device::{BlockDevice, DeviceError};
use sync::rcu::{CountedTable, Hand, Keyed};
use sync::{Arc, CachePadded, Counter, Lanes, Mutex, OwnThread, Rank};

/// The fewest blocks that are kept, whatever the limit.
const LEAST_BLOCKS: usize = 8;
/// The number of hands, if there are enough blocks for all of them.
const HANDS: usize = 16;
/// The most blocks that a thread adds before it checks whether the cache is full.
const MOST_UNSEEN: usize = 64;

/// The kind of metadata as which a block was verified: a number of the reader's choice. A block found under another tag
/// is verified again before it is returned, so that one kind of metadata can't pose as another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tag(pub u64);

/// A block's bytes. Immutable while others hold it; the only holder may change it ([`Arc::make_mut`]).
#[derive(Clone, Debug)]
pub struct Block {
    tag: Tag,
    bytes: Box<[u8]>,
}

impl Block {
    /// A block that does not come from a cache.
    #[must_use]
    pub fn new(tag: Tag, bytes: Box<[u8]>) -> Block {
        Block { tag, bytes }
    }

    /// The kind of metadata as which it was verified.
    #[must_use]
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// Its bytes, to change.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Counts of a cache's reads since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CacheStatistics {
    /// Reads that found their block.
    pub hits: u64,
    /// Reads that went to the device.
    pub misses: u64,
}

/// A block in the cache.
struct Kept {
    number: u64,
    block: Arc<Block>,
}

impl Keyed for Kept {
    fn key(&self) -> u64 {
        self.number
    }
}

/// The cached blocks of one device, and the device itself, which is read when a block is not in the cache.
pub struct Cache {
    device: Arc<dyn BlockDevice>,
    block_size: usize,
    /// The most blocks that are kept. [const]
    most: usize,
    kept: CountedTable<Kept>,
    /// The hands, each for a part of the table. [hand]
    hands: Box<[CachePadded<Mutex<Hand>>]>,
    /// Blocks that each thread added. [written by that thread]
    added: Lanes<OwnThread<usize>>,
    hits: Counter,
    misses: Counter,
}

impl Cache {
    /// A cache of about `bytes_limit` bytes of blocks of `block_size` bytes (at least 8 blocks, whatever the limit).
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>, block_size: usize, bytes_limit: usize) -> Cache {
        let most = (bytes_limit / block_size.max(1)).max(LEAST_BLOCKS);
        let hands = (most / MOST_UNSEEN).clamp(1, HANDS);
        let hand = |part| CachePadded::new(Mutex::new(Rank::Hand, Hand::new(part, hands)));
        Cache {
            device,
            block_size,
            most,
            kept: CountedTable::new(Rank::CacheShard, (most / 2).clamp(hands, 1 << 12)),
            hands: (0..hands).map(hand).collect(),
            added: Lanes::new(),
            hits: Counter::new(),
            misses: Counter::new(),
        }
    }

    /// The device below.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    fn find(&self, number: u64) -> Option<Arc<Block>> {
        self.kept.look(number, |kept| Arc::clone(&kept.block))
    }

    /// If this thread has added enough blocks since it last checked, evicts blocks until one more fits. Returns whether
    /// one fits.
    fn make_room(&self) -> bool {
        let unseen = (self.most / MOST_UNSEEN).clamp(1, MOST_UNSEEN);
        let mine = self.added.mine();
        let added = mine.get();
        mine.set(added.wrapping_add(1));
        if !added.is_multiple_of(unseen) {
            return true;
        }
        let is_full = || self.kept.len() as usize + unseen > self.most;
        for turn in 0..self.hands.len() {
            if !is_full() {
                return true;
            }
            // Threads begin with different hands; a hand that another thread holds is skipped.
            let hand = (added / unseen + turn) % self.hands.len();
            if let Some(mut hand) = self.hands[hand].try_lock()
                && (self.kept)
                    .sweep(&mut hand, 2 * unseen, &mut |_| true)
                    .is_blocked
            {
                // The hand waits for a reader's guard, and every other hand would wait for the same guard.
                break;
            }
        }
        let has_room = !is_full();
        if !has_room {
            // The thread's next call checks again, so that the cache stays bounded.
            mine.set(added);
        }
        has_room
    }

    /// Keeps a block, unless something was removed in its bucket since `version`.
    fn keep(&self, number: u64, block: Arc<Block>, version: u32) {
        if !self.make_room() {
            return;
        }
        let kept = Arc::new(Kept { number, block });
        self.kept.locked(number, |bucket| {
            if bucket.version() == version {
                bucket.insert(kept);
            }
        });
    }

    /// The block with this number. It is verified by `verify`, unless it is in the cache and was verified under the
    /// same `tag`.
    ///
    /// May block on I/O, during which no lock is held; a bucket's lock is taken briefly after it.
    ///
    /// # Errors
    /// When the device or `verify` fails; the block is then not kept.
    pub fn read<E: From<DeviceError>>(
        &self,
        number: u64,
        tag: Tag,
        verify: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<Arc<Block>, E> {
        let load = |bytes: &mut [u8]| {
            let offset = number.saturating_mul(self.block_size as u64);
            Ok(self.device.read_at(offset, bytes)?)
        };
        self.read_with(number, tag, load, verify)
    }

    /// Reads like [`Cache::read`]; `load` supplies the bytes of a block that is not in the cache.
    ///
    /// A block that is removed while it is loaded is returned but not kept.
    ///
    /// # Errors
    /// Those of `load` and `verify`.
    pub fn read_with<E>(
        &self,
        number: u64,
        tag: Tag,
        load: impl FnOnce(&mut [u8]) -> Result<(), E>,
        verify: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<Arc<Block>, E> {
        let found = self.find(number).filter(|block| block.tag == tag);
        if let Some(block) = found {
            self.hits.add(1);
            return Ok(block);
        }
        let version = self.kept.version(number);
        let bytes = match self.find(number) {
            Some(block) => {
                self.hits.add(1);
                block.bytes.clone()
            }
            None => {
                self.misses.add(1);
                let mut bytes = vec![0; self.block_size].into_boxed_slice();
                load(&mut bytes)?;
                bytes
            }
        };
        verify(&bytes)?;
        let block = Arc::new(Block { tag, bytes });
        self.keep(number, Arc::clone(&block), version);
        Ok(block)
    }

    /// Forgets a block whose bytes are about to change elsewhere. Readers keep what they hold.
    pub fn remove(&self, number: u64) {
        self.kept.locked(number, |bucket| {
            if bucket.remove().is_none() {
                // Another thread may have loaded the old bytes already, and must not add them.
                bucket.outdate();
            }
        });
    }

    /// Counts of reads since the cache was made.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        CacheStatistics {
            hits: self.hits.sum(),
            misses: self.misses.sum(),
        }
    }

    /// Bytes of blocks that the cache keeps now.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.kept.len() as usize * self.block_size
    }
}

#[cfg(test)]
mod tests {
    use device::{CountedDevice, MemoryDevice};

    use super::*;

    const SIZE: usize = 1024;

    /// A device on which each block begins with its number.
    fn numbered(blocks: u64) -> Arc<CountedDevice<MemoryDevice>> {
        let device = MemoryDevice::new(blocks * SIZE as u64);
        for number in 0..blocks {
            device
                .write_at(number * SIZE as u64, &number.to_le_bytes())
                .unwrap();
        }
        Arc::new(CountedDevice::new(device))
    }

    fn number_of(block: &[u8]) -> u64 {
        u64::from_le_bytes(block[..8].try_into().unwrap())
    }

    fn fine(_: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    #[test]
    fn a_block_is_read_and_verified_once_for_each_tag() {
        let device = numbered(16);
        let cache = Cache::new(device.clone(), SIZE, 1 << 20);
        let mut verified = 0;
        for tag in [1, 1, 2, 2, 1] {
            let block = cache
                .read(7, Tag(tag), |bytes| {
                    verified += 1;
                    fine(bytes)
                })
                .unwrap();
            assert_eq!(number_of(&block), 7);
        }
        assert_eq!(verified, 3);
        assert_eq!(device.counts().reads, 1);
        assert_eq!(cache.statistics(), CacheStatistics { hits: 4, misses: 1 });
    }

    #[test]
    fn a_block_that_fails_verification_is_not_kept() {
        let device = numbered(16);
        let cache = Cache::new(device, SIZE, 1 << 20);
        let failed = cache.read(3, Tag(0), |_| Err(DeviceError::ReadOnly));
        assert!(failed.is_err());
        assert_eq!(cache.bytes(), 0);
        assert!(cache.read(16, Tag(0), fine).is_err(), "beyond the end");
    }

    #[test]
    fn memory_stays_within_the_limit_and_used_blocks_stay() {
        let device = numbered(4096);
        let cache = Cache::new(device.clone(), SIZE, 64 * SIZE);
        for number in 0..4096 {
            assert_eq!(
                number_of(&cache.read(number, Tag(0), fine).unwrap()),
                number
            );
            assert_eq!(number_of(&cache.read(5, Tag(0), fine).unwrap()), 5);
            assert!(cache.bytes() <= 64 * SIZE);
        }
        // Block 5 was used all the time, so it was read from the device only a few times.
        assert!(device.counts().reads < 4096 + 100);
    }

    #[test]
    fn a_removed_block_is_read_again_also_when_it_was_being_read() {
        let device = numbered(16);
        let cache = Cache::new(device.clone(), SIZE, 1 << 20);
        for number in 0..16 {
            cache.read(number, Tag(0), fine).unwrap();
        }
        device
            .write_at(3 * SIZE as u64, &99_u64.to_le_bytes())
            .unwrap();
        assert_eq!(number_of(&cache.read(3, Tag(0), fine).unwrap()), 3);
        cache.remove(3);
        // Removed once more between the load and the insertion: not kept.
        let meanwhile = |_: &[u8]| {
            cache.remove(3);
            Ok::<(), DeviceError>(())
        };
        assert_eq!(number_of(&cache.read(3, Tag(0), meanwhile).unwrap()), 99);
        device
            .write_at(3 * SIZE as u64, &100_u64.to_le_bytes())
            .unwrap();
        assert_eq!(number_of(&cache.read(3, Tag(0), fine).unwrap()), 100);
        for number in (0..16).filter(|number| *number != 3) {
            assert_eq!(
                number_of(&cache.read(number, Tag(0), fine).unwrap()),
                number
            );
        }
    }

    #[test]
    fn many_threads_read_the_right_blocks() {
        let device = numbered(512);
        let cache = Cache::new(device, SIZE, 128 * SIZE);
        sync::thread::workers(8, |worker| {
            for step in 0..4000u64 {
                let number = (step * 31 + worker as u64 * 17) % 512;
                let block = cache.read(number, Tag(step % 3), fine).unwrap();
                assert_eq!(number_of(&block), number);
            }
        });
    }
}
