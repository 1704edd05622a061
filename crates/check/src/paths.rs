//! Paths of the inodes that problems are about.
//!
//! Directories know their parents after the directory pass, so one look at the parent gives a directory's name. What
//! directory names another kind of inode is not kept anywhere: all directories are read once more for it, and only
//! where there are such problems.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ondisk::dirent::{self, DirForm};
use ondisk::{Flags, Ino, Inode, xattr};
use sync::{Mutex, Rank};

use crate::dirs::{Node, Tree};
use crate::limits;
use crate::volume::Volume;

/// An inode's first name, and the directory that has it.
type Names = HashMap<u32, (u32, Box<[u8]>)>;

/// Gives the problems found the paths of their inodes, as far as they have names.
pub fn find(volume: &Volume<'_>, tree: &Tree) {
    let wanted = volume.findings.inodes(limits::PATHS);
    if wanted.is_empty() {
        return;
    }
    let files = wanted.iter().filter(|ino| tree.find(Ino(**ino)).is_none());
    let mut names = name_files(volume, tree, &files.copied().collect());
    let mut directories: BTreeSet<u32> = wanted.clone();
    directories.extend(names.values().map(|(directory, _)| *directory));
    name_directories(volume, tree, directories, &mut names);
    let paths = wanted
        .into_iter()
        .filter_map(|ino| Some((ino, path(&names, ino)?)));
    volume.findings.set_paths(&paths.collect());
}

/// The path up to the root; none where the way up ends elsewhere.
fn path(names: &Names, ino: u32) -> Option<Vec<u8>> {
    let mut parts: Vec<&[u8]> = Vec::new();
    let mut at = ino;
    while at != Ino::ROOT.0 {
        let (directory, name) = names.get(&at)?;
        parts.push(name);
        at = *directory;
        if parts.len() > limits::PATH_DEPTH {
            return None;
        }
    }
    let mut path = Vec::new();
    for part in parts.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(part);
    }
    if path.is_empty() {
        path.push(b'/');
    }
    Some(path)
}

/// Finds names of inodes that are no directories.
fn name_files(volume: &Volume<'_>, tree: &Tree, wanted: &BTreeSet<u32>) -> Names {
    let names = Mutex::new(Rank::Job, BTreeMap::new());
    if !wanted.is_empty() {
        volume.crew.share_out(tree.0.len(), |unit| {
            let node = &tree.0[unit];
            each_name(volume, node, &mut |ino, name| {
                if wanted.contains(&ino) {
                    let mut names = names.lock();
                    let place = (node.directory.ino.0, Box::from(name));
                    // The smallest, so that the path does not depend on the threads.
                    let known = names.entry(ino).or_insert_with(|| place.clone());
                    if place < *known {
                        *known = place;
                    }
                }
            });
        });
    }
    names.into_inner().into_iter().collect()
}

/// Finds the names of directories and of all directories above them.
fn name_directories(
    volume: &Volume<'_>,
    tree: &Tree,
    mut wanted: BTreeSet<u32>,
    names: &mut Names,
) {
    let mut done = BTreeSet::from([Ino::ROOT.0]);
    while !wanted.is_empty() {
        // Children by their parents, so that each parent is read once in a round.
        let mut children: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for ino in wanted.iter().filter(|ino| done.insert(**ino)) {
            if let Some(node) = tree.find(Ino(*ino)) {
                let parent = node.parent.get();
                children.entry(parent).or_default().insert(*ino);
            }
        }
        for (parent, children) in &children {
            let Some(node) = tree.find(Ino(*parent)) else {
                continue;
            };
            each_name(volume, node, &mut |ino, name| {
                if children.contains(&ino) {
                    names.entry(ino).or_insert_with(|| (*parent, name.into()));
                }
            });
        }
        wanted = children.into_keys().filter(|parent| *parent != 0).collect();
    }
}

/// Calls `visit` with each name of a directory and the inode that it names, as far as blocks can be read.
fn each_name(volume: &Volume<'_>, node: &Node, visit: &mut dyn FnMut(u32, &[u8])) {
    let directory = &node.directory;
    let flags = directory.flags;
    let form = DirForm::of(&volume.geometry, flags).with_any_ino();
    let mut block = |bytes: &[u8], form| {
        let entries = dirent::entries(bytes, form).map_while(Result::ok);
        for entry in entries.filter(|it| it.is_used() && !dirent::is_dots(it.name)) {
            visit(entry.ino.0, entry.name);
        }
    };
    if flags.contains(Flags::INLINE_DATA) {
        let Some(slot) = volume.slot(directory.ino) else {
            return;
        };
        let inline = form.without_checksum();
        if let Ok(inode) = Inode::parse(&slot) {
            block(&inode.block_area()[4..], inline);
        }
        let rest = ondisk::inode::attribute_area(&slot).unwrap_or_default();
        for entry in xattr::entries(xattr::ListPlace::Inode(rest))
            .into_iter()
            .flatten()
        {
            if let xattr::Value::Here(value) = entry.value
                && entry.index == xattr::INDEX_SYSTEM
                && entry.name == b"data"
            {
                block(value, inline);
            }
        }
        return;
    }
    for run in directory.runs.iter() {
        for at in 0..run.len {
            if let Some(bytes) = volume.block(run.pblk + at) {
                block(&bytes, form);
            }
        }
    }
}
