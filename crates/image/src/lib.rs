//! Builds populated ext4 images from directories, tar archives and OCI images.

pub mod dirblocks;
pub mod source;
