//! Why a tree can't be planned.

/// What there is too little of.
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
    /// One node can't be held.
    Node {
        /// Its path in the image.
        path: String,
        /// Why.
        problem: String,
    },
    /// A directory needs the feature large_dir.
    NeedsLargeDir,
    /// The file system can't be made.
    Mkfs(mkfs::Error),
    /// The image would need more bytes than given.
    TooSmall {
        /// Bytes given.
        given: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// The size that was given is too small, and the tree does not fit an image of any other size either.
    TooSmallForAny {
        /// Bytes given.
        given: u64,
    },
    /// No size has room for the tree.
    NoSize,
    /// More inodes than `-N` says are needed.
    TooFewInodes {
        /// Inodes given.
        given: u64,
        /// Inodes needed.
        needed: u64,
    },
}

impl From<mkfs::Error> for PlanError {
    fn from(error: mkfs::Error) -> PlanError {
        PlanError::Mkfs(error)
    }
}
