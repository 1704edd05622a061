//! The blocks of a directory that are there, in order, and the entries in them.

use buffer::Block;
use ondisk::dirent::{self, DirForm, DirRecord};
use ondisk::{FsBlock, LBlock};
use sync::Arc;

use super::{Directory, ListedEntry, encoded};
use crate::core::Error;
use crate::map::{Mapping, Mappings};

/// The blocks of a directory that are there, in order.
pub(super) struct Blocks<'a> {
    mappings: Mappings<'a>,
    /// What is left of the current run.
    run: Option<Mapping>,
    open: Option<OpenBlock>,
}

/// A block whose entries are being given.
pub(super) struct OpenBlock {
    pub(super) block: Arc<Block>,
    pub(super) number: LBlock,
    pub(super) physical: FsBlock,
    pub(super) form: DirForm,
    at: usize,
}

impl<'a> Blocks<'a> {
    /// The blocks from number `first` on.
    pub(super) fn new(directory: &Directory<'a>, first: u64) -> Result<Blocks<'a>, Error> {
        let range = first.min(directory.blocks)..directory.blocks;
        Ok(Blocks {
            mappings: Mappings::new(directory.volume, &directory.inode, range)?,
            run: None,
            open: None,
        })
    }

    /// The next entry.
    pub(super) fn next(&mut self, directory: &Directory<'_>) -> Option<Result<ListedEntry, Error>> {
        loop {
            if let Some(open) = &mut self.open {
                match open.next(directory) {
                    Some(entry) => return Some(entry),
                    None => self.open = None,
                }
            }
            self.open = match self.next_block(directory)? {
                Ok(open) => Some(open),
                Err(error) => return Some(Err(error)),
            };
        }
    }

    /// Reads the next block that is there.
    pub(super) fn next_block(
        &mut self,
        directory: &Directory<'_>,
    ) -> Option<Result<OpenBlock, Error>> {
        let (logical, physical) = loop {
            if let Some(run) = self.run.as_mut().filter(|run| run.len > 0)
                && let Some(physical) = run.physical
                && !run.unwritten
            {
                let place = (run.logical, physical);
                run.logical += 1;
                run.len -= 1;
                run.physical = Some(FsBlock(physical.0 + 1));
                break place;
            }
            match self.mappings.next()? {
                Ok(run) => self.run = Some(run),
                Err(error) => return Some(Err(error)),
            }
        };
        // Below `limits::DIRECTORY_BLOCKS`.
        #[allow(clippy::cast_possible_truncation)]
        let number = LBlock(logical as u32);
        Some(directory.block_at(number, physical).map(|block| OpenBlock {
            form: directory.form_of(number, &block),
            block,
            number,
            physical,
            at: 0,
        }))
    }
}

impl OpenBlock {
    fn next(&mut self, directory: &Directory<'_>) -> Option<Result<ListedEntry, Error>> {
        let base = u64::from(self.number.0) << self.form.block_size.bits();
        let entry = next_used(directory, &self.block, self.form, base, &mut self.at)?;
        Some(entry.map_err(|corrupt| directory.corrupt(corrupt.block(self.physical))))
    }
}

/// The next used record in `bytes` from `at` on, which is moved behind it. Its cookie is `base` and its end.
pub(super) fn next_used(
    directory: &Directory<'_>,
    bytes: &[u8],
    form: DirForm,
    base: u64,
    at: &mut usize,
) -> Option<Result<ListedEntry, ondisk::Corrupt>> {
    for entry in dirent::entries_from(bytes, form, *at) {
        let shown = entry.and_then(|entry| {
            *at = entry.offset + entry.len;
            if entry.is_used() {
                show(directory, &entry, base).map(Some)
            } else {
                Ok(None)
            }
        });
        match shown {
            Ok(None) => {}
            Ok(Some(entry)) => return Some(Ok(entry)),
            Err(corrupt) => {
                *at = bytes.len();
                return Some(Err(corrupt));
            }
        }
    }
    None
}

/// An entry as it is given, with its end in the directory as its cookie.
fn show(
    directory: &Directory<'_>,
    entry: &DirRecord<'_>,
    base: u64,
) -> Result<ListedEntry, ondisk::Corrupt> {
    let is_encrypted = directory.is_encrypted() && !dirent::is_dots(entry.name);
    let name = if is_encrypted && !entry.name.is_empty() {
        encoded::encode(entry.name)
    } else {
        dirent::verify_name(entry.name)?;
        entry.name.to_vec()
    };
    Ok(ListedEntry {
        ino: entry.ino,
        name,
        file_type: entry.file_type,
        cookie: base + (entry.offset + entry.len) as u64,
        is_encrypted,
    })
}
