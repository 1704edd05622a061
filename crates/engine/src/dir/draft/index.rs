//! Adding a name to an indexed directory, and making one of a linear directory, on a draft's copies.
//!
//! A full leaf is split in two halves by hash. If one hash is on both sides, the index entry of the second half has a
//! bit that marks it as the continuation of the first. A full index block is split in two halves before the leaf is; a
//! full root moves its entries to a new node, if the file system allows another level.

use ondisk::dirent::{self, DirRecord};
use ondisk::dirhash::HashVersion;
use ondisk::htree::{self, IndexBlock, Kind};
use ondisk::{Corrupt, Feature, FileType, Ino, LBlock, Site};

use super::DirDraft;
use crate::core::Error;
use crate::dir::search::{Frame, Way};

/// Descents until a name is in: each makes room at one level of the tree.
const DESCENTS: u8 = 2 * htree::LEVELS_MAX_LARGE + 4;

/// A record taken out of its block.
struct Record {
    hash: u32,
    ino: Ino,
    name: Vec<u8>,
    file_type: Option<FileType>,
}

/// The entries of an index block, in order.
type Entries = Vec<(u32, LBlock)>;

/// Adds a name that is not there to an indexed directory.
pub(super) fn add(
    draft: &mut DirDraft<'_>,
    name: &[u8],
    ino: Ino,
    file_type: FileType,
) -> Result<(), Error> {
    for _ in 0..DESCENTS {
        let directory = &draft.directory;
        let hash = |version, seed: &[u32; 4]| directory.name_hash(version, seed, name);
        let Some(way) = directory.descend(hash)? else {
            break;
        };
        if draft.insert(way.leaf, name, ino, file_type)? {
            return Ok(());
        }
        make_room(draft, &way)?;
    }
    Err(draft.directory.corrupt(Corrupt::at(Site::IndexLeaf)))
}

/// Splits what is full: the highest index block that has to be, else the leaf.
fn make_room(draft: &mut DirDraft<'_>, way: &Way) -> Result<(), Error> {
    let is_full = |frame: &Frame| -> Result<bool, Error> {
        let count = index_of(draft, frame)?.len();
        Ok(count >= limit(draft, frame.number))
    };
    let mut full = None;
    for (level, frame) in way.frames.iter().enumerate().rev() {
        if !is_full(frame)? {
            break;
        }
        full = Some(level);
    }
    match full {
        None => match way.frames.last() {
            Some(frame) => split_leaf(draft, frame, way.leaf),
            None => Ok(()),
        },
        Some(0) => add_level(draft),
        Some(level) => split_node(draft, &way.frames[level - 1], &way.frames[level]),
    }
}

fn limit(draft: &DirDraft<'_>, number: LBlock) -> usize {
    let form = draft.directory.form;
    let kind = match number {
        LBlock(0) => Kind::Root,
        _ => Kind::Node,
    };
    kind.limit(form.block_size, form.checksum)
}

fn entries_of(index: &IndexBlock<'_>) -> Entries {
    (0..index.count())
        .map(|i| (index.hash(i), index.block(i)))
        .collect()
}

fn index_of(draft: &DirDraft<'_>, frame: &Frame) -> Result<Entries, Error> {
    let directory = &draft.directory;
    let index = directory.index(frame.number, &frame.block);
    let index = index.map_err(|corrupt| directory.corrupt(corrupt))?;
    Ok(entries_of(&index))
}

/// Lets an index block hold these entries.
fn write_index(
    draft: &mut DirDraft<'_>,
    number: LBlock,
    entries: Entries,
    more_levels: u8,
) -> Result<(), Error> {
    let form = draft.directory.form;
    if number != LBlock(0) {
        return draft.edit(number, |bytes| {
            htree::write_node(bytes, form, entries.into_iter());
            Ok(())
        });
    }
    let directory = &draft.directory;
    let block = directory.indexed_block(LBlock(0))?;
    let (mut root, _) = directory
        .root(&block)
        .map_err(|corrupt| directory.corrupt(corrupt))?;
    root.levels += more_levels;
    let (own, parent) = (directory.inode.ino(), parent_of(draft)?);
    draft.edit(number, |bytes| {
        htree::write_root(bytes, form, root, own, parent, entries.into_iter());
        Ok(())
    })
}

fn parent_of(draft: &DirDraft<'_>) -> Result<Ino, Error> {
    match draft.find(b"..")? {
        Some(place) => Ok(place.ino),
        None => Err(draft.directory.corrupt(Corrupt::at(Site::IndexSplit))),
    }
}

/// Puts an entry behind the one that was taken.
fn insert_entry(
    draft: &mut DirDraft<'_>,
    frame: &Frame,
    hash: u32,
    block: LBlock,
) -> Result<(), Error> {
    let mut entries = index_of(draft, frame)?;
    entries.insert(frame.taken + 1, (hash, block));
    write_index(draft, frame.number, entries, 0)
}

fn add_level(draft: &mut DirDraft<'_>) -> Result<(), Error> {
    let block = draft.directory.indexed_block(LBlock(0))?;
    let (root, index) = draft
        .directory
        .root(&block)
        .map_err(|corrupt| draft.directory.corrupt(corrupt))?;
    let most = if draft.directory.volume.has(Feature::LARGE_DIR) {
        htree::LEVELS_MAX_LARGE
    } else {
        htree::LEVELS_MAX
    };
    if root.levels >= most {
        return Err(Error::DirectoryFull);
    }
    let entries = entries_of(&index);
    let below = draft.append()?;
    write_index(draft, below, entries, 0)?;
    write_index(draft, LBlock(0), vec![(0, below)], 1)
}

fn split_node(draft: &mut DirDraft<'_>, above: &Frame, frame: &Frame) -> Result<(), Error> {
    let mut lower = index_of(draft, frame)?;
    let upper = lower.split_off(lower.len() / 2);
    // A full node has more than one entry.
    let Some((hash, _)) = upper.first().copied() else {
        return Err(draft.directory.corrupt(Corrupt::at(Site::IndexEntries)));
    };
    let new = draft.append()?;
    write_index(draft, new, upper, 0)?;
    write_index(draft, frame.number, lower, 0)?;
    insert_entry(draft, above, hash, new)
}

/// The used records of a leaf with their hashes, except those in front of byte `from`.
fn records(
    draft: &DirDraft<'_>,
    bytes: &[u8],
    from: usize,
    version: HashVersion,
) -> Result<Vec<Record>, Error> {
    let directory = &draft.directory;
    let seed = directory.volume.geometry().hash_seed();
    let mut records = Vec::new();
    for entry in dirent::entries_from(bytes, directory.form, from) {
        let entry: DirRecord<'_> = entry.map_err(|corrupt| directory.corrupt(corrupt))?;
        if entry.is_used() {
            let hash = directory.name_hash(version, &seed, entry.name);
            records.push(Record {
                hash: hash.unwrap_or_default(),
                ino: entry.ino,
                name: entry.name.to_vec(),
                file_type: entry.file_type,
            });
        }
    }
    Ok(records)
}

fn rewrite(draft: &mut DirDraft<'_>, number: LBlock, records: &[Record]) -> Result<(), Error> {
    let records = records
        .iter()
        .map(|record| (record.ino, &record.name[..], record.file_type));
    draft.rewrite(number, records)
}

/// Moves the upper half of a leaf's records, by hash, to a new leaf.
fn split_leaf(draft: &mut DirDraft<'_>, frame: &Frame, leaf: LBlock) -> Result<(), Error> {
    let root = draft.directory.indexed_block(LBlock(0))?;
    let (root, _) = draft
        .directory
        .root(&root)
        .map_err(|corrupt| draft.directory.corrupt(corrupt))?;
    let version = draft.directory.hash_version(root.version);
    let block = draft.directory.indexed_block(leaf)?;
    let mut records = records(draft, &block, 0, version)?;
    records.sort_by_key(|record| record.hash);
    let Some(half) = half(draft, &records) else {
        // Too few to share: the room is there, in pieces.
        return rewrite(draft, leaf, &records);
    };
    let (lower, upper) = records.split_at(half);
    let hash = upper[0].hash;
    let continues = lower[half - 1].hash == hash;
    let new = draft.append()?;
    rewrite(draft, new, upper)?;
    rewrite(draft, leaf, lower)?;
    insert_entry(draft, frame, hash | u32::from(continues), new)
}

/// How many records the lower half has, so that both take about the same room; `None` for fewer than two records. The
/// halves differ by one record at most, and a block has room for more than three of the longest.
fn half(draft: &DirDraft<'_>, records: &[Record]) -> Option<usize> {
    let lens = || {
        records
            .iter()
            .map(|record| draft.directory.form.record_len(&record.name))
    };
    let total: usize = lens().sum();
    let mut lower = 0;
    let apart = lens().map(|len| {
        lower += len;
        (2 * lower).abs_diff(total)
    });
    let best = apart
        .take(records.len().saturating_sub(1))
        .enumerate()
        .min_by_key(|(_, apart)| *apart);
    best.map(|(last, _)| last + 1)
}

/// Makes a linear directory of one block an indexed one; `false` if the file system's hash takes a key or is unknown.
pub(super) fn convert(draft: &mut DirDraft<'_>) -> Result<bool, Error> {
    let directory = &draft.directory;
    let code = directory.volume.geometry().hash_version();
    let version = HashVersion::from_code(code).map(HashVersion::as_stored);
    let Some(version) = version.filter(|version| *version != HashVersion::SipHash) else {
        return Ok(false);
    };
    let broken = || directory.corrupt(Corrupt::at(Site::IndexConversion));
    let block = directory.indexed_block(LBlock(0))?;
    let mut dots = dirent::entries(&block, directory.form);
    let (own, parent) = match (dots.next(), dots.next()) {
        (Some(Ok(own)), Some(Ok(parent))) if own.name == b"." && parent.name == b".." => {
            (own, parent)
        }
        _ => return Err(broken()),
    };
    let (from, own, parent) = (parent.offset + parent.len, own.ino, parent.ino);
    let names = records(draft, &block, from, directory.hash_version(version))?;
    let leaf = draft.append()?;
    rewrite(draft, leaf, &names)?;
    let form = draft.directory.form;
    draft.edit(LBlock(0), |bytes| {
        let root = htree::Root { version, levels: 0 };
        htree::write_root(bytes, form, root, own, parent, [(0, leaf)].into_iter());
        Ok(())
    })?;
    draft.set_indexed();
    Ok(true)
}
