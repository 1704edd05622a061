//! Makes ext4 file systems: the place of everything, and the bytes of everything except users' files.
//!
//! [`Layout::plan`] decides, without any I/O, the geometry and the place of every piece of metadata. [`format()`]
//! writes an empty file system. A caller that fills an image uses the same pieces: it allocates its blocks outside
//! [`Layout::used`], its inodes from [`Layout::first_free_ino`] on, and calls [`Layout::finish`] with what it used.
//!
//! A stream whose length is not known puts its data around the [`StreamGeometry`] first, and has the rest placed around
//! the data at the end, with [`Layout::plan_around`].
//!
//! No lock is taken and no thread started. A crash in the middle leaves a device without an ext4 superblock, as the
//! primary superblock is written last.

mod error;
mod features;
mod file_map;
mod finish;
mod format;
mod journal;
mod journal_device;
mod layout;
mod letters;
mod options;
mod place;
mod plan;
mod regions;
mod shape;
mod sized;
mod space;
mod special;
mod tables;
mod taken;
mod template;
mod usage;

pub use error::{Error, OtherSize};
pub use format::format;
pub use journal_device::{JournalDevice, format_journal_device, is_journal_device};
pub use layout::Layout;
pub use letters::parse_size;
pub use ondisk::BlockRun;
pub use options::{BlocksOrBytes, Compat, FsType, JournalOptions, Options, UsageType};
pub use place::GroupPlace;
pub use regions::StreamGeometry;
pub use special::SpecialInode;
pub use usage::{FormatSummary, GroupUse, Usage};
