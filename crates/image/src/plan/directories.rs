//! How many blocks each directory takes, and its blocks when they are written.
//!
//! A directory is planned by [`dirblocks`] when its size is asked for and again when it is written, so that the order
//! of a million names need not be kept meanwhile. Both plans are the same: they depend on names and format only.

use ondisk::dirent::{self, DirBlockWriter, DirForm};

use ondisk::inode::checksum_seed;
use ondisk::{Feature, FileType, Flags, Ino};

use super::error::PlanError;
use super::inodes::generation;
use super::place::{LOST_FOUND_NAME, own_lost_found};
use super::shape::{ImageFormat, LINKS_MAX};
use super::{ImagePlan, xattrs};
use crate::dirblocks::{self, DirectoryIdentity, NamedInode, Refused};
use crate::error::BuildError;
use crate::source::{NodeId, SourceTree};

/// The names of one directory, with those that no source has.
struct Names<'a> {
    tree: &'a SourceTree,
    id: NodeId,
    /// How many the source has.
    count: usize,
    /// A lost+found comes after them.
    lost_found: bool,
}

impl<'a> Names<'a> {
    fn of(tree: &'a SourceTree, shape: &ImageFormat, id: NodeId) -> Names<'a> {
        Names {
            tree,
            id,
            count: tree.children(id).len(),
            lost_found: id == NodeId::ROOT
                && shape.lost_found
                && own_lost_found(tree, shape).is_none(),
        }
    }

    /// How many there are.
    fn len(&self) -> usize {
        self.count + usize::from(self.lost_found)
    }

    /// A name, and its node if a source has it.
    fn get(&self, index: usize) -> (&'a [u8], Option<NodeId>) {
        if index == self.count {
            return (LOST_FOUND_NAME, None);
        }
        let (name, child) = self.tree.child_at(self.id, index);
        (name, Some(child))
    }

    fn plan(&self, shape: &ImageFormat) -> Result<dirblocks::DirectoryPlan, Refused> {
        let form = dirblocks::DirectoryFormat::of(&shape.geometry);
        dirblocks::DirectoryPlan::new(form, self.len(), |index| self.get(index).0)
    }
}

/// Two and one for each subdirectory.
pub(crate) fn links(tree: &SourceTree, shape: &ImageFormat, id: NodeId) -> usize {
    let names = Names::of(tree, shape, id);
    let is_directory = |child: Option<NodeId>| child.is_none_or(|child| tree.is_directory(child));
    2 + (0..names.len())
        .filter(|index| is_directory(names.get(*index).1))
        .count()
}

fn check_links(tree: &SourceTree, shape: &ImageFormat, id: NodeId) -> Result<(), PlanError> {
    match links(tree, shape, id) {
        links if links <= LINKS_MAX as usize => Ok(()),
        links => Err(PlanError::Node {
            path: tree.path(id).escape_ascii().to_string(),
            problem: format!("its {links} links need the feature dir_nlink"),
        }),
    }
}

fn check_lost_found(tree: &SourceTree, shape: &ImageFormat) -> Result<(), PlanError> {
    match tree.find(LOST_FOUND_NAME) {
        Some(id) if shape.lost_found && !tree.is_directory(id) => Err(PlanError::Node {
            path: tree.path(id).escape_ascii().to_string(),
            problem: "it is not a directory; leave it out, or use --no-lost-found".into(),
        }),
        None if shape.lost_found => check_lost_found_xattrs(tree, shape),
        _ => Ok(()),
    }
}

/// A lost+found that no source has keeps its label in its inode: no block is planned for it.
fn check_lost_found_xattrs(tree: &SourceTree, shape: &ImageFormat) -> Result<(), PlanError> {
    let wrong = |problem| PlanError::Node {
        path: LOST_FOUND_NAME.escape_ascii().to_string(),
        problem,
    };
    let attributes = xattrs::split(tree.lost_found_xattrs(), shape).map_err(wrong)?;
    let in_inode = |attribute: &xattrs::Attribute<'_>| attribute.home == xattrs::Home::Inode;
    if !attributes.is_empty() && !shape.ext_attr {
        return Err(wrong(xattrs::NO_FEATURE.into()));
    }
    if attributes.iter().all(in_inode) {
        Ok(())
    } else {
        Err(wrong(
            "its label has no room in its inode; use larger inodes (-I 256), give the source an empty lost+found, or \
             use --no-lost-found"
                .into(),
        ))
    }
}

/// By node: how many blocks a directory takes; 0 for other nodes.
///
/// # Errors
/// A directory that no file system of this shape can hold. [`PlanError::NeedsLargeDir`] when another one could.
pub(crate) fn blocks(tree: &SourceTree, shape: &ImageFormat) -> Result<Vec<u32>, PlanError> {
    let block = dirblocks::DirectoryFormat::of(&shape.geometry);
    let usable = shape.block_size.bytes() - 12;
    let mut blocks = vec![0; tree.len()];
    check_lost_found(tree, shape)?;
    for id in tree.nodes().filter(|id| tree.is_directory(*id)) {
        if !shape.dir_nlink {
            check_links(tree, shape, id)?;
        }
        // Most directories fit one block, which needs no order to see. 24 bytes are `.` and `..`.
        let room = if id == NodeId::ROOT {
            usable - 64
        } else {
            usable
        };
        let bytes: usize = tree.children(id).map(|(name, _)| record_bytes(name)).sum();
        if bytes + 24 <= room {
            blocks[id.index()] = 1;
            continue;
        }
        let names = Names::of(tree, shape, id);
        blocks[id.index()] = match names.plan(shape) {
            Ok(plan) => plan.blocks(),
            Err(Refused::NeedsLargeDir { .. }) if !block.large_dir => {
                return Err(PlanError::NeedsLargeDir);
            }
            Err(refused) => {
                return Err(PlanError::Node {
                    path: tree.path(id).escape_ascii().to_string(),
                    problem: refused.to_string(),
                });
            }
        };
    }
    Ok(blocks)
}

/// Bytes of the record of a name: a header of 8 bytes and the name, in whole words.
fn record_bytes(name: &[u8]) -> usize {
    (ondisk::dirent::HEADER_LEN + name.len()).next_multiple_of(4)
}

/// Whether a directory of `blocks` blocks is indexed: all of more than one are, if the format has indices.
pub(crate) fn is_indexed(shape: &ImageFormat, blocks: u32) -> bool {
    blocks > 1 && shape.geometry.has(Feature::DIR_INDEX)
}

fn identity(shape: &ImageFormat, ino: Ino, parent: Ino) -> DirectoryIdentity {
    let seed = checksum_seed(shape.fs_seed, ino, generation(shape.fs_seed, ino));
    DirectoryIdentity {
        ino,
        parent,
        checksum_seed: seed,
    }
}

/// Gives `emit` each block of directory `id`, in order.
///
/// # Errors
/// What `emit` says.
pub(crate) fn write(
    tree: &SourceTree,
    plan: &ImagePlan,
    id: NodeId,
    mut emit: impl FnMut(&mut dyn FnMut(&mut [u8])) -> Result<(), BuildError>,
) -> Result<(), BuildError> {
    let shape = &plan.shape;
    let names = Names::of(tree, shape, id);
    let nodes = &plan.placement.nodes;
    let identity = identity(
        shape,
        nodes[id.index()].ino,
        nodes[tree.parent(id).index()].ino,
    );
    let directory = names.plan(shape).map_err(|refused| BuildError::Node {
        path: tree.path(id).escape_ascii().to_string(),
        problem: refused.to_string(),
    })?;
    let target = |index: usize| match names.get(index).1 {
        Some(child) => NamedInode {
            ino: nodes[child.index()].ino,
            file_type: FileType::from_mode(tree.mode(child)).unwrap_or(FileType::Regular),
        },
        None => NamedInode {
            ino: shape.lost_found_ino,
            file_type: FileType::Directory,
        },
    };
    for number in 0..directory.blocks() {
        emit(&mut |block| {
            directory.fill(number, identity, |index| names.get(index).0, target, block);
        })?;
    }
    Ok(())
}

/// As [`write`], for a lost+found that no source has: empty blocks.
///
/// # Errors
/// What `emit` says.
pub(crate) fn write_lost_found(
    plan: &ImagePlan,
    mut emit: impl FnMut(&mut dyn FnMut(&mut [u8])) -> Result<(), BuildError>,
) -> Result<(), BuildError> {
    let shape = &plan.shape;
    let identity = identity(shape, shape.lost_found_ino, Ino::ROOT);
    let form = DirForm::of(&shape.geometry, Flags::default());
    for number in 0..shape.lost_found_blocks() {
        emit(&mut |block| {
            let mut writer = DirBlockWriter::new(block, form);
            if number == 0 {
                writer.push_dots(identity.ino, identity.parent);
            }
            writer.finish();
            if form.checksum {
                dirent::seal(block, identity.checksum_seed);
            }
        })?;
    }
    Ok(())
}
