//! An archive's bytes in order, whatever holds and compresses them.
//!
//! A plain file is read in place, and parts that are not needed are never read. Everything else is read, decompressed
//! and, when asked, hashed by a thread of its own, which runs ahead by a few pieces of fixed size; memory does not grow
//! with the archive. The format is recognized by the first bytes, never by the name.

use std::fs::File;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result};

use sync::{Arc, Queue};

use super::limits;

/// Bytes of one piece.
const PIECE: usize = 256 * 1024;
/// Pieces that wait to be taken.
const AHEAD: usize = 8;

/// How an archive is compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
    Xz,
}

impl Compression {
    /// What `start`, the first bytes of a file, says.
    ///
    /// # Errors
    /// Names a format that is known and not read.
    pub(crate) fn of(start: &[u8]) -> std::result::Result<Self, String> {
        let other: [(&[u8], &str); 5] = [
            (
                b"BZh",
                "bzip2-compressed: decompress it with `bunzip2` first",
            ),
            (
                b"LZIP",
                "lzip-compressed: decompress it with `lzip -d` first",
            ),
            (
                b"\x04\x22\x4d\x18",
                "lz4-compressed: decompress it with `lz4 -d` first",
            ),
            (
                b"\x1f\x9d",
                "compressed by `compress`: decompress it with `gunzip` first",
            ),
            (
                b"\x5d\x00\x00",
                "lzma-compressed: decompress it with `unlzma` first",
            ),
        ];
        if let Some((_, name)) = other.iter().find(|(magic, _)| start.starts_with(magic)) {
            return Err(format!("this is {name}"));
        }
        Ok(match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            [skippable, 0x2a, 0x4d, 0x18, ..] if skippable & 0xf0 == 0x50 => Self::Zstd,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            _ => Self::None,
        })
    }
}

/// Bytes read once from start to end.
pub(crate) trait Stream {
    /// The next bytes, at least one but at the end.
    fn fill(&mut self) -> Result<&[u8]>;

    /// Marks the first `count` bytes of what `fill` gave as used.
    fn consume(&mut self, count: usize);

    /// Bytes used so far.
    fn position(&self) -> u64;

    /// Passes over `count` bytes.
    ///
    /// # Errors
    /// `UnexpectedEof` when there are fewer.
    fn skip(&mut self, count: u64) -> Result<()> {
        let mut left = count;
        while left > 0 {
            let got = self.fill()?.len();
            if got == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let used = left.min(got as u64);
            self.consume(used as usize);
            left -= used;
        }
        Ok(())
    }

    /// Fills `buf`.
    ///
    /// # Errors
    /// `UnexpectedEof` when there are fewer bytes.
    fn exact(&mut self, buf: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let got = self.fill()?;
            if got.is_empty() {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let used = got.len().min(buf.len() - done);
            buf[done..done + used].copy_from_slice(&got[..used]);
            self.consume(used);
            done += used;
        }
        Ok(())
    }
}

/// A range of a file, uncompressed.
pub(crate) struct FileStream {
    file: Arc<File>,
    start: u64,
    len: u64,
    /// Where the buffer's unused part begins, from `start`.
    at: u64,
    buffer: Box<[u8]>,
    /// The unused part of the buffer.
    held: std::ops::Range<usize>,
}

/// Headers come one by one between data that is skipped, so little is read at once.
const HEADERS: usize = 16 * 1024;

impl FileStream {
    pub(crate) fn new(file: Arc<File>, start: u64, len: u64) -> Self {
        Self {
            file,
            start,
            len,
            at: 0,
            buffer: vec![0; HEADERS].into(),
            held: 0..0,
        }
    }
}

impl Stream for FileStream {
    fn fill(&mut self) -> Result<&[u8]> {
        if self.held.is_empty() {
            let want = (self.len - self.at).min(self.buffer.len() as u64) as usize;
            let at = self.start + self.at;
            let got = device::host::read_at(&self.file, &mut self.buffer[..want], at)?;
            self.held = 0..got;
        }
        Ok(&self.buffer[self.held.clone()])
    }

    fn consume(&mut self, count: usize) {
        let count = count.min(self.held.len());
        self.held.start += count;
        self.at += count as u64;
    }

    fn position(&self) -> u64 {
        self.at
    }

    fn skip(&mut self, count: u64) -> Result<()> {
        if count > self.len - self.at {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.at += count;
        let held = self.held.len() as u64;
        self.held = if count < held {
            self.held.start + count as usize..self.held.end
        } else {
            0..0
        };
        Ok(())
    }
}

/// What another thread decompresses.
struct PieceStream<'q> {
    full: &'q Queue<Result<Vec<u8>>>,
    empty: &'q Queue<Vec<u8>>,
    piece: Vec<u8>,
    used: usize,
    position: u64,
    ended: bool,
}

impl Stream for PieceStream<'_> {
    fn fill(&mut self) -> Result<&[u8]> {
        while self.used == self.piece.len() && !self.ended {
            match self.full.pop() {
                Some(Ok(piece)) => {
                    let old = std::mem::replace(&mut self.piece, piece);
                    self.used = 0;
                    // The queue holds all pieces there are, so this never waits.
                    let _ = self.empty.push(old);
                }
                Some(Err(error)) => {
                    self.ended = true;
                    return Err(error);
                }
                None => self.ended = true,
            }
        }
        Ok(&self.piece[self.used..])
    }

    fn consume(&mut self, count: usize) {
        let count = count.min(self.piece.len() - self.used);
        self.used += count;
        self.position += count as u64;
    }

    fn position(&self) -> u64 {
        self.position
    }
}

/// Lets `take` read what `source` gives, decompressed in a thread of its own.
pub(crate) fn with_thread<R>(
    source: impl Read + Send,
    compression: Compression,
    take: impl FnOnce(&mut dyn Stream) -> R,
) -> R {
    let full = Queue::new(AHEAD);
    let empty = Queue::new(2 * AHEAD + 8);
    sync::thread::scope(|scope| {
        scope.spawn(|| {
            let _close = full.close_on_drop();
            let mut reader = decompressed(source, compression);
            loop {
                let mut piece = empty.try_pop().unwrap_or_default();
                let more = fill_piece(&mut *reader, &mut piece);
                let ended = piece.len() < PIECE || more.is_err();
                if !piece.is_empty() && full.push(Ok(piece)).is_err() {
                    return;
                }
                if let Err(error) = more {
                    // The receiver is gone, so the error reaches no caller.
                    let _ = full.push(Err(error));
                    return;
                }
                if ended {
                    return;
                }
            }
        });
        let mut stream = PieceStream {
            full: &full,
            empty: &empty,
            piece: Vec::new(),
            used: 0,
            position: 0,
            ended: false,
        };
        let result = take(&mut stream);
        full.cancel();
        result
    })
}

/// Fills `piece` to [`PIECE`] bytes, or to the end.
fn fill_piece(reader: &mut dyn Read, piece: &mut Vec<u8>) -> Result<()> {
    piece.resize(PIECE, 0);
    let mut done = 0;
    while done < PIECE {
        match reader.read(&mut piece[done..]) {
            Ok(0) => break,
            Ok(got) => done += got,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                piece.truncate(done);
                return Err(error);
            }
        }
    }
    piece.truncate(done);
    Ok(())
}

/// `source` with its compression undone. Several members or frames, one after the other, count as one stream, and
/// zeros may follow the last.
pub(crate) fn decompressed<'s>(
    source: impl Read + Send + 's,
    compression: Compression,
) -> Box<dyn Read + Send + 's> {
    let source = BufReader::with_capacity(PIECE, source);
    match compression {
        Compression::None => Box::new(source),
        Compression::Gzip => Box::new(Gzip {
            state: Some(Member::Between(source)),
            started: false,
        }),
        Compression::Zstd => Box::new(Zstd {
            source,
            decoder: None,
            started: false,
        }),
        Compression::Xz => Box::new(Xz(lzma_rust2::XzReader::new_mem_limit(
            source,
            true,
            limits::XZ_MEMORY_KIB,
        ))),
    }
}

struct Xz<R: Read>(lzma_rust2::XzReader<R>);

impl<R: Read> Read for Xz<R> {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        self.0.read(buf).map_err(|error| match error.kind() {
            ErrorKind::OutOfMemory => Error::other(format!(
                "the xz data needs more than {} KiB of memory; compress it with a smaller dictionary",
                limits::XZ_MEMORY_KIB
            )),
            kind => Error::new(kind, format!("the xz data is damaged: {error}")),
        })
    }
}

/// What follows a member: nothing (or zeros only), or more.
fn at_end(source: &mut impl BufRead) -> Result<bool> {
    loop {
        let held = source.fill_buf()?;
        let len = held.len();
        if len == 0 {
            return Ok(true);
        }
        if held.iter().any(|byte| *byte != 0) {
            // A run of zeros must reach the end, so something after one is not a member: the caller's check reports it.
            return Ok(false);
        }
        source.consume(len);
    }
}

enum Member<R: BufRead> {
    Between(R),
    Within(Box<flate2::bufread::GzDecoder<R>>),
}

struct Gzip<R: BufRead> {
    state: Option<Member<R>>,
    started: bool,
}

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        loop {
            match self.state.take() {
                None => return Ok(0),
                Some(Member::Between(mut source)) => {
                    if self.started && at_end(&mut source)? {
                        return Ok(0);
                    }
                    if self.started && !source.fill_buf()?.starts_with(&[0x1f]) {
                        return Err(garbage("gzip"));
                    }
                    self.started = true;
                    let decoder = flate2::bufread::GzDecoder::new(source);
                    self.state = Some(Member::Within(Box::new(decoder)));
                }
                Some(Member::Within(mut decoder)) => match decoder.read(buf) {
                    Ok(0) if !buf.is_empty() => {
                        self.state = Some(Member::Between(decoder.into_inner()));
                    }
                    Ok(got) => {
                        self.state = Some(Member::Within(decoder));
                        return Ok(got);
                    }
                    Err(error) => return Err(damaged("gzip", &error)),
                },
            }
        }
    }
}

fn garbage(format: &str) -> Error {
    Error::new(
        ErrorKind::InvalidData,
        format!("what follows the {format} data is not {format} data"),
    )
}

fn damaged(format: &str, error: &Error) -> Error {
    if error.kind() == ErrorKind::UnexpectedEof {
        return Error::new(error.kind(), format!("the {format} data is truncated"));
    }
    Error::new(
        error.kind(),
        format!("the {format} data is damaged: {error}"),
    )
}

struct Zstd<R: BufRead> {
    source: R,
    decoder: Option<Box<ruzstd::decoding::FrameDecoder>>,
    started: bool,
}

impl<R: BufRead> Zstd<R> {
    /// Begins the next frame. Whether there is one.
    fn begin(&mut self, decoder: &mut ruzstd::decoding::FrameDecoder) -> Result<bool> {
        use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
        loop {
            if at_end(&mut self.source)? {
                if self.started {
                    return Ok(false);
                }
                return Err(Error::new(
                    ErrorKind::UnexpectedEof,
                    "the zstd data is truncated",
                ));
            }
            match decoder.init(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut skipped = (&mut self.source).take(u64::from(length));
                    if std::io::copy(&mut skipped, &mut std::io::sink())? < u64::from(length) {
                        return Err(Error::new(
                            ErrorKind::UnexpectedEof,
                            "the zstd data is truncated",
                        ));
                    }
                    self.started = true;
                }
                Err(error) => {
                    return Err(Error::new(
                        ErrorKind::InvalidData,
                        format!("the zstd data is damaged, or needs too large a window: {error}"),
                    ));
                }
            }
        }
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
        loop {
            let (mut decoder, within) = match self.decoder.take() {
                Some(decoder) => (decoder, self.started),
                None => {
                    let mut decoder = Box::new(FrameDecoder::new());
                    decoder.set_max_window_size(limits::ZSTD_WINDOW);
                    (decoder, false)
                }
            };
            if !within {
                if !self.begin(&mut decoder)? {
                    return Ok(0);
                }
                self.started = true;
            } else if decoder.is_finished() && decoder.can_collect() == 0 {
                check_sum(&decoder)?;
                if !self.begin(&mut decoder)? {
                    return Ok(0);
                }
            }
            while decoder.can_collect() == 0 && !decoder.is_finished() {
                let step = BlockDecodingStrategy::UptoBlocks(1);
                decoder
                    .decode_blocks(&mut self.source, step)
                    .map_err(|error| {
                        Error::new(
                            ErrorKind::InvalidData,
                            format!("the zstd data is damaged or truncated: {error}"),
                        )
                    })?;
            }
            let got = decoder.read(buf)?;
            self.decoder = Some(decoder);
            if got > 0 || buf.is_empty() {
                return Ok(got);
            }
        }
    }
}

fn check_sum(decoder: &ruzstd::decoding::FrameDecoder) -> Result<()> {
    match (
        decoder.get_checksum_from_data(),
        decoder.get_calculated_checksum(),
    ) {
        (Some(stored), Some(found)) if stored != found => Err(Error::new(
            ErrorKind::InvalidData,
            "the zstd data is damaged: a frame's checksum is wrong",
        )),
        _ => Ok(()),
    }
}
