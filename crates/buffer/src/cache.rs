//! The cache: shards of blocks with a second-chance clock each. Bounded in bytes from its creation on.

use std::ops::Deref;

use device::{BlockDevice, DeviceError};
use hashbrown::HashMap;
use sync::{Arc, CachePadded, Counter, Mutex, Rank};

/// The most shards; many more than cores, so that two readers seldom meet.
const MAX_SHARDS: usize = 64;
/// A shard keeps at least so many blocks, else there are fewer shards.
const MIN_SHARD_BLOCKS: usize = 8;

/// As what a block was verified: a number of the reader's choice. A block found under another tag is verified
/// again before it is handed out, so that one kind of metadata can't pose as another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tag(pub u64);

/// A block's bytes. Immutable while others hold it; whoever holds it alone may change it ([`Arc::make_mut`]).
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

    /// As what it was verified.
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

/// How a cache fared so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Statistics {
    /// Reads that found their block.
    pub hits: u64,
    /// Reads that went to the device.
    pub misses: u64,
}

struct Slot {
    number: u64,
    block: Arc<Block>,
    used: bool,
}

/// A part of the cache: a clock of slots and where each block is in it.
#[derive(Default)]
struct Shard {
    places: HashMap<u64, usize>,
    slots: Vec<Slot>,
    hand: usize,
    /// How often a block was removed: what a reader read before a removal is not kept after it.
    removals: u64,
}

impl Shard {
    fn find(&mut self, number: u64) -> Option<Arc<Block>> {
        let place = *self.places.get(&number)?;
        let slot = &mut self.slots[place];
        slot.used = true;
        Some(Arc::clone(&slot.block))
    }

    fn insert(&mut self, number: u64, block: Arc<Block>, capacity: usize) {
        let slot = Slot {
            number,
            block,
            used: false,
        };
        if let Some(place) = self.places.get(&number) {
            self.slots[*place] = slot;
        } else if self.slots.len() < capacity {
            self.places.insert(number, self.slots.len());
            self.slots.push(slot);
        } else {
            let place = self.victim();
            self.places.remove(&self.slots[place].number);
            self.places.insert(number, place);
            self.slots[place] = slot;
        }
    }

    fn remove(&mut self, number: u64) {
        self.removals += 1;
        let Some(place) = self.places.remove(&number) else {
            return;
        };
        self.slots.swap_remove(place);
        if let Some(moved) = self.slots.get(place) {
            self.places.insert(moved.number, place);
        }
        if self.hand >= self.slots.len() {
            self.hand = 0;
        }
    }

    /// The next slot that was not used since the hand last passed. The second round finds one at the latest.
    fn victim(&mut self) -> usize {
        loop {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            if !std::mem::replace(&mut self.slots[place].used, false) {
                return place;
            }
        }
    }
}

/// Blocks of one device, read through and kept while there is room.
pub struct Cache {
    device: Arc<dyn BlockDevice>,
    block_size: usize,
    shard_blocks: usize,
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    hits: Counter,
    misses: Counter,
}

impl Cache {
    /// A cache of about `bytes_limit` bytes of blocks of `block_size` bytes (at least 8 blocks, whatever the limit).
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>, block_size: usize, bytes_limit: usize) -> Cache {
        let blocks = (bytes_limit / block_size.max(1)).max(MIN_SHARD_BLOCKS);
        let mut shards = MAX_SHARDS;
        while blocks / shards < MIN_SHARD_BLOCKS {
            shards /= 2;
        }
        let shard = || CachePadded::new(Mutex::new(Rank::CacheShard, Shard::default()));
        Cache {
            device,
            block_size,
            shard_blocks: blocks / shards,
            shards: (0..shards).map(|_| shard()).collect(),
            hits: Counter::new(),
            misses: Counter::new(),
        }
    }

    /// The device below.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    fn shard(&self, number: u64) -> &Mutex<Shard> {
        // Neighbours go to different shards; the upper bits of the product are the well mixed ones.
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.shards[mixed as usize % self.shards.len()]
    }

    /// The block with this number, verified by `verify` unless it was already, as the same `tag`.
    ///
    /// May block on I/O; a shard's lock is held shortly before and after it.
    ///
    /// # Errors
    /// When the device fails, or `verify` does; such a block is not kept.
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

    /// As [`Cache::read`], with the bytes of a block that is not in the cache from `load`.
    ///
    /// A block that is removed while it is loaded is handed out but not kept.
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
        let mut shard = self.shard(number).lock();
        let (found, removals) = (shard.find(number), shard.removals);
        drop(shard);
        let bytes = match found {
            Some(block) if block.tag == tag => {
                self.hits.add(1);
                return Ok(block);
            }
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
        let kept = Arc::clone(&block);
        let mut shard = self.shard(number).lock();
        if shard.removals == removals {
            shard.insert(number, kept, self.shard_blocks);
        }
        drop(shard);
        Ok(block)
    }

    /// Forgets a block whose bytes are about to change elsewhere. Readers keep what they hold.
    pub fn remove(&self, number: u64) {
        self.shard(number).lock().remove(number);
    }

    /// How the cache fared so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics {
            hits: self.hits.sum(),
            misses: self.misses.sum(),
        }
    }

    /// Bytes of blocks that the cache keeps now.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let blocks: usize = self
            .shards
            .iter()
            .map(|shard| shard.lock().slots.len())
            .sum();
        blocks * self.block_size
    }
}

#[cfg(test)]
mod tests {
    use device::{Counted, MemoryDevice};

    use super::*;

    const SIZE: usize = 1024;

    /// A device on which each block begins with its number.
    fn numbered(blocks: u64) -> Arc<Counted<MemoryDevice>> {
        let device = MemoryDevice::new(blocks * SIZE as u64);
        for number in 0..blocks {
            device
                .write_at(number * SIZE as u64, &number.to_le_bytes())
                .unwrap();
        }
        Arc::new(Counted::new(device))
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
        assert_eq!(cache.statistics(), Statistics { hits: 4, misses: 1 });
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
        // Block 5 was used all the time, so it was hardly ever read again.
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
