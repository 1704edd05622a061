//! Maps of files under repair: what can be believed of a map is read, and a new map is written.
//!
//! Reading leaves out what points nowhere or is out of order. A map with a block that the device can't read is not read
//! at all. A block of the map is entered once, and not where metadata lies. All maps read in a round together are
//! bounded by [`Edit::budget`].
//!
//! A check claims fewer extents than are believed here: none that overlap others or exceed what their node may map.
//! Such an extent is kept only where nothing else claims its blocks, so that a damaged tree costs other files nothing.

use std::collections::{BTreeMap, HashSet};

use ondisk::extent::{self, Extent, ExtentEntries, ExtentIndex};
use ondisk::indirect;
use ondisk::{Feature, FileType, Flags, FsBlock, Ino, Inode, LBlock};

use crate::extents::is_header;
use crate::map::{MapRun, word16, word32};
use crate::repair::edit::Edit;
use crate::repair::pointers;
use crate::runs;

const ENTRY: usize = 12;

/// The valid part of a map.
#[derive(Default)]
pub struct FileMap {
    /// In the order of the file.
    pub runs: Vec<MapRun>,
    /// Blocks of the map itself.
    pub nodes: Vec<u64>,
    /// Those of them that a check claims for this inode too.
    pub claimed_nodes: Vec<u64>,
    /// Something was left out or set right, so the map must be written anew.
    pub is_damaged: bool,
}

impl FileMap {
    /// Adds a run that follows all others.
    pub fn push(&mut self, run: MapRun) {
        if let Some(last) = self.runs.last_mut()
            && last.lblk + last.len == run.lblk
            && last.pblk + last.len == run.pblk
            && last.unwritten == run.unwritten
        {
            last.len += run.len;
        } else {
            self.runs.push(run);
        }
    }

    /// The first logical block behind all runs.
    pub fn end(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.lblk + run.len)
    }

    /// The block of the device that holds a block of the file.
    pub fn place(&self, lblk: u64) -> Option<u64> {
        let at = self.runs.partition_point(|run| run.lblk + run.len <= lblk);
        let run = self.runs.get(at).filter(|run| run.lblk <= lblk)?;
        Some(run.pblk + (lblk - run.lblk))
    }
}

/// Whether the inode has a map: the type of a file with blocks, whose contents are not in the inode.
pub fn is_mapped(inode: &Inode) -> bool {
    let is_fast_symlink = inode.file_type() == Some(FileType::Symlink)
        && inode.size_both_words() < 60
        && !inode.flags().contains(Flags::EXTENTS);
    crate::file_map::has_map(inode.file_type())
        && !inode.flags().contains(Flags::INLINE_DATA)
        && !is_fast_symlink
}

/// Reads the map of an inode. None once the round's budget is used up, or where the device can't read a block of it.
pub fn read(edit: &Edit<'_, '_>, ino: Ino, inode: &Inode) -> Option<FileMap> {
    let mut map = FileMap::default();
    if inode.flags().contains(Flags::EXTENTS) {
        read_extents(edit, ino, inode, &mut map)?;
    } else {
        pointers::read(edit, inode, &mut map)?;
    }
    Some(map)
}

/// A node of an extent tree on the way down.
struct Frame {
    bytes: Vec<u8>,
    next: usize,
    /// The logical blocks that the nodes above leave to this one: what is outside of them is damage.
    floor: u64,
    end: u64,
    /// A check enters the node.
    is_checked: bool,
    /// What `floor` is in a check, which reads fewer entries.
    check_floor: u64,
}

fn read_extents(edit: &Edit<'_, '_>, ino: Ino, inode: &Inode, map: &mut FileMap) -> Option<()> {
    let mut root = inode.block_area().to_vec();
    let is_checked = is_header(&root);
    if !is_checked {
        map.is_damaged = true;
        // Entries are judged one by one, so more than fit are no reason to leave out the others.
        if word16(&root, 0) != extent::MAGIC {
            return Some(());
        }
        let count = word16(&root, 2).min(extent::ROOT_ENTRIES);
        root[2..4].copy_from_slice(&count.to_le_bytes());
    }
    let depth = word16(&root, 6);
    if depth > extent::MAX_DEPTH || depth > 0 && word16(&root, 2) == 0 {
        map.is_damaged = true;
        return Some(());
    }
    let seed = edit.seed(ino, inode);
    let mut met = HashSet::new();
    let mut found: Vec<FoundRun> = Vec::new();
    let mut stack = vec![Frame {
        bytes: root,
        next: 0,
        floor: 0,
        end: 1 << 32,
        is_checked,
        check_floor: 0,
    }];
    while let Some(frame) = stack.last_mut() {
        if frame.next >= usize::from(word16(&frame.bytes, 2)) {
            stack.pop();
            continue;
        }
        let at = ENTRY * (1 + frame.next);
        frame.next += 1;
        edit.spend(1)?;
        if word16(&frame.bytes, 6) == 0 {
            let run = leaf(edit, frame, at, map);
            map.is_damaged |= run.is_none();
            found.extend(run);
        } else {
            let child = index(edit, frame, at, seed, &mut met, map)?;
            map.is_damaged |= child.is_none();
            stack.extend(child);
        }
    }
    let is_directory = inode.file_type() == Some(FileType::Directory);
    let found = without_others(edit, &found, map);
    let kept = in_order(&found);
    map.is_damaged |= kept != found;
    for run in kept {
        map.is_damaged |= run.unwritten && is_directory;
        map.push(MapRun {
            unwritten: run.unwritten && !is_directory,
            ..run
        });
    }
    Some(())
}

/// A run of an extent.
struct FoundRun {
    run: MapRun,
    /// A check claims its blocks for this inode.
    is_claimed: bool,
}

/// The runs without those whose blocks something else claims.
fn without_others(edit: &Edit<'_, '_>, found: &[FoundRun], map: &mut FileMap) -> Vec<MapRun> {
    let ratio = u64::from(edit.geometry.cluster_ratio());
    let first_data = edit.geometry.first_data_block().0;
    let clusters = |run: &MapRun| {
        let before = (run.pblk - first_data) % ratio;
        (
            run.pblk - before,
            (before + run.len).next_multiple_of(ratio),
        )
    };
    let of_check = found.iter().filter(|it| it.is_claimed);
    let own = runs::merged(of_check.map(|it| clusters(&it.run)).collect());
    let is_kept = |it: &&FoundRun| {
        it.is_claimed || !(edit.space).is_claimed_by_others(it.run.pblk, it.run.len, &own)
    };
    let kept: Vec<MapRun> = found.iter().filter(is_kept).map(|it| it.run).collect();
    map.is_damaged |= kept.len() < found.len();
    kept
}

/// The entries of the sequence with the most blocks among those whose logical blocks ascend, each cut where the next
/// one begins: one wrong number costs one entry.
fn in_order(found: &[MapRun]) -> Vec<MapRun> {
    // For each end, the blocks of the best sequence and the index of its last entry. Blocks ascend with the ends.
    let mut best: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    let mut before: Vec<Option<usize>> = Vec::new();
    for (index, run) in found.iter().enumerate() {
        let previous = best.range(..run.lblk).next_back().map(|(_, it)| *it);
        before.push(previous.map(|(_, last)| last));
        let blocks = previous.map_or(0, |(blocks, _)| blocks) + run.len;
        if best.get(&run.lblk).is_some_and(|it| it.0 >= blocks) {
            continue;
        }
        while let Some((lblk, it)) = best.range(run.lblk..).next()
            && it.0 <= blocks
        {
            let lblk = *lblk;
            best.remove(&lblk);
        }
        best.insert(run.lblk, (blocks, index));
    }
    let mut kept: Vec<MapRun> = Vec::new();
    let mut next = best.last_key_value().map(|(_, it)| it.1);
    while let Some(index) = next {
        let mut run = found[index];
        if let Some(behind) = kept.last() {
            run.len = run.len.min(behind.lblk - run.lblk);
        }
        kept.push(run);
        next = before[index];
    }
    kept.reverse();
    kept
}

/// The run of an extent, if its blocks exist.
fn leaf(edit: &Edit<'_, '_>, frame: &mut Frame, at: usize, map: &mut FileMap) -> Option<FoundRun> {
    let raw = frame.bytes.get(at..at + ENTRY)?;
    let extent = Extent::from_bytes(raw.try_into().ok()?);
    let (lblk, len) = (u64::from(extent.block()), u64::from(extent.len()));
    let is_in_order = len > 0 && lblk >= frame.check_floor;
    if is_in_order {
        frame.check_floor = lblk + len;
    }
    if len == 0 || lblk + len > 1 << 32 || !edit.contains(extent.start().0, len) {
        return None;
    }
    map.is_damaged |= lblk < frame.floor || lblk + len > frame.end;
    frame.floor = lblk + len;
    Some(FoundRun {
        run: MapRun {
            lblk,
            pblk: extent.start().0,
            len,
            unwritten: extent.is_unwritten(),
        },
        is_claimed: frame.is_checked && is_in_order && lblk + len <= frame.end,
    })
}

/// The node that an index leads to, none inside if it can't be entered; none where the device can't read it. What the
/// node holds is believed before the number by which it is found.
fn index(
    edit: &Edit<'_, '_>,
    frame: &mut Frame,
    at: usize,
    seed: u32,
    met: &mut HashSet<u64>,
    map: &mut FileMap,
) -> Option<Option<Frame>> {
    let bytes = &frame.bytes;
    let lblk = u64::from(word32(bytes, at));
    let child = u64::from(word32(bytes, at + 4)) | u64::from(word16(bytes, at + 8)) << 32;
    let end = if frame.next < usize::from(word16(bytes, 2)) {
        u64::from(word32(bytes, at + ENTRY))
    } else {
        frame.end
    };
    let depth = word16(bytes, 6) - 1;
    let is_in_order = lblk >= frame.check_floor;
    if is_in_order {
        frame.check_floor = lblk + 1;
    }
    if !edit.contains(child, 1) || edit.space.metadata().contains(child) || !met.insert(child) {
        return Some(None);
    }
    let mut node = edit.block(child)?;
    if !is_header(&node) || word16(&node, 2) == 0 {
        return Some(None);
    }
    let first = u64::from(word32(&node, ENTRY));
    let is_sound = word16(&node, 6) == depth
        && lblk >= frame.floor
        && first == lblk
        && (!edit.geometry.has_metadata_csum() || extent::verify_tail(&node, seed).is_ok());
    map.is_damaged |= !is_sound;
    map.nodes.push(child);
    if frame.is_checked && is_in_order {
        map.claimed_nodes.push(child);
    }
    node[6..8].copy_from_slice(&depth.to_le_bytes());
    frame.floor = lblk + 1;
    Some(Some(Frame {
        bytes: node,
        next: 0,
        floor: lblk,
        end,
        is_checked: frame.is_checked && is_in_order,
        check_floor: lblk,
    }))
}

/// Clusters that a file with these runs and blocks of its map takes.
pub fn clusters(edit: &Edit<'_, '_>, map: &FileMap) -> u64 {
    let bits = edit.geometry.cluster_ratio_bits();
    let first_data = edit.geometry.first_data_block().0;
    let mut clusters = map.nodes.len() as u64;
    let mut last = None;
    for run in &map.runs {
        let end = run.pblk + run.len - 1;
        let (from, to) = ((run.pblk - first_data) >> bits, (end - first_data) >> bits);
        let is_continued = last == Some((from, run.lblk >> bits));
        clusters += to - from + u64::from(!is_continued);
        last = Some((to, (run.lblk + run.len - 1) >> bits));
    }
    clusters
}

/// Writes a map with these runs into the inode, in new blocks where it needs any. The old map's blocks are given up.
/// Returns the map; none, and the inode is unchanged, without space for it.
pub fn write(
    edit: &mut Edit<'_, '_>,
    ino: Ino,
    inode: &mut Inode,
    runs: Vec<MapRun>,
) -> Option<FileMap> {
    let mut map = joined(runs);
    if inode.flags().contains(Flags::EXTENTS) {
        write_extents(edit, ino, inode, &mut map)?
    } else {
        pointers::write(edit, inode, &mut map)?
    }
    Some(map)
}

/// A map of runs, those that continue each other joined.
fn joined(runs: Vec<MapRun>) -> FileMap {
    let mut map = FileMap::default();
    for run in runs {
        map.push(run);
    }
    map
}

fn write_extents(
    edit: &mut Edit<'_, '_>,
    ino: Ino,
    inode: &mut Inode,
    map: &mut FileMap,
) -> Option<()> {
    let mut extents = Vec::new();
    for run in &map.runs {
        let most = u64::from(extent::MAX_LEN) - u64::from(run.unwritten);
        let mut done = 0;
        while done < run.len {
            let len = (run.len - done).min(most);
            let lblk = LBlock(u32::try_from(run.lblk + done).ok()?);
            let start = FsBlock(run.pblk + done);
            // At most MAX_LEN.
            extents.push(Extent::new(lblk, len as u16, start, run.unwritten));
            done += len;
        }
    }
    if extents.len() <= usize::from(extent::ROOT_ENTRIES) {
        extent::encode(inode.block_area_mut(), 0, ExtentEntries::Extents(&extents));
        return Some(());
    }
    let seed = edit.seed(ino, inode);
    let room = usize::from(extent::block_entries(edit.block_bytes()));
    let mut blocks = edit.space.allocate_all(node_count(extents.len(), room))?;
    let mut level = Vec::new();
    for chunk in extents.chunks(room) {
        let block = blocks.pop()?;
        set_node(edit, block, seed, 0, ExtentEntries::Extents(chunk), map);
        level.push(ExtentIndex::new(LBlock(chunk[0].block()), FsBlock(block)));
    }
    let mut depth = 1;
    while level.len() > usize::from(extent::ROOT_ENTRIES) {
        let mut above = Vec::new();
        for chunk in level.chunks(room) {
            let block = blocks.pop()?;
            set_node(edit, block, seed, depth, ExtentEntries::Indices(chunk), map);
            above.push(ExtentIndex::new(LBlock(chunk[0].block()), FsBlock(block)));
        }
        level = above;
        depth += 1;
    }
    extent::encode(
        inode.block_area_mut(),
        depth,
        ExtentEntries::Indices(&level),
    );
    Some(())
}

/// The blocks that a tree of `extents` extents needs, with `room` entries in each.
fn node_count(extents: usize, room: usize) -> usize {
    let (mut entries, mut nodes) = (extents, 0);
    while entries > usize::from(extent::ROOT_ENTRIES) {
        entries = entries.div_ceil(room);
        nodes += entries;
    }
    nodes
}

/// The most extents for whose tree `nodes` blocks are enough.
fn most_extents(nodes: usize, room: usize) -> usize {
    // Every block has an entry at least, so more extents than this need more blocks.
    let (mut fits, mut exceeds) = (usize::from(extent::ROOT_ENTRIES), room * (nodes + 1) + 1);
    while fits + 1 < exceeds {
        let middle = fits.midpoint(exceeds);
        if node_count(middle, room) <= nodes {
            fits = middle;
        } else {
            exceeds = middle;
        }
    }
    fits
}

/// Writes a map as [`write`] does; where too few blocks are free, over the old map's own blocks. `shared` are the runs
/// of blocks with several owners, sorted. With `may_lose` the shortest runs are left out if even so there are too few.
///
/// CRASH: [`Edit::has_overwritten`].
pub fn rewrite(
    edit: &mut Edit<'_, '_>,
    ino: Ino,
    inode: &mut Inode,
    old: &FileMap,
    shared: &[(u64, u64)],
    runs: Vec<MapRun>,
    may_lose: bool,
) -> Option<FileMap> {
    if let Some(map) = write(edit, ino, inode, runs.clone()) {
        return Some(map);
    }
    // A new node has a cluster of its own, whose other blocks are cleared.
    let ratio = u64::from(edit.geometry.cluster_ratio());
    let first_data = edit.geometry.first_data_block().0;
    let is_own = |node: &u64| {
        (node - first_data).is_multiple_of(ratio) && !runs::overlap(shared, *node, ratio)
    };
    let mut own: Vec<u64> = old.claimed_nodes.iter().copied().filter(is_own).collect();
    if ratio > 1 {
        let is_data = |node: u64| {
            let mut runs = runs.iter();
            runs.any(|run| run.pblk < node + ratio && node < run.pblk + run.len)
        };
        own.retain(|node| !is_data(*node));
    }
    let map = write_in_place(edit, ino, inode, &own, runs, may_lose)?;
    if let Some(has_overwritten) = &mut edit.has_overwritten {
        **has_overwritten = true;
    }
    Some(map)
}

/// Writes a map over blocks of the old one, `own`, that nothing else claims. With `may_lose` only with those of the
/// runs for which they suffice where no other block is free: the longest ones.
fn write_in_place(
    edit: &mut Edit<'_, '_>,
    ino: Ino,
    inode: &mut Inode,
    own: &[u64],
    runs: Vec<MapRun>,
    may_lose: bool,
) -> Option<FileMap> {
    edit.space.lend(own);
    let mut runs = joined(runs).runs;
    let mut map = write(edit, ino, inode, runs.clone());
    if map.is_none() && may_lose && inode.flags().contains(Flags::EXTENTS) {
        let room = usize::from(extent::block_entries(edit.block_bytes()));
        let most = most_extents(edit.space.lent(), room);
        let pieces = |run: &MapRun| run.len.div_ceil(u64::from(extent::MAX_LEN) - 1) as usize;
        runs.sort_by_key(|run| std::cmp::Reverse(run.len));
        let mut extents = 0;
        runs.retain(|run| {
            extents += pieces(run);
            extents <= most
        });
        runs.sort_by_key(|run| run.lblk);
        map = write(edit, ino, inode, runs);
    }
    edit.space.take_back(own);
    map
}

fn set_node(
    edit: &mut Edit<'_, '_>,
    block: u64,
    seed: u32,
    depth: u16,
    entries: ExtentEntries<'_>,
    map: &mut FileMap,
) {
    edit.clear_cluster(block);
    let mut bytes = vec![0; edit.block_bytes()];
    extent::encode(&mut bytes, depth, entries);
    if edit.geometry.has_metadata_csum() {
        extent::set_tail(&mut bytes, seed);
    }
    edit.set_block(block, bytes);
    map.nodes.push(block);
}

/// Makes size and block count agree with the map. `attributes` are the sectors of the inode's attributes.
pub fn settle(edit: &Edit<'_, '_>, inode: &mut Inode, map: &FileMap, attributes: u64) {
    let block_size = edit.geometry.block_size();
    let bits = block_size.bits();
    let per_cluster = u64::from(edit.geometry.cluster_ratio()) << (bits - 9);
    let sectors = clusters(edit, map) * per_cluster + attributes;
    let huge = edit.has(Feature::HUGE_FILE);
    // A file can't have more sectors than the count holds: the map was read within the device.
    let _ = inode.set_sectors(sectors, huge, block_size);
    let size = inode.size(true);
    match inode.file_type() {
        Some(FileType::Directory) => inode.set_size(map.end() << bits),
        Some(FileType::Regular) => {
            let written = map.runs.iter().rev().find(|run| !run.unwritten);
            let last = written.map(|run| run.lblk + run.len - 1);
            let most = if inode.flags().contains(Flags::EXTENTS) {
                (1_u64 << (32 + bits)) - 1
            } else {
                indirect::max_blocks(block_size) << bits
            };
            let is_short = last.is_some_and(|last| size < last << bits)
                && !inode.flags().contains(Flags::VERITY);
            if is_short || size > most {
                inode.set_size(map.end() << bits);
            }
        }
        _ => {}
    }
}
