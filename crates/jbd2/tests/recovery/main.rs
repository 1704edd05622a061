//! Replay judged by others: what the kernel and debugfs wrote into a journal, we read as e2fsck and the kernel replay
//! it.

mod bench;
mod debugfs;
mod differential;
mod hostile;
mod kernel;
mod written;
