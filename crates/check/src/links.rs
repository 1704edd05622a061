//! Connectivity and link counts: each directory is reached from the root once, and each inode has its names.

use ondisk::{Feature, FileType, Flags, Ino, Inode};

use crate::dirs::Tree;
use crate::problem::Code;
use crate::report::Problem;
use crate::table::State;
use crate::volume::Volume;
use crate::work::Stage;

/// The most links that a directory counts; with more of them and dir_nlink, it stores 1.
const LINKS_MAX: u32 = 65_000;

/// What is known of the way from a directory up to the root.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Unknown,
    /// The directory is on the way that is being followed.
    Followed,
    Reached,
    Lost,
}

/// Checks that every directory leads up to the root, and that '..' names its parent.
pub fn connectivity(volume: &Volume<'_>, tree: &Tree) {
    volume.crew.begin(Stage::Connectivity, tree.0.len() as u64);
    let mut ways = vec![Way::Unknown; tree.0.len()];
    for (index, node) in tree.0.iter().enumerate() {
        let (dotdot, parent) = (node.dotdot.get(), node.parent.get());
        let ino = node.directory.ino;
        let parent = if ino == Ino::ROOT { ino.0 } else { parent };
        if volume.inodes.state(ino).has(State::ORPHAN) {
            continue;
        }
        let problem = |code| Problem::new(code).ino(ino);
        if parent != 0 && dotdot != parent && !(dotdot == 0 && volume.unread.names()) {
            volume.found(problem(Code::DotDotParent).found(dotdot).expected(parent));
        }
        follow(tree, index, &mut ways);
        if ways[index] == Way::Lost && !volume.unread.names() {
            volume.found(problem(Code::Unconnected).found(dotdot));
        }
    }
}

/// Follows a directory's way up until its end is known.
fn follow(tree: &Tree, index: usize, ways: &mut [Way]) {
    let mut path = Vec::new();
    let mut at = Some(index);
    let end = loop {
        let Some(index) = at else { break Way::Lost };
        let node = &tree.0[index];
        match ways[index] {
            _ if node.directory.ino == Ino::ROOT => break Way::Reached,
            Way::Unknown => {}
            Way::Followed => break Way::Lost,
            known => break known,
        }
        ways[index] = Way::Followed;
        path.push(index);
        at = tree.index(Ino(node.parent.get()));
    };
    for index in path {
        ways[index] = end;
    }
}

/// Compares the number of names of each inode with its stored link count.
pub fn counts(volume: &Volume<'_>) {
    let groups = volume.geometry.groups() as usize;
    volume.crew.begin(Stage::Links, groups as u64);
    volume.crew.share_out(groups, |group| {
        volume.crew.add(1);
        let group = ondisk::Group(group as u32);
        for (index, state, is_missing) in volume.inodes.in_group(group) {
            if is_missing && state.is_used() {
                compare(volume, volume.geometry.ino_of(group, index), state);
            }
        }
    });
    for ino in volume.inodes.with_more_names() {
        compare(volume, ino, volume.inodes.state(ino));
    }
}

/// Reports an inode whose number of names differs from its link count, unless it needs no name.
fn compare(volume: &Volume<'_>, ino: Ino, state: State) {
    let needs_none =
        state.has(State::ORPHAN) || ino != Ino::ROOT && ino < volume.geometry.first_ino();
    if !needs_none && volume.inodes.balance(ino) != 0 {
        one(volume, ino, state);
    }
}

fn one(volume: &Volume<'_>, ino: Ino, state: State) {
    let inode = volume.slot(ino).and_then(|slot| Inode::parse(&slot).ok());
    let Some(inode) = inode else { return };
    let stored = inode.links_count();
    // The directories of a file system can't hold more names than that.
    let found =
        (volume.inodes.balance(ino) + i64::from(stored)).clamp(0, i64::from(u32::MAX)) as u32;
    let is_directory = state.file_type() == Some(FileType::Directory);
    if crate::special::needs_no_name(volume, ino) {
        return;
    }
    // An inode that holds an attribute's value has one link, and only attributes refer to it.
    if state.has(State::VALUE) {
        if volume.shared.values.of(ino.0.into()) == 0 {
            volume.inode_has(ino, Code::Unattached);
        }
        return;
    }
    // The missing name may be in a part that could not be read.
    if volume.unread.names() && found < u32::from(stored) {
        return;
    }
    if found == 0 {
        volume.inode_has(ino, Code::Unattached);
        return;
    }
    // One link stands for too many, and stays if there are fewer again: then the directory has an index.
    let is_full = volume.has(Feature::DIR_NLINK) && found >= LINKS_MAX;
    let may_be_one = is_directory && (is_full || inode.flags().contains(Flags::INDEX));
    if u32::from(stored) != found && !(may_be_one && stored == 1) {
        let problem = Problem::new(Code::Links).ino(ino);
        volume.found(problem.found(stored).expected(found));
    }
}
