//! The model against the Linux kernel's own ext4: the same operations, the same errors, the same tree.

mod kernel;
