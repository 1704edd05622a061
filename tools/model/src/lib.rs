//! A reference file system in plain maps: what each operation does, and which states a crash may leave.
//!
//! It is the oracle for every test that compares lanefs with "what should have happened", so it shares no code
//! with the engine, depends on nothing, is single-threaded and knows neither blocks on a device nor a journal. It is
//! itself judged by the Linux kernel: its tests run the same operations on a kernel mount and compare.
//!
//! * [`ModelTree`]: the state, cheap to clone, so that a history keeps all of its states.
//! * [`Op`] and [`ModelTree::apply`]: the operations and their errors.
//! * [`History`]: a run's states and promises, and the check of what was found after a crash.
//! * [`Generator`]: operations from a seed, chosen by index into the tree, from tiny alphabets.

pub mod acl;
mod apply;
mod compare;
mod content;
mod directory;
mod file;
mod generate;
mod history;
mod op;
mod random;
mod tree;

pub use compare::Difference;
pub use content::{BLOCK, FileBytes, SECTOR};
pub use generate::{Generator, SizeProfile};
pub use history::{History, Mismatch};
pub use op::{Device, Errno, FallocateMode, ModelPath, Op, OpTarget, RenameMode, XattrCondition};
pub use random::Random;
pub use tree::{Kind, ModelId, ModelNode, ModelTree};
