//! Makes empty ext4 file systems.
