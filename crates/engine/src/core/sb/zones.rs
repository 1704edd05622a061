//! Where the file system's own blocks lie: superblock, descriptors and those reserved for more of them, bitmaps, inode
//! tables, the journal and the orphan file. Nothing else may point there.
//!
//! Built once when a volume is opened for writing, constant afterwards; a look is a binary search. Flexible groups put
//! most tables beside each other, so that there are a few zones for each of them; [`limits::ZONES`] bounds the rest.

use std::ops::Range;

use ondisk::{Corrupt, FsBlock, Ino, Site};

use crate::core::Error;
use crate::core::limits;

/// Blocks of one owner.
#[derive(Clone, Copy, Debug)]
struct Zone {
    start: u64,
    end: u64,
    /// The inode whose map may name them; 0 for none.
    owner: Ino,
}

/// The zones, in ascending order. [const after mount]
#[derive(Default, Debug)]
pub(crate) struct Zones(Vec<Zone>);

impl Zones {
    /// No zones.
    pub(crate) const NONE: Zones = Zones(Vec::new());

    /// Adds blocks that belong to no inode, or to the map of one inode of the file system's own.
    ///
    /// # Errors
    /// `Unsupported` when there are more places than are kept.
    pub(crate) fn add(&mut self, blocks: Range<u64>, owner: Ino) -> Result<(), Error> {
        if blocks.is_empty() {
            return Ok(());
        }
        if let Some(last) = self.0.last_mut()
            && last.end == blocks.start
            && last.owner == owner
        {
            last.end = blocks.end;
            return Ok(());
        }
        if self.0.len() >= limits::ZONES {
            return Err(Error::Unsupported(
                "a file system with its tables in this many places",
            ));
        }
        self.0.push(Zone {
            start: blocks.start,
            end: blocks.end,
            owner,
        });
        Ok(())
    }

    /// Puts the zones in order; nothing is added afterwards.
    ///
    /// # Errors
    /// `Corrupt` where two of them overlap.
    pub(crate) fn finish(mut self) -> Result<Zones, Error> {
        self.0.sort_unstable_by_key(|zone| zone.start);
        let mut merged: Vec<Zone> = Vec::new();
        for zone in self.0 {
            match merged.last_mut() {
                Some(last) if last.end > zone.start => {
                    let corrupt = Corrupt::at(Site::ZonesOverlap);
                    return Err(corrupt.block(FsBlock(zone.start)).into());
                }
                Some(last) if last.end == zone.start && last.owner == zone.owner => {
                    last.end = zone.end;
                }
                _ => merged.push(zone),
            }
        }
        merged.shrink_to_fit();
        Ok(Zones(merged))
    }

    /// The zones within a range of blocks, cut to it.
    pub(crate) fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.0.partition_point(|zone| zone.end <= blocks.start);
        self.0[first..]
            .iter()
            .take_while(move |zone| zone.start < blocks.end)
            .map(move |zone| zone.start.max(blocks.start)..zone.end.min(blocks.end))
    }

    /// The first block of a range that lies in a zone of another owner.
    pub(crate) fn find(&self, blocks: Range<u64>, owner: Ino) -> Option<FsBlock> {
        let first = self.0.partition_point(|zone| zone.end <= blocks.start);
        self.0[first..]
            .iter()
            .take_while(|zone| zone.start < blocks.end)
            .find(|zone| zone.owner.0 == 0 || zone.owner != owner)
            .map(|zone| FsBlock(zone.start.max(blocks.start)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_found_by_any_block_and_overlaps_are_refused() {
        let mut zones = Zones::default();
        zones.add(100..110, Ino(0)).unwrap();
        zones.add(0..3, Ino(0)).unwrap();
        zones.add(3..5, Ino(0)).unwrap();
        zones.add(50..60, Ino::JOURNAL).unwrap();
        let zones = zones.finish().unwrap();
        assert_eq!(zones.0.len(), 3);
        assert_eq!(zones.find(4..5, Ino(0)), Some(FsBlock(4)));
        assert_eq!(zones.find(5..50, Ino(12)), None);
        assert_eq!(zones.find(5..51, Ino(12)), Some(FsBlock(50)));
        assert_eq!(zones.find(50..60, Ino::JOURNAL), None);
        assert_eq!(zones.find(59..101, Ino::JOURNAL), Some(FsBlock(100)));
        let within: Vec<_> = zones.within(4..55).collect();
        assert_eq!(within, [4..5, 50..55]);
        let mut zones = Zones::default();
        zones.add(10..20, Ino(0)).unwrap();
        zones.add(19..21, Ino::JOURNAL).unwrap();
        assert!(matches!(zones.finish(), Err(Error::Corrupt(_))));
    }
}
