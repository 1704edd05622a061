//! Windows of threads, for inodes whose directory has none: its first file, files without a name, and directories. A
//! few a thread, each of another group; what is left of one goes back when its place is needed.
//!
//! Each under a lock of its thread's own ([`Rank::InodeWindow`]), which others take only to draw windows back.
//!
//! Interleavings: `no_number_is_given_twice_and_none_is_lost`, under schedules.

use ondisk::Group;
use sync::{Lanes, Mutex, Rank};

use super::Place;
use crate::space::group::{Chunk, InodeBits, InodeNumbers};

/// Windows of a thread.
const PLACES: usize = 4;
/// Numbers that are taken at once, at most.
pub(super) const NUMBERS: u32 = 64;

/// What is left of a window; nothing if no bit is set.
#[derive(Clone, Copy)]
struct Part {
    group: Group,
    word: u32,
    left: u64,
}

#[derive(Default)]
struct Parts {
    parts: [Option<Part>; PLACES],
    /// The place that was filled last.
    last: usize,
}

/// A thread's windows.
struct Lane(Mutex<Parts>);

impl Default for Lane {
    fn default() -> Lane {
        Lane(Mutex::new(Rank::InodeWindow, Parts::default()))
    }
}

/// All threads' windows.
#[derive(Default)]
pub(super) struct CoreWindows {
    /// Each thread's windows. [inode window, of that thread]
    lanes: Lanes<Lane>,
}

impl CoreWindows {
    /// Takes a number of a group from the calling thread's window there, if it has one.
    pub(super) fn take(&self, inodes: &InodeNumbers, group: Group) -> Option<u32> {
        let mut parts = self.lanes.mine().0.lock();
        let part = parts.parts.iter_mut().flatten();
        let part = part
            .into_iter()
            .find(|part| part.group == group && part.left != 0)?;
        let bit = part.left.trailing_zeros();
        part.left &= part.left - 1;
        inodes.leave_window(1);
        Some(part.word * 64 + bit)
    }

    /// Takes numbers of a group for the calling thread; the caller has taken a share for them. Returns one of the
    /// numbers, and the part of the share that was not used.
    pub(super) fn fill_and_take(
        &self,
        place: Place<'_>,
        group: Group,
        bits: &InodeBits,
        share: u32,
    ) -> (Option<u32>, u32) {
        let inodes = &place.groups.inodes;
        let (chunk, looked) = bits.take_lowest(share);
        place.count_words(looked);
        let Some(chunk) = chunk else {
            return (None, share);
        };
        inodes.enter_window(chunk.len() - 1);
        let mut parts = self.lanes.mine().0.lock();
        let parts = &mut *parts;
        let same = |part: &Option<Part>| part.is_none_or(|part| part.group == group);
        let at = parts.parts.iter().position(same);
        let at = at.unwrap_or((parts.last + 1) % PLACES);
        parts.last = at;
        give_back(inodes, &mut parts.parts[at]);
        parts.parts[at] = Some(Part {
            group,
            word: chunk.word,
            left: chunk.bits & (chunk.bits - 1),
        });
        (Some(chunk.first()), share - chunk.len())
    }

    /// Gives back all inode numbers that are left, and returns their count.
    pub(super) fn draw_back(&self, inodes: &InodeNumbers) -> u32 {
        let of_lane = |lane: &Lane| {
            let mut parts = lane.0.lock();
            let parts = parts.parts.iter_mut();
            parts.map(|part| give_back(inodes, part)).sum::<u32>()
        };
        self.lanes.iter().map(of_lane).sum()
    }
}

fn give_back(inodes: &InodeNumbers, part: &mut Option<Part>) -> u32 {
    let Some(Part { group, word, left }) = part.take().filter(|part| part.left != 0) else {
        return 0;
    };
    inodes.give_back_windowed(group, Chunk { word, bits: left });
    left.count_ones()
}
