//! Puts what has no name into lost+found, which is made where it is missing.

use std::collections::{BTreeMap, BTreeSet};

use ondisk::{Feature, FileType, Flags, Group, Ino, Inode, group_desc, inode, xattr};

use crate::problem::Code;
use crate::repair::directory::{self, DirectoryChange, Parents};
use crate::repair::edit::Edit;
use crate::repair::parsed_directory::{self, Record};
use crate::report::Problem;
use crate::run::Facts;
use crate::table::State;

/// The name of the directory.
const NAME: &[u8] = b"lost+found";

/// Chooses, for each directory with several names, the one directory that keeps a name: the one that its '..' names,
/// else the one with the smallest number. The choice does not depend on which name the check met first.
pub fn choose_parents(facts: &Facts, problems: &[Problem]) -> Parents {
    let mut names: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for problem in problems
        .iter()
        .filter(|it| it.code == Code::DirectoryLinked)
    {
        if let (Some(parent), Some(child)) = (problem.ino, problem.found)
            && let Ok(child) = u32::try_from(child)
        {
            names.entry(child).or_default().insert(parent);
        }
    }
    let mut parents = Parents::default();
    for (child, mut named_in) in names {
        let Some(node) = facts.tree.find(Ino(child)) else {
            continue;
        };
        named_in.insert(node.parent.get());
        let dotdot = node.dotdot.get();
        let first = named_in.iter().copied().find(|parent| *parent != 0);
        let chosen = if named_in.contains(&dotdot) && dotdot != 0 {
            Some(dotdot)
        } else {
            first
        };
        if let Some(chosen) = chosen {
            parents.chosen.insert(child, chosen);
        }
    }
    parents
}

/// Names every inode that has no name, and sets '..' right.
pub fn run(edit: &mut Edit<'_, '_>, facts: &Facts, problems: &[Problem]) -> Option<()> {
    let inos = |code: Code| {
        let of_code = problems.iter().filter(move |it| it.code == code);
        of_code.filter_map(|it| it.ino).collect::<BTreeSet<u32>>()
    };
    for problem in problems.iter().filter(|it| it.code == Code::DotDotParent) {
        let (Some(ino), Some(parent)) = (problem.ino, problem.expected) else {
            continue;
        };
        let change = DirectoryChange {
            parent: u32::try_from(parent).ok().map(Ino),
            ..DirectoryChange::default()
        };
        directory::mend(edit, facts, &Parents::default(), Ino(ino), &change);
    }
    let unattached = inos(Code::Unattached);
    let (heads, cut) = heads(facts, &inos(Code::Unconnected));
    let mut records = Vec::new();
    for ino in unattached.iter().filter(|ino| !heads.contains(ino)) {
        let ino = Ino(*ino);
        let is_directory = facts.inodes.state(ino).file_type() == Some(FileType::Directory);
        if is_directory || is_worthless(edit, ino) {
            // A directory without a name is a head, or lost+found can't be made.
            if !is_directory {
                edit.clear_inode(ino);
            }
            continue;
        }
        if facts.inodes.state(ino).has(State::VALUE) {
            become_file(edit, ino);
        }
        records.extend(record(facts, ino));
    }
    records.extend(heads.iter().filter_map(|ino| record(facts, Ino(*ino))));
    if records.is_empty() {
        return Some(());
    }
    let lost_found = find(edit, facts)?;
    let parents = Parents {
        cut: cut.keys().copied().collect(),
        ..Parents::default()
    };
    for parent in cut.values().copied().collect::<BTreeSet<u32>>() {
        directory::mend(
            edit,
            facts,
            &parents,
            Ino(parent),
            &DirectoryChange::default(),
        );
    }
    for head in &heads {
        let change = DirectoryChange {
            parent: Some(lost_found),
            ..DirectoryChange::default()
        };
        directory::mend(edit, facts, &parents, Ino(*head), &change);
    }
    let change = DirectoryChange {
        more: records,
        ..DirectoryChange::default()
    };
    directory::mend(edit, facts, &parents, lost_found, &change)
}

fn record(facts: &Facts, ino: Ino) -> Option<Record> {
    let file_type = facts.inodes.state(ino).file_type()?;
    Some(Record::new(
        format!("#{}", ino.0).as_bytes(),
        ino,
        file_type,
    ))
}

/// The directories that must get a name so that all of these hang together again: those without a parent, and of each
/// loop the one with the smallest number, which loses the name it has (in the directory beside it).
fn heads(facts: &Facts, unconnected: &BTreeSet<u32>) -> (BTreeSet<u32>, BTreeMap<u32, u32>) {
    let parent = |ino: u32| {
        let node = facts.tree.find(Ino(ino));
        node.map_or(0, |node| node.parent.get())
    };
    let mut heads = BTreeSet::new();
    let mut cut = BTreeMap::new();
    let mut done: BTreeSet<u32> = BTreeSet::new();
    for ino in unconnected {
        let mut path = Vec::new();
        let mut met = BTreeSet::new();
        let mut at = *ino;
        while !done.contains(&at) && met.insert(at) {
            path.push(at);
            let up = parent(at);
            if up == 0 || !unconnected.contains(&up) {
                heads.insert(at);
                break;
            }
            at = up;
        }
        if let Some(start) = path.iter().position(|ino| *ino == at)
            && !heads.contains(&at)
            && let Some(first) = path[start..].iter().min()
        {
            heads.insert(*first);
            cut.insert(*first, parent(*first));
        }
        done.extend(path);
    }
    (heads, cut)
}

/// Whether an inode without a name has nothing worth a name: an empty file without attributes in its inode.
fn is_worthless(edit: &Edit<'_, '_>, ino: Ino) -> bool {
    let (Some(inode), Some(slot)) = (edit.inode(ino), edit.slot(ino)) else {
        return false;
    };
    let has_attributes = inode::attribute_area(&slot).is_some_and(xattr::is_area);
    inode.file_type() == Some(FileType::Regular)
        && inode.size(true) == 0
        && inode.blocks_lo() == 0
        && !inode.flags().contains(Flags::INLINE_DATA)
        && !has_attributes
}

/// Makes a file of the value of an attribute that is gone: the value may be all that is left of it.
fn become_file(edit: &mut Edit<'_, '_>, ino: Ino) -> Option<()> {
    let mut inode = edit.inode(ino)?;
    inode.set_flags(inode.flags().without(Flags::EA_INODE));
    edit.set_inode(ino, &inode)
}

/// lost+found, made where it is missing.
fn find(edit: &mut Edit<'_, '_>, facts: &Facts) -> Option<Ino> {
    let root = parsed_directory::read(edit, Ino::ROOT)?;
    let mut records = root.parts.iter().flat_map(|part| &part.records);
    let old = records
        .find(|record| record.name == NAME)
        .map(|record| record.ino);
    if let Some(ino) = old {
        let is_plain = |inode: Inode| {
            !inode.flags().contains(Flags::ENCRYPT)
                && inode.file_type() == Some(FileType::Directory)
        };
        if facts.inodes.state(ino).is_used() && edit.inode(ino).is_some_and(is_plain) {
            return Some(ino);
        }
    }
    let ino = new_inode(edit, facts)?;
    let blank = Inode::zeroed();
    let mut inode = directory::new_inode(edit, ino, Ino::ROOT, &blank)?;
    inode.set_mode(FileType::Directory.mode_bits() | 0o700);
    if edit.geometry.inode_size() > inode::BASE_SIZE {
        inode.set_extra_size(edit.sb.want_extra_isize().clamp(4, inode::EXTRA_SIZE));
    }
    let mut slot = vec![0; edit.geometry.inode_size()];
    inode.write_to(&mut slot);
    edit.set_slot(ino, slot)?;
    let change = DirectoryChange {
        more: vec![Record::new(NAME, ino, FileType::Directory)],
        moves: old.map(|_| NAME.to_vec()),
        ..DirectoryChange::default()
    };
    directory::mend(edit, facts, &Parents::default(), Ino::ROOT, &change)?;
    Some(ino)
}

/// A free inode in the part of a table that is in use.
fn new_inode(edit: &mut Edit<'_, '_>, facts: &Facts) -> Option<Ino> {
    let geometry = edit.geometry;
    let has_sums = edit.has(Feature::UNINIT_BG) || edit.has(Feature::METADATA_CSUM);
    for group in geometry.all_groups() {
        let desc = edit.desc(group)?;
        if has_sums && desc.has(group_desc::flags::INODE_UNINIT) {
            continue;
        }
        let unused = if has_sums { desc.itable_unused() } else { 0 };
        let end = geometry.inodes_per_group().saturating_sub(unused);
        let is_free = |index: &u32| {
            let ino = geometry.ino_of(group, *index);
            ino >= geometry.first_ino() && facts.inodes.state(ino) == State::default()
        };
        if let Some(index) = (0..end).find(is_free) {
            return Some(geometry.ino_of(group, index));
        }
        if unused > 0 {
            return extend_table(edit, group, end);
        }
    }
    None
}

/// The first inode of the unused part of a table, which is one shorter from now on.
fn extend_table(edit: &mut Edit<'_, '_>, group: Group, index: u32) -> Option<Ino> {
    let mut desc = edit.desc(group)?;
    desc.set_itable_unused(desc.itable_unused() - 1);
    edit.set_desc(group, &desc)?;
    Some(edit.geometry.ino_of(group, index))
}
