//! The record of an inode: as an object of the journal, and a copy in words that threads read without the object's
//! latch.
//!
//! The words live in the inode, and are freed with it. Interleavings: those of [`Latest`], and
//! `under_schedules_no_inode_is_there_twice_or_leads_to_another`.

use buffer::{Block, Tag};
use journal::Object;
use ondisk::inode::{self, Inode, RECORD_WORDS};
use sync::{Arc, Guarded, Hint, Latest};

use super::place::TablePlace;
use super::words::{Rest, WORDS, split, words, words_with};
use crate::inode::loaded::LoadedInode;

/// The record of a live inode.
pub(super) struct LiveRecord {
    /// The whole slot. [lock, exclusive; read: any time, by snapshot]
    pub(super) slot: Object<Arc<Block>>,
    /// A copy of the record that is read without the latch. [stage latch; read: any time]
    latest: Latest<WORDS>,
    /// The size in the record. [stage latch; read: any time, a hint]
    bytes: Hint<u64>,
    /// Whether the record counts no links. [lock, exclusive; read: any time, a hint while others have the inode]
    is_nameless: Guarded<bool>,
}

impl LiveRecord {
    pub(super) fn new(loaded: &LoadedInode) -> LiveRecord {
        let slot = Block::new(Tag(0), loaded.slot().into());
        LiveRecord {
            latest: Latest::new(words(loaded, &slot, loaded.seed())),
            slot: Object::new(Arc::new(slot)),
            bytes: Hint::new(loaded.size(true)),
            is_nameless: Guarded::new(loaded.links_count() == 0),
        }
    }

    /// Publishes a changed slot. With `only_record`, only the record has changed, and not its generation. `inode` is
    /// the new record. The caller holds the latch, which serialises these calls.
    pub(super) fn replace_latest(
        &self,
        place: &TablePlace,
        inode: &Inode,
        slot: &[u8],
        only_record: bool,
    ) {
        debug_assert!(Inode::parse(slot).is_ok_and(|there| there.words() == inode.words()));
        let words = if only_record {
            words_with(inode, Rest::of_word(self.latest.word(RECORD_WORDS)))
        } else {
            let seed = inode::checksum_seed(place.csum_seed, place.ino, inode.generation());
            words(inode, slot, seed)
        };
        self.latest.replace(&words);
        self.bytes.set(inode.size(true));
    }

    /// The record and what else a reader needs, without a lock; `None` if another thread is changing it.
    pub(super) fn copy(&self) -> Option<(Inode, Rest)> {
        self.latest.copy().map(|words| split(&words))
    }

    /// The size of the file, as a hint: other threads may change it.
    #[inline]
    pub(super) fn bytes_hint(&self) -> u64 {
        self.bytes.get()
    }

    /// Whether the record counts no links.
    pub(super) fn is_nameless(&self) -> bool {
        self.is_nameless.get()
    }

    pub(super) fn set_nameless(&self, is_nameless: bool) {
        self.is_nameless.set(is_nameless);
    }
}
