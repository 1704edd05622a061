//! Writes a directory anew from its entries: one block, or, with the feature, leaves in the order of their hashes below
//! an index. Blocks that the directory has are used first.

use ondisk::casefold::{self, FoldedName};
use ondisk::dirhash::{self, HashVersion, NameHash};
use ondisk::htree::{self, Kind, LEVELS_MAX, LEVELS_MAX_LARGE, Root};
use ondisk::{Feature, Flags, Ino, LBlock, inode};

use crate::map::MapRun;
use crate::repair::attributes;
use crate::repair::edit::Edit;
use crate::repair::map;
use crate::repair::parsed_directory::{ParsedDirectory, Record, packed_block};

/// Blocks of the directory that are to be written, in the order of the file.
struct Content {
    blocks: Vec<Vec<u8>>,
    is_indexed: bool,
}

/// Writes the directory with these entries and this parent.
pub fn write(
    edit: &mut Edit<'_, '_>,
    directory: &mut ParsedDirectory,
    records: Vec<Record>,
    parent: Ino,
) -> Option<()> {
    let mut slot = edit.slot(directory.ino)?;
    if directory.is_inline() {
        leave_inline(edit, directory, &mut slot)?;
    }
    let linear = linear(edit, directory, &records, parent)?;
    // e2fsck does not hash a name that has no folded form as Linux does: such a directory stays without an index.
    let has_unfolded = directory.inode.flags().contains(Flags::CASEFOLD)
        && records.iter().any(|it| casefold::fold(&it.name).is_none());
    let may_index = edit.has(Feature::DIR_INDEX) && (directory.form.hashes || !has_unfolded);
    let content = if linear.blocks.len() > 1 && may_index {
        indexed(edit, directory, records, parent).unwrap_or(linear)
    } else {
        linear
    };
    let mut places = Vec::new();
    for run in &directory.map.runs {
        places.extend(run.pblk..run.pblk + run.len);
    }
    if edit.geometry.cluster_ratio() > 1 {
        // A block's place in its cluster follows from its place in the file.
        let whole = directory.map.runs.first().is_some_and(|run| {
            run.lblk == 0 && run.len >= content.blocks.len() as u64 && !directory.has_holes
        });
        if !whole {
            places = clustered(edit, content.blocks.len())?;
        }
    }
    let mut runs = Vec::new();
    for (lblk, bytes) in content.blocks.into_iter().enumerate() {
        let pblk = match places.get(lblk) {
            Some(block) => *block,
            None => edit.new_block()?,
        };
        edit.set_block(pblk, bytes);
        runs.push(MapRun {
            lblk: lblk as u64,
            pblk,
            len: 1,
            unwritten: false,
        });
    }
    let flags = directory.inode.flags().without(Flags::INDEX);
    directory.inode.set_flags(if content.is_indexed {
        flags.with(Flags::INDEX)
    } else {
        flags
    });
    let map = map::write(edit, directory.ino, &mut directory.inode, runs)?;
    let sectors = attributes::sectors(edit, directory.ino, &directory.inode, &slot);
    map::settle(edit, &mut directory.inode, &map, sectors);
    directory.inode.write_to(&mut slot);
    edit.set_slot(directory.ino, slot)
}

/// New blocks for a directory on a file system with clusters.
fn clustered(edit: &mut Edit<'_, '_>, blocks: usize) -> Option<Vec<u64>> {
    let ratio = u64::from(edit.geometry.cluster_ratio());
    let mut places = Vec::new();
    while places.len() < blocks {
        let first = edit.new_block()?;
        places.extend(first..first + ratio);
    }
    Some(places)
}

/// An inline directory gets blocks: the flag and the attribute go.
fn leave_inline(
    edit: &Edit<'_, '_>,
    directory: &mut ParsedDirectory,
    slot: &mut [u8],
) -> Option<()> {
    if inode::attribute_area(slot).is_some() && !attributes::set_inline_data(slot, None) {
        return None;
    }
    directory.inode.block_area_mut().fill(0);
    let flags = directory.inode.flags().without(Flags::INLINE_DATA);
    directory.inode.set_flags(if edit.has(Feature::EXTENT) {
        flags.with(Flags::EXTENTS)
    } else {
        flags
    });
    Some(())
}

fn linear(
    edit: &Edit<'_, '_>,
    directory: &ParsedDirectory,
    records: &[Record],
    parent: Ino,
) -> Option<Content> {
    let (form, seed) = (directory.form, directory.seed(edit));
    let mut blocks = Vec::new();
    let mut from = 0;
    while from < records.len() || blocks.is_empty() {
        let dots = blocks.is_empty().then_some((directory.ino, parent));
        let mut room = form.usable() - if dots.is_some() { 24 } else { 0 };
        let mut to = from;
        while let Some(record) = records.get(to)
            && form.record_len(&record.name) <= room
        {
            room -= form.record_len(&record.name);
            to += 1;
        }
        blocks.push(packed_block(edit, form, dots, &records[from..to], seed)?);
        from = to;
    }
    Some(Content {
        blocks,
        is_indexed: false,
    })
}

/// The hash by which the index finds a name.
fn hash(
    edit: &Edit<'_, '_>,
    directory: &ParsedDirectory,
    version: HashVersion,
    record: &Record,
) -> Option<NameHash> {
    let flags = directory.inode.flags();
    let seed = edit.geometry.hash_seed();
    if directory.form.hashes {
        return record.hash;
    }
    if flags.contains(Flags::CASEFOLD) {
        FoldedName::new(&record.name).hash(version, &seed)
    } else {
        dirhash::hash(version, &seed, &record.name)
    }
}

/// Leaves in the order of hashes and the index above them; none where the index would be too deep.
fn indexed(
    edit: &Edit<'_, '_>,
    directory: &ParsedDirectory,
    records: Vec<Record>,
    parent: Ino,
) -> Option<Content> {
    let (form, seed) = (directory.form, directory.seed(edit));
    let stored = if form.hashes {
        HashVersion::SipHash
    } else {
        HashVersion::from_code(edit.geometry.hash_version())?.as_stored()
    };
    let version = if edit.geometry.has_unsigned_hash() {
        stored.unsigned()
    } else {
        stored
    };
    let mut hashed = Vec::new();
    for record in records {
        let hash = hash(edit, directory, version, &record)?;
        hashed.push(((hash.major, hash.minor), record));
    }
    hashed.sort_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name)));
    let (mut blocks, mut level) = leaves(edit, directory, &hashed, seed)?;
    let most = if edit.has(Feature::LARGE_DIR) {
        LEVELS_MAX_LARGE
    } else {
        LEVELS_MAX
    };
    let mut levels = 0;
    while level.len() > Kind::Root.limit(form.block_size, form.checksum) {
        if levels == most {
            return None;
        }
        level = nodes(edit, directory, &level, &mut blocks, seed);
        levels += 1;
    }
    let mut root = vec![0; edit.block_bytes()];
    let info = Root {
        version: stored,
        levels,
    };
    htree::write_root(
        &mut root,
        form,
        info,
        directory.ino,
        parent,
        level.into_iter(),
    );
    if form.checksum {
        htree::seal(&mut root, Kind::Root, seed);
    }
    blocks[0] = root;
    Some(Content {
        blocks,
        is_indexed: true,
    })
}

/// A level of the index: where the range of each block begins, and the block.
type Level = Vec<(u32, LBlock)>;

/// The leaves, behind an empty place for the root, and the level that leads to them.
fn leaves(
    edit: &Edit<'_, '_>,
    directory: &ParsedDirectory,
    hashed: &[((u32, u32), Record)],
    seed: u32,
) -> Option<(Vec<Vec<u8>>, Level)> {
    let form = directory.form;
    let mut blocks = vec![Vec::new()];
    let mut level = Vec::new();
    let mut from = 0;
    while from < hashed.len() {
        // A fifth of each leaf stays free, so that the next names do not split it.
        let mut room = form.usable() - form.usable() / 5;
        let mut records = Vec::new();
        let first = hashed[from].0.0;
        let continues = from > 0 && hashed[from - 1].0.0 == first;
        while let Some((_, record)) = hashed.get(from)
            && (form.record_len(&record.name) <= room || records.is_empty())
        {
            room = room.saturating_sub(form.record_len(&record.name));
            records.push(record.clone());
            from += 1;
        }
        level.push((
            first & !1 | u32::from(continues),
            LBlock(blocks.len() as u32),
        ));
        blocks.push(packed_block(edit, form, None, &records, seed)?);
    }
    Some((blocks, level))
}

/// Nodes above a level of the index; returns the level that they make.
fn nodes(
    edit: &Edit<'_, '_>,
    directory: &ParsedDirectory,
    below: &[(u32, LBlock)],
    blocks: &mut Vec<Vec<u8>>,
    seed: u32,
) -> Level {
    let form = directory.form;
    let mut level = Vec::new();
    for chunk in below.chunks(Kind::Node.limit(form.block_size, form.checksum)) {
        let mut node = vec![0; edit.block_bytes()];
        htree::write_node(&mut node, form, chunk.iter().copied());
        if form.checksum {
            htree::seal(&mut node, Kind::Node, seed);
        }
        level.push((chunk[0].0, LBlock(blocks.len() as u32)));
        blocks.push(node);
    }
    level
}
