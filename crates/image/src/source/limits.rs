//! Every bound on what an input may make us hold or do. Sizes are bytes.

/// Longest name of a directory entry: ext4's own limit.
pub const NAME: usize = 255;
/// Longest path within an archive.
pub const PATH: usize = 64 * 1024;
/// Longest target of a symbolic link: a path's maximum (4096) less the NUL that the kernel counts.
pub const TARGET: usize = 4095;
/// Names of one file: ext4's own limit.
pub const LINKS: u16 = 65_000;
/// Entries of one tree.
pub const ENTRIES: usize = 1 << 26;
/// Longest name of an extended attribute, its prefix included (as Linux).
pub const XATTR_NAME: usize = 255;
/// Largest value of one extended attribute (as Linux).
pub const XATTR_VALUE: usize = 64 * 1024;
/// Extended attributes of one node.
pub const XATTRS: usize = 1024;
/// All different sets of extended attributes of one tree.
pub const XATTR_TOTAL: usize = 256 << 20;
/// Data extents of all sparse files of one tree.
pub const EXTENTS: usize = 1 << 24;
/// Sources of one build, each layer of an OCI image counted.
pub const SOURCES: usize = 4096;
/// Longest list of the names of one file's extended attributes (as Linux).
pub const XATTR_LIST: usize = 64 * 1024;
