//! Why a tree can't be planned as an image.

/// What the image has too little of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shortage {
    /// At least this number of clusters is missing.
    Clusters(u64),
    /// At least this number of inodes is missing.
    Inodes(u64),
}

/// Why planning failed.
#[derive(Debug)]
pub(crate) enum PlanError {
    /// The image is too small.
    Short(Shortage),
    /// The image can't hold one node of the tree.
    Node {
        /// Its path in the image.
        path: String,
        /// Why the image can't hold it.
        problem: String,
    },
    /// A directory needs the feature large_dir.
    NeedsLargeDir,
    /// The file system can't be made.
    Mkfs(mkfs::Error),
    /// The image would need more bytes than its size.
    TooSmall {
        /// The size in bytes.
        given: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// The given size is too small, and the tree does not fit an image of any other size either.
    TooSmallForAny {
        /// The given size in bytes.
        given: u64,
    },
    /// No size has room for the tree.
    NoSize,
    /// The tree needs more inodes than the number of `-N`.
    TooFewInodes {
        /// The given number of inodes.
        given: u64,
        /// The number of inodes that the tree needs.
        needed: u64,
    },
}

impl From<mkfs::Error> for PlanError {
    fn from(error: mkfs::Error) -> PlanError {
        PlanError::Mkfs(error)
    }
}
