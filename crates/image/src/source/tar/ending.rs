//! How a tar archive may end.

/// What is an error at the end of an archive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rules {
    /// An archive that a user names: it must not be empty, and only zeros may follow its end.
    Strict,
    /// A layer whose digest was verified: as in container engines, it may be empty or lack its last padding, and what
    /// follows the end is ignored.
    Layer,
}

/// How an archive ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Ending {
    /// As it should: with two blocks of zeros (a layer: with one or more).
    Marked,
    /// Without the two blocks of zeros, at this byte. GNU tar reads such an archive.
    Unmarked(u64),
}

impl Ending {
    /// What the user is warned of, if anything.
    pub(crate) fn warning(self, archive: &str) -> Option<String> {
        match self {
            Self::Marked => None,
            Self::Unmarked(at) => Some(format!(
                "{archive}: the archive ends at byte {at} without its end mark (zeros): it may be truncated"
            )),
        }
    }
}
