//! Repair: makes the set of writes after which an image is clean, in rounds on an overlay.
//!
//! Each round checks the overlay. Then one thread repairs what the sorted list of problems names, in steps that build
//! on each other: layout, the file system's own files, inodes, shared blocks and directories, names, and finally
//! counts. A round does the first step that has anything to do, and the next round's check judges the result. So one
//! repair is always enough, and its result does not depend on the number of threads.
//!
//! This module writes nothing to the device. The caller writes the [`WriteSet`].

mod attributes;
mod backups;
mod connect;
mod descriptor_copies;
mod directory;
mod edit;
mod inodes;
mod layout;
mod map;
mod overlay;
mod parsed_directory;
mod pointers;
mod quota;
mod rebuild;
mod shared;
mod space;
mod special;
mod steps;
mod table_search;
mod tally;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use device::BlockDevice;
use ondisk::{BlockSize, Feature, FileType, Flags, Geometry, Ino, Superblock, superblock};

use crate::claims::Claims;
use crate::error::Error;
use crate::limits;
use crate::problem::{Class, Code, Preen, Severity};
use crate::repair::edit::Edit;
use crate::repair::overlay::Overlay;
use crate::repair::space::ClaimedClusters;
use crate::report::{Problem, Report};
use crate::run::{self, Examined, Facts, Options};
use crate::runs;

pub use special::backed_up_journal;

/// How much a repair may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RepairScope {
    /// Only what needs no decision; if anything else is wrong, nothing is repaired.
    Preen,
    /// Everything.
    All,
}

/// How to repair.
#[derive(Clone, Copy)]
pub struct RepairOptions<'a> {
    /// The options of each round's check.
    pub check: Options<'a>,
    /// How much may be repaired.
    pub extent: RepairScope,
    /// The time that is stamped on what is deleted or made, in seconds since 1970.
    pub now: u64,
    /// Why the journal could not be replayed; it is emptied then. `None` if it was replayed.
    pub replay_failed: Option<&'a str>,
    /// Whether a map may be mended over its own blocks if no other block is free. The caller says so if the journal is
    /// sound; the set of writes is then [`WriteSet::needs_journal`]. If not, only maps that have blocks of other files
    /// are written over, and a cut in the middle may lose such a map.
    pub may_overwrite: bool,
}

/// What must be written to make the image clean.
#[derive(Clone, Debug)]
pub struct WriteSet {
    /// Bytes in a block.
    pub block_size: BlockSize,
    /// Blocks that must be right before the journal can be found, if they are wrong: superblock, descriptors, the
    /// journal's inode and superblock.
    pub first: BTreeMap<u64, Box<[u8]>>,
    /// New blocks of files, each with the block that it is a copy of.
    pub copies: BTreeMap<u64, u64>,
    /// The final contents of all changed blocks.
    pub blocks: BTreeMap<u64, Box<[u8]>>,
    /// The numbers of `blocks` in the order in which they are written if no journal is used: blocks that inodes lead
    /// to, inode tables, bitmaps, descriptors, the superblock.
    pub stages: Vec<Vec<u64>>,
    /// First block and length of each run of the journal, if the repair may use it: the file system has its own
    /// journal, whose map was right, and nothing else claims its blocks.
    pub journal: Option<Vec<(u64, u64)>>,
    /// Blocks of maps are written over before the inodes that lead to them. CRASH: only as one transaction of the
    /// journal, which is there then, do they lose nothing; not in stages.
    pub needs_journal: bool,
    /// The block with the superblock and the byte in it.
    pub superblock: (u64, usize),
}

impl WriteSet {
    /// Whether the set has no writes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.copies.is_empty() && self.blocks.is_empty()
    }
}

/// What a repair decided.
#[derive(Debug)]
pub struct Repaired {
    /// The problems that were found.
    pub before: Report,
    /// The problems that remain once the write set is written; the same as `before` if nothing is repaired.
    pub after: Report,
    /// The blocks to write; `None` if nothing can be repaired, or nothing is wrong.
    pub writes: Option<WriteSet>,
    /// How often the image was checked.
    pub checks: u32,
    /// A careful repair mends nothing, because something that was found needs a decision.
    pub is_refused: bool,
}

/// The steps of a repair.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Step {
    /// Superblock, descriptors, journal: what Linux reads before the journal.
    Layout,
    /// Orphans, the multi-mount block, tables that are not completely initialised.
    System,
    /// Fields, maps and attributes of inodes.
    Inodes,
    /// Blocks that are claimed twice, entries of directories.
    Contents,
    /// Inodes without a name.
    Names,
    /// Counts and bitmaps.
    Counts,
}

/// The step that repairs a kind of problem; `None` for kinds that a repair ignores.
fn step_of(code: Code) -> Option<Step> {
    Some(match code {
        Code::JournalReplayed
        | Code::JournalExternal
        | Code::ErrorsRecorded
        | Code::BackupSuperblock
        | Code::BackupDescriptors
        | Code::ClaimsTooMany => return None,
        Code::EntryUninit => Step::System,
        Code::LargeFile | Code::LowDtime | Code::NoRoot | Code::DirectoryFeature => Step::Inodes,
        Code::BlockShared | Code::BlockSharedRun | Code::MisalignedCluster => Step::Contents,
        Code::XattrReferences | Code::XattrValueReferences | Code::QuotaUsage => Step::Counts,
        Code::Unattached => Step::Names,
        _ => match code.kind().class {
            Class::Superblock | Class::Descriptor | Class::Journal => Step::Layout,
            Class::Orphan | Class::Mmp => Step::System,
            Class::Inode | Class::Map | Class::Xattr | Class::Resize | Class::Quota => Step::Inodes,
            Class::Directory | Class::Htree => Step::Contents,
            Class::Connectivity => Step::Names,
            Class::Count | Class::Bitmap => Step::Counts,
        },
    })
}

/// Bytes that the record of blocks in use takes in a repair that mends anything.
#[must_use]
pub fn memory_needed(geometry: &Geometry) -> u64 {
    Claims::bytes(geometry)
}

/// Decides how to repair the file system on a device, which is only read.
///
/// # Errors
/// When no verdict is possible, as for [`crate::check`]; when something is to be repaired, and the record of blocks in
/// use does not fit into the allowed memory.
pub fn repair(device: &dyn BlockDevice, options: &RepairOptions<'_>) -> Result<Repaired, Error> {
    let repaired = decide(device, options)?;
    let lacks_journal = |writes: &WriteSet| writes.needs_journal && writes.journal.is_none();
    if repaired.writes.as_ref().is_some_and(lacks_journal) {
        let options = RepairOptions {
            may_overwrite: false,
            ..*options
        };
        return decide(device, &options);
    }
    Ok(repaired)
}

/// The same, but the set may need a journal that cannot be used.
fn decide(device: &dyn BlockDevice, options: &RepairOptions<'_>) -> Result<Repaired, Error> {
    let check = options.check;
    let mut examined = run::examine(device, &check)?;
    examined.judge_times(options.now);
    if let Some(reason) = options.replay_failed {
        examined.report.add(Code::JournalReplayFailed, reason);
    }
    let before = examined.report.clone();
    let may_mend = options.extent == RepairScope::All || is_preenable(&before);
    let is_known = !before.counts.contains_key(&Code::FeatureUnknown);
    let layout = examined.layout.filter(|_| may_mend && is_known);
    let Some((_, geometry)) = layout else {
        return Ok(Repaired {
            is_refused: !may_mend,
            ..untouched(before, 1)
        });
    };
    let mut codes = before.counts.keys();
    let has_step = codes.any(|code| step_of(*code).is_some()) || check.superblock.is_some();
    if has_step && Claims::windows(&geometry, check.memory).len() > 1 {
        // A repair needs the claims of the whole file system.
        let needed = Claims::bytes(&geometry);
        return Err(Error::Memory { needed });
    }
    let mut rounds = Rounds::new(device, &geometry, options.now);
    rounds.scope = options.extent;
    rounds.may_overwrite = options.may_overwrite;
    if options.check.superblock.is_some() {
        let problem = Problem::new(Code::SuperblockFromBackup);
        examined.report.problems.push(problem);
    }
    let mut checks = 1;
    while checks <= limits::ROUNDS {
        rounds.tolerated.raise(&examined);
        if !rounds.find_tables(&examined) {
            rounds.learn(&examined);
            if !rounds.move_placed(&examined) && !rounds.mend(&examined) {
                break;
            }
        }
        let check = Options {
            superblock: None,
            ..check
        };
        examined = run::examine(&rounds.image, &check)?;
        examined.judge_times(options.now);
        checks += 1;
    }
    rounds.learn(&examined);
    if !rounds.tolerated.allows(&examined.report) {
        return Ok(untouched(before, checks));
    }
    let writes = rounds.finish(&examined);
    if writes.is_some() && examined.report.is_clean() {
        // What is written last, once all else is clean.
        for code in [
            Code::ErrorsRecorded,
            Code::BackupSuperblock,
            Code::BackupDescriptors,
        ] {
            examined.report.forget(code);
        }
    }
    Ok(Repaired {
        before,
        after: examined.report,
        writes: writes.filter(|writes| !writes.is_empty()),
        checks,
        is_refused: false,
    })
}

fn untouched(report: Report, checks: u32) -> Repaired {
    Repaired {
        after: report.clone(),
        before: report,
        writes: None,
        checks,
        is_refused: false,
    }
}

/// Whether nothing was found that needs a decision.
fn is_preenable(report: &Report) -> bool {
    let mut codes = report.counts.keys();
    codes.all(|code| code.kind().preen != Preen::Refuses)
}

/// How much damage each class may have after a repair that does not mend everything.
struct Tolerated {
    /// The limit of each class; `None` until a check could read the descriptors and so all the rest.
    sums: Option<BTreeMap<Class, u64>>,
    /// So far only superblock, descriptors and journal were mended, and no inode table got its place by a guess.
    is_layout_only: bool,
}

impl Tolerated {
    fn new() -> Tolerated {
        Tolerated {
            sums: None,
            is_layout_only: true,
        }
    }

    /// Raises the limits to what a check found. Damage that shows once the descriptors are right was hidden before; the
    /// repair did not cause it.
    fn raise(&mut self, examined: &Examined) {
        if !self.is_layout_only || examined.facts.is_none() {
            return;
        }
        let sums = self.sums.get_or_insert_default();
        for (class, count) in damage(&examined.report) {
            let most = sums.entry(class).or_default();
            *most = count.max(*most);
        }
    }

    /// Whether the repair may be written although these problems are left.
    fn allows(&self, left: &Report) -> bool {
        let is_allowed = |sums: &BTreeMap<Class, u64>| {
            let mut left = damage(left).into_iter();
            left.all(|(class, count)| count <= sums.get(&class).copied().unwrap_or(0))
        };
        left.is_clean() || self.sums.as_ref().is_some_and(is_allowed)
    }
}

/// The number of problems in each class, notes not counted.
fn damage(report: &Report) -> BTreeMap<Class, u64> {
    let mut sums = BTreeMap::new();
    for (code, count) in &report.counts {
        if code.kind().severity != Severity::Note {
            *sums.entry(code.kind().class).or_default() += count;
        }
    }
    sums
}

/// What is known of the journal's runs.
#[derive(Default)]
struct Journal {
    /// The runs as first found, if nothing else claims their blocks.
    found: Option<Vec<(u64, u64)>>,
    is_known: bool,
}

struct Rounds<'d> {
    image: Overlay<'d>,
    space: ClaimedClusters,
    first: BTreeMap<u64, Box<[u8]>>,
    /// Groups with a bitmap whose block was chosen before the blocks in use were known.
    placed: BTreeSet<u32>,
    journal: Journal,
    /// Inodes whose map was damaged in any round.
    damaged_maps: BTreeSet<u32>,
    /// Problems that a step was done for.
    tried: BTreeSet<Problem>,
    tolerated: Tolerated,
    now: u32,
    /// Which problems steps are done for.
    scope: RepairScope,
    may_overwrite: bool,
    /// A map was mended over its own blocks.
    has_overwritten: bool,
}

impl<'d> Rounds<'d> {
    fn new(device: &'d dyn BlockDevice, geometry: &Geometry, now: u64) -> Rounds<'d> {
        Rounds {
            image: Overlay::new(device, geometry.block_size()),
            space: ClaimedClusters::new(geometry),
            first: BTreeMap::new(),
            placed: BTreeSet::new(),
            journal: Journal::default(),
            damaged_maps: BTreeSet::new(),
            tried: BTreeSet::new(),
            tolerated: Tolerated::new(),
            now: u32::try_from(now).unwrap_or(u32::MAX),
            scope: RepairScope::All,
            may_overwrite: false,
            has_overwritten: false,
        }
    }

    fn edit(&mut self, sb: Superblock, geometry: Geometry) -> Edit<'_, 'd> {
        let journal = self.journal.found.as_ref();
        let may_overwrite = self.may_overwrite && journal.is_some_and(|runs| !runs.is_empty());
        Edit {
            image: &mut self.image,
            space: &mut self.space,
            placed: &mut self.placed,
            damaged_maps: &self.damaged_maps,
            sb,
            geometry,
            now: self.now,
            is_changed: false,
            has_overwritten: may_overwrite.then_some(&mut self.has_overwritten),
            budget: Cell::new(geometry.blocks_count().saturating_mul(limits::CLAIM_FACTOR)),
        }
    }

    /// Records what a check found before anything is changed.
    fn learn(&mut self, examined: &Examined) {
        let Some(facts) = &examined.facts else {
            return;
        };
        self.space.add_claims(facts);
        if facts.has_unread {
            for group in facts.geometry.all_groups() {
                let bitmap = facts.groups[group.0 as usize].desc.block_bitmap();
                let bitmap = self.image.block(bitmap.0);
                self.space.add_bitmap(group, bitmap.as_deref());
            }
        }
        self.keep_damaged_maps(examined, facts);
        if !self.journal.is_known {
            self.journal.is_known = true;
            let shared = shared::runs(&examined.report.problems);
            let is_shared = |(first, len): &(u64, u64)| runs::overlap(&shared, *first, *len);
            let runs = self.journal_runs(facts.sb, facts.geometry);
            self.journal.found = runs.filter(|runs| !runs.iter().any(is_shared));
        }
    }

    /// Marks the blocks of damaged maps as not free: more of such a map may be valid than the check counted as in use.
    fn keep_damaged_maps(&mut self, examined: &Examined, facts: &Facts) {
        let problems = examined.report.problems.iter();
        let of_maps =
            problems.filter(|it| matches!(it.code.kind().class, Class::Map | Class::Inode));
        let inos: BTreeSet<u32> = of_maps.filter_map(|it| it.ino).collect();
        let mut taken = Vec::new();
        let edit = self.edit(facts.sb, facts.geometry);
        for ino in inos.into_iter().map(Ino) {
            let inode = edit.inode(ino).filter(map::is_mapped);
            if let Some(map) = inode.and_then(|inode| map::read(&edit, ino, &inode)) {
                taken.extend(map.runs.iter().map(|run| (run.pblk, run.len)));
                taken.extend(map.nodes.iter().map(|node| (*node, 1)));
            }
        }
        for (first, len) in taken {
            self.space.take(first, len);
        }
    }

    /// Finds inode tables that descriptors name wrongly, and a root that they count as unused. This is done before
    /// anything is repaired according to the contents of wrong tables. Returns whether there was any.
    fn find_tables(&mut self, examined: &Examined) -> bool {
        let Some((sb, geometry)) = examined.layout.filter(|_| !examined.report.is_clean()) else {
            return false;
        };
        let groups = table_search::doubtful_groups(&geometry, &examined.report.problems);
        let copies = descriptor_copies::DescriptorCopies::of(&geometry);
        let mut edit = self.edit(sb, geometry);
        for group in groups {
            table_search::find_table(&mut edit, &copies, group);
        }
        if examined.report.counts.contains_key(&Code::NoRoot) {
            layout::read_root(&mut edit);
        }
        let is_changed = edit.is_changed;
        if is_changed {
            self.tolerated.is_layout_only = false;
            self.note_first(&geometry, sb);
        }
        is_changed
    }

    /// Moves bitmaps that were placed in blocks of files, once the blocks in use are known. Returns whether there was
    /// any.
    fn move_placed(&mut self, examined: &Examined) -> bool {
        let Some((sb, geometry)) = examined.layout.filter(|_| examined.facts.is_some()) else {
            return false;
        };
        let shared = shared::runs(&examined.report.problems);
        let placed = std::mem::take(&mut self.placed);
        let mut edit = self.edit(sb, geometry);
        for group in placed {
            layout::leave_files(&mut edit, &shared, ondisk::Group(group));
        }
        let is_changed = edit.is_changed;
        if is_changed {
            self.note_first(&geometry, sb);
        }
        is_changed
    }

    /// The journal's runs, where it is a file whose map is right.
    fn journal_runs(&mut self, sb: Superblock, geometry: Geometry) -> Option<Vec<(u64, u64)>> {
        let ino = sb.journal_ino()?;
        let edit = self.edit(sb, geometry);
        if !edit.has(Feature::HAS_JOURNAL) {
            return None;
        }
        let inode = edit.inode(ino)?;
        let is_file = inode.file_type() == Some(FileType::Regular) && inode.links_count() > 0;
        if !is_file || inode.flags().contains(Flags::INLINE_DATA) {
            return None;
        }
        let map = map::read(&edit, ino, &inode)?;
        let mut next = 0;
        for run in &map.runs {
            if run.lblk != next || run.unwritten {
                return None;
            }
            next += run.len;
        }
        let is_right =
            !map.is_damaged && next << edit.geometry.block_size().bits() >= inode.size(true);
        is_right.then(|| map.runs.iter().map(|run| (run.pblk, run.len)).collect())
    }

    /// Does the first step that changes anything; returns false if no step does. Problems that remain although a step
    /// was done for them do not start it again.
    fn mend(&mut self, examined: &Examined) -> bool {
        let Some((sb, geometry)) = examined.layout else {
            return false;
        };
        let is_in_scope =
            |it: &&Problem| self.scope == RepairScope::All || it.code.kind().preen != Preen::Leaves;
        let problems = examined.report.problems.iter().filter(is_in_scope);
        let problems: Vec<Problem> = problems.cloned().collect();
        let of_maps = problems.iter().filter(|it| shared::is_of_map(it.code));
        self.damaged_maps.extend(of_maps.filter_map(|it| it.ino));
        loop {
            let untried = problems.iter().filter(|it| !self.tried.contains(*it));
            let Some(step) = untried.filter_map(|it| step_of(it.code)).min() else {
                return false;
            };
            let is_of_step = |it: &&Problem| step_of(it.code) == Some(step);
            let of_step: Vec<Problem> = problems.iter().filter(is_of_step).cloned().collect();
            // Entries of a directory that shares blocks are judged once the directory has its own, if copies of these
            // were not tried in vain.
            let untried: Vec<Problem> = (of_step.iter())
                .filter(|it| !self.tried.contains(*it))
                .cloned()
                .collect();
            let shared = shared::claimants(&untried);
            let is_put_off = |it: &&Problem| {
                !shared::needs_copies(it.code) && it.ino.is_some_and(|ino| shared.contains(&ino))
            };
            let tried = of_step.iter().filter(|it| !is_put_off(it));
            self.tried.extend(tried.cloned());
            let mut edit = self.edit(sb, geometry);
            steps::mend_step(&mut edit, step, examined, &of_step);
            if edit.is_changed {
                // The place of a table that has none is a guess.
                let is_guess = of_step.iter().any(|it| it.code == Code::InodeTablePlace);
                self.tolerated.is_layout_only &= step == Step::Layout && !is_guess;
                if step == Step::Layout {
                    self.note_first(&geometry, sb);
                }
                return true;
            }
        }
    }

    /// Records the blocks that must be right before the journal is found, after a step that repairs only those.
    fn note_first(&mut self, geometry: &Geometry, sb: Superblock) {
        let size = geometry.block_size();
        let mut places = BTreeSet::from([Superblock::OFFSET >> size.bits()]);
        for index in 0..geometry.desc_blocks() {
            places.insert(geometry.desc_block(index).0);
        }
        let edit = self.edit(sb, *geometry);
        if let Some(ino) = sb.journal_ino() {
            let (group, index) = geometry.group_of_ino(ino).unwrap_or((ondisk::Group(0), 0));
            if let Some(desc) = edit.desc(group) {
                places.insert(geometry.inode_place(desc.inode_table(), index).0.0);
            }
            let map = edit
                .inode(ino)
                .and_then(|inode| map::read(&edit, ino, &inode));
            places.extend(map.and_then(|map| map.place(0)));
        }
        for (block, bytes) in self.image.changes() {
            if places.contains(&block) {
                self.first.insert(block, bytes);
            }
        }
    }

    /// The blocks in the order of `WriteSet::stages`: all others, inode tables, bitmaps, descriptors, the superblock.
    fn stages(&self, geometry: &Geometry, blocks: &BTreeMap<u64, Box<[u8]>>) -> Vec<Vec<u64>> {
        let mut ranks: BTreeMap<u64, usize> = BTreeMap::new();
        let mut tables = Vec::new();
        for group in geometry.all_groups() {
            let (block, at) = geometry.desc_place(group);
            ranks.insert(block.0, 3);
            let bytes = self.image.block(block.0).unwrap_or_default();
            if let Some(raw) = bytes.get(at..at + geometry.desc_size()) {
                let desc = ondisk::GroupDesc::load(raw);
                ranks.insert(desc.block_bitmap().0, 2);
                ranks.insert(desc.inode_bitmap().0, 2);
                let first = desc.inode_table().0;
                tables.push(first..first + u64::from(geometry.inode_table_blocks()));
            }
        }
        for block in backups::blocks(geometry) {
            ranks.insert(block, 3);
        }
        ranks.insert(Superblock::OFFSET >> geometry.block_size().bits(), 4);
        tables.sort_by_key(|range| range.start);
        let mut stages = vec![Vec::new(); 5];
        for block in blocks.keys() {
            let at = tables.partition_point(|range| range.end <= *block);
            let in_table = tables.get(at).is_some_and(|range| range.contains(block));
            let rank = ranks.get(block).copied().unwrap_or(usize::from(in_table));
            stages[rank].push(*block);
        }
        stages
    }

    /// Stamps the superblock, and makes the write set.
    fn finish(&mut self, examined: &Examined) -> Option<WriteSet> {
        let (sb, geometry) = examined.layout?;
        let journal = self.journal_runs(sb, geometry);
        let journal = journal.filter(|runs| Some(runs) == self.journal.found.as_ref());
        let had_error = sb.state() & superblock::state::ERROR != 0;
        let is_clean = examined.report.is_clean();
        let has_orphans = (examined.facts.as_ref()).is_none_or(|facts| !facts.orphans.is_empty());
        let is_flag_left = is_clean && !has_orphans && geometry.has(Feature::ORPHAN_PRESENT);
        let mut edit = self.edit(sb, geometry);
        if is_clean {
            backups::run(&mut edit);
        }
        if self.image.changes().is_empty()
            && self.image.copies().is_empty()
            && !(had_error && is_clean)
            && !is_flag_left
        {
            return None;
        }
        let mut edit = self.edit(sb, geometry);
        if is_flag_left {
            // A mount sets the flag, and clears it when it ends.
            let features = edit.sb.features().without(Feature::ORPHAN_PRESENT);
            edit.sb.set_features(features);
        }
        if let Some(facts) = &examined.facts {
            quota::update(&mut edit, facts);
        }
        let state = sb.state() & !superblock::state::ERROR;
        edit.sb.set_state(if is_clean {
            state | superblock::state::VALID
        } else {
            state | superblock::state::ERROR
        });
        if is_clean {
            edit.sb.set_error_count(0);
            edit.sb.set_mount_count(0);
            edit.sb.set_last_check(edit.now.into());
        }
        edit.sb.set_write_time(edit.now.into());
        edit.set_superblock()?;
        Some(self.set(&geometry, journal))
    }

    fn set(&mut self, geometry: &Geometry, journal: Option<Vec<(u64, u64)>>) -> WriteSet {
        let size = geometry.block_size();
        let blocks = self.image.changes();
        WriteSet {
            block_size: size,
            first: std::mem::take(&mut self.first),
            copies: self.image.copies(),
            stages: self.stages(geometry, &blocks),
            blocks,
            journal,
            needs_journal: self.has_overwritten,
            superblock: (
                Superblock::OFFSET >> size.bits(),
                (Superblock::OFFSET & (size.bytes_u64() - 1)) as usize,
            ),
        }
    }

    /// A write set without changes except the superblock, which needs no replay once it is written.
    fn whole_set(&mut self, geometry: &Geometry, sb: Superblock) -> Option<WriteSet> {
        let journal = self.journal_runs(sb, *geometry);
        let mut edit = self.edit(sb, *geometry);
        let features = edit.sb.features().without(Feature::NEEDS_RECOVERY);
        edit.sb.set_features(features);
        edit.set_superblock()?;
        Some(self.set(geometry, journal))
    }
}

/// The write set of all blocks in which a view differs from the device, because of fast commits. After it is written
/// the file system needs no replay.
///
/// # Errors
/// When the view's superblock can't be read or is wrong.
pub fn of_changes(
    view: &dyn BlockDevice,
    changes: BTreeMap<u64, Box<[u8]>>,
) -> Result<WriteSet, Error> {
    let mut bytes = [0; Superblock::SIZE];
    view.read_at(Superblock::OFFSET, &mut bytes)
        .map_err(|_| Error::Unreadable)?;
    let sb = *Superblock::view(&bytes);
    let geometry = Geometry::new(&sb, view.size())
        .map_err(|wrong| Error::Replay(format!("then the superblock is wrong: {wrong}")))?;
    let mut rounds = Rounds::new(view, &geometry, 0);
    let mut writes = rounds.whole_set(&geometry, sb).ok_or(Error::Unreadable)?;
    for (block, bytes) in changes {
        writes.blocks.entry(block).or_insert(bytes);
    }
    writes.stages = rounds.stages(&geometry, &writes.blocks);
    Ok(writes)
}
