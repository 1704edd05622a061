//! Printers: every structure as text, used by `dump`, `info`, tests and messages, so that all use the same words.
//!
//! A printer borrows a structure and implements `Display`. It writes one `name: value` line for each field, an empty
//! line between sections, and no final newline. It accepts any bytes, verified or not. Names that are not UTF-8 or hold
//! control characters are escaped as `\xNN`, so that no image can send commands to a terminal.

use core::fmt::{self, Display, Formatter};

mod directory;
mod group;
mod inode;
mod journal;
mod superblock;
mod words;

pub use directory::{DirectoryText, IndexText};
pub use group::GroupText;
pub use inode::{ExtentNodeText, InodeText, XattrsText};
pub use journal::{JournalText, LogBlockText, MmpText, RecordText};
pub use superblock::SuperblockText;
pub use words::{Bytes, Hex, PrintedName, Utc, Uuid};

/// The column where values begin.
const WIDTH: usize = 26;

/// Writes lines, with a newline before each except the first.
struct Lines<'a, 'b> {
    f: &'a mut Formatter<'b>,
    is_first: bool,
}

impl<'a, 'b> Lines<'a, 'b> {
    fn new(f: &'a mut Formatter<'b>) -> Lines<'a, 'b> {
        Lines { f, is_first: true }
    }

    /// Writes `name:` and the value, in columns.
    fn field(&mut self, name: &str, value: impl Display) -> fmt::Result {
        self.line(format_args!("{:<WIDTH$}{value}", Label(name)))
    }

    /// Writes `name:` and the value if there is a value.
    fn maybe(&mut self, name: &str, value: Option<impl Display>) -> fmt::Result {
        value.map_or(Ok(()), |value| self.field(name, value))
    }

    /// Writes a line unchanged.
    fn line(&mut self, line: impl Display) -> fmt::Result {
        if !core::mem::take(&mut self.is_first) {
            self.f.write_str("\n")?;
        }
        write!(self.f, "{line}")
    }

    /// Writes an empty line and a heading.
    fn section(&mut self, heading: &str) -> fmt::Result {
        if !self.is_first {
            self.line("")?;
        }
        self.line(heading)
    }
}

/// A field's name with a colon, both of which count when the column is padded.
struct Label<'a>(&'a str);

impl Display for Label<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let width = f.width().unwrap_or(0);
        let used = self.0.chars().count() + 1;
        write!(
            f,
            "{}:{:pad$}",
            self.0,
            "",
            pad = width.saturating_sub(used).max(1)
        )
    }
}
