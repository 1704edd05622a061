//! Builds populated ext4 images from directories, tar archives and OCI images.

mod build;
pub mod dirblocks;
mod error;
mod options;
mod output;
mod plan;
mod progress;
mod reproducible;
pub mod source;
mod stream;
mod write;

pub use build::build;
pub use error::BuildError;
pub use options::{BuildOptions, BuildReport};
pub use plan::{Extra, Size};
pub use progress::{Phase, Progress, Silent};
pub use reproducible::identify_empty;
