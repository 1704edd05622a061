//! Listing a directory: its entries in the order of its blocks, with a cookie each to go on from.

use buffer::Block;
use ondisk::dirent::{self, DirForm, DirRecord};
use ondisk::{FileType, FsBlock, Ino, LBlock};
use sync::Arc;

use super::live::Live;
use super::{Directory, encoded};
use crate::error::Error;
use crate::extent::{Mapping, Mappings};
use crate::icache::{LoadedInode, MountedFs};
use crate::sb::OpenVolume;

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedEntry {
    /// The inode it names; not verified to be in use.
    pub ino: Ino,
    /// The name: no slash or NUL in it, not empty; in an encrypted directory an encoded form of it, other than for
    /// `.` and `..`.
    pub name: Vec<u8>,
    /// The inode's type, where the directory records it.
    pub file_type: Option<FileType>,
    /// Where the entries behind this one begin, for [`crate::InodeFs::read_dir_from`]. Grows from entry to entry. On a
    /// file system that is open for writing it holds whatever happens to the directory: see [`DirListing`].
    pub cookie: u64,
    /// Whether the name is encrypted.
    pub is_encrypted: bool,
}

/// The entries of a directory, `.` and `..` among them, in the order of its blocks; in a file system that is open for
/// writing and indexes directories, in the order of the names' hashes.
///
/// While others change the directory, names that are there all the time are given once. So a cookie is a hash where
/// blocks may be split, and a place in a block where names stay where they are.
///
/// A broken block gives one error, and its other entries are left out; the listing then goes on behind it. Each step
/// may block on I/O and takes a cache shard's lock shortly.
pub struct DirListing<'a> {
    directory: Directory<'a>,
    /// Entries before this cookie are left out.
    start: u64,
    source: Source<'a>,
}

enum Source<'a> {
    Inline(Box<Inline>),
    Blocks(Box<Blocks<'a>>),
    Live(Box<Live<'a>>),
}

/// An inline directory's parts and how far they were given.
struct Inline {
    parent: Ino,
    runs: [Vec<u8>; 2],
    /// How many of `.` and `..`, which have no records.
    dots: usize,
    /// The place in each run.
    at: [usize; 2],
}

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

impl<'a> DirListing<'a> {
    /// Lists a directory's entries from a cookie on; 0 for all.
    pub(crate) fn new(
        volume: &'a OpenVolume,
        inode: LoadedInode,
        start: u64,
    ) -> Result<DirListing<'a>, Error> {
        let directory = Directory::new(volume, inode)?;
        let source = if directory.inode.is_inline() {
            let (parent, runs) = directory.inline_parts()?;
            Source::Inline(Box::new(Inline {
                parent,
                runs: runs.map(<[u8]>::to_vec),
                dots: 0,
                at: [0, 0],
            }))
        } else {
            let first = start >> directory.form.block_size.bits();
            Source::Blocks(Box::new(Blocks::new(&directory, first)?))
        };
        Ok(DirListing {
            directory,
            start,
            source,
        })
    }
}

impl<'a> DirListing<'a> {
    /// Lists the entries of a directory that may change meanwhile. The caller does not hold its lock.
    pub(crate) fn of(
        mounted: &'a MountedFs,
        ino: Ino,
        start: u64,
    ) -> Result<DirListing<'a>, Error> {
        let inode = mounted.load_used(ino)?;
        if !mounted.volume().is_writable() {
            return DirListing::new(mounted.volume(), inode, start);
        }
        let directory = Directory::new(mounted.volume(), inode)?;
        if directory.is_encrypted() || directory.is_casefolded() || directory.inode.is_inline() {
            // Only a replay of fast commits changes such directories, and it lists none while it does.
            return DirListing::new(mounted.volume(), directory.inode, start);
        }
        let live = Live::new(mounted, mounted.get(ino)?, start);
        Ok(DirListing {
            directory,
            start,
            source: Source::Live(Box::new(live)),
        })
    }
}

impl Iterator for DirListing<'_> {
    type Item = Result<ListedEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let entry = match &mut self.source {
                Source::Inline(inline) => inline.next(&self.directory),
                Source::Blocks(blocks) => blocks.next(&self.directory),
                Source::Live(live) => return live.next(),
            };
            match entry {
                Some(Ok(entry)) if entry.cookie <= self.start => {}
                other => return other,
            }
        }
    }
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

    fn next(&mut self, directory: &Directory<'_>) -> Option<Result<ListedEntry, Error>> {
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
fn next_used(
    directory: &Directory<'_>,
    bytes: &[u8],
    form: DirForm,
    base: u64,
    at: &mut usize,
) -> Option<Result<ListedEntry, ondisk::Corrupt>> {
    for entry in dirent::entries_from(bytes, form, *at) {
        let shown = entry.and_then(|entry| {
            *at = entry.offset + entry.len;
            match entry.is_used() {
                true => show(directory, &entry, base).map(Some),
                false => Ok(None),
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

impl Inline {
    /// Cookies: 1 behind `.`, 2 behind `..`, then from 4 on the place behind an entry, the two runs taken as one.
    fn next(&mut self, directory: &Directory<'_>) -> Option<Result<ListedEntry, Error>> {
        let own = [(&b"."[..], directory.inode.ino()), (b"..", self.parent)];
        if let Some((name, ino)) = own.get(self.dots) {
            self.dots += 1;
            return Some(Ok(ListedEntry {
                ino: *ino,
                name: name.to_vec(),
                file_type: Some(FileType::Directory),
                cookie: self.dots as u64,
                is_encrypted: false,
            }));
        }
        let form = directory.form.without_checksum();
        let mut base = 4;
        for (run, at) in self.runs.iter().zip(&mut self.at) {
            if let Some(entry) = next_used(directory, run, form, base, at) {
                return Some(entry.map_err(|corrupt| directory.corrupt(corrupt)));
            }
            base += run.len() as u64;
        }
        None
    }
}
