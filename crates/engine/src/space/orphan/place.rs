//! What an inode remembers of its entry among the orphans, so that nothing shared is looked through for it. Read and
//! written with the inode's lock held exclusively, which orders it. A crash leaves nothing of it.

use sync::Guarded;

/// Where an orphan is recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Noted {
    /// Nowhere.
    Nowhere,
    /// In this slot of the orphan file.
    Slot(u32),
    /// At this place of the list.
    List(u64),
}

/// The place where an inode is recorded among the orphans, kept in the inode.
#[derive(Default)]
pub(crate) struct OrphanPlace(
    /// 0: nowhere; a slot's number and 1; or a place of the list and [`LIST`]. [lock, exclusive]
    Guarded<u64>,
);

const LIST: u64 = 1 << 63;

impl OrphanPlace {
    /// Where the inode is recorded.
    pub(crate) fn get(&self) -> Noted {
        match self.0.get() {
            0 => Noted::Nowhere,
            list if list & LIST != 0 => Noted::List(list & !LIST),
            // It was made from 32 bits.
            slot => Noted::Slot((slot - 1) as u32),
        }
    }

    /// Sets where the inode is recorded from now on.
    pub(crate) fn set(&self, noted: Noted) {
        let word = match noted {
            Noted::Nowhere => 0,
            Noted::Slot(slot) => u64::from(slot) + 1,
            Noted::List(place) => place | LIST,
        };
        self.0.set(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_comes_back() {
        let place = OrphanPlace::default();
        assert_eq!(place.get(), Noted::Nowhere);
        for noted in [
            Noted::Slot(0),
            Noted::Slot(u32::MAX),
            Noted::List(1),
            Noted::Nowhere,
        ] {
            place.set(noted);
            assert_eq!(place.get(), noted);
        }
    }
}
