//! `info --frag`: how large the runs of free blocks are, as e2freefrag counts them, and in how many pieces the
//! contents of files lie, as filefrag does. Looks at every block bitmap and every file's map once and keeps sums by
//! power of two, so that memory does not depend on the image. What is broken is counted and left out, never an end.

use std::io::{self, Write};

use ondisk::group_desc::flags;
use ondisk::inode::Inode;
use ondisk::text::Bytes;
use ondisk::{Corrupt, FileType, FsBlock, Geometry, Group, GroupDesc, Ino, bitmap};
use serde_json::{Value, json};

use crate::cmd::map::Progress;
use crate::context::Context;
use crate::failure::Failure;
use crate::raw::Raw;
use crate::raw::walk::{Go, Piece, walk};

/// Inodes looked at, at most: a hostile image may claim all of 2^32 in the space of one.
const INODES_MAX: u64 = 1 << 24;
/// Blocks of files' maps read, at most.
const NODES_MAX: u64 = 1 << 22;
/// Characters of the longest bar.
const BAR: u64 = 24;

/// Counts by power of two: how many, and the sum of what they hold.
struct Histogram([(u64, u64); 64]);

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram([(0, 0); 64])
    }
}

impl Histogram {
    /// Counts one by `size`, which is not 0, and adds `amount` to what those of its size hold.
    fn add(&mut self, size: u64, amount: u64) {
        let (count, sum) = &mut self.0[size.max(1).ilog2() as usize];
        *count += 1;
        *sum += amount;
    }

    /// The smallest size, the count and the sum of each power that has any.
    fn rows(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let rows = self.0.iter().enumerate();
        rows.filter(|(_, (count, _))| *count > 0)
            .map(|(power, (count, sum))| (1 << power, *count, *sum))
    }
}

/// Runs of free blocks.
#[derive(Default)]
struct Free {
    runs: u64,
    blocks: u64,
    shortest: u64,
    longest: u64,
    by_size: Histogram,
    /// Free blocks at the end of what was looked at: they may go on in the next group.
    open: u64,
}

impl Free {
    fn end_run(&mut self) {
        let len = std::mem::take(&mut self.open);
        if len == 0 {
            return;
        }
        self.shortest = match self.runs {
            0 => len,
            _ => self.shortest.min(len),
        };
        self.longest = self.longest.max(len);
        self.runs += 1;
        self.blocks += len;
        self.by_size.add(len, len);
    }
}

/// In how many pieces files of one kind lie. A piece is a run of blocks that follow each other in the file and on the
/// device; what has no blocks is not counted.
#[derive(Default)]
struct Files {
    files: u64,
    extents: u64,
    blocks: u64,
    worst: Option<(Ino, u64)>,
    by_extents: Histogram,
}

impl Files {
    fn add(&mut self, ino: Ino, extents: u64, blocks: u64) {
        if extents == 0 {
            return;
        }
        self.files += 1;
        self.extents += extents;
        self.blocks += blocks;
        self.by_extents.add(extents, blocks);
        if self.worst.is_none_or(|(_, worst)| extents > worst) {
            self.worst = Some((ino, extents));
        }
    }
}

/// What there is to say.
#[derive(Default)]
pub struct Frag {
    free: Free,
    files: Files,
    directories: Files,
    inodes: u64,
    nodes: u64,
    broken: u64,
    first_error: Option<String>,
}

impl Frag {
    /// Looks at the whole image.
    pub fn look(raw: &Raw, context: &Context) -> Result<Frag, Failure> {
        let mut frag = Frag::default();
        let progress = Progress::new(context, raw.geometry.groups());
        let unvisited = raw.descs(|group, desc| {
            progress.at(group);
            frag.group(raw, group, desc);
            Ok(())
        })?;
        progress.done();
        if let Some(unvisited) = unvisited {
            frag.broken += unvisited.groups;
            frag.first_error.get_or_insert(unvisited.why);
        }
        frag.free.end_run();
        Ok(frag)
    }

    /// What the numbers leave out.
    pub fn remark(&self) -> Option<String> {
        if self.inodes >= INODES_MAX || self.nodes >= NODES_MAX {
            return Some(format!(
                "there are more files than lanefs looks at ({INODES_MAX}, with {NODES_MAX} blocks of maps)"
            ));
        }
        let first = self.first_error.as_ref()?;
        Some(format!(
            "{} broken groups and files are left out of the pieces; the first: {first}",
            self.broken
        ))
    }

    fn broken(&mut self, what: impl std::fmt::Display) {
        self.broken += 1;
        self.first_error.get_or_insert_with(|| what.to_string());
    }

    fn group(&mut self, raw: &Raw, group: Group, desc: Result<GroupDesc, Corrupt>) {
        let desc = match desc {
            Ok(desc) => desc,
            Err(corrupt) => {
                self.free.end_run();
                return self.broken(corrupt.group(group));
            }
        };
        if let Err(failure) = self.bitmap(raw, group, &desc) {
            self.free.end_run();
            self.broken(failure.text());
        }
        if self.inodes >= INODES_MAX {
            return;
        }
        let looked = raw.used_inodes(group, &desc, |ino, slot| {
            self.inodes += 1;
            self.inode(raw, ino, slot);
            match self.inodes < INODES_MAX {
                true => Ok(()),
                false => Err(Failure::new("")),
            }
        });
        if let Err(failure) = looked
            && self.inodes < INODES_MAX
        {
            self.broken(failure.text());
        }
    }

    fn bitmap(&mut self, raw: &Raw, group: Group, desc: &GroupDesc) -> Result<(), Failure> {
        let geometry = &raw.geometry;
        let (ratio, blocks) = (
            u64::from(geometry.cluster_ratio()),
            u64::from(geometry.group_blocks(group)),
        );
        let bits = match desc.has(flags::BLOCK_UNINIT) {
            true => own_blocks(geometry, group, desc),
            false => {
                let bits = raw.block(desc.block_bitmap())?;
                desc.verify_block_bitmap(&bits, geometry, group)
                    .map_err(Failure::new)?;
                bits
            }
        };
        for (run, is_set) in bitmap::runs(&bits, geometry.group_clusters(group)) {
            match is_set {
                true => self.free.end_run(),
                // The last cluster may reach beyond the end.
                false => {
                    let (start, end) = (u64::from(run.start) * ratio, u64::from(run.end) * ratio);
                    self.free.open += end.min(blocks).saturating_sub(start);
                }
            }
        }
        Ok(())
    }

    fn inode(&mut self, raw: &Raw, ino: Ino, slot: &[u8]) {
        let is_hidden = ino < raw.geometry.first_ino() && ino != Ino::ROOT;
        if is_hidden || raw.superblock.orphan_file_ino() == Some(ino) {
            return;
        }
        let inode = match Inode::parse(slot) {
            Ok(inode) => inode,
            Err(corrupt) => return self.broken(corrupt.ino(ino)),
        };
        let file_type = inode.file_type();
        if !matches!(file_type, Some(FileType::Regular | FileType::Directory)) {
            return;
        }
        let mut left = NODES_MAX.saturating_sub(self.nodes);
        let (mut extents, mut blocks, mut next) = (0, 0, None);
        let walked = walk(raw, ino, &inode, &mut left, &mut |piece| {
            if let Piece::Run {
                lblk, start, len, ..
            } = piece
            {
                extents += u64::from(next != Some((lblk, start.0)));
                blocks += len;
                next = Some((lblk.saturating_add(len), start.0.saturating_add(len)));
            }
            Ok(Go::On)
        });
        self.nodes = NODES_MAX - left;
        if let Err(failure) = walked {
            return self.broken(failure.text());
        }
        match file_type {
            Some(FileType::Directory) => self.directories.add(ino, extents, blocks),
            _ => self.files.add(ino, extents, blocks),
        }
    }
}

/// The bitmap of a group that was never written to: the metadata that lies in it.
fn own_blocks(geometry: &Geometry, group: Group, desc: &GroupDesc) -> Vec<u8> {
    let mut bits = vec![0; geometry.block_size().bytes()];
    let clusters = geometry.group_clusters(group);
    let ratio = geometry.cluster_ratio();
    let taken = geometry.group_start(group).blocks();
    // No more than the group has.
    let taken = taken.div_ceil(u64::from(ratio)).min(u64::from(clusters)) as u32;
    bitmap::set_range(&mut bits, 0..taken);
    for (start, len) in [
        (desc.block_bitmap(), 1),
        (desc.inode_bitmap(), 1),
        (desc.inode_table(), geometry.inode_table_blocks()),
    ] {
        let Some((_, first)) = geometry.bit_of_block(start).filter(|(at, _)| *at == group) else {
            continue;
        };
        let last = geometry
            .bit_of_block(FsBlock(start.0 + u64::from(len) - 1))
            .filter(|(at, _)| *at == group)
            .map_or(clusters, |(_, bit)| bit + 1);
        bitmap::set_range(&mut bits, first..last);
    }
    bits
}

/// A part of a whole, in per cent.
fn percent(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => part as f64 * 100.0 / whole as f64,
    }
}

/// A mean with one digit behind the point.
fn mean(sum: u64, count: u64) -> f64 {
    match count {
        0 => 0.0,
        count => (sum as f64 / count as f64 * 10.0).round() / 10.0,
    }
}

/// A bar of this part of a whole.
fn bar(part: u64, whole: u64, color: Option<&str>) -> String {
    // Of a part that is not nothing, something is seen.
    let len = (u128::from(part) * u128::from(BAR)).div_ceil(u128::from(whole.max(1))) as usize;
    match color {
        Some(color) => format!("\x1b[{color}m{}\x1b[0m", "█".repeat(len)),
        None => "#".repeat(len),
    }
}

impl Frag {
    /// Prints it for people.
    pub fn text(&self, out: &mut impl Write, geometry: &Geometry, color: bool) -> io::Result<()> {
        let bytes = |blocks: u64| Bytes(blocks.saturating_mul(geometry.block_size().bytes_u64()));
        let free = &self.free;
        let share = percent(free.blocks, geometry.blocks_count());
        writeln!(out, "\nFree space")?;
        writeln!(
            out,
            "  {:<14}{} ({share:.1}%) in {} runs",
            "free",
            bytes(free.blocks),
            free.runs
        )?;
        if let Some(average) = free.blocks.checked_div(free.runs) {
            let average = bytes(average);
            let (shortest, longest) = (bytes(free.shortest), bytes(free.longest));
            writeln!(
                out,
                "  {:<14}{average} on average, {shortest} to {longest}",
                "a run"
            )?;
            writeln!(
                out,
                "  {:<24}{:>12}{:>14}   of free",
                "size", "runs", "blocks"
            )?;
        }
        for (from, runs, blocks) in free.by_size.rows() {
            let range = format!("{} to {}", bytes(from), bytes(from.saturating_mul(2)));
            let bar = bar(blocks, free.blocks, color.then_some("90"));
            let share = percent(blocks, free.blocks);
            writeln!(
                out,
                "  {range:<24}{runs:>12}{blocks:>14} {share:>8.2}%  {bar}"
            )?;
        }
        self.files.text(out, "Files", "files", color)?;
        self.directories
            .text(out, "Directories", "directories", color)
    }

    /// Tells it to programs.
    pub fn json(&self, geometry: &Geometry) -> Value {
        let size = geometry.block_size().bytes_u64();
        let free = &self.free;
        let by_size = free.by_size.rows().map(|(from, runs, blocks)| {
            let share = percent(blocks, free.blocks);
            json!({ "from_blocks": from, "extents": runs, "blocks": blocks, "percent": share })
        });
        json!({
            "free": {
                "blocks": free.blocks,
                "bytes": free.blocks.saturating_mul(size),
                "extents": free.runs,
                "average_bytes": free.blocks.saturating_mul(size).checked_div(free.runs),
                "smallest_bytes": free.shortest.saturating_mul(size),
                "largest_bytes": free.longest.saturating_mul(size),
                "histogram": by_size.collect::<Vec<_>>(),
            },
            "files": self.files.json(),
            "directories": self.directories.json(),
            "left_out": self.broken,
        })
    }
}

impl Files {
    fn text(&self, out: &mut impl Write, title: &str, name: &str, color: bool) -> io::Result<()> {
        writeln!(out, "\n{title}")?;
        let Some((ino, worst)) = self.worst else {
            return writeln!(out, "  {:<14}none with blocks", name);
        };
        let average = mean(self.extents, self.files);
        writeln!(
            out,
            "  {name:<14}{} with {} blocks in {} extents",
            self.files, self.blocks, self.extents
        )?;
        writeln!(
            out,
            "  {:<14}{average} on average, {worst} at most (inode {ino})",
            "extents"
        )?;
        writeln!(
            out,
            "  {:<24}{name:>12}{:>14}   of {name}",
            "extents", "blocks"
        )?;
        for (from, files, blocks) in self.by_extents.rows() {
            let to = from.saturating_mul(2) - 1;
            let range = match from {
                1 => "1".to_owned(),
                from => format!("{from} to {to}"),
            };
            let shade = match from {
                1 => "32",
                2..=4 => "33",
                _ => "31",
            };
            let bar = bar(files, self.files, color.then_some(shade));
            let share = percent(files, self.files);
            writeln!(
                out,
                "  {range:<24}{files:>12}{blocks:>14} {share:>8.2}%  {bar}"
            )?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let by_extents = self.by_extents.rows().map(|(from, files, blocks)| {
            json!({ "from_extents": from, "files": files, "blocks": blocks })
        });
        json!({
            "files": self.files,
            "extents": self.extents,
            "blocks": self.blocks,
            "average": mean(self.extents, self.files),
            "worst": self.worst.map(|(_, extents)| extents),
            "worst_inode": self.worst.map(|(ino, _)| ino.0),
            "histogram": by_extents.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_put_sizes_between_powers_of_two() {
        let mut sizes = Histogram::default();
        for size in [1, 2, 3, 4, 7, 8, u64::MAX] {
            sizes.add(size, 10);
        }
        let rows: Vec<_> = sizes.rows().collect();
        assert_eq!(rows[..3], [(1, 1, 10), (2, 2, 20), (4, 2, 20)]);
        assert_eq!(rows[3..], [(8, 1, 10), (1 << 63, 1, 10)]);
    }

    #[test]
    fn a_bar_is_as_long_as_its_part_and_never_nothing() {
        assert_eq!(bar(5, 5, None).len(), BAR as usize);
        assert_eq!(bar(1, 1_000_000, None), "#");
        assert_eq!(bar(0, 5, None), "");
        assert_eq!(bar(0, 0, None), "");
        assert!(bar(1, 2, Some("32")).starts_with("\x1b[32m█"));
    }
}
