//! Where a node's extended attributes go: into the inode while they fit, then into a block that nodes with equal
//! sets share, and values too large for that into inodes of their own where `ea_inode` allows.
//!
//! [`split`] is a pure function of the set, so the planner and the writer ask it separately and agree.

use std::borrow::Cow;

use ondisk::acl;
use ondisk::xattr::{self, BLOCK_HEADER, INODE_HEADER};

use super::error::PlanError;
use super::shape::ImageFormat;
use crate::source::xattrs::XattrSet;
use crate::source::{NodeId, SourceTree};

/// Where one attribute goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Home {
    /// The inode's own area.
    Inode,
    /// The shared block.
    Block,
    /// Name in the shared block, value in an inode of its own.
    ValueInode,
}

/// One attribute in the form of the disk.
#[derive(Clone, Debug)]
pub(crate) struct Attribute<'a> {
    /// Number of the prefix.
    pub index: u8,
    /// Name after the prefix.
    pub name: &'a [u8],
    /// Value; ACLs converted.
    pub value: Cow<'a, [u8]>,
    /// Where it goes.
    pub home: Home,
}

/// Decides about the attributes of one set.
///
/// # Errors
/// A sentence about the first attribute that has no place.
pub(crate) fn split<'a>(
    attributes: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    shape: &ImageFormat,
) -> Result<Vec<Attribute<'a>>, String> {
    let mut all = Vec::new();
    let mut inode_room = shape.attribute_area().saturating_sub(INODE_HEADER + 4);
    for (full_name, value) in attributes {
        let shown = full_name.escape_ascii();
        let (index, name) = xattr::split_name(full_name)
            .ok_or_else(|| format!("ext4 can't hold the extended attribute `{shown}`"))?;
        let value = match index {
            xattr::INDEX_ACL_ACCESS | xattr::INDEX_ACL_DEFAULT => acl::xattr_to_disk(value)
                .map(Cow::Owned)
                .ok_or_else(|| format!("the ACL in `{shown}` is malformed"))?,
            _ => Cow::Borrowed(value),
        };
        let size = xattr::entry_size(name.len()) + xattr::value_size(value.len());
        let home = if size <= inode_room {
            inode_room -= size;
            Home::Inode
        } else {
            Home::Block
        };
        all.push(Attribute {
            index,
            name,
            value,
            home,
        });
    }
    let room = shape.block_size.bytes() - BLOCK_HEADER - 4;
    loop {
        let in_block = all.iter().filter(|attribute| attribute.home != Home::Inode);
        let needed: usize = in_block
            .map(|attribute| {
                let value = match attribute.home {
                    Home::ValueInode => 0,
                    _ => xattr::value_size(attribute.value.len()),
                };
                xattr::entry_size(attribute.name.len()) + value
            })
            .sum();
        if needed <= room {
            return Ok(all);
        }
        let largest = all
            .iter_mut()
            .filter(|attribute| attribute.home == Home::Block && shape.ea_inode)
            .max_by_key(|attribute| attribute.value.len())
            .filter(|attribute| !attribute.value.is_empty());
        match largest {
            Some(attribute) => attribute.home = Home::ValueInode,
            None => {
                return Err(format!(
                    "its extended attributes need {needed} bytes beside the inode, and a block has room \
                     for {room}; larger blocks, larger inodes or -O ea_inode help"
                ));
            }
        }
    }
}

/// By set: whether it needs a block, and how many values lie in inodes of their own.
#[derive(Debug, Default)]
pub(crate) struct XattrPlans(Vec<(bool, u16)>);

impl XattrPlans {
    /// Looks at every set that a node of the tree has.
    ///
    /// # Errors
    /// The first node whose attributes have no place.
    pub(crate) fn of(tree: &SourceTree, shape: &ImageFormat) -> Result<XattrPlans, PlanError> {
        let mut plans: Vec<Option<(bool, u16)>> = Vec::new();
        for id in tree.nodes() {
            let set = tree.xattr_set(id).0 as usize;
            if plans.get(set).is_some_and(Option::is_some) {
                continue;
            }
            if plans.len() <= set {
                plans.resize(set + 1, None);
            }
            let attributes = split(tree.xattrs(id), shape).map_err(|problem| PlanError::Node {
                path: tree.path(id).escape_ascii().to_string(),
                problem,
            })?;
            if !attributes.is_empty() && !shape.ext_attr {
                return Err(no_feature(tree, id));
            }
            let in_block = attributes
                .iter()
                .any(|attribute| attribute.home != Home::Inode);
            let values = attributes
                .iter()
                .filter(|attribute| attribute.home == Home::ValueInode)
                .count();
            // A set has at most `source::limits::XATTRS` attributes.
            plans[set] = Some((in_block, values as u16));
        }
        Ok(XattrPlans(
            plans.into_iter().map(Option::unwrap_or_default).collect(),
        ))
    }

    /// One more than the largest number of a set.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nodes with this set have a block of attributes.
    pub(crate) fn needs_block(&self, set: XattrSet) -> bool {
        self.0.get(set.0 as usize).is_some_and(|(block, _)| *block)
    }

    /// How many values of this set lie in inodes of their own.
    pub(crate) fn values(&self, set: u32) -> u16 {
        self.0.get(set as usize).map_or(0, |(_, values)| *values)
    }
}

fn no_feature(tree: &SourceTree, id: NodeId) -> PlanError {
    PlanError::Node {
        path: tree.path(id).escape_ascii().to_string(),
        problem: "it has extended attributes, and the file system is without ext_attr".into(),
    }
}
