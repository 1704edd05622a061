//! Replay compared with other programs: a journal that the kernel or debugfs wrote is read here as e2fsck and the
//! kernel replay it.

mod bench;
mod debugfs;
mod differential;
mod hostile;
mod kernel;
mod written;
