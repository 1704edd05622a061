//! The mounted ext4 file system.
