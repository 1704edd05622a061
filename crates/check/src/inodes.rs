//! The inode pass: reads the tables in pieces, in disk order, and hands every inode in use to [`crate::inode`].

use ondisk::{FileType, Flags, Group, Ino, Inode};
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::{Mutex, Rank};

use crate::inode;
use crate::limits;
use crate::map::Run;
use crate::problem::Code;
use crate::report::Problem;
use crate::volume::Volume;
use crate::work;

/// A directory as the inode pass saw it.
#[derive(Clone, Debug)]
pub struct Directory {
    pub ino: Ino,
    pub flags: Flags,
    /// The checksum seed of its blocks.
    pub seed: u32,
    pub runs: Vec<Run>,
}

/// What the inode pass collects for the passes behind it.
pub struct Collected {
    /// [job]
    pub directories: Mutex<Vec<Directory>>,
    pub fragmented: AtomicU64,
    pub has_large_files: AtomicBool,
    /// Blocks of all directories.
    pub directory_blocks: AtomicU64,
}

impl Collected {
    pub fn new() -> Collected {
        Collected {
            directories: Mutex::new(Rank::Job, Vec::new()),
            fragmented: AtomicU64::new(0),
            has_large_files: AtomicBool::new(false),
            directory_blocks: AtomicU64::new(0),
        }
    }
}

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

/// Calls `visit` with every inode's number and slot that is read, on all threads. `report` says whether what can't be
/// read is a problem.
pub fn scan(volume: &Volume<'_>, report: bool, visit: impl Fn(Ino, &[u8]) + Sync) {
    let units = units(volume);
    let size = volume.geometry.inode_size();
    work::share_out(volume.threads, units.len(), volume.cancelled, |number| {
        let unit = units[number];
        let table = volume.desc(unit.group).desc.inode_table();
        let (block, byte) = volume.geometry.inode_place(table, unit.first);
        let mut bytes = vec![0; unit.count as usize * size];
        let offset = block.offset(volume.geometry.block_size()) + byte as u64;
        if volume.device.read_at(offset, &mut bytes).is_err() {
            if report {
                let problem = Problem::new(Code::TableUnreadable).group(unit.group.0);
                volume.found(problem.block(block.0));
            }
            return;
        }
        for (index, slot) in (unit.first..).zip(bytes.chunks_exact(size)) {
            visit(volume.geometry.ino_of(unit.group, index), slot);
        }
    });
}

/// Runs the pass.
pub fn pass(volume: &Volume<'_>, collected: &Collected) {
    scan(volume, true, |ino, slot| {
        inode::check(volume, collected, ino, slot);
    });
    collected.directories.lock().sort_by_key(|dir| dir.ino);
    // Relaxed: the threads are joined.
    let large = collected.has_large_files.load(Ordering::Relaxed);
    if large && !volume.has(ondisk::Feature::LARGE_FILE) {
        volume.found(Problem::new(Code::LargeFile));
    }
    if !volume.inodes.state(Ino::ROOT).is_used() {
        volume.found(Problem::new(Code::NoRoot));
    }
}

/// The second scan, for blocks that were claimed more than once: names every inode that has them.
pub fn find_owners(volume: &Volume<'_>) {
    let shared = volume.claims.shared();
    if shared.is_empty() || volume.has(ondisk::Feature::SHARED_BLOCKS) {
        return;
    }
    for (block, count) in &shared {
        let problem = Problem::new(Code::BlockSharedRun).block(*block);
        volume.found(problem.found(*count));
    }
    scan(volume, false, |ino, slot| {
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
        inode::walk(volume, ino, &parsed, &mut owner);
        for (block, count) in owner.met {
            let problem = Problem::new(Code::BlockShared).ino(ino);
            volume.found(problem.block(block).found(count));
        }
    });
}

/// Notes which of an inode's blocks are among the shared ones. It does not enter map blocks that are shared.
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
    fn run(&mut self, run: Run) {
        self.look(run.pblk, run.len);
    }

    fn node(&mut self, block: u64) -> bool {
        self.look(block, 1)
    }

    fn problem(&mut self, _problem: Problem) {}
}

/// Whether inodes of this type have a map.
pub fn has_map(file_type: Option<FileType>) -> bool {
    matches!(
        file_type,
        Some(FileType::Regular | FileType::Directory | FileType::Symlink)
    )
}
