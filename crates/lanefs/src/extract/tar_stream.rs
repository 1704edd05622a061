//! Writes a tar stream: entries in the order of the walk, read ahead by several threads and written by one.
//!
//! The walk yields a bounded number of entries at a time. The threads read the small files among them completely while
//! earlier entries are written. Large files are read as they are written. At most two batches are in memory.

use std::collections::HashMap;
use std::io;
use std::ops::Range;

use sync::{Mutex, Rank};

use super::tar::{BLOCK, Kind, headers, sparse_map};
use super::{Options, Summary, Tally, is_unsafe_name};
use crate::walk::{Step, Walk};
use crate::{Error, FileType, Fs, Ino, InodeRef, Metadata, Xattr};

/// The most entries that are read ahead.
const LOT: usize = 256;
/// The most bytes of files that are read ahead.
const LOT_BYTES: u64 = 16 << 20;
/// Only files up to this size are read ahead.
const SMALL: u64 = 256 << 10;
/// How many bytes of a large file are read at once.
const COPY_BYTES: usize = 1 << 20;
/// A sparse file with more pieces than this is written with its holes as zeros.
const MAX_RANGES: usize = 100_000;

/// An entry as the walk finds it.
struct Found {
    name: Vec<u8>,
    ino: Ino,
    metadata: Metadata,
}

/// An entry that is ready to be written.
struct Ready {
    found: Found,
    xattrs: Vec<Xattr>,
    content: Content,
}

enum Content {
    /// The contents of a small file.
    Bytes(Vec<u8>),
    /// The ranges of data of a file that is read while it is written; the rest is holes.
    Ranges(Vec<Range<u64>>),
    Link(Vec<u8>),
    None,
}

/// Writes the tree at `from` to the stream.
pub fn write(
    fs: &Fs,
    from: Ino,
    name: &[u8],
    output: &mut dyn io::Write,
    options: &Options<'_>,
) -> Result<Summary, Error> {
    let metadata = fs.inodes().metadata(from)?;
    let mut stream = Stream {
        fs,
        output,
        tally: Tally::new(),
        names: HashMap::new(),
        buffer: Vec::new(),
    };
    if metadata.file_type == FileType::Directory {
        stream.tree(from, metadata, options)?;
    } else {
        let found = Found {
            name: name.to_vec(),
            ino: from,
            metadata,
        };
        match ready(fs, found, options) {
            Ok(entry) => stream.entry(entry)?,
            Err(error) => stream.tally.fail(name, error),
        }
    }
    // The end is two blocks of zeros; tar likes records of 20 blocks, and readers take any length.
    stream.put(&[0; 2 * BLOCK])?;
    stream.output.flush().map_err(Error::output)?;
    Ok(stream.tally.finish(false))
}

struct Stream<'a> {
    fs: &'a Fs,
    output: &'a mut dyn io::Write,
    tally: Tally,
    /// The first name of each file that has several names.
    names: HashMap<Ino, Vec<u8>>,
    buffer: Vec<u8>,
}

impl Stream<'_> {
    fn tree(&mut self, from: Ino, metadata: Metadata, options: &Options<'_>) -> Result<(), Error> {
        let root = Found {
            name: b"./".to_vec(),
            ino: from,
            metadata,
        };
        let mut walk = Walk::new(self.fs, from);
        let mut lot = vec![root];
        let fs = self.fs;
        while !lot.is_empty() {
            let current = std::mem::take(&mut lot);
            let prepared = prepare(fs, current, options);
            for (name, entry) in prepared {
                match entry {
                    Ok(entry) => self.entry(entry)?,
                    Err(error) => self.tally.fail(&name, error),
                }
            }
            lot = self.next_lot(&mut walk);
        }
        Ok(())
    }

    fn next_lot(&mut self, walk: &mut Walk<'_>) -> Vec<Found> {
        let mut lot = Vec::new();
        let mut bytes = 0;
        while lot.len() < LOT && bytes < LOT_BYTES {
            let Some(step) = walk.next() else { break };
            let entry = match step {
                Ok(Step::Enter(entry)) => entry,
                Ok(Step::Leave(_)) => continue,
                Err((path, error)) => {
                    self.tally.fail(&path, error);
                    continue;
                }
            };
            if entry.path.split(|byte| *byte == b'/').any(is_unsafe_name) {
                self.tally
                    .fail(&entry.path, Error::invalid("a name that no file can have"));
                walk.prune();
                continue;
            }
            if super::is_empty_lost_and_found(self.fs, &entry.path, &entry.metadata) {
                continue;
            }
            bytes += entry.metadata.size.min(SMALL);
            let is_directory = entry.metadata.file_type == FileType::Directory;
            let name = if is_directory {
                [&*entry.path, b"/"].concat()
            } else {
                entry.path
            };
            lot.push(Found {
                name,
                ino: entry.ino,
                metadata: entry.metadata,
            });
        }
        lot
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.output.write_all(bytes).map_err(Error::output)
    }

    fn pad(&mut self, len: u64) -> Result<(), Error> {
        let past = (len % BLOCK as u64) as usize;
        if past > 0 {
            self.put(&[0; BLOCK][past..])
        } else {
            Ok(())
        }
    }

    fn entry(&mut self, entry: Ready) -> Result<(), Error> {
        let Ready {
            found:
                Found {
                    name,
                    ino,
                    metadata,
                },
            xattrs,
            content,
        } = entry;
        let kind = metadata.file_type;
        if metadata.nlink > 1 && kind != FileType::Directory {
            if let Some(first) = self.names.get(&ino) {
                let bytes = headers(&name, &metadata, &[], &Kind::HardLink(first));
                self.tally.hard_links.add(1);
                return self.put(&bytes);
            }
            if kind != FileType::Socket {
                self.names.insert(ino, name.clone());
            }
        }
        match (kind, content) {
            (FileType::Regular, Content::Bytes(bytes)) => {
                self.tally.files.add(1);
                self.tally.bytes.add(bytes.len() as u64);
                let size = bytes.len() as u64;
                self.put(&headers(&name, &metadata, &xattrs, &Kind::File(size)))?;
                self.put(&bytes)?;
                self.pad(size)
            }
            (FileType::Regular, Content::Ranges(ranges)) => {
                self.tally.files.add(1);
                self.big(&name, ino, &metadata, &xattrs, &ranges)
            }
            (FileType::Symlink, Content::Link(target)) => {
                self.tally.symlinks.add(1);
                self.put(&headers(&name, &metadata, &xattrs, &Kind::Symlink(&target)))
            }
            (FileType::Socket, _) => {
                self.tally.lost.sockets.add(1);
                Ok(())
            }
            (kind, _) => {
                let count = if kind == FileType::Directory {
                    &self.tally.directories
                } else {
                    &self.tally.special
                };
                count.add(1);
                self.put(&headers(&name, &metadata, &xattrs, &Kind::Other))
            }
        }
    }

    /// Writes a file while reading it, as a sparse file if that makes it smaller.
    fn big(
        &mut self,
        name: &[u8],
        ino: Ino,
        metadata: &Metadata,
        xattrs: &[Xattr],
        ranges: &[Range<u64>],
    ) -> Result<(), Error> {
        let size = metadata.size;
        let data: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        if data == size || ranges.len() > MAX_RANGES {
            self.put(&headers(name, metadata, xattrs, &Kind::File(size)))?;
            self.copy(name, ino, 0..size)?;
            return self.pad(size);
        }
        let mut listed = ranges.to_vec();
        // An empty range at the end gives readers the size of a file that ends in a hole, as in GNU tar.
        if listed.last().is_none_or(|last| last.end < size) {
            listed.push(size..size);
        }
        let map = sparse_map(&listed);
        let stored = map.len() as u64 + data;
        self.put(&headers(
            name,
            metadata,
            xattrs,
            &Kind::Sparse(size, stored),
        ))?;
        self.put(&map)?;
        for range in ranges {
            self.copy(name, ino, range.clone())?;
        }
        self.pad(stored)
    }

    /// Copies a range. Bytes that can't be read are written as zeros and reported in the summary, because the header
    /// has already announced them.
    fn copy(&mut self, name: &[u8], ino: Ino, range: Range<u64>) -> Result<(), Error> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(COPY_BYTES, 0);
        let mut at = range.start;
        let mut broken = false;
        while at < range.end {
            let wanted =
                usize::try_from(range.end - at).map_or(COPY_BYTES, |left| left.min(COPY_BYTES));
            let read = match self.fs.inodes().read(ino, at, &mut buffer[..wanted]) {
                _ if broken => 0,
                Ok(read) => read,
                Err(error) => {
                    self.tally.fail(name, error);
                    0
                }
            };
            broken |= read == 0;
            if broken {
                buffer[..wanted].fill(0);
            }
            let len = if broken { wanted } else { read };
            self.put(&buffer[..len])?;
            self.tally.bytes.add(len as u64);
            at += len as u64;
        }
        self.buffer = buffer;
        Ok(())
    }
}

type Prepared = (Vec<u8>, Result<Ready, Error>);

/// Reads ahead a lot of entries on several threads; they come back in their order.
fn prepare(fs: &Fs, lot: Vec<Found>, options: &Options<'_>) -> Vec<Prepared> {
    let threads = options.threads().min(lot.len().div_ceil(8)).max(1);
    let count = lot.len();
    // The entries that are not read yet. [leaf]
    let todo = Mutex::new(Rank::Leaf, lot.into_iter().enumerate());
    let done: Mutex<Vec<Option<Prepared>>> =
        Mutex::new(Rank::Leaf, (0..count).map(|_| None).collect());
    sync::thread::workers(threads, |_| {
        loop {
            let next = todo.lock().next();
            let Some((index, found)) = next else { break };
            let name = found.name.clone();
            let prepared = (name, ready(fs, found, options));
            done.lock()[index] = Some(prepared);
        }
    });
    done.into_inner().into_iter().flatten().collect()
}

fn ready(fs: &Fs, found: Found, options: &Options<'_>) -> Result<Ready, Error> {
    let inode = fs.inodes().inode(found.ino)?;
    let size = found.metadata.size;
    let content = match found.metadata.file_type {
        FileType::Regular if size <= SMALL => {
            let mut bytes = vec![0; size as usize];
            read_exact(&inode, &mut bytes)?;
            Content::Bytes(bytes)
        }
        FileType::Regular => {
            let ranges: Result<Vec<_>, Error> = super::data_ranges(fs, &inode, size)?
                .take(MAX_RANGES + 1)
                .collect();
            Content::Ranges(ranges?)
        }
        FileType::Symlink => Content::Link(inode.read_link()?),
        _ => Content::None,
    };
    let xattrs = if options.keep.xattrs {
        inode.xattrs()?
    } else {
        Vec::new()
    };
    Ok(Ready {
        found,
        xattrs,
        content,
    })
}

fn read_exact(inode: &InodeRef<'_>, bytes: &mut [u8]) -> Result<(), Error> {
    let mut at = 0;
    while at < bytes.len() {
        let read = inode.read(at as u64, &mut bytes[at..])?;
        if read == 0 {
            return Err(Error::invalid("the file ended early"));
        }
        at += read;
    }
    Ok(())
}
