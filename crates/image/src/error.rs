//! Why an image could not be built: what, where, and what to do.

use device::DeviceError;

use crate::plan::error::{PlanError, Shortage};
use crate::source::SourceError;

/// Why an image could not be built. Nothing is left under the image's name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A source can't be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The file system can't be made as asked for.
    #[error(transparent)]
    Mkfs(#[from] mkfs::Error),
    /// The image can't be written.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The image's file can't be made or put in place.
    #[error("{path}: cannot {operation}: {error}")]
    Output {
        /// The file.
        path: String,
        /// What was tried.
        operation: &'static str,
        /// What the operating system said.
        error: std::io::Error,
    },
    /// Something in the tree can't be held by the file system.
    #[error("{path}: {problem}")]
    Node {
        /// Its path in the image.
        path: String,
        /// Why.
        problem: String,
    },
    /// The size given is too small.
    #[error(
        "the image needs {needed} bytes, and {given} are given; use --size {needed} or --size auto"
    )]
    TooSmall {
        /// Bytes given.
        given: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// The number of inodes given is too small.
    #[error("the image needs {needed} inodes, and has {given}; use -N {needed}, or leave -N away")]
    TooFewInodes {
        /// Inodes given.
        given: u64,
        /// Inodes needed.
        needed: u64,
    },
    /// The options make no sense together.
    #[error("{0}")]
    Usage(String),
    /// The caller wanted to stop.
    #[error("interrupted")]
    Interrupted,
}

impl From<PlanError> for BuildError {
    fn from(error: PlanError) -> BuildError {
        match error {
            PlanError::Mkfs(error) => BuildError::Mkfs(error),
            PlanError::NeedsLargeDir => BuildError::Usage(
                "-O ^large_dir: a directory is too large without large_dir; leave that out".into(),
            ),
            PlanError::Node { path, problem } => BuildError::Node { path, problem },
            PlanError::TooSmall { given, needed } => BuildError::TooSmall { given, needed },
            PlanError::TooSmallForAny { given } => too_small(given),
            PlanError::NoSize => BuildError::Usage(
                "no size has room for the tree beside its inode tables; ask for fewer inodes (-i, -N), for smaller \
                 ones (-I), or for larger groups (-g)"
                    .into(),
            ),
            PlanError::TooFewInodes { given, needed } => BuildError::TooFewInodes { given, needed },
            PlanError::Short(Shortage::Clusters(missing)) => BuildError::Usage(format!(
                "the image is too small by {missing} clusters or more"
            )),
            PlanError::Short(Shortage::Inodes(missing)) => {
                BuildError::Usage(format!("the image has {missing} inodes too few or more"))
            }
        }
    }
}

/// The refusal of a given size where the size that is needed is not known, as while a pipe is read.
pub(crate) fn too_small(given: u64) -> BuildError {
    BuildError::Usage(format!(
        "the image is too small: it needs more than the {given} bytes given; use --size auto, or a larger one"
    ))
}
