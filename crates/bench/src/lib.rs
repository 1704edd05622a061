//! Workloads that measure lanefs: the engine in process, beside any mounted directory, in one run.
//!
//! A [`Workload`] is written once against [`Target`], which is what a workload may do to a file system. Each
//! [`Contender`] is one file system; [`run`] gives all of them their turn in each round, so that a busy minute hits
//! them all, and returns every sample. Nothing here prints, and nothing judges: the figures are the caller's.
//!
//! What is measured depends on the way a call takes. [`InProcess`] calls the engine's functions by inode number;
//! [`Directory`] makes system calls relative to an open directory, which is a kernel's file system, or a FUSE server
//! with two changes of context a call. Whoever shows figures of both says so.

mod directory;
mod in_process;
mod measure;
mod target;
mod workload;

pub use directory::Directory;
pub use in_process::InProcess;
pub use measure::{Contender, Plan, Row, Sample, run};
pub use target::Target;
pub use workload::Workload;
