//! Sources from memory: plain functions from bytes to a tree or an error, for fuzz targets and for tests. None of them
//! panics or takes more memory than [`super::limits`] allows, whatever the bytes.

use std::fs::File;
use std::io::Write;

use rustix::fs::MemfdFlags;
use sync::Arc;

use super::apply::Apply;
use super::archive;
use super::builder::Builder;
use super::contexts::Contexts;
use super::error::SourceError;
use super::exclude::Excludes;
use super::oci;
use super::origin::{Archive, Source};
use super::stream::{Compression, Stream, decompressed};
use super::table;
use super::tar::{self, Rules};
use super::tree::Tree;

/// What is decompressed at a time.
const PIECE: usize = 64 * 1024;

struct Reading<'r> {
    reader: Box<dyn std::io::Read + Send + 'r>,
    buffer: Vec<u8>,
    held: std::ops::Range<usize>,
    position: u64,
}

impl Stream for Reading<'_> {
    fn fill(&mut self) -> std::io::Result<&[u8]> {
        if self.held.is_empty() {
            self.held = 0..self.reader.read(&mut self.buffer)?;
        }
        Ok(&self.buffer[self.held.clone()])
    }

    fn consume(&mut self, count: usize) {
        let count = count.min(self.held.len());
        self.held.start += count;
        self.position += count as u64;
    }

    fn position(&self) -> u64 {
        self.position
    }
}

/// The tree of a tar archive, compressed or not.
///
/// # Errors
/// As scanning a file with these bytes.
pub fn tar(bytes: &[u8]) -> Result<Tree, SourceError> {
    let wrong = |problem| SourceError::Archive {
        archive: "bytes".into(),
        offset: 0,
        entry: None,
        problem,
    };
    let compression = Compression::of(bytes).map_err(wrong)?;
    let mut builder = Builder::new();
    let source = builder.add_source(Source::Spent).map_err(wrong)?;
    let excludes = Excludes::default();
    let mut apply = Apply::new(&mut builder, 0, source, &excludes);
    let mut stream = Reading {
        reader: decompressed(bytes, compression),
        buffer: vec![0; PIECE],
        held: 0..0,
        position: 0,
    };
    let ending = tar::read(&mut stream, "bytes", Rules::Strict, &mut apply)?;
    archive::finish(apply, ending, "bytes")?;
    let mut tree = builder.finish();
    tree.number_xattrs();
    Ok(tree)
}

/// The tree of an uncompressed archive of an OCI layout, or of what `docker save` writes.
///
/// # Errors
/// As scanning a file with these bytes; also when they are no such archive.
pub fn image(bytes: &[u8]) -> Result<Tree, SourceError> {
    let io = |error| SourceError::Io {
        operation: "keep",
        path: "bytes".into(),
        error,
    };
    let fd = rustix::fs::memfd_create("image", MemfdFlags::CLOEXEC);
    let mut file = File::from(fd.map_err(|errno| io(errno.into()))?);
    file.write_all(bytes).map_err(io)?;
    let archive = Archive {
        file: Arc::new(file),
        start: 0,
        len: bytes.len() as u64,
        compression: Compression::None,
        label: "bytes".into(),
        rules: Rules::Strict,
    };
    let mut builder = Builder::new();
    match oci::in_archive(&archive)? {
        Some(image) => image.add(&mut builder, 0, &Excludes::default(), (None, None), 1)?,
        None => {
            return Err(SourceError::Usage(
                "this is not an archive of an image".into(),
            ));
        }
    }
    let mut tree = builder.finish();
    tree.number_xattrs();
    Ok(tree)
}

/// The tree that an ownership table makes by itself.
///
/// # Errors
/// With the line that is wrong.
pub fn ownership_table(text: &str) -> Result<Tree, SourceError> {
    let mut builder = Builder::new();
    let applied = table::apply_text(text, &mut builder);
    applied.map_err(|(line, problem)| SourceError::Line {
        path: "text".into(),
        line,
        problem,
    })?;
    Ok(builder.finish())
}

/// Reads the text of a `file_contexts` file.
///
/// # Errors
/// With the line that is wrong.
pub fn file_contexts(text: &str) -> Result<(), SourceError> {
    let parsed = Contexts::parse(text).map(|_| ());
    parsed.map_err(|(line, problem)| SourceError::Line {
        path: "text".into(),
        line,
        problem,
    })
}
