//! Which blocks a cell of the picture stands for. A row is one group or a power of two of them, and a cell is a part
//! of a group or a power of two of groups, so that no cell mixes parts of different groups.

use std::ops::Range;

use ondisk::{Geometry, Group};

/// What a block is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Kind {
    /// Superblocks, descriptors, bitmaps, inode tables, directories, maps of files, attributes.
    Metadata,
    /// The journal.
    Journal,
    /// Data of files that are in one piece.
    Whole,
    /// Data of files in 2 to 4 pieces.
    Few,
    /// Data of files in 5 or more pieces.
    Many,
    /// In use, but by nothing that was found.
    Unknown,
    /// Free.
    Free,
}

impl Kind {
    /// Every kind, in the order of pictures and legends.
    pub const ALL: [Kind; 7] = [
        Kind::Metadata,
        Kind::Journal,
        Kind::Whole,
        Kind::Few,
        Kind::Many,
        Kind::Unknown,
        Kind::Free,
    ];

    /// The legend's words.
    pub fn words(self) -> &'static str {
        match self {
            Kind::Metadata => "metadata",
            Kind::Journal => "journal",
            Kind::Whole => "data, files in one piece",
            Kind::Few => "data, files in 2 to 4 pieces",
            Kind::Many => "data, files in 5 or more",
            Kind::Unknown => "in use, by nothing found",
            Kind::Free => "free",
        }
    }
}

/// Blocks of each kind.
pub type BlockSums = [u64; 7];

/// The cells of a picture and what they stand for.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    geometry: Geometry,
    /// Blocks of a group as drawn: fewer where the only group is not full.
    group_blocks: u64,
    /// Cells in a row.
    pub columns: u32,
    /// Groups in a row.
    pub groups_per_row: u32,
    /// Cells of a group, when a cell is at most a group.
    cells_per_group: u32,
    /// Groups of a cell, when a cell is at least a group.
    groups_per_cell: u32,
    /// Blocks of a cell.
    pub blocks_per_cell: u64,
}

impl Grid {
    /// A grid with a bound on its columns and about the given number of rows.
    /// `columns` is a power of two, or three times one.
    pub fn new(geometry: &Geometry, columns: u32, rows: u32) -> Grid {
        let groups = geometry.groups();
        let group_blocks = match groups {
            1 => geometry.group_blocks(Group(0)).max(1),
            _ => geometry.blocks_per_group(),
        };
        let groups_per_row = groups.div_ceil(rows).next_power_of_two();
        let (cells_per_group, groups_per_cell) = if groups_per_row <= columns {
            ((columns / groups_per_row).min(group_blocks), 1)
        } else {
            (1, groups_per_row.div_ceil(columns).next_power_of_two())
        };
        let group_blocks = u64::from(group_blocks);
        let blocks_per_cell = match groups_per_cell {
            1 => group_blocks.div_ceil(cells_per_group.into()),
            groups => group_blocks * u64::from(groups),
        };
        // Rounding up may leave cells at a group's end that no block falls into.
        let cells_per_group = match groups_per_cell {
            1 => group_blocks.div_ceil(blocks_per_cell) as u32,
            _ => 1,
        };
        let columns = (groups_per_row * cells_per_group).div_ceil(groups_per_cell);
        Grid {
            geometry: *geometry,
            group_blocks,
            columns,
            groups_per_row,
            cells_per_group,
            groups_per_cell,
            blocks_per_cell,
        }
    }

    /// How many cells there are, rows whole or not.
    pub fn cells(&self) -> usize {
        let cells = match self.groups_per_cell {
            1 => self.geometry.groups() * self.cells_per_group,
            groups => self.geometry.groups().div_ceil(groups),
        };
        cells as usize
    }

    /// Calls `visit` with every cell that a range of blocks touches and how many of the range's blocks lie in it.
    pub fn split(&self, blocks: Range<u64>, mut visit: impl FnMut(usize, u64)) {
        let first = self.geometry.first_data_block().0;
        let end = blocks
            .end
            .min(self.geometry.blocks_count())
            .saturating_sub(first);
        let mut at = blocks.start.saturating_sub(first);
        while at < end {
            let (cell, cell_end) = self.cell_of(at);
            let next = cell_end.min(end);
            visit(cell, next - at);
            at = next;
        }
    }

    /// The cell of a block, counted from the first of group 0, and the block after the cell's last.
    fn cell_of(&self, at: u64) -> (usize, u64) {
        let group = at / self.group_blocks;
        let start = group * self.group_blocks;
        if self.groups_per_cell > 1 {
            let cell = group / u64::from(self.groups_per_cell);
            return (cell as usize, (cell + 1) * self.blocks_per_cell);
        }
        let part = (at - start) / self.blocks_per_cell;
        let end = (start + (part + 1) * self.blocks_per_cell).min(start + self.group_blocks);
        (
            (group * u64::from(self.cells_per_group) + part) as usize,
            end,
        )
    }

    /// What a cell shows: the kind that stands out, and whether at least half of the cell is in use.
    ///
    /// Data counts as scattered when a thirtieth of the cell's data is, or an eighth of a group: so one fragmented
    /// group shows in a cell of many.
    pub fn shows(&self, sums: &BlockSums) -> Option<(Kind, bool)> {
        let of = |kind: Kind| sums[kind as usize];
        let blocks: u64 = sums.iter().sum();
        let used = blocks - of(Kind::Free);
        if blocks == 0 {
            return None;
        }
        if used == 0 {
            return Some((Kind::Free, false));
        }
        // Where groups are many to a cell each has some metadata, which would hide how empty they are.
        if used == of(Kind::Metadata) && used * 100 < blocks {
            return Some((Kind::Free, false));
        }
        let data = of(Kind::Whole) + of(Kind::Few) + of(Kind::Many);
        let worst = |bad: u64| bad > 0 && (bad * 30 >= data || bad * 8 >= self.group_blocks);
        let data_kind = if worst(of(Kind::Many)) {
            Kind::Many
        } else if worst(of(Kind::Few) + of(Kind::Many)) {
            Kind::Few
        } else {
            Kind::Whole
        };
        let bad = if data_kind == Kind::Whole {
            0
        } else {
            of(Kind::Few) + of(Kind::Many)
        };
        let stands_out = bad * 8 >= self.group_blocks.min(self.blocks_per_cell);
        let others = [Kind::Metadata, Kind::Journal, Kind::Unknown];
        let other = others.into_iter().max_by_key(|kind| of(*kind));
        let kind = match other {
            Some(other) if of(other) > data && !stands_out => other,
            _ => data_kind,
        };
        Some((kind, used * 2 >= blocks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ondisk::features::{Feature, Features};
    use ondisk::{Ino, Superblock};

    /// The geometry of a plain file system with this number of blocks of 4 KiB.
    fn geometry(blocks: u64) -> Geometry {
        let mut sb = Superblock::zeroed();
        sb.set_revision(1);
        sb.set_features(Features::of(&[Feature::BIT64, Feature::FLEX_BG]));
        sb.set_log_block_size(2);
        sb.set_desc_size(64);
        sb.set_blocks_count(blocks);
        sb.set_blocks_per_group(32768);
        sb.set_inodes_per_group(128);
        sb.set_inodes_count(128 * blocks.div_ceil(32768) as u32);
        sb.set_inode_size(256);
        sb.set_first_ino(Ino(11));
        Geometry::new(&sb, u64::MAX).unwrap()
    }

    #[test]
    fn every_block_lies_in_one_cell() {
        for blocks in [
            100,
            32768,
            40000,
            32768 * 33 + 5,
            1 << 20,
            (1 << 28) + 77,
            1 << 34,
        ] {
            for (columns, rows) in [(24, 32), (64, 32), (96, 32), (128, 48)] {
                let grid = Grid::new(&geometry(blocks), columns, rows);
                assert!(
                    grid.columns <= columns,
                    "{blocks} blocks in {columns} columns"
                );
                let drawn = grid.cells().div_ceil(grid.columns as usize);
                assert!(drawn <= rows as usize, "{blocks} blocks in {rows} rows");
                let mut sizes = vec![0; grid.cells()];
                grid.split(0..u64::MAX, |cell, blocks| sizes[cell] += blocks);
                assert_eq!(sizes.iter().sum::<u64>(), blocks);
                assert!(sizes.iter().all(|size| *size <= grid.blocks_per_cell));
            }
        }
    }

    #[test]
    fn one_fragmented_group_shows_among_thousands() {
        for blocks in [1u64 << 28, 1 << 34] {
            let grid = Grid::new(&geometry(blocks), 64, 32);
            let mut sums = [0; 7];
            sums[Kind::Whole as usize] = grid.blocks_per_cell - 32768;
            assert_eq!(grid.shows(&sums), Some((Kind::Whole, true)));
            sums[Kind::Many as usize] = 32768;
            assert_eq!(
                grid.shows(&sums),
                Some((Kind::Many, true)),
                "among full groups"
            );
            sums[Kind::Free as usize] = std::mem::take(&mut sums[Kind::Whole as usize]);
            let shown = grid.shows(&sums).unwrap();
            assert_eq!(shown.0, Kind::Many, "among free groups");
            sums[Kind::Metadata as usize] = std::mem::take(&mut sums[Kind::Free as usize]);
            assert_eq!(
                grid.shows(&sums),
                Some((Kind::Many, true)),
                "among metadata"
            );
        }
    }

    #[test]
    fn a_cell_with_next_to_nothing_but_metadata_is_free() {
        let grid = Grid::new(&geometry(1 << 34), 64, 32);
        let mut sums = [0; 7];
        sums[Kind::Metadata as usize] = 500;
        sums[Kind::Free as usize] = grid.blocks_per_cell - 500;
        assert_eq!(grid.shows(&sums), Some((Kind::Free, false)));
        sums[Kind::Whole as usize] = 1;
        assert!(
            grid.shows(&sums)
                .is_some_and(|(kind, _)| kind != Kind::Free)
        );
    }

    #[test]
    fn a_few_scattered_blocks_do_not_color_a_cell() {
        let grid = Grid::new(&geometry(1 << 28), 64, 32);
        let mut sums = [0; 7];
        sums[Kind::Whole as usize] = grid.blocks_per_cell - 100;
        sums[Kind::Many as usize] = 100;
        assert_eq!(grid.shows(&sums), Some((Kind::Whole, true)));
        assert_eq!(grid.shows(&[0; 7]), None);
    }
}
