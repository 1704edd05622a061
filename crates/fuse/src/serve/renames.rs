//! RENAME over another name, of a file of which the kernel may hold changes (with the writeback cache).
//!
//! The kernel sends it before the file's WRITEs. If a commit came between them, a crash would replace a good file by an
//! empty one, so commits wait; see [`crate::volume`]. Such a rename may wait for a commit itself, so a waiter does it.

use lanefs::{Ino, RenameFlag};

use super::convert::named;
use super::{Asked, Errno, RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT, Server, for_caller};
use crate::operations::{Answer, BoxedFs, Caller, Named};
use crate::request::FuseOperation;

/// A directory and a name in it, which outlive the request.
struct OwnedName {
    directory: Ino,
    name: Vec<u8>,
}

impl OwnedName {
    fn new(at: Named<'_>) -> OwnedName {
        OwnedName {
            directory: at.directory,
            name: at.name.to_vec(),
        }
    }

    fn named(&self) -> Named<'_> {
        Named {
            directory: self.directory,
            name: &self.name,
        }
    }
}

/// What renameat2(2) may do, and whether it leaves a whiteout.
fn rename_flag(flags: u32) -> Answer<(RenameFlag, bool)> {
    let flag = match flags & !RENAME_WHITEOUT {
        0 => RenameFlag::Replace,
        RENAME_NOREPLACE => RenameFlag::NoReplace,
        RENAME_EXCHANGE => RenameFlag::Exchange,
        _ => return Err(Errno::INVAL),
    };
    Ok((flag, flags & RENAME_WHITEOUT != 0))
}

fn rename(
    operations: &BoxedFs,
    caller: Caller,
    (from, to): (Named<'_>, Named<'_>),
    (flag, leaves_whiteout): (RenameFlag, bool),
) -> Answer<()> {
    let whiteout = leaves_whiteout.then_some((caller.uid, caller.gid));
    for_caller(operations, caller, || {
        operations.rename(from, to, flag, whiteout)
    })
}

impl Server {
    pub(super) fn rename(&self, asked: Asked<'_>, renamed: FuseOperation<'_>) {
        let FuseOperation::Rename {
            name,
            new_directory,
            new_name,
            flags,
        } = renamed
        else {
            return asked.reply.error(Errno::NOSYS);
        };
        let Asked {
            operations,
            node,
            caller,
            reply,
            ..
        } = asked;
        let names = named(node, name).and_then(|from| Ok((from, named(new_directory, new_name)?)));
        let (from, to, how) = match (names, rename_flag(flags)) {
            (Ok((from, to)), Ok(how)) => (from, to, how),
            (Err(error), _) | (_, Err(error)) => return reply.error(error),
        };
        let unwritten = operations.unwritten_over(from, to, how.0);
        if unwritten.is_empty() {
            return reply.empty(rename(operations, caller, (from, to), how));
        }
        let (from, to) = (OwnedName::new(from), OwnedName::new(to));
        self.waiters.hand_over(operations, move |operations| {
            operations.hold_commits(&unwritten);
            let names = (from.named(), to.named());
            reply.empty(rename(operations, caller, names, how));
            operations.changed();
        });
    }
}
