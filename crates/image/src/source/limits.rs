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
pub const ENTRIES: usize = 1 << 24;
/// Longest name of an extended attribute, its prefix included (as Linux).
pub const XATTR_NAME: usize = 255;
/// Largest value of one extended attribute (as Linux).
pub const XATTR_VALUE: usize = 64 * 1024;
/// Extended attributes of one node.
pub const XATTRS: usize = 1024;
/// All different sets of extended attributes of one tree.
pub const XATTR_TOTAL: usize = 256 << 20;
/// Data extents of all sparse files of one tree.
pub const EXTENTS: usize = 1 << 22;
/// Sources of one build, each layer of an OCI image counted.
pub const SOURCES: usize = 4096;
/// Longest list of the names of one file's extended attributes (as Linux).
pub const XATTR_LIST: usize = 64 * 1024;
/// Largest window of a zstd frame: what `zstd --long` makes and `zstd -d` takes without asking.
pub const ZSTD_WINDOW: u64 = 128 << 20;
/// Memory for xz data, in KiB: enough for `xz -9`.
pub const XZ_MEMORY_KIB: u32 = 128 * 1024;
/// All records of one PAX header.
pub const PAX_HEADER: u64 = 4 << 20;
/// Data extents of one sparse file of an archive.
pub const FILE_EXTENTS: usize = 1 << 20;
/// Largest major number of a device.
pub const MAJOR: u32 = (1 << 12) - 1;
/// Largest minor number of a device.
pub const MINOR: u32 = (1 << 20) - 1;
/// Names of hard links that wait for their target, and of excluded files that links may name.
pub const HELD_NAMES: usize = 64 << 20;
/// An image's index, manifest or configuration.
pub const JSON: u64 = 8 << 20;
/// Manifests and indexes of one image layout.
pub const MANIFESTS: usize = 4096;
/// Layers of one image.
pub const LAYERS: usize = 1024;
/// Files in an archive of an image.
pub const BLOBS: usize = 100_000;
/// Devices that one line of a table makes.
pub const DEVICES: u32 = 1 << 16;
/// Lines of a `file_contexts` file.
pub const CONTEXTS: usize = 1 << 17;
/// One compiled pattern of it.
pub const REGEX: usize = 1 << 20;
/// Records of all global PAX headers of one archive: each member has them.
pub const PAX_GLOBAL: usize = 64 * 1024;
/// Components that symbolic links may add to one path.
pub const STEPS: usize = 4096;
/// What is kept of one layer of an image until it is applied.
pub const LAYER_MEMORY: usize = 1 << 30;
/// Data of the members of an archive that look like nothing a container image has, before it counts as a plain archive.
pub const OTHER_BYTES: u64 = 1 << 20;
/// Such members.
pub const OTHER_MEMBERS: usize = 4 * LAYERS;
