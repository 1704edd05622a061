//! Repairs directories: reads the entries that can be read, decides which of them stay and under which name, and
//! writes them back.
//!
//! If only entries are wrong, each entry stays in its block, and the index is not touched. If a block is missing, the
//! index is wrong, or an entry needs another block, the whole directory is rebuilt ([`super::rebuild`]).

use std::collections::{BTreeMap, HashMap, HashSet};

use ondisk::dirent::{self, is_dots};
use ondisk::{Feature, FileType, Flags, Ino, Inode, htree, inode, xattr};

use crate::repair::edit::Edit;
use crate::repair::map;
use crate::repair::parsed_directory::{self, ParsedDirectory, Record, pack, packed_block};
use crate::repair::rebuild;
use crate::run::Facts;
use crate::table::State;

/// Bytes of the longest suffix of a new name.
const SUFFIX_MAX: usize = "~4294967295".len();

/// Names that must be removed although the directory's own entries don't show it.
#[derive(Default)]
pub struct Parents {
    /// By a directory that has several names, the parent that keeps one of them.
    pub chosen: BTreeMap<u32, u32>,
    /// Directories that lose their name because it closes a loop.
    pub cut: HashSet<u32>,
    /// Pairs of a directory and an inode that it must not name.
    pub refused: HashSet<(u32, u32)>,
}

/// Judges the records of one directory.
pub struct Judge<'a, 'e, 'd> {
    pub edit: &'a Edit<'e, 'd>,
    pub facts: &'a Facts,
    pub parents: &'a Parents,
    pub ino: Ino,
    pub flags: Flags,
    names: HashSet<Vec<u8>>,
    /// By the start of a name, the number with which the search for a free suffix begins. Without it, many equal
    /// names would take quadratic time.
    numbers: HashMap<Vec<u8>, u32>,
    /// Subdirectories that have kept a name so far.
    children: HashSet<u32>,
    /// Whether a name was changed.
    pub is_renamed: bool,
}

impl<'a, 'e, 'd> Judge<'a, 'e, 'd> {
    pub fn new(
        edit: &'a Edit<'e, 'd>,
        facts: &'a Facts,
        parents: &'a Parents,
        directory: &ParsedDirectory,
    ) -> Judge<'a, 'e, 'd> {
        Judge {
            edit,
            facts,
            parents,
            ino: directory.ino,
            flags: directory.inode.flags(),
            names: HashSet::new(),
            numbers: HashMap::new(),
            children: HashSet::new(),
            is_renamed: false,
        }
    }

    /// Returns the record as it should be, or `None` if it must be removed.
    pub fn judge(&mut self, record: &Record) -> Option<Record> {
        let geometry = &self.edit.geometry;
        if record.ino < geometry.first_ino() || record.ino.0 > geometry.inodes_count() {
            return None;
        }
        let state = self.facts.inodes.state(record.ino);
        // An inode that the device can't read may be in use, so its name stays.
        let is_unread = state == State::UNREAD;
        if !state.is_used() && !is_unread || is_dots(&record.name) || record.name.is_empty() {
            return None;
        }
        if self.parents.refused.contains(&(self.ino.0, record.ino.0)) {
            return None;
        }
        let file_type = state.file_type();
        if file_type == Some(FileType::Directory) {
            let chosen = self.parents.chosen.get(&record.ino.0);
            let is_other = chosen.is_some_and(|parent| *parent != self.ino.0);
            if is_other
                || self.parents.cut.contains(&record.ino.0)
                || !self.children.insert(record.ino.0)
            {
                return None;
            }
        }
        let mut record = record.clone();
        if !is_unread {
            record.file_type = file_type.filter(|_| self.edit.has(Feature::FILETYPE));
        }
        let is_encrypted = self.flags.contains(Flags::ENCRYPT);
        if is_encrypted {
            if record.name.len() < 16 {
                return None;
            }
        } else {
            self.mend_name(&mut record);
        }
        if !self.names.insert(record.name.clone()) {
            if is_encrypted {
                return None;
            }
            self.rename(&mut record);
        }
        Some(record)
    }

    fn mend_name(&mut self, record: &mut Record) {
        let is_strict = self.flags.contains(Flags::CASEFOLD)
            && self.edit.sb.encoding_flags() & ondisk::casefold::STRICT_FLAG != 0
            && !ondisk::casefold::is_valid(&record.name);
        for byte in &mut record.name {
            if matches!(*byte, b'/' | 0) || is_strict && !byte.is_ascii() {
                *byte = b'.';
                self.is_renamed = true;
            }
        }
        if is_dots(&record.name) {
            self.rename(record);
        }
    }

    /// Gives a record a name that the directory does not have yet.
    fn rename(&mut self, record: &mut Record) {
        self.is_renamed = true;
        let start = record.name.len().min(dirent::NAME_MAX - SUFFIX_MAX);
        let numbers = self.numbers.entry(record.name[..start].to_vec());
        let next = numbers.or_default();
        for number in *next.. {
            *next = number;
            let suffix = format!("~{number}");
            let kept = record.name.len().min(dirent::NAME_MAX - suffix.len());
            let mut name = record.name[..kept].to_vec();
            name.extend_from_slice(suffix.as_bytes());
            if self.names.insert(name.clone()) {
                record.name = name;
                return;
            }
        }
    }
}

/// Corrects a directory's entries and makes `change`. Returns `None`, and changes nothing, if the inode is not a
/// directory or a block of it can't be read.
pub fn mend(
    edit: &mut Edit<'_, '_>,
    facts: &Facts,
    parents: &Parents,
    ino: Ino,
    change: &DirectoryChange,
) -> Option<()> {
    let mut directory = parsed_directory::read(edit, ino)?;
    let mut judge = Judge::new(edit, facts, parents, &directory);
    let mut kept: Vec<Vec<Record>> = Vec::new();
    for part in &directory.parts {
        let mut records: Vec<Record> = part
            .records
            .iter()
            .filter_map(|it| judge.judge(it))
            .collect();
        for record in &mut records {
            if change.moves.as_ref() == Some(&record.name) {
                judge.rename(record);
            }
        }
        kept.push(records);
    }
    let is_renamed = judge.is_renamed;
    let parent = change
        .parent
        .unwrap_or_else(|| parent_of(facts, &directory));
    let mut rebuilds = change.rebuilds || directory.has_holes;
    rebuilds |= directory.is_indexed() && (is_renamed || !directory.has_dots);
    rebuilds |= directory
        .parts
        .iter()
        .any(|part| part.is_index && part.is_damaged);
    let unplaced = place(&directory, &mut kept, &change.more);
    rebuilds |= !unplaced.is_empty();
    if !rebuilds && is_packed(&directory, &kept) {
        return write_parts(edit, &mut directory, &kept, parent);
    }
    let mut all: Vec<Record> = kept.into_iter().flatten().collect();
    let known: HashSet<(&[u8], Ino)> = all.iter().map(|it| (&it.name[..], it.ino)).collect();
    let is_new = |it: &Record| !known.contains(&(&it.name[..], it.ino));
    let new: Vec<Record> = unplaced.into_iter().filter(is_new).collect();
    all.extend(new);
    rebuild::write(edit, &mut directory, all, parent)
}

/// What '..' should name: the directory that it names now, or else the one that has this directory's name, or else the
/// root.
fn parent_of(facts: &Facts, directory: &ParsedDirectory) -> Ino {
    let is_directory = |ino: u32| {
        let state = facts.inodes.state(Ino(ino));
        state.is_used() && state.file_type() == Some(FileType::Directory)
    };
    if directory.ino == Ino::ROOT {
        return Ino::ROOT;
    }
    if is_directory(directory.dotdot) {
        return Ino(directory.dotdot);
    }
    let node = facts.tree.find(directory.ino);
    let parent = node.map_or(0, |node| node.parent.get());
    if parent == 0 { Ino::ROOT } else { Ino(parent) }
}

/// What is changed in a directory in addition to entries that are wrong.
#[derive(Default)]
pub struct DirectoryChange {
    /// The index is wrong, so the directory is rebuilt.
    pub rebuilds: bool,
    /// What '..' must name; without it, [`mend`] finds the parent.
    pub parent: Option<Ino>,
    /// Entries to be added.
    pub more: Vec<Record>,
    /// The name of an entry that is renamed, because one of `more` needs it.
    pub moves: Option<Vec<u8>>,
}

/// Bytes that these records take in a part, with '.' and '..' if they are in it. They are in the first block, but an
/// inline directory stores them apart from its records.
fn used(directory: &ParsedDirectory, index: usize, records: &[Record]) -> usize {
    let dots = if index == 0 && !directory.is_inline() {
        24
    } else {
        0
    };
    let form = directory.form;
    dots + records
        .iter()
        .map(|record| form.record_len(&record.name))
        .sum::<usize>()
}

/// Adds records, in order, to parts that have room. Returns the records that found none. In an indexed directory the
/// hash of a name decides its part, so all records are returned.
fn place(directory: &ParsedDirectory, kept: &mut [Vec<Record>], records: &[Record]) -> Vec<Record> {
    if directory.is_indexed() {
        return records.to_vec();
    }
    let mut rest = records.iter().peekable();
    for (index, part) in directory.parts.iter().enumerate() {
        let used = used(directory, index, &kept[index]);
        let mut room = if part.room >= 12 {
            part.room.saturating_sub(used)
        } else {
            0
        };
        let need = |record: &Record| directory.form.record_len(&record.name);
        while let Some(record) = rest.next_if(|record| need(record) <= room) {
            room -= need(record);
            kept[index].push(record.clone());
        }
    }
    rest.cloned().collect()
}

/// Whether the records of each part fit into it.
fn is_packed(directory: &ParsedDirectory, kept: &[Vec<Record>]) -> bool {
    let mut parts = directory.parts.iter().zip(kept).enumerate();
    parts.all(|(index, (part, records))| {
        part.is_index && records.is_empty() || used(directory, index, records) <= part.room
    })
}

fn write_parts(
    edit: &mut Edit<'_, '_>,
    directory: &mut ParsedDirectory,
    kept: &[Vec<Record>],
    parent: Ino,
) -> Option<()> {
    if directory.is_inline() {
        return write_inline(edit, directory, kept, parent);
    }
    let seed = directory.seed(edit);
    for (index, (part, records)) in directory.parts.iter().zip(kept).enumerate() {
        let block = part.place?;
        if part.is_index {
            if index == 0 {
                let mut bytes = edit.block(block)?;
                bytes[12..16].copy_from_slice(&parent.0.to_le_bytes());
                if directory.form.checksum {
                    htree::seal(&mut bytes, htree::Kind::Root, seed);
                }
                if edit.block(block).as_ref() != Some(&bytes) {
                    edit.set_block(block, bytes);
                }
            }
            continue;
        }
        let is_same = *records == part.records && !part.is_damaged;
        let has_dots = directory.has_dots && directory.dotdot == parent.0;
        if is_same && (index > 0 || has_dots) {
            continue;
        }
        let dots = (index == 0).then_some((directory.ino, parent));
        let bytes = packed_block(edit, directory.form, dots, records, seed)?;
        edit.set_block(block, bytes);
    }
    Some(())
}

fn write_inline(
    edit: &mut Edit<'_, '_>,
    directory: &ParsedDirectory,
    kept: &[Vec<Record>],
    parent: Ino,
) -> Option<()> {
    let form = directory.form.without_checksum();
    let mut slot = edit.slot(directory.ino)?;
    let mut inode = directory.inode;
    let area = inode.block_area_mut();
    area[..4].copy_from_slice(&parent.0.to_le_bytes());
    pack(&mut area[4..], form, kept.first()?)?;
    inode.write_to(&mut slot);
    if let (Some(part), Some(records)) = (directory.parts.get(1), kept.get(1))
        && part.room >= 12
    {
        let mut value = vec![0; part.room];
        pack(&mut value, form, records)?;
        let area = inode::attribute_area_mut(&mut slot)?;
        let old = area.to_vec();
        let entries = xattr::entries(xattr::ListPlace::Inode(&old)).ok()?;
        let entries: Vec<xattr::XattrEntry<'_>> = entries
            .map(|entry| {
                if entry.index == xattr::INDEX_SYSTEM && entry.name == b"data" {
                    xattr::XattrEntry {
                        value: xattr::Value::Here(&value),
                        hash: 0,
                        ..entry
                    }
                } else {
                    entry
                }
            })
            .collect();
        if !xattr::encode_inode_area(area, &entries) {
            return None;
        }
    }
    edit.set_slot(directory.ino, slot)
}

/// Makes an empty directory with one new block, and returns its inode. The caller stores it in the slot of `ino`, in
/// place of `old`.
pub fn new_inode(edit: &mut Edit<'_, '_>, ino: Ino, parent: Ino, old: &Inode) -> Option<Inode> {
    let block = edit.new_block()?;
    let mut inode = Inode::zeroed();
    inode.set_generation(old.generation());
    inode.set_mode(FileType::Directory.mode_bits() | 0o755);
    inode.set_links_count(2);
    let time = ondisk::Timestamp::decode(edit.now, 0);
    inode.set_atime(time);
    inode.set_ctime(time);
    inode.set_mtime(time);
    if edit.geometry.inode_size() > inode::BASE_SIZE {
        inode.set_extra_size(old.extra_size().clamp(4, inode::EXTRA_SIZE));
    }
    if edit.has(Feature::EXTENT) {
        inode.set_flags(Flags::EXTENTS);
    }
    let seed = edit.seed(ino, &inode);
    let bytes = packed_block(
        edit,
        parsed_directory::form(edit, &inode),
        Some((ino, parent)),
        &[],
        seed,
    )?;
    edit.set_block(block, bytes);
    let run = crate::map::MapRun {
        lblk: 0,
        pblk: block,
        len: 1,
        unwritten: false,
    };
    let map = map::write(edit, ino, &mut inode, vec![run])?;
    map::settle(edit, &mut inode, &map, 0);
    Some(inode)
}
