//! What the records of fast commits say in the end: of each inode its last record, of each name what it stands for, of
//! each file how its blocks are mapped. Pure; bounded by the area that the records fill.
//!
//! A number may be one file's in a fast commit and another's in a later one. The ranges of the first file must not be
//! applied to the other, which would show their data. A fast commit has one inode for each number, with its ranges
//! before its record or after it, so records are taken in commit by commit. Another generation alone does not mean
//! another file (`FS_IOC_SETVERSION`): a number's former file has lost its names by then.

use std::collections::{BTreeMap, BTreeSet};

use ondisk::extent::Extent;
use ondisk::fast_commit::{FcRecord, records};
use ondisk::inode::Inode;
use ondisk::{BlockSize, Corrupt, FsBlock, Ino, Site};

/// A directory and a name in it.
pub(super) type Place = (Ino, Box<[u8]>);

/// An inode's last record.
pub(super) struct Said {
    pub(super) inode: Inode,
    /// Its fields and, for contents in the inode, nothing less than the whole record.
    pub(super) raw: Box<[u8]>,
}

/// Where a run of a file's blocks ends, and where it is: nowhere, or from this block on, and whether it reads as zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct To {
    pub(super) end: u64,
    pub(super) at: Option<(FsBlock, bool)>,
}

/// Runs by their first block; none overlap.
#[derive(Default)]
pub(super) struct Runs(pub(super) BTreeMap<u64, To>);

/// All of it.
#[derive(Default)]
pub(super) struct Everything {
    pub(super) inodes: BTreeMap<Ino, Said>,
    pub(super) names: BTreeMap<Place, Option<Ino>>,
    pub(super) runs: BTreeMap<Ino, Runs>,
    /// The links that inodes with records have in the end, by these records: a record holds the count at the end of its
    /// fast commit.
    pub(super) links: BTreeMap<Ino, i64>,
    /// How many of the names stand for an inode.
    named: BTreeMap<Ino, u64>,
}

/// Whether two inodes of one number are not the same file.
pub(super) fn is_another(one: &Inode, other: &Inode) -> bool {
    one.generation() != other.generation() || one.file_type() != other.file_type()
}

impl Runs {
    /// Says something new of a run; the last word counts.
    fn say(&mut self, first: u64, end: u64, at: Option<(FsBlock, bool)>) {
        let before: Vec<(u64, To)> = (self.0.range(..end).rev())
            .take_while(|(_, to)| to.end > first)
            .map(|(first, to)| (*first, *to))
            .collect();
        for (old, to) in before {
            self.0.remove(&old);
            if old < first {
                self.0.insert(old, To { end: first, ..to });
            }
            if end < to.end {
                let at = to
                    .at
                    .map(|(at, zeros)| (FsBlock(at.0 + (end - old)), zeros));
                self.0.insert(end, To { end: to.end, at });
            }
        }
        self.0.insert(first, To { end, at });
    }

    /// Unmaps what is written from this block on.
    pub(super) fn trim(&mut self, from: u64) {
        let behind: Vec<(u64, u64)> = (self.0.iter())
            .filter(|(_, to)| to.end > from && matches!(to.at, Some((_, false))))
            .map(|(first, to)| ((*first).max(from), to.end))
            .collect();
        for (first, end) in behind {
            self.say(first, end, None);
        }
    }
}

impl Everything {
    /// Of the blocks of complete fast commits.
    pub(super) fn read(
        area: &[u8],
        size: BlockSize,
        inode_size: usize,
    ) -> Result<Everything, Corrupt> {
        let mut everything = Everything::default();
        let mut commit = Vec::new();
        for block in area.chunks(size.bytes()) {
            for record in records(block, inode_size) {
                let record = record?;
                let is_end = matches!(record, FcRecord::Tail { .. });
                commit.push(record);
                if is_end {
                    everything.say_commit(&commit)?;
                    commit.clear();
                }
            }
        }
        // The caller cut the area after the last end, so nothing is left.
        everything.say_commit(&commit)?;
        Ok(everything)
    }

    /// Takes in one fast commit.
    fn say_commit(&mut self, commit: &[FcRecord<'_>]) -> Result<(), Corrupt> {
        let renamed = self.renamed_by(commit);
        for record in commit {
            if let FcRecord::Inode { ino, raw } = *record {
                let inode = Inode::parse(raw).map_err(|corrupt| corrupt.ino(ino))?;
                let raw = raw.into();
                let before = self.inodes.insert(ino, Said { inode, raw });
                let is_other = before.is_some_and(|before| is_another(&before.inode, &inode));
                let of = |names: &BTreeMap<Ino, u64>| names.get(&ino).copied().unwrap_or(0);
                if is_other && of(&self.named) == of(&renamed) {
                    self.runs.remove(&ino);
                }
            }
        }
        self.say_links(commit);
        commit.iter().try_for_each(|record| self.say(record))
    }

    /// Takes in the links of a fast commit's records.
    fn say_links(&mut self, commit: &[FcRecord<'_>]) {
        let mut told = BTreeSet::new();
        for record in commit {
            if let FcRecord::Inode { ino, .. } = record {
                let links = self.inodes[ino].inode.links_count();
                self.links.insert(*ino, links.into());
                told.insert(*ino);
            }
        }
        for record in commit {
            let (ino, by) = match record {
                FcRecord::Unlink(named) => (named.ino, -1),
                FcRecord::Creat(named) | FcRecord::Link(named) => (named.ino, 1),
                _ => continue,
            };
            if !told.contains(&ino)
                && let Some(links) = self.links.get_mut(&ino)
            {
                *links += by;
            }
        }
    }

    /// How many of each inode's names so far a fast commit has records of.
    fn renamed_by(&self, commit: &[FcRecord<'_>]) -> BTreeMap<Ino, u64> {
        let mut renamed = BTreeMap::new();
        let mut met = BTreeSet::new();
        for record in commit {
            let (FcRecord::Unlink(named) | FcRecord::Creat(named) | FcRecord::Link(named)) = record
            else {
                continue;
            };
            let place = (named.parent, named.name.into());
            let before = self.names.get(&place).copied().flatten();
            if met.insert(place)
                && let Some(ino) = before
            {
                *renamed.entry(ino).or_insert(0) += 1;
            }
        }
        renamed
    }

    fn say_name(&mut self, place: Place, ino: Option<Ino>) {
        let before = self.names.insert(place, ino).flatten();
        for (ino, by) in before
            .map(|ino| (ino, -1))
            .into_iter()
            .chain(ino.map(|ino| (ino, 1)))
        {
            let count = self.named.entry(ino).or_insert(0);
            // What is taken away was added before.
            *count = count.saturating_add_signed(by);
        }
    }

    /// Takes in a record that is not an inode's.
    fn say(&mut self, record: &FcRecord<'_>) -> Result<(), Corrupt> {
        match *record {
            FcRecord::Unlink(named) => {
                let place = (named.parent, named.name.into());
                self.say_name(place, None);
            }
            FcRecord::Creat(named) | FcRecord::Link(named) => {
                let place = (named.parent, named.name.into());
                self.say_name(place, Some(named.ino));
            }
            FcRecord::DelRange { ino, first, blocks } => {
                let first = u64::from(first.0);
                let runs = self.runs.entry(ino).or_default();
                if blocks > 0 {
                    runs.say(first, first + u64::from(blocks), None);
                }
            }
            FcRecord::AddRange { ino, extent } => {
                let extent = Extent::from_bytes(extent);
                if extent.is_empty() {
                    return Err(Corrupt::at(Site::FastCommitExtent).ino(ino));
                }
                let at = Some((extent.start(), extent.is_unwritten()));
                let runs = self.runs.entry(ino).or_default();
                runs.say(extent.block().into(), extent.end(), at);
            }
            FcRecord::Inode { .. }
            | FcRecord::Pad(_)
            | FcRecord::Tail { .. }
            | FcRecord::Head { .. } => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_on_a_block_counts() {
        let mut runs = Runs::default();
        let at = |block| Some((FsBlock(block), false));
        runs.say(0, 10, at(100));
        runs.say(20, 30, at(200));
        runs.say(4, 6, None);
        runs.say(8, 25, at(500));
        runs.say(9, 10, at(700));
        let seen: Vec<_> = runs
            .0
            .iter()
            .map(|(first, to)| (*first, to.end, to.at))
            .collect();
        let expected = [
            (0, 4, at(100)),
            (4, 6, None),
            (6, 8, at(106)),
            (8, 9, at(500)),
            (9, 10, at(700)),
            (10, 25, at(502)),
            (25, 30, at(205)),
        ];
        assert_eq!(seen, expected);
        // Behind a file of 23 blocks.
        runs.say(40, 50, Some((FsBlock(900), true)));
        runs.trim(23);
        let behind: Vec<_> = runs
            .0
            .range(10..)
            .map(|(first, to)| (*first, to.end, to.at))
            .collect();
        let unwritten = Some((FsBlock(900), true));
        let expected = [
            (10, 23, at(502)),
            (23, 25, None),
            (25, 30, None),
            (40, 50, unwritten),
        ];
        assert_eq!(behind, expected);
    }

    /// A record of a file of four blocks with this generation.
    fn file(generation: u32) -> Vec<u8> {
        let mut raw = vec![0; 160];
        raw[0..2].copy_from_slice(&0o100_644_u16.to_le_bytes());
        raw[4..8].copy_from_slice(&16_384_u32.to_le_bytes());
        raw[26..28].copy_from_slice(&1_u16.to_le_bytes());
        raw[100..104].copy_from_slice(&generation.to_le_bytes());
        raw
    }

    /// One fast commit, which fills a block.
    fn commit(records: &[FcRecord<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for record in records {
            record.write(&mut bytes);
        }
        let rest = vec![0; 4096 - bytes.len() - 12];
        let (tid, crc) = (ondisk::Tid(7), 0);
        let rest = &rest[..];
        FcRecord::Tail { tid, crc, rest }.write(&mut bytes);
        bytes
    }

    /// `FS_IOC_SETVERSION`, which Linux allows without `metadata_csum` and logs as a record of the inode: no name
    /// changes, and no range.
    #[test]
    fn a_new_file_whose_generation_was_set_keeps_its_blocks() {
        let (one, two, ino) = (file(1), file(2), Ino(20));
        let extent = Extent::new(ondisk::LBlock(0), 4, FsBlock(1000), false).to_bytes();
        let named = ondisk::fast_commit::DentryInfo {
            parent: Ino(2),
            ino,
            name: b"file",
        };
        let mut area = commit(&[
            FcRecord::Inode { ino, raw: &one },
            FcRecord::Creat(named),
            FcRecord::AddRange { ino, extent },
        ]);
        area.extend(commit(&[FcRecord::Inode { ino, raw: &two }]));
        let everything = Everything::read(&area, BlockSize::K4, 256).unwrap();
        assert!(everything.names.values().all(|named| *named == Some(ino)));
        assert!(everything.runs.contains_key(&ino), "its blocks are lost");
    }
}
