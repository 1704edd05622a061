//! Makes the records of a fast commit from the items of one batch, in the one order that Linux and e2fsck both replay
//! to the same state, once or twice:
//!
//! 1. INODE of each inode that has a changed name and links left. Its count is raised by the number of its UNLINK
//!    records, so that no replay passes through 0, where Linux deletes the file;
//! 2. UNLINK of what a name stood for, only if the name is on disk;
//! 3. CREAT of the first name of an inode that is not on disk, LINK of all other names;
//! 4. for one inode after the other ADD_RANGE, then DEL_RANGE from the last range to the first; the ranges nowhere
//!    overlap. e2fsck makes an inode's map again when the next inode's record follows, so the map must be complete by
//!    then, or a map that is only temporary uses an index (F15). And where an inode loses everything that it had,
//!    e2fsck mishandles the records that follow for this inode (F16);
//! 5. INODE of every inode, with its final count.
//!
//! An inode without links is not logged. Pure: no lock, no I/O.

use std::collections::BTreeMap;

use ondisk::extent::Extent;
use ondisk::fast_commit::{DentryInfo, FcRecord};
use ondisk::inode::Inode;
use ondisk::{Corrupt, Ino, LBlock};

use crate::fsync::log::item::{Logged, NameItem, Range};
use crate::inode::Batch;

/// The items of one batch.
#[derive(Default, Debug)]
pub(crate) struct BatchRecords {
    pub(crate) inodes: BTreeMap<Ino, Logged>,
    pub(crate) ranges: BTreeMap<Ino, Vec<Range>>,
    /// The names, each with its directory.
    pub(crate) names: Vec<(Ino, NameItem)>,
}

impl BatchRecords {
    /// Passes the records to `push` in order.
    ///
    /// # Errors
    /// `Corrupt` for an inode's fields that can't be read.
    pub(crate) fn records(
        &self,
        batch: Batch,
        mut out: impl FnMut(&FcRecord<'_>),
    ) -> Result<(), Corrupt> {
        let removed = self.removed();
        let mut named: Vec<Ino> = removed.keys().copied().collect();
        named.extend(self.put().map(|(_, _, ino)| ino));
        named.sort_unstable();
        named.dedup();
        for ino in named {
            if let Some(logged) = self.inodes.get(&ino) {
                let more = removed.get(&ino).copied().unwrap_or(0);
                inode(ino, logged, more, &mut out)?;
            }
        }
        for (parent, name) in &self.names {
            if let Some(ino) = name.logged.filter(|_| name.now != name.logged) {
                out(&FcRecord::Unlink(entry(*parent, &name.name, ino)));
            }
        }
        let mut newborn: Vec<Ino> = self.born_in(batch).collect();
        for (parent, name, ino) in self.put() {
            let entry = entry(parent, name, ino);
            match newborn.iter().position(|new| *new == ino) {
                Some(place) => {
                    newborn.swap_remove(place);
                    out(&FcRecord::Creat(entry));
                }
                None => out(&FcRecord::Link(entry)),
            }
        }
        for (ino, ranges) in &self.ranges {
            let mut ranges: Vec<&Range> = ranges.iter().collect();
            ranges.sort_unstable_by_key(|range| (range.at.is_none(), range.first));
            let holes = ranges.partition_point(|range| range.at.is_some());
            ranges[holes..].reverse();
            for range in ranges {
                map(*ino, range, &mut out);
            }
        }
        for (ino, logged) in &self.inodes {
            inode(*ino, logged, 0, &mut out)?;
        }
        Ok(())
    }

    /// How many of its names on disk each inode loses.
    fn removed(&self) -> BTreeMap<Ino, u16> {
        let mut removed = BTreeMap::new();
        for (_, name) in &self.names {
            if let Some(ino) = name.logged.filter(|_| name.now != name.logged) {
                *removed.entry(ino).or_insert(0_u16) += 1;
            }
        }
        removed
    }

    /// The names that are new, with their directories and inodes.
    fn put(&self) -> impl Iterator<Item = (Ino, &[u8], Ino)> {
        self.names.iter().filter_map(|(parent, name)| {
            let ino = name.now.filter(|_| name.now != name.logged)?;
            Some((*parent, &*name.name, ino))
        })
    }

    fn born_in(&self, batch: Batch) -> impl Iterator<Item = Ino> {
        let new = move |(_, logged): &(&Ino, &Logged)| logged.born == Some(batch);
        self.inodes.iter().filter(new).map(|(ino, _)| *ino)
    }
}

fn entry(parent: Ino, name: &[u8], ino: Ino) -> DentryInfo<'_> {
    DentryInfo { parent, ino, name }
}

fn inode(
    ino: Ino,
    logged: &Logged,
    more_links: u16,
    out: &mut impl FnMut(&FcRecord<'_>),
) -> Result<(), Corrupt> {
    let mut raw = logged.fields.clone();
    if more_links > 0 {
        let mut inode = Inode::parse(&raw).map_err(|corrupt| corrupt.ino(ino))?;
        inode.set_links_count(inode.links_count().saturating_add(more_links));
        inode.write_to(&mut raw);
    }
    out(&FcRecord::Inode { ino, raw: &raw });
    Ok(())
}

fn map(ino: Ino, range: &Range, out: &mut impl FnMut(&FcRecord<'_>)) {
    let Some((at, reads_as_zeros)) = range.at else {
        out(&FcRecord::DelRange {
            ino,
            first: range.first,
            blocks: range.len,
        });
        return;
    };
    let mut done = 0;
    while done < range.len {
        let len = (range.len - done).min(range.record_most());
        let first = LBlock(range.first.0 + done);
        let start = ondisk::FsBlock(at.0 + u64::from(done));
        // At most `MAX_LEN`.
        let extent = Extent::new(first, len as u16, start, reads_as_zeros);
        out(&FcRecord::AddRange {
            ino,
            extent: extent.to_bytes(),
        });
        done += len;
    }
}
