//! The engine beside the model, as tests want it: the simulation's executor, where what the model does not know panics.

use lanefs_engine::InodeFs;
use model::{Errno, ModelTree, Op};
use simulate::OpRefusal;

/// Does the model's operations on a file system.
pub struct Executor<'a>(simulate::Executor<'a>);

impl<'a> Executor<'a> {
    pub fn new(fs: &'a InodeFs) -> Executor<'a> {
        Executor(simulate::Executor::new(fs))
    }

    /// Whether the operation is supported on every kind of image that the tests use.
    pub fn knows(op: &Op) -> bool {
        !matches!(
            op,
            Op::Fallocate { .. } | Op::SetXattr { .. } | Op::RemoveXattr { .. }
        )
    }

    /// Does it.
    pub fn apply(&mut self, op: &Op) -> Result<(), Errno> {
        match self.0.apply(op) {
            Ok(()) => Ok(()),
            Err(OpRefusal::Errno(errno)) => Err(errno),
            Err(other) => panic!("{op:?}: {other:?}"),
        }
    }
}

/// What is on an image, except `lost+found`.
pub fn tree(fs: &InodeFs) -> ModelTree {
    simulate::tree(fs).unwrap()
}
