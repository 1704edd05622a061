//! Connectivity and link counts: each directory is reached from the root once, and each inode has its names.

use std::collections::HashSet;

use ondisk::{Feature, FileType, Ino, Inode};
use sync::atomic::Ordering;

use crate::dirs::Tree;
use crate::problem::Code;
use crate::report::Problem;
use crate::table::State;
use crate::volume::Volume;
use crate::work;

/// Links that a directory may have counted; beyond, with dir_nlink, it stores 1.
const LINKS_MAX: u32 = 65_000;

/// Checks that every directory leads up to the root, and that '..' is the parent.
pub fn connectivity(volume: &Volume<'_>, tree: &Tree) {
    let mut reached: HashSet<u32> = HashSet::from([Ino::ROOT.0]);
    for node in &tree.0 {
        // Relaxed: the threads of the directory pass were joined.
        let (dotdot, parent) = (
            node.dotdot.load(Ordering::Relaxed),
            node.parent.load(Ordering::Relaxed),
        );
        let ino = node.directory.ino;
        let parent = if ino == Ino::ROOT { ino.0 } else { parent };
        if volume.inodes.state(ino).has(State::ORPHAN) {
            continue;
        }
        let problem = |code| Problem::new(code).ino(ino);
        if parent != 0 && dotdot != 0 && dotdot != parent {
            volume.found(problem(Code::DotDotParent).found(dotdot).expected(parent));
        }
        let mut path = Vec::new();
        let mut at = ino.0;
        let mut met = HashSet::new();
        let is_reached = loop {
            if reached.contains(&at) {
                break true;
            }
            if at == 0 || !met.insert(at) {
                break false;
            }
            path.push(at);
            // Relaxed: the threads of the directory pass were joined.
            at = tree
                .find(Ino(at))
                .map_or(0, |up| up.parent.load(Ordering::Relaxed));
        };
        if is_reached {
            reached.extend(path);
        } else {
            volume.found(problem(Code::Unconnected).found(dotdot));
        }
    }
}

/// Compares the links that names make with those that inodes store.
pub fn counts(volume: &Volume<'_>) {
    let groups = volume.geometry.groups() as usize;
    work::share_out(volume.threads, groups, volume.cancelled, |group| {
        let group = ondisk::Group(group as u32);
        if !volume.inodes.has_any(group) {
            return;
        }
        for index in 0..volume.geometry.inodes_per_group() {
            let ino = volume.geometry.ino_of(group, index);
            let state = volume.inodes.state(ino);
            let needs_none =
                state.has(State::ORPHAN) || ino != Ino::ROOT && ino < volume.geometry.first_ino();
            if state.is_used() && !needs_none && volume.inodes.balance(ino) != 0 {
                one(volume, ino, state);
            }
        }
    });
}

fn one(volume: &Volume<'_>, ino: Ino, state: State) {
    let inode = volume.slot(ino).and_then(|slot| Inode::parse(&slot).ok());
    let Some(inode) = inode else { return };
    let stored = inode.links_count();
    let found = u32::from(volume.inodes.balance(ino).wrapping_add(stored));
    let is_directory = state.file_type() == Some(FileType::Directory);
    if crate::special::is_special(volume, ino) {
        return;
    }
    // A value inode keeps a link and is named by attributes only.
    if state.has(State::VALUE) {
        if volume.shared.values.of(ino.0.into()) == 0 {
            volume.inode_has(ino, Code::Unattached);
        }
        return;
    }
    if found == 0 {
        volume.inode_has(ino, Code::Unattached);
        return;
    }
    let may_be_one = is_directory && volume.has(Feature::DIR_NLINK) && found >= LINKS_MAX;
    if u32::from(stored) != found && !(may_be_one && stored == 1) {
        let problem = Problem::new(Code::Links).ino(ino);
        volume.found(problem.found(stored).expected(found));
    }
}
