//! The items of the log tree: for each inode that was logged its record and its ranges of the running batch, for each
//! name the inode that it stood for on disk and the one that it stands for now. Items are stamped with the batch that
//! last wrote them, so that a batch's log commit finds its own items and leaves out what is in the area already.

use ondisk::{FsBlock, Ino, LBlock, extent};

use crate::inode::Batch;

/// Where an item stands in the tree: an inode's items side by side, then the names in it if it is a directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Key {
    pub(crate) ino: Ino,
    pub(crate) part: ItemPart,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) enum ItemPart {
    #[default]
    Record,
    Ranges,
    /// By the name's hash.
    Name(u64),
}

/// A file's blocks as they are mapped now: to blocks of the device, or to nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    /// The first block in the file.
    pub(crate) first: LBlock,
    /// How many; not 0.
    pub(crate) len: u32,
    /// The first block on the device, and whether they read as zeros; `None` for a hole.
    pub(crate) at: Option<(FsBlock, bool)>,
}

impl Range {
    /// The most blocks that one record covers.
    pub(crate) fn record_most(&self) -> u32 {
        match self.at {
            None => u32::MAX,
            // An extent that was not written holds one block less.
            Some((_, reads_as_zeros)) => u32::from(extent::MAX_LEN) - u32::from(reads_as_zeros),
        }
    }

    /// How many records it needs.
    #[must_use]
    pub(crate) fn records(&self) -> u64 {
        self.len.div_ceil(self.record_most()).into()
    }
}

/// What is kept of an inode, a file's ranges or a name.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Record(Logged),
    Ranges(BatchRanges),
    Name(NameItem),
}

#[derive(Clone, Debug)]
pub(crate) struct Logged {
    /// The record of the inode table, without attributes.
    pub(crate) fields: Box<[u8]>,
    /// The batch in which the inode, made in this transaction, is logged first.
    pub(crate) born: Option<Batch>,
    pub(crate) stamp: Batch,
}

/// The ranges of one batch: those of batches before are in the area.
#[derive(Clone, Debug)]
pub(crate) struct BatchRanges {
    /// None of them overlap.
    pub(crate) ranges: Vec<Range>,
    /// This number fits without making the item heavier.
    pub(crate) room: usize,
    pub(crate) stamp: Batch,
}

#[derive(Clone, Debug)]
pub(crate) struct NameItem {
    pub(crate) name: Box<[u8]>,
    /// What it stands for once the batches before the stamp are replayed.
    pub(crate) logged: Option<Ino>,
    pub(crate) now: Option<Ino>,
    pub(crate) stamp: Batch,
}

/// Ranges for which an item of them has room at first.
pub(crate) const RANGES_ROOM: usize = 4;

impl Item {
    /// Bytes that count towards the size of a node of the tree.
    pub(crate) fn weight(&self) -> usize {
        size_of::<Item>()
            + match self {
                Item::Record(logged) => logged.fields.len(),
                Item::Ranges(ranges) => ranges.room * size_of::<Range>(),
                Item::Name(name) => name.name.len(),
            }
    }
}

impl BatchRanges {
    /// Of no range yet.
    pub(crate) fn new(stamp: Batch, room: usize) -> BatchRanges {
        BatchRanges {
            ranges: Vec::with_capacity(room),
            room,
            stamp,
        }
    }

    /// Takes in ranges of a batch; they replace earlier ranges of the same batch for the same blocks. Ranges of an
    /// earlier batch are dropped.
    pub(crate) fn take_in(&mut self, stamp: Batch, new: &[Range]) {
        if self.stamp != stamp {
            self.ranges.clear();
            self.stamp = stamp;
        }
        for range in new {
            let before = std::mem::take(&mut self.ranges);
            self.ranges = before.iter().flat_map(|old| outside(old, range)).collect();
            self.ranges.push(*range);
        }
    }

    /// How many there would be at most.
    pub(crate) fn most_with(&self, stamp: Batch, new: &[Range]) -> usize {
        let now = if self.stamp == stamp {
            self.ranges.len()
        } else {
            0
        };
        // Each new one makes two of one old one at most.
        now + 2 * new.len()
    }
}

/// The parts of a range that lie before and behind another one.
fn outside(range: &Range, cut: &Range) -> impl Iterator<Item = Range> {
    let (first, end) = (
        u64::from(range.first.0),
        u64::from(range.first.0) + u64::from(range.len),
    );
    let (cut_first, cut_end) = (
        u64::from(cut.first.0),
        u64::from(cut.first.0) + u64::from(cut.len),
    );
    let part = |from: u64, to: u64| {
        (from < to).then(|| Range {
            // Within the range, so it fits.
            first: LBlock(from as u32),
            len: (to - from) as u32,
            at: (range.at).map(|(at, zeros)| (FsBlock(at.0 + (from - first)), zeros)),
        })
    };
    let parts = [
        part(first, end.min(cut_first)),
        part(first.max(cut_end), end),
    ];
    parts.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u32, len: u32, at: Option<u64>) -> Range {
        Range {
            first: LBlock(first),
            len,
            at: at.map(|at| (FsBlock(at), false)),
        }
    }

    #[test]
    fn the_last_word_on_a_block_counts_and_another_batch_begins_anew() {
        let mut ranges = BatchRanges::new(Batch(1), 4);
        ranges.take_in(Batch(1), &[range(0, 8, Some(100)), range(20, 4, Some(200))]);
        ranges.take_in(Batch(1), &[range(2, 3, None), range(22, 10, Some(300))]);
        let expected = [
            range(0, 2, Some(100)),
            range(5, 3, Some(105)),
            range(20, 2, Some(200)),
            range(2, 3, None),
            range(22, 10, Some(300)),
        ];
        let mut sorted = ranges.ranges.clone();
        sorted.sort_by_key(|range| range.first);
        let mut wanted = expected.to_vec();
        wanted.sort_by_key(|range| range.first);
        assert_eq!(sorted, wanted);
        ranges.take_in(Batch(2), &[range(1, 1, None)]);
        assert_eq!(ranges.ranges, [range(1, 1, None)]);
    }
}
