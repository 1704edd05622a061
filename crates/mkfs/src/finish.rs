//! What is written last: bitmaps, group descriptors, superblocks, given what is in use.
//!
//! After a crash the device has no file system of ours or a whole one, because everything except the primary superblock
//! is written and flushed first. On a device that is all zeros (a file made just now) nothing is flushed: that is left
//! to the caller that made the file.

use device::BlockDevice;
use ondisk::group_desc::flags;
use ondisk::superblock::state;
use ondisk::{Group, GroupDesc, Superblock, bitmap};

use crate::place::{Placer, fixed_groups};
use crate::taken::TakenRuns;
use crate::{Error, FormatSummary, GroupUse, Layout, Usage};

/// How much of a run of bitmaps is gathered before it is written.
const GATHER_BYTES: usize = 1 << 20;

/// Writes that follow each other on the device become one.
struct Gather<'a> {
    device: &'a dyn BlockDevice,
    at: u64,
    bytes: Vec<u8>,
}

impl Gather<'_> {
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let follows = at == self.at + self.bytes.len() as u64;
        if !follows || self.bytes.len() >= GATHER_BYTES {
            self.flush()?;
            self.at = at;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        if !self.bytes.is_empty() {
            self.device.write_at(self.at, &self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }
}

/// Sums over the groups.
#[derive(Default)]
struct Totals {
    free_clusters: u64,
    free_inodes: u32,
}

impl Layout {
    /// Writes bitmaps, group descriptors and superblocks with their backups, the primary superblock last, and
    /// flushes before and after that (unless the device was zero: see `Options::device_is_zero`). Inode tables and
    /// data are the caller's, written before.
    ///
    /// # Errors
    /// When the device fails, or `usage` overlaps the layout or does not fit the image.
    pub fn finish(&self, device: &dyn BlockDevice, usage: &Usage) -> Result<FormatSummary, Error> {
        let (table, totals) = self.write_bitmaps(device, usage)?;
        let mut sb = self.superblock;
        sb.set_free_blocks_count(totals.free_clusters << self.shape.cluster_bits);
        sb.set_free_inodes_count(totals.free_inodes);
        sb.set_kbytes_written(usage.kib_written);
        if let Some(inode) = self.journal_inode() {
            crate::template::back_up_journal(&mut sb, &inode);
        }
        self.write_descriptors(device, &table)?;
        self.write_backups(device, &sb)?;
        if !self.habits.device_is_zero {
            device.flush()?;
        }
        sb.seal();
        device.write_at(Superblock::OFFSET, sb.bytes())?;
        if !self.habits.device_is_zero {
            device.flush()?;
        }
        Ok(FormatSummary {
            // 64 KiB at most.
            block_size: self.shape.block_size.bytes() as u32,
            blocks: self.shape.blocks,
            free_blocks: sb.free_blocks_count(),
            inodes: sb.inodes_count(),
            free_inodes: sb.free_inodes_count(),
            groups: self.geometry.groups(),
            journal_blocks: self.journal_blocks(),
            features: sb.features(),
            label: sb.label().to_vec(),
            uuid: sb.uuid(),
            backups: self.backups(),
        })
    }

    /// Writes all bitmaps that must be there, and returns the table of group descriptors.
    fn write_bitmaps(
        &self,
        device: &dyn BlockDevice,
        usage: &Usage,
    ) -> Result<(Vec<u8>, Totals), Error> {
        if usage.groups.len() > self.places.len() {
            return Err(Error::Usage(format!(
                "{} groups are in use, the image has {}",
                usage.groups.len(),
                self.places.len()
            )));
        }
        let desc_size = self.geometry.desc_size();
        let mut table =
            vec![0; self.geometry.desc_blocks() as usize * self.shape.block_size.bytes()];
        let mut taken = TakenRuns::new(&self.used, &usage.data);
        let mut totals = Totals::default();
        let gather = || Gather {
            device,
            at: 0,
            bytes: Vec::new(),
        };
        let mut out = [gather(), gather()];
        for (group, raw) in self
            .geometry
            .all_groups()
            .zip(table.chunks_exact_mut(desc_size))
        {
            let inodes = usage
                .groups
                .get(group.0 as usize)
                .copied()
                .unwrap_or_default();
            let desc = self.finish_group(group, inodes, &mut taken, &mut out)?;
            totals.free_clusters += u64::from(desc.free_clusters());
            totals.free_inodes += desc.free_inodes();
            desc.store(raw, &self.geometry, group);
        }
        for gather in &mut out {
            gather.flush()?;
        }
        taken.check_end()?;
        Ok((table, totals))
    }

    fn finish_group(
        &self,
        group: Group,
        inodes: GroupUse,
        taken: &mut TakenRuns,
        out: &mut [Gather; 2],
    ) -> Result<GroupDesc, Error> {
        let place = &self.places[group.0 as usize];
        let per_group = self.geometry.inodes_per_group();
        if inodes.inodes > per_group || inodes.directories > inodes.inodes {
            return Err(Error::Usage(format!(
                "{inodes:?} in group {group} of {per_group} inodes"
            )));
        }
        let mut desc = GroupDesc::zeroed();
        desc.set_block_bitmap(place.block_bitmap);
        desc.set_inode_bitmap(place.inode_bitmap);
        desc.set_inode_table(place.inode_table);
        desc.set_free_inodes(per_group - inodes.inodes);
        desc.set_used_dirs(inodes.directories);
        let clusters = taken.in_group(&self.geometry, group)?;
        let used: u32 = clusters.iter().map(|range| range.end - range.start).sum();
        desc.set_free_clusters(self.geometry.group_clusters(group) - used);
        let checksums = self.has_group_checksums();
        let mut set = 0;
        if checksums {
            desc.set_itable_unused(per_group - inodes.inodes);
            if self.tables_are_zero() {
                set |= flags::INODE_ZEROED;
            }
        }
        // The last group may end within a byte or a cluster: its bitmap always exists, as mke2fs writes it.
        let is_last = group.0 + 1 == self.geometry.groups();
        let own = || Placer::own_clusters(&self.geometry, &self.shape, group, place);
        if checksums && !is_last && inodes.inodes == 0 && u64::from(used) == own() {
            set |= flags::BLOCK_UNINIT;
        } else {
            let bits = self.bitmap(&clusters, self.geometry.group_clusters(group));
            desc.seal_block_bitmap(&bits, &self.geometry);
            out[0].write(place.block_bitmap.offset(self.shape.block_size), &bits)?;
        }
        if checksums && inodes.inodes == 0 {
            set |= flags::INODE_UNINIT;
        } else {
            let range = 0..inodes.inodes;
            let bits = self.bitmap(std::slice::from_ref(&range), per_group);
            desc.seal_inode_bitmap(&bits, &self.geometry);
            out[1].write(place.inode_bitmap.offset(self.shape.block_size), &bits)?;
        }
        desc.set_flags(set);
        Ok(desc)
    }

    /// A block with these bits set, and all from `end` on.
    fn bitmap(&self, ranges: &[std::ops::Range<u32>], end: u32) -> Vec<u8> {
        let mut bits = vec![0; self.shape.block_size.bytes()];
        for range in ranges {
            bitmap::set_range(&mut bits, range.clone());
        }
        // A block of 64 KiB has 2^19 bits.
        let all = 8 * bits.len() as u32;
        bitmap::set_range(&mut bits, end..all);
        bits
    }

    fn write_descriptors(&self, device: &dyn BlockDevice, table: &[u8]) -> Result<(), Error> {
        let block = self.shape.block_size.bytes();
        for group in fixed_groups(&self.shape) {
            let place = self.geometry.group_start(group).descriptors;
            let bytes = match place.end - place.start {
                0 => continue,
                _ if !self.shape.has(ondisk::Feature::META_BG) => table,
                _ => {
                    let index = (group.0 / self.geometry.descs_per_block()) as usize;
                    &table[index * block..(index + 1) * block]
                }
            };
            self.write_block(device, ondisk::FsBlock(place.start), bytes)?;
        }
        Ok(())
    }

    /// Groups with a backup of the superblock.
    pub(crate) fn backup_groups(&self) -> impl Iterator<Item = Group> + '_ {
        let candidates = fixed_groups(&self.shape).into_iter().skip(1);
        candidates.filter(|group| self.geometry.has_super(*group))
    }

    /// The blocks that backups of the superblock begin at.
    fn backups(&self) -> Vec<ondisk::FsBlock> {
        let places = self.backup_groups();
        places
            .map(|group| self.geometry.group_first_block(group))
            .collect()
    }

    fn write_backups(&self, device: &dyn BlockDevice, sb: &Superblock) -> Result<(), Error> {
        for group in self.backup_groups() {
            let mut copy = *sb;
            // The field has 16 bits; mke2fs cuts it off, too.
            #[allow(clippy::cast_possible_truncation)]
            copy.set_block_group_number(group.0 as u16);
            // A checker that must resort to a backup does a full check.
            copy.set_state(copy.state() & !state::VALID);
            copy.seal();
            let mut bytes = vec![0; self.shape.block_size.bytes()];
            bytes[..Superblock::SIZE].copy_from_slice(copy.bytes());
            self.write_block(device, self.geometry.group_first_block(group), &bytes)?;
        }
        Ok(())
    }
}
