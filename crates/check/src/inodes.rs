//! The inode pass: reads the tables in pieces, in disk order, and hands every inode in use to [`crate::inode`].

use std::collections::BTreeSet;

use ondisk::{Feature, FsBlock, Group, Ino, Inode};
use sync::{Mutex, Rank};

use crate::collected::{Collected, Gathered};
use crate::file_map;
use crate::inode;
use crate::limits;
use crate::lookalike;
use crate::map::MapRun;
use crate::problem::Code;
use crate::report::Problem;
use crate::volume::Volume;
use crate::work::Stage;

/// A piece of a group's table.
#[derive(Clone, Copy)]
struct Unit {
    group: Group,
    first: u32,
    count: u32,
}

fn units(volume: &Volume<'_>) -> Vec<Unit> {
    let per_unit = (limits::TABLE_PIECE / volume.geometry.inode_size()).max(1) as u32;
    let mut units = Vec::new();
    for group in volume.geometry.all_groups() {
        let end = volume.inodes_in_use(group);
        let mut first = 0;
        while first < end {
            let count = per_unit.min(end - first);
            units.push(Unit {
                group,
                first,
                count,
            });
            first += count;
        }
    }
    units
}

/// Calls `visit` on all threads with the number and the slot of every inode that can be read. The visits of one unit
/// share a value that `begin` makes and `end` takes. `report` is whether slots that can't be read are reported as a
/// problem.
pub fn scan<T>(
    volume: &Volume<'_>,
    report: bool,
    begin: impl Fn() -> T + Sync,
    visit: impl Fn(&T, Ino, &[u8]) + Sync,
    end: impl Fn(T) + Sync,
) {
    let units = units(volume);
    let size = volume.geometry.inode_size();
    let read = |bytes: &mut Vec<u8>, number: usize| {
        let unit = units[number];
        let table = volume.desc(unit.group).desc.inode_table();
        let (block, byte) = volume.geometry.inode_place(table, unit.first);
        bytes.resize(unit.count as usize * size, 0);
        let offset = block.offset(volume.geometry.block_size()) + byte as u64;
        let mut missing = None;
        if volume.device.read_at(offset, bytes).is_err() {
            missing = Some(read_by_blocks(volume, unit, bytes, report));
        }
        let value = begin();
        for (index, slot) in (unit.first..).zip(bytes.chunks_exact(size)) {
            let at = (index - unit.first) as usize * size;
            let is_missing = missing.as_ref().is_some_and(|missing| {
                let bits = volume.geometry.block_size().bits();
                missing.contains(&((byte + at) >> bits))
            });
            let ino = volume.geometry.ino_of(unit.group, index);
            if is_missing {
                volume.inodes.insert_unread(ino);
            } else {
                visit(&value, ino, slot);
            }
        }
        end(value);
        volume.crew.add(1);
    };
    volume.crew.share_out_with(units.len(), Vec::new, read);
}

/// Reads a unit block by block after the device failed. Returns which of its blocks can't be read.
fn read_by_blocks(
    volume: &Volume<'_>,
    unit: Unit,
    bytes: &mut [u8],
    report: bool,
) -> BTreeSet<usize> {
    let block_size = volume.geometry.block_size();
    let table = volume.desc(unit.group).desc.inode_table();
    let (block, byte) = volume.geometry.inode_place(table, unit.first);
    let mut missing = BTreeSet::new();
    let mut at = 0;
    while at < bytes.len() {
        let index = (byte + at) >> block_size.bits();
        let end = (((index + 1) << block_size.bits()) - byte).min(bytes.len());
        let offset = block.offset(block_size) + (byte + at) as u64;
        if volume.device.read_at(offset, &mut bytes[at..end]).is_err() {
            missing.insert(index);
            volume.unread.add_map();
            volume.unread.add_names();
            if report {
                let problem = Problem::new(Code::TableUnreadable).group(unit.group.0);
                volume.found(problem.block(block.0 + index as u64));
            }
        }
        at = end;
    }
    missing
}

/// Runs the inode pass.
pub fn pass(volume: &Volume<'_>) -> Gathered {
    let count = units(volume).len() as u64;
    volume.crew.begin(Stage::Inodes, count);
    let gathered = Mutex::new(Rank::Job, Gathered::default());
    scan(
        volume,
        true,
        Collected::default,
        |collected, ino, slot| inode::check(volume, collected, ino, slot),
        |collected| gathered.lock().add(collected),
    );
    let mut gathered = gathered.into_inner();
    gathered.directories.sort_unstable_by_key(|dir| dir.ino);
    gathered.policies.sort_unstable();
    lookalike::find(volume, &gathered.lookalikes);
    if gathered.has_large_files && !volume.has(Feature::LARGE_FILE) {
        volume.found(Problem::new(Code::LargeFile));
    }
    if !volume.inodes.state(Ino::ROOT).is_used() {
        volume.found(Problem::new(Code::NoRoot));
    }
    gathered
}

/// Claims the blocks of all inodes that are in use, after the pass, in the window that is open now.
pub fn claim_again(volume: &Volume<'_>) {
    let visit = |(): &(), ino, slot: &[u8]| inode::claim_again(volume, ino, slot);
    scan(volume, false, || (), visit, |()| ());
    for (block, _) in volume.shared.xattr_blocks.all() {
        if volume.contains(block, 1) {
            volume.claims.claim(FsBlock(block), 1);
        }
    }
    let resize = volume
        .slot(Ino::RESIZE)
        .and_then(|slot| Inode::parse(&slot).ok());
    if let Some(inode) = resize.filter(|_| volume.inodes.state(Ino::RESIZE).is_used()) {
        let double = u64::from(inode.block_word(13));
        if volume.has(Feature::RESIZE_INODE) && volume.contains(double, 1) {
            volume.claims.claim(FsBlock(double), 1);
        }
    }
}

/// The second scan, for blocks that were claimed more than once: names every inode that has them.
pub fn find_owners(volume: &Volume<'_>) {
    let shared = volume.claims.shared();
    if shared.is_empty() || volume.has(Feature::SHARED_BLOCKS) {
        return;
    }
    for (block, count) in &shared {
        let problem = Problem::new(Code::BlockSharedRun).block(*block);
        volume.found(problem.found(*count));
    }
    let visit = |(): &(), ino, slot: &[u8]| {
        let Ok(parsed) = Inode::parse(slot) else {
            return;
        };
        if parsed.links_count() == 0 || !volume.inodes.state(ino).is_used() {
            return;
        }
        let mut owner = Owner {
            shared: &shared,
            met: Vec::new(),
        };
        file_map::walk(volume, ino, &parsed, &mut owner);
        for (block, count) in owner.met {
            let problem = Problem::new(Code::BlockShared).ino(ino);
            volume.found(problem.block(block).found(count));
        }
    };
    scan(volume, false, || (), visit, |()| ());
}

/// Records which of an inode's blocks are among the shared ones. Does not read map blocks that are shared.
struct Owner<'a> {
    shared: &'a [(u64, u64)],
    met: Vec<(u64, u64)>,
}

impl Owner<'_> {
    fn look(&mut self, first: u64, count: u64) -> bool {
        let from = self
            .shared
            .partition_point(|(block, len)| block + len <= first);
        let before = self.met.len();
        for (block, len) in &self.shared[from..] {
            if *block >= first + count || self.met.len() >= limits::POINTERS {
                break;
            }
            let start = first.max(*block);
            self.met
                .push((start, (first + count).min(block + len) - start));
        }
        self.met.len() == before
    }
}

impl crate::map::Sink for Owner<'_> {
    fn run(&mut self, run: MapRun) {
        self.look(run.pblk, run.len);
    }

    fn node(&mut self, block: u64) -> bool {
        self.look(block, 1)
    }

    fn problem(&mut self, _problem: Problem) {}
}
