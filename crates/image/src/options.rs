//! The options of a build, and its report.

use mkfs::FormatSummary;

use crate::plan::Size;
use crate::source;

/// What to build, and how.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// What goes in.
    pub source: source::Options,
    /// The file system around it.
    pub mkfs: mkfs::Options,
    /// How large it is to be.
    pub size: Size,
    /// Threads; 0 for as many as the machine has.
    pub threads: usize,
    /// Whether the same input is to give the same bytes, on any host and at any time.
    pub reproducible: bool,
    /// Seconds since 1970 that no time stamp may be after; implies `reproducible` (`SOURCE_DATE_EPOCH`).
    pub newest_time: Option<i64>,
    /// Whether to return only when the image is on the medium.
    pub sync: bool,
}

/// What was built.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BuildReport {
    /// Inodes of the tree: the root, and all that sources and options put into it.
    pub inodes: u64,
    /// Bytes of files' data, holes not counted.
    pub data_bytes: u64,
    /// Bytes of the image.
    pub image_bytes: u64,
    /// The file system.
    pub file_system: FormatSummary,
    /// What is odd about the sources, and was read nevertheless: a sentence each.
    pub warnings: Vec<String>,
}
