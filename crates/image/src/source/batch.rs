//! What a walk through a directory of this machine finds, in batches that one thread puts into the tree.

use super::tree::{DataExtent, TreeNode};
use super::xattrs::Xattrs;

/// Some entries of one directory.
pub(super) struct Batch {
    /// Number of the directory.
    pub(super) directory: u32,
    pub(super) found: Vec<Found>,
    /// Names and link targets.
    pub(super) text: Vec<u8>,
    /// Entry and its extended attributes.
    pub(super) xattrs: Vec<(u32, Xattrs)>,
    /// Entry and its data extents.
    pub(super) extents: Vec<(u32, Vec<DataExtent>)>,
    /// Entries with several names: entry, device and inode.
    pub(super) linked: Vec<(u32, (u64, u64))>,
}

/// One entry.
pub(super) struct Found {
    /// Everything except where its name is.
    pub(super) node: TreeNode,
    /// Start of the name in the batch's text; the target of a link follows it.
    pub(super) name: u32,
    pub(super) name_len: u16,
    pub(super) target_len: u16,
    /// The number of a directory.
    pub(super) number: u32,
}
