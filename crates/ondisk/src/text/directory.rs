//! Directory blocks as text: records, and the index of hashed directories.

use core::fmt::{self, Display, Formatter};

use super::{Lines, PrintedName};
use crate::dirent::{self, DirForm};
use crate::htree::IndexBlock;

/// Prints the records of one directory block, including free ones; ends at the first broken record.
#[derive(Clone, Copy)]
pub struct DirectoryText<'a> {
    /// The block, or the bytes of an inline directory.
    pub block: &'a [u8],
    /// The form of its records.
    pub form: DirForm,
}

impl Display for DirectoryText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut lines = Lines::new(f);
        for entry in dirent::entries(self.block, self.form) {
            match entry {
                Ok(entry) if entry.is_used() => {
                    let letter = entry.file_type.map_or('?', |kind| kind.letter());
                    lines.line(format_args!(
                        "{:>5} +{:<5} {letter} {:>10} {}",
                        entry.offset,
                        entry.len,
                        entry.ino,
                        PrintedName(entry.name)
                    ))?;
                }
                Ok(entry) => {
                    lines.line(format_args!("{:>5} +{:<5} free", entry.offset, entry.len))?
                }
                Err(corrupt) => return lines.line(corrupt),
            }
        }
        Ok(())
    }
}

/// Prints the entries of an index block of a hashed directory.
#[derive(Clone, Copy)]
pub struct IndexText<'a>(pub IndexBlock<'a>);

impl Display for IndexText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut lines = Lines::new(f);
        for i in 0..self.0.count() {
            let continues = if self.0.continues(i) {
                " (continues)"
            } else {
                ""
            };
            lines.line(format_args!(
                "{:#010x} -> block {}{continues}",
                self.0.hash(i),
                self.0.block(i)
            ))?;
        }
        Ok(())
    }
}
