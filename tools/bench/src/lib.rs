//! Workloads that measure lanefs: the engine in process, beside any mounted directory, in one run.
//!
//! A [`Workload`] is written once against [`Target`], which is what a workload may do to a file system. Each
//! [`Contender`] is one file system, or one form of a mechanism on a file system of ours; [`run`] gives all of them
//! their turn in each round, so that a busy minute hits them all, and keeps every sample. A [`Suite`] is what the
//! command line calls a bench: some tables, with what they need. The program `lanefs-bench` prints and draws them.
//!
//! What is measured depends on the way a call takes. [`InProcess`] calls the engine's functions by inode number;
//! [`HostDirectory`] makes system calls relative to an open directory, which is a kernel's file system, or a FUSE
//! server with two changes of context a call. Every column says which.

mod check_speed;
mod directory;
mod in_process;
mod leavings;
mod machine;
mod measure;
mod programs;
mod regions;
mod slow_flush;
mod speed;
mod spindle;
mod statistics;
mod suite;
mod table;
mod target;
mod workload;

pub use check_speed::{CheckPlan, check_speed, e2fsck_version};
pub use directory::HostDirectory;
pub use in_process::{InProcess, OpenFile};
pub use leavings::{clear as clear_leavings, scratch};
pub use machine::describe as describe_machine;
pub use measure::{Contender, MeasurePlan, Stop, pairs, run};
pub use speed::{Figures, Speed, speeds};
pub use spindle::MODEL as DISK_MODEL;
pub use statistics::{Ratio, ratio};
pub use suite::{ProgressHook, Setup, Suite, mechanisms};
pub use table::{Cell, Column, Sample, Spread, Table, TableShape};
pub use target::{Counters, FileHandle, MountedTarget, Remount, Target};
pub use workload::Workload;
