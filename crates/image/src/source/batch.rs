//! The entries that a walk through a host directory finds, in batches that one thread adds to the tree.

use super::tree::{DataExtent, TreeNode};
use super::xattrs::Xattrs;

/// Some entries of one directory.
pub(super) struct Batch {
    /// Number of the directory.
    pub(super) directory: u32,
    pub(super) found: Vec<Found>,
    /// Names and link targets.
    pub(super) text: Vec<u8>,
    /// The extended attributes of entries, by the entry's index.
    pub(super) xattrs: Vec<(u32, Xattrs)>,
    /// The data extents of entries, by the entry's index.
    pub(super) extents: Vec<(u32, Vec<DataExtent>)>,
    /// Entries with several names: the entry's index, and its device and inode.
    pub(super) linked: Vec<(u32, (u64, u64))>,
}

/// One entry.
pub(super) struct Found {
    /// Everything except where its name is.
    pub(super) node: TreeNode,
    /// Where the name begins in the batch's text; the target of a link follows it.
    pub(super) name: u32,
    pub(super) name_len: u16,
    pub(super) target_len: u16,
    /// The number of a directory.
    pub(super) number: u32,
}
