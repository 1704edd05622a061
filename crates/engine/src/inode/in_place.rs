//! Where a file was overwritten last: what the next write in place needs to know, so that it neither copies the record
//! nor searches the map.
//!
//! It records one run of written blocks, cut at the file's end: where the run is on the device, the file's flags (its
//! data may be changed), and its times. It is true as long as the inode does not change: a thread that writes it or
//! relies on it holds the inode's lock shared, and every change of the record (which each change of the
//! map is, too) clears it under that lock, held exclusively. The number of the next orphan is an exception, because a
//! file's data do not depend on it. So the place can't be stale, and has no version.
//!
//! It is a few words that are copied without a lock ([`Latest`]), because several threads may write in place at once; a
//! lock of its own ([`Rank::Leaf`]), only tried, serialises the threads that replace them. The memory is allocated when
//! a file is first overwritten, and freed with the inode. Interleavings: those of [`Latest`], and
//! `under_schedules_an_overwrite_never_meets_another_files_blocks`. What a crash leaves: nothing of this.

use ondisk::{Flags, Timestamp};
use sync::{CachePadded, Latest, Mutex, OnceLock, Rank};

/// Words of a place: where it begins and ends in the file, where on the device, and when the file changed: seconds, and
/// nanoseconds beside the flags.
const WORDS: usize = 5;

/// A part of a file that may be written where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InPlace {
    /// The first byte.
    pub(crate) start: u64,
    /// The byte behind the last.
    pub(crate) end: u64,
    /// Where the first byte is on the device.
    pub(crate) device: u64,
    /// When contents and inode changed last, both at once.
    pub(crate) changed: Timestamp,
    /// The file's flags.
    pub(crate) flags: Flags,
}

impl InPlace {
    /// Where these bytes of the file are on the device, if all of them are in the part; none where there are none.
    pub(crate) fn place(&self, offset: u64, len: usize) -> Option<u64> {
        let is_within =
            self.start <= offset && offset < self.end && len as u64 <= self.end - offset;
        is_within.then(|| self.device + (offset - self.start))
    }

    fn words(&self) -> [u64; WORDS] {
        let seconds = self.changed.seconds.cast_unsigned();
        let rest = u64::from(self.flags.0) << 32 | u64::from(self.changed.nanoseconds);
        [self.start, self.end, self.device, seconds, rest]
    }

    fn of_words([start, end, device, seconds, rest]: [u64; WORDS]) -> InPlace {
        InPlace {
            start,
            end,
            device,
            changed: Timestamp {
                seconds: seconds.cast_signed(),
                // The lower half.
                nanoseconds: rest as u32,
            },
            flags: Flags((rest >> 32) as u32),
        }
    }
}

/// See the module.
pub(super) struct LastInPlace(OnceLock<Box<CachePadded<Known>>>);

struct Known {
    /// All zeros for no place. [replacing, and the inode's lock, shared; or that, exclusive]
    place: Latest<WORDS>,
    /// Held by the thread that replaces the place; only tried. [leaf]
    replacing: Mutex<()>,
}

impl LastInPlace {
    pub(super) const fn new() -> LastInPlace {
        LastInPlace(OnceLock::new())
    }

    /// The place, if one is known. The caller has the inode's lock.
    pub(super) fn get(&self) -> Option<InPlace> {
        let words = self.0.get()?.place.copy()?;
        Some(InPlace::of_words(words))
    }

    /// Replaces the place, unless another does. The caller has the inode's lock shared.
    pub(super) fn set(&self, place: &InPlace) {
        let new = || {
            Box::new(CachePadded::new(Known {
                place: Latest::new([0; WORDS]),
                replacing: Mutex::new(Rank::Leaf, ()),
            }))
        };
        let known = self.0.get_or_init(new);
        if let Some(_replacing) = known.replacing.try_lock() {
            known.place.replace(&place.words());
        }
    }

    /// The inode changes. The caller has its lock exclusively.
    pub(super) fn clear(&self) {
        if let Some(known) = self.0.get() {
            known.place.replace(&[0; WORDS]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_told_as_it_was_kept_until_it_is_cleared() {
        let place = InPlace {
            start: 4096,
            end: 8000,
            device: 1 << 40,
            changed: Timestamp {
                seconds: -3,
                nanoseconds: 999_999_999,
            },
            flags: Flags::EXTENTS.with(Flags::SYNC),
        };
        let last = LastInPlace::new();
        assert_eq!(last.get(), None);
        last.clear();
        last.set(&place);
        assert_eq!(last.get(), Some(place));
        last.clear();
        assert_eq!(last.get().unwrap().place(0, 0), None);
        assert_eq!(place.place(4096, 3904), Some(1 << 40));
        assert_eq!(place.place(4096, 3905), None);
        assert_eq!(place.place(4095, 1), None);
        assert_eq!(place.place(7999, 1), Some((1 << 40) + 3903));
        assert_eq!(place.place(8000, 0), None);
        assert_eq!(place.place(5000, usize::MAX), None);
    }
}
