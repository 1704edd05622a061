//! How many blocks each directory takes, and the contents of these blocks when they are written.
//!
//! [`dirblocks`] plans a directory when its size is asked for, and again when it is written, so that the order of a
//! million names need not be kept in between. Both plans are the same, because they depend on names and format only.

use ondisk::dirent::DirForm;
use ondisk::inode::checksum_seed;
use ondisk::{Feature, FileType, Flags, Ino};

use super::ImagePlan;
use super::error::PlanError;
use super::inodes::generation;
use super::place::lost_found;
use super::shape::{ImageFormat, LINKS_MAX};
use crate::dirblocks::{DirectoryFormat, DirectoryIdentity, DirectoryPlan, NamedInode, Refused};
use crate::error::BuildError;
use crate::source::{NodeId, SourceTree};

/// The link count of a directory: two, and one for each subdirectory.
pub(crate) fn links(tree: &SourceTree, id: NodeId) -> usize {
    let children = tree.children(id);
    2 + children
        .filter(|(_, child)| tree.is_directory(*child))
        .count()
}

fn check_links(tree: &SourceTree, id: NodeId) -> Result<(), PlanError> {
    match links(tree, id) {
        links if links <= LINKS_MAX as usize => Ok(()),
        links => Err(PlanError::Node {
            path: tree.path(id).escape_ascii().to_string(),
            problem: format!("its {links} links need the feature dir_nlink"),
        }),
    }
}

/// The place of each name of a directory.
fn planned(tree: &SourceTree, shape: &ImageFormat, id: NodeId) -> Result<DirectoryPlan, Refused> {
    let form = DirectoryFormat::of(&shape.geometry);
    let name = |index| tree.child_at(id, index).0;
    DirectoryPlan::new(form, tree.children(id).len(), name)
}

/// For each node, the number of blocks of its directory; 0 for other nodes.
///
/// # Errors
/// A directory that no file system of this format can hold; [`PlanError::NeedsLargeDir`] if `large_dir` makes it
/// possible.
pub(crate) fn blocks(tree: &SourceTree, shape: &ImageFormat) -> Result<Vec<u32>, PlanError> {
    let form = DirectoryFormat::of(&shape.geometry);
    let lost_found = lost_found(tree, shape);
    let mut blocks = vec![0; tree.len()];
    for id in tree.nodes().filter(|id| tree.is_directory(*id)) {
        if !shape.dir_nlink {
            check_links(tree, id)?;
        }
        // Most directories fit one block, which needs no order of names.
        if fits_one_block(tree, shape, id) {
            blocks[id.index()] = if lost_found == Some(id) {
                shape.lost_found_blocks()
            } else {
                1
            };
            continue;
        }
        blocks[id.index()] = match planned(tree, shape, id) {
            Ok(plan) => plan.blocks(),
            Err(Refused::NeedsLargeDir { .. }) if !form.large_dir => {
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

/// Whether the names of a directory fit one block, together with `.` and `..`, which take 24 bytes.
fn fits_one_block(tree: &SourceTree, shape: &ImageFormat, id: NodeId) -> bool {
    let form = DirForm::of(&shape.geometry, Flags::default());
    let names = tree.children(id);
    let bytes: usize = names.map(|(name, _)| form.record_len(name)).sum();
    bytes + 24 <= form.usable()
}

/// Whether a directory of `blocks` blocks is indexed: it is if it has more than one block and the format has indices.
pub(crate) fn is_indexed(tree: &SourceTree, shape: &ImageFormat, id: NodeId, blocks: u32) -> bool {
    blocks > 1 && shape.geometry.has(Feature::DIR_INDEX) && !fits_one_block(tree, shape, id)
}

fn identity(shape: &ImageFormat, ino: Ino, parent: Ino) -> DirectoryIdentity {
    let seed = checksum_seed(shape.fs_seed, ino, generation(shape.fs_seed, ino));
    DirectoryIdentity {
        ino,
        parent,
        checksum_seed: seed,
    }
}

/// Calls `emit` with each block of directory `id`, in order.
///
/// # Errors
/// Those of `emit`.
pub(crate) fn write(
    tree: &SourceTree,
    plan: &ImagePlan,
    id: NodeId,
    mut emit: impl FnMut(&mut dyn FnMut(&mut [u8])) -> Result<(), BuildError>,
) -> Result<(), BuildError> {
    let shape = &plan.shape;
    let nodes = &plan.placement.nodes;
    let identity = identity(
        shape,
        nodes[id.index()].ino,
        nodes[tree.parent(id).index()].ino,
    );
    let directory = planned(tree, shape, id).map_err(|refused| BuildError::Node {
        path: tree.path(id).escape_ascii().to_string(),
        problem: refused.to_string(),
    })?;
    let name = |index: usize| tree.child_at(id, index).0;
    let target = |index: usize| {
        let (_, child) = tree.child_at(id, index);
        NamedInode {
            ino: nodes[child.index()].ino,
            file_type: FileType::from_mode(tree.mode(child)).unwrap_or(FileType::Regular),
        }
    };
    for number in 0..plan.directory_blocks[id.index()] {
        emit(&mut |block| directory.fill(number, identity, name, target, block))?;
    }
    Ok(())
}
