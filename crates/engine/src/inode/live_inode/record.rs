//! The record of an inode: as an object of the journal's, and once more as words that threads copy without its latch.
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

/// The record.
pub(super) struct LiveRecord {
    /// The whole slot. [lock, exclusive; read: any time, by snapshot]
    pub(super) slot: Object<Arc<Block>>,
    /// The record once more, to be copied without the latch. [stage latch; read: any time]
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

    /// Publishes a changed slot: with `only_record` only the record has changed, and not its generation. `inode` is the
    /// record now. Under the latch that serialises these calls.
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

    /// The record and what a reader needs besides, without a lock, if no thread is in the way.
    pub(super) fn copy(&self) -> Option<(Inode, Rest)> {
        self.latest.copy().map(|words| split(&words))
    }

    /// How large the file is, as a hint: others may change it.
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
