//! What a mount chooses in addition to the forms of mechanisms: where the time comes from, which reads change times of
//! access, and which changes are durable when they return. Constant after the mount.

use ondisk::Timestamp;

/// Where the times of changes come from.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// A function that is called each time.
    Ask(fn() -> Timestamp),
    /// All changes are made at this moment (as SOURCE_DATE_EPOCH asks for).
    Fixed(Timestamp),
}

impl Clock {
    /// The time now.
    #[must_use]
    pub fn now(self) -> Timestamp {
        match self {
            Clock::Ask(clock) => clock(),
            Clock::Fixed(time) => time,
        }
    }
}

/// When reading changes a file's time of last access.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Atime {
    /// When the file changed since, or a day passed (`relatime`).
    #[default]
    Relative,
    /// Always (`strictatime`).
    Always,
    /// Never (`noatime`).
    Never,
}

/// Which changes are durable when the call that made them returns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Synchronous {
    /// Those of files and directories whose flags ask for it (`chattr +S`, `+D`).
    #[default]
    Flagged,
    /// Also all changes of names (`dirsync`).
    Names,
    /// All changes, except times of access (`sync`).
    All,
}
