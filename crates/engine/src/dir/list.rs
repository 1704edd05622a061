//! Listing a directory: its entries in the order of its blocks, with a cookie each to go on from.

use ondisk::{FileType, Ino};

use super::blocks::{Blocks, next_used};
use super::live::LiveListing;
use super::{Directory, ListedEntry};
use crate::blocks::OpenVolume;
use crate::core::Error;
use crate::inode::LoadedInode;
use crate::token::LiveFs;

/// The entries of a directory, `.` and `..` among them, in the order of its blocks; in a file system that is open for
/// writing and indexes directories, in the order of the names' hashes.
///
/// While others change the directory, names that are there all the time are given once. So a cookie is a hash where
/// blocks may be split, and a place in a block where names stay where they are.
///
/// A broken block gives one error, and its other entries are left out; the listing then continues after it. Each step
/// may block on I/O and holds a cache shard's lock for a moment.
pub struct DirListing<'a> {
    directory: Directory<'a>,
    /// Entries before this cookie are left out.
    start: u64,
    source: Source<'a>,
}

enum Source<'a> {
    Inline(Box<Inline>),
    Blocks(Box<Blocks<'a>>),
    Live(Box<LiveListing<'a>>),
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
    pub(crate) fn of(mounted: &'a LiveFs, ino: Ino, start: u64) -> Result<DirListing<'a>, Error> {
        let directory = Directory::new(mounted.volume(), mounted.load_used(ino)?)?;
        if directory.is_encrypted() || directory.is_casefolded() || directory.inode.is_inline() {
            // Only a replay of fast commits changes such directories, and it lists none while it does.
            return DirListing::new(mounted.volume(), directory.inode, start);
        }
        let live = LiveListing::new(mounted, mounted.get(ino)?, start);
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
