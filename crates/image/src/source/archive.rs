//! Tar archives as sources, from a file or a pipe. A compressed file is read again, in its order, when its data is
//! needed.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use device::host;
use device::signature::{Kind, START_BYTES, recognize};
use sync::Arc;
use sync::atomic::AtomicBool;

use super::apply::{Apply, Replay};
use super::builder::Builder;
use super::error::SourceError;
use super::exclude::Excludes;
use super::inputs::{Archive, Source};
use super::oci::{Access, Blobs, Recognized, Recognizer};
use super::options::SourcePlace;
use super::origin::DataSink;
use super::spool::Spool;
use super::stream::{Compression, FileStream, Stream, with_thread};
use super::system::pipe::{self, Pipe};
use super::tar::{self, Ending, Rules, Visitor};
use super::tree::{DataKind, SourceId, SourceTree, halves};

/// Bytes that tell what a file is.
const MAGIC: usize = START_BYTES;

/// An archive that was opened.
pub(super) enum Opened<'c> {
    /// A file, which can be read again.
    File(Archive),
    /// A pipe or a terminal, which can't; with the bytes by which it was recognized.
    Pipe(Box<dyn Read + Send + 'c>, Compression, String),
}

fn io(operation: &'static str, path: &Path) -> impl Fn(std::io::Error) -> SourceError {
    let path = path.to_path_buf();
    move |error| SourceError::Io {
        operation,
        path: path.clone(),
        error,
    }
}

fn problem(archive: &str, problem: String) -> SourceError {
    SourceError::Archive {
        archive: archive.into(),
        offset: 0,
        entry: None,
        problem,
    }
}

/// Opens the archive at `place`.
pub(super) fn opened_at<'c>(
    place: &SourcePlace,
    cancel: &'c AtomicBool,
) -> Result<Opened<'c>, SourceError> {
    match place {
        SourcePlace::Path(path) => {
            let file = pipe::open(path).map_err(io("open", path))?;
            opened(file, path, cancel)
        }
        SourcePlace::Stdin => stdin(cancel),
    }
}

/// Opens standard input.
fn stdin(cancel: &AtomicBool) -> Result<Opened<'_>, SourceError> {
    let path = Path::new("standard input");
    let file = host::stdin().map_err(io("open", path))?;
    opened(file, path, cancel)
}

fn opened<'c>(
    mut file: File,
    path: &Path,
    cancel: &'c AtomicBool,
) -> Result<Opened<'c>, SourceError> {
    let label = path.display().to_string();
    let kind = file.metadata().map_err(io("look at", path))?.file_type();
    let mut magic = vec![0; MAGIC];
    if kind.is_file() || host::is_block_device(kind) {
        let at = file.stream_position().map_err(io("look at", path))?;
        let end = file.seek(SeekFrom::End(0)).map_err(io("look at", path))?;
        // What was read of standard input before is not ours.
        let start = if kind.is_file() { at.min(end) } else { 0 };
        let len = end - start;
        let held = len.min(MAGIC as u64) as usize;
        host::read_exact_at(&file, &mut magic[..held], start).map_err(io("read", path))?;
        let compression = compression(&magic[..held], &label)?;
        let file = Arc::new(file);
        return Ok(Opened::File(Archive {
            file,
            start,
            len,
            compression,
            label,
            rules: Rules::Strict,
        }));
    }
    let mut file = Pipe { file, cancel };
    let mut held = 0;
    while held < MAGIC {
        match file.read(&mut magic[held..]) {
            Ok(0) => break,
            Ok(got) => held += got,
            Err(error) => return Err(io("read", path)(error)),
        }
    }
    let compression = Compression::of(&magic[..held]).map_err(|text| problem(&label, text))?;
    if compression == Compression::None {
        check_tar(&magic[..held], &label, "FILE")?;
    }
    let start = std::io::Cursor::new(magic).take(held as u64);
    Ok(Opened::Pipe(
        Box::new(start.chain(file)),
        compression,
        label,
    ))
}

/// How what begins with these bytes is compressed, unless it is known to be something else than an archive.
fn compression(start: &[u8], label: &str) -> Result<Compression, SourceError> {
    let compression = Compression::of(start).map_err(|text| problem(label, text))?;
    if compression == Compression::None {
        check_tar(start, label, label)?;
    }
    Ok(compression)
}

/// Refuses by name what is not a tar, by its first bytes, and says what to do with `file`, which holds it.
fn check_tar(start: &[u8], label: &str, file: &str) -> Result<(), SourceError> {
    let holds = |at: usize, bytes: &[u8]| start.get(at..at + bytes.len()) == Some(bytes);
    let from_files =
        format!("to build from its files: lanefs extract {file} - | lanefs build - IMAGE");
    let refuse = |name: &str, next: &str| Err(problem(label, format!("this is {name}; {next}")));
    if tar::is_header(start) {
        return Ok(());
    }
    if holds(EXT_MAGIC.0, &EXT_MAGIC.1) {
        return refuse("an ext2, ext3 or ext4 file system", &from_files);
    }
    let Some(format) = recognize(start) else {
        return match holds(510, &[0x55, 0xAA]) {
            true => refuse(
                "a whole disk",
                &format!("{from_files} (with --partition N)"),
            ),
            false if start.starts_with(b"#!") => refuse(
                "a script",
                "sources are directories, tars and container images",
            ),
            false => Ok(()),
        };
    };
    match format.kind {
        Kind::Tar => Ok(()),
        Kind::Disk => refuse(
            format.name,
            &format!("make it raw first: qemu-img convert -O raw {file} {file}.raw"),
        ),
        Kind::Archive { unpack } | Kind::Compressed { unpack } => refuse(
            format.name,
            &format!("unpack it first ({unpack} {file}), and build from what is in it"),
        ),
        Kind::Other => refuse(
            format.name,
            "sources are directories, tars and container images",
        ),
        _ => refuse(
            format.name,
            "mount or unpack it, and build from the directory",
        ),
    }
}

/// As [`check_tar`], of what comes out of a pipe or a decompressor, which must be a file to be worked on.
fn check_first(stream: &mut dyn Stream, label: &str) -> Result<(), SourceError> {
    match stream.fill() {
        Ok(first) => check_tar(first, label, "UNCOMPRESSED-FILE"),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof && error.get_ref().is_none() => {
            Err(problem(label, "the archive is truncated".into()))
        }
        Err(error) => Err(problem(label, error.to_string())),
    }
}

/// Where ext2, ext3 and ext4 have their magic number.
const EXT_MAGIC: (usize, [u8; 2]) = (1080, [0x53, 0xEF]);

impl Archive {
    /// Reads all entries.
    pub(super) fn read(&self, visitor: &mut dyn Visitor) -> Result<Ending, SourceError> {
        if self.compression == Compression::None {
            let mut stream = FileStream::new(Arc::clone(&self.file), self.start, self.len);
            return tar::read(&mut stream, &self.label, self.rules, visitor);
        }
        with_thread(self.bytes(), self.compression, |stream| {
            check_first(stream, &self.label)?;
            tar::read(stream, &self.label, self.rules, visitor)
        })
    }
}

/// How an archive is added.
pub(super) struct Adding<'a> {
    /// The directory that its root becomes.
    pub(super) at: u32,
    pub(super) excludes: &'a Excludes,
    /// The most bytes of it that are kept while it is read.
    pub(super) spool: Option<u64>,
}

/// Adds the tar archive `opened`. With a sink, data that can't be read at its place goes there. A container image is
/// returned, and nothing of it was added.
pub(super) fn add<'a>(
    opened: Opened<'_>,
    builder: &'a mut Builder,
    adding: &'a Adding<'_>,
    sink: Option<&'a mut (dyn DataSink + 'a)>,
) -> Result<Option<Blobs>, SourceError> {
    match opened {
        Opened::File(archive) if archive.compression == Compression::None => {
            add_plain(&archive, builder, adding)
        }
        Opened::File(archive) if sink.is_none() => add_compressed(&archive, builder, adding),
        Opened::File(archive) => {
            let bytes = archive.bytes();
            add_once(
                bytes,
                (archive.compression, &archive.label),
                builder,
                adding,
                sink,
            )
        }
        Opened::Pipe(_, _, label) if sink.is_none() => Err(SourceError::Usage(format!(
            "{label} is a pipe, which can be read only once, and this needs to read it twice"
        ))),
        Opened::Pipe(bytes, compression, label) => {
            add_once(bytes, (compression, &label), builder, adding, sink)
        }
    }
}

/// Adds a file, whose data are read at their places.
fn add_plain(
    archive: &Archive,
    builder: &mut Builder,
    adding: &Adding<'_>,
) -> Result<Option<Blobs>, SourceError> {
    let source = add_source(builder, Source::Archive(archive.clone()), &archive.label)?;
    let apply = Apply::new(builder, adding.at, source, adding.excludes).in_place(archive.start);
    let spool = Spool::new(Some(0));
    let mut recognizer = Recognizer::new(apply, &archive.label, Access::InPlace, spool);
    let read = archive.read(&mut recognizer);
    let file = (Arc::clone(&archive.file), archive.start);
    match recognizer.finish(read, Some(file))? {
        Recognized::Image(image) => Ok(Some(image)),
        Recognized::Plain | Recognized::ImageNotKept => Ok(None),
    }
}

/// Adds a compressed file, whose data are read again later.
fn add_compressed(
    archive: &Archive,
    builder: &mut Builder,
    adding: &Adding<'_>,
) -> Result<Option<Blobs>, SourceError> {
    let source = add_source(builder, Source::Archive(archive.clone()), &archive.label)?;
    let mut known = false;
    loop {
        let apply = Apply::new(builder, adding.at, source, adding.excludes);
        let spool = Spool::new(adding.spool);
        let mut recognizer = Recognizer::new(apply, &archive.label, Access::Again, spool);
        if known {
            recognizer = recognizer.for_image();
        }
        let read = archive.read(&mut recognizer);
        match recognizer.finish(read, None)? {
            Recognized::Plain => return Ok(None),
            Recognized::Image(image) => return Ok(Some(image)),
            Recognized::ImageNotKept if known => {
                return Err(problem(
                    &archive.label,
                    "the archive changed while it was read".into(),
                ));
            }
            Recognized::ImageNotKept => known = true,
        }
    }
}

/// Adds what is read once, whose data go to the sink meanwhile.
fn add_once<'a>(
    bytes: impl Read + Send,
    (compression, label): (Compression, &str),
    builder: &'a mut Builder,
    adding: &'a Adding<'_>,
    sink: Option<&'a mut (dyn DataSink + 'a)>,
) -> Result<Option<Blobs>, SourceError> {
    let source = add_source(builder, Source::Spent, label)?;
    let apply = Apply::new(builder, adding.at, source, adding.excludes).streaming(sink);
    let mut recognizer = Recognizer::new(apply, label, Access::Once, Spool::new(adding.spool));
    let read = with_thread(bytes, compression, |stream: &mut dyn Stream| {
        check_first(stream, label)?;
        tar::read(stream, label, Rules::Strict, &mut recognizer)
    });
    match recognizer.finish(read, None)? {
        Recognized::Image(image) => Ok(Some(image)),
        Recognized::Plain | Recognized::ImageNotKept => Ok(None),
    }
}

fn add_source(builder: &mut Builder, source: Source, label: &str) -> Result<u16, SourceError> {
    builder
        .add_source(source)
        .map_err(|text| problem(label, text))
}

impl SourceTree {
    /// The archives whose data comes in order only and was not handed out during the scan: each is to be read by
    /// [`SourceTree::stream`], in any order, also at the same time.
    #[must_use]
    pub fn streams(&self) -> Vec<SourceId> {
        let mut found: Vec<SourceId> = self
            .nodes
            .iter()
            .filter(|node| node.data == DataKind::Stream)
            .filter(|node| !matches!(self.sources[usize::from(node.source)], Source::Spent))
            .map(|node| SourceId(node.source))
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Reads archive `source` again from its start and hands `sink` the items that the tree has.
    ///
    /// # Errors
    /// When it can't be read, or the sink ends it.
    pub fn stream(&self, source: SourceId, sink: &mut dyn DataSink) -> Result<(), SourceError> {
        let Some(Source::Archive(archive)) = self.sources.get(usize::from(source.0)) else {
            return Err(SourceError::Usage(
                "a source that was a pipe can't be read again".into(),
            ));
        };
        let of_source = |node: &&super::tree::TreeNode| {
            node.data == DataKind::Stream && node.source == source.0
        };
        let mut wanted: Vec<(u32, u64)> = self
            .nodes
            .iter()
            .filter(of_source)
            .map(|node| (halves(node.key).1, node.size))
            .collect();
        wanted.sort_unstable();
        let mut replay = Replay {
            source,
            wanted: &wanted,
            found: 0,
            sink,
        };
        // The scan has warned of an archive without its end mark.
        let _ = archive.read(&mut replay)?;
        if replay.found != wanted.len() {
            return Err(problem(
                &archive.label,
                "the archive changed since it was scanned".into(),
            ));
        }
        Ok(())
    }
}
