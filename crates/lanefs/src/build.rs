//! Building images from directories, tar archives and OCI images: what `lanefs build` does.
//!
//! ```no_run
//! use lanefs::build::{self, BuildOptions, Silent};
//! use std::sync::atomic::AtomicBool;
//!
//! let options = BuildOptions::from_directory("rootfs");
//! build::build(&options, "root.img".as_ref(), &Silent, &AtomicBool::new(false))?;
//! # Ok::<(), build::BuildError>(())
//! ```

pub use image::source::options::parse_owner;
pub use image::source::{
    Input, LostFoundTime, Options as SourceOptions, SourcePlace, is_image_directory,
};
pub use image::{
    BuildError, BuildOptions, BuildReport, Extra, Phase, Progress, Silent, Size, build,
};
