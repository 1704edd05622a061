//! Which inodes and names one fsync must log together.
//!
//! Two rules are applied until they add nothing:
//!
//! - a logged inode adds each of its names that has changed since the log last recorded that name for the inode;
//! - a changed name adds each inode that it stood for since the log last recorded the name: the one before the first
//!   change, and the one after each change.
//!
//! What the log has not recorded yet counts from the beginning of the transaction. If the closure left one of them out,
//! a replay would show it: a name without its inode fails the mount, an inode without its name is left unattached, and
//! a name that was given to another file keeps its old one (the trouble cases in `fsync/log.rs`).

use std::collections::BTreeSet;

use ondisk::Ino;

use crate::inode::{EpochChanges, NAMES_MAX, NamePlace};

/// More inodes are committed in full.
pub(crate) const INODES_MAX: usize = 64;

/// A closure's members.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Members {
    /// Inodes.
    pub(crate) inodes: BTreeSet<Ino>,
    /// Names.
    pub(crate) names: BTreeSet<NamePlace>,
}

/// The members that these inodes and names bring. `None` if there are too many. The caller holds the locks that keep
/// the changes as they are, or checks the changes again after it has taken them.
pub(crate) fn close(
    changes: &EpochChanges,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::Batch;

    fn place(name: &[u8]) -> NamePlace {
        (Ino(2), name.into())
    }

    #[test]
    fn a_name_that_went_on_brings_only_what_stood_for_it_since_the_log_had_it() {
        let changes = EpochChanges::new();
        let (passing, mut before) = (place(b"passing"), None);
        for number in 0..4_u8 {
            let ino = Ino(100 + u32::from(number));
            let own = place(&[b'0' + number]);
            changes.note_name(passing.clone(), None, Some(ino));
            let members = close(&changes, [ino], []).unwrap();
            let expected: BTreeSet<Ino> = before.into_iter().chain([ino]).collect();
            assert_eq!(members.inodes, expected);
            for ino in &members.inodes {
                changes.set_names_in_log(*ino);
            }
            for name in &members.names {
                let (_, now) = changes.name(name).unwrap();
                changes.set_name_in_log(name, now, Batch(1 + u64::from(number)));
            }
            changes.note_name(passing.clone(), Some(ino), None);
            changes.note_name(own, None, Some(ino));
            before = Some(ino);
        }
    }
}
