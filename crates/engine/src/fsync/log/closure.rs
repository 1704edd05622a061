//! Which inodes and names one fsync must log together.
//!
//! An inode brings every name of it that changed in the transaction since the log had it with the inode last; a changed
//! name brings every inode that it stood for since the log had the name, before the first change and after each. What
//! was in the log before stays there as it is: the log's state counts, where there is one, and not the transaction's
//! beginning. Leaving out one of them shows after a replay: a name without its inode fails the mount, an
//! inode without its name is left unattached, and a name that was given away keeps its old file (the trouble cases of
//! the crate's documentation).

use std::collections::BTreeSet;

use ondisk::Ino;

/// More inodes are committed in full.
pub(crate) const INODES_MAX: usize = 64;
/// More names are.
pub(crate) const NAMES_MAX: usize = 256;

/// A directory and a name in it.
pub(crate) type NamePlace = (Ino, Box<[u8]>);

/// What a transaction changed so far. The caller holds what keeps the answers as they are.
pub(crate) trait Changes {
    /// The names that an inode had or has and that changed in this transaction since they were logged with it.
    fn names_of(&self, ino: Ino) -> Vec<NamePlace>;

    /// Every inode that a changed name stood for since it was logged, or else in this transaction: before its first
    /// change and now among them.
    fn inodes_of(&self, place: &NamePlace) -> Vec<Ino>;
}

/// A closure's members.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Members {
    /// Inodes.
    pub(crate) inodes: BTreeSet<Ino>,
    /// Names.
    pub(crate) names: BTreeSet<NamePlace>,
}

/// The members that these inodes and names bring. `None` if there are too many.
pub(crate) fn close(
    changes: &dyn Changes,
    inodes: impl IntoIterator<Item = Ino>,
    names: impl IntoIterator<Item = NamePlace>,
) -> Option<Members> {
    let mut members = Members::default();
    let mut inodes_left: Vec<Ino> = inodes.into_iter().collect();
    let mut names_left: Vec<NamePlace> = names.into_iter().collect();
    loop {
        if let Some(ino) = inodes_left.pop() {
            if members.inodes.insert(ino) {
                names_left.extend(changes.names_of(ino));
            }
        } else if let Some(place) = names_left.pop() {
            if !members.names.contains(&place) {
                inodes_left.extend(changes.inodes_of(&place));
                members.names.insert(place);
            }
        } else {
            return Some(members);
        }
        if members.inodes.len() > INODES_MAX || members.names.len() > NAMES_MAX {
            return None;
        }
    }
}
