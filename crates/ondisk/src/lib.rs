//! Every byte of ext4 on disk, and nothing else: no I/O, no locks, no clock, no policy.
//!
//! Each file holds one family of structures, named as the kernel's documentation names it. A structure
//! is a `#[repr(C)]` type over unaligned little-endian words (big-endian for the journal), so that a view
//! of a cached block costs nothing and unknown bits survive a round trip. Fields keep the kernel's names
//! and stay inside this crate; accessors say what they mean in words. Sizes and offsets are asserted
//! against the numbers of the kernel's documentation, in `layout` only.
//!
//! Three steps lead from bytes to trust: a structure viewed over bytes may hold anything; its `verify`
//! checks magic, checksum and bounds; only then do other crates use it. Whatever fails says where, as a
//! [`Corrupt`].

#[macro_use]
mod accessors;

pub mod acl;
pub mod casefold;
pub mod csum;
pub mod dirent;
pub mod dirhash;
pub mod extent;
pub mod fast_commit;
pub mod htree;
pub mod indirect;
pub mod inode;
mod inode_words;
pub mod jbd2;
mod layout;
pub mod map;
pub mod mmp;
pub mod numbers;
pub mod orphan_file;
pub mod quota;
pub mod site;
pub mod xattr;

pub use inode::Inode;
pub use inode_words::{FileType, Flags, Timestamp};
pub mod bitmap;
pub mod features;
pub mod geometry;
pub mod group_desc;
pub mod superblock;
pub mod text;

pub use features::{Feature, Features};
pub use geometry::{Geometry, GeometryError, Unsupported};
pub use group_desc::GroupDesc;
pub use numbers::{BlockRun, BlockSize, FsBlock, Generation, Group, Ino, LBlock, Tid};
pub use site::{Corrupt, Site};
pub use superblock::Superblock;
