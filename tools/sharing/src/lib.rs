//! The work whose cache lines are looked at: operations of two workers, each on a directory and files of its own, and
//! mistakes made on purpose. `cargo xtask sharing` compiles it so that each access to memory calls the program's
//! runtime; in any other build nothing here is special. No locks of its own; nothing survives the process.

mod canary;
mod operation;

pub use canary::PlantedSharing;
pub use operation::{WatchedOperation, WatchedWorker};
