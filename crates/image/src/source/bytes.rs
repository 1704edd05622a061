//! Sources from memory: plain functions from bytes to a tree or an error, for fuzz targets and for tests. None of them
//! panics or takes more memory than [`super::limits`] allows, whatever the bytes.

use std::io::Write;

use sync::Arc;

use super::archive::{self, Adding, Opened};
use super::builder::Builder;
use super::contexts::Contexts;
use super::error::SinkError;
use super::error::SourceError;
use super::exclude::Excludes;
use super::inputs::Archive;
use super::origin::DataSink;
use super::stream::Compression;
use super::system::temporary;
use super::table;
use super::tar::Rules;
use super::tree::{SourceId, SourceTree};

/// Bytes of an archive of an image that may be kept.
const SPOOL: u64 = 1 << 30;

/// A sink that wants nothing.
struct Unwanted;

impl DataSink for Unwanted {
    fn begin(&mut self, _: SourceId, _: u32, _: u64, _: u64) -> Result<bool, SinkError> {
        Ok(true)
    }

    fn data(&mut self, _: u64, _: &[u8]) -> Result<(), SinkError> {
        Ok(())
    }

    fn end(&mut self) -> Result<(), SinkError> {
        Ok(())
    }
}

/// Adds `opened` to an empty tree. Whether it is an image.
fn tree_of(
    opened: Opened<'_>,
    sink: Option<&mut dyn DataSink>,
) -> Result<(SourceTree, bool), SourceError> {
    let mut builder = Builder::new();
    let excludes = Excludes::default();
    let adding = Adding {
        at: 0,
        excludes: &excludes,
        spool: Some(SPOOL),
    };
    let sink = sink.map(|sink| sink as &mut dyn DataSink);
    let image = archive::add(opened, &mut builder, &adding, sink)?;
    if let Some(image) = &image {
        image.add(&mut builder, 0, &excludes, (None, None), 1)?;
    }
    let mut tree = builder.finish();
    tree.number_xattrs();
    Ok((tree, image.is_some()))
}

/// The tree of a tar archive, compressed or not, or of an archive of an image, as they come through a pipe.
///
/// # Errors
/// As scanning a pipe with these bytes.
pub fn tar(bytes: &[u8]) -> Result<SourceTree, SourceError> {
    let compression = Compression::of(bytes).map_err(|problem| SourceError::Archive {
        archive: "bytes".into(),
        offset: 0,
        entry: None,
        problem,
    })?;
    let opened = Opened::Pipe(Box::new(bytes), compression, "bytes".into());
    tree_of(opened, Some(&mut Unwanted)).map(|(tree, _)| tree)
}

/// The tree of an uncompressed archive of an OCI layout, or of what `docker save` writes, as they lie in a file.
///
/// # Errors
/// As scanning a file with these bytes; also when they are no such archive.
pub fn image(bytes: &[u8]) -> Result<SourceTree, SourceError> {
    let io = |error| SourceError::Io {
        operation: "keep",
        path: "bytes".into(),
        error,
    };
    let mut file = temporary::in_memory("image").map_err(io)?;
    file.write_all(bytes).map_err(io)?;
    let archive = Archive {
        file: Arc::new(file),
        start: 0,
        len: bytes.len() as u64,
        compression: Compression::None,
        label: "bytes".into(),
        rules: Rules::Strict,
    };
    match tree_of(Opened::File(archive), None)? {
        (tree, true) => Ok(tree),
        (_, false) => Err(SourceError::Usage(
            "this is not an archive of an image".into(),
        )),
    }
}

/// The tree that an ownership table makes by itself.
///
/// # Errors
/// With the line that is wrong.
pub fn ownership_table(text: &str) -> Result<SourceTree, SourceError> {
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
