//! Container images: OCI layouts and what `docker save` writes, as directories and as archives.
//!
//! Layers are applied lowest first into one tree; whiteouts remove what lower layers put there, and file data is later
//! taken from the winning layer only. Layers are verified and read in parallel, a few ahead of the one being applied.
//! Nothing is used before its size and digest are verified.

mod blobs;
mod digest;
mod directory;
mod documents;
mod lenient;
mod members;
mod platform;
mod recognize;
mod select;

use device::host;
use sync::{Condvar, Hint, Mutex, Rank};

use super::apply::{Apply, HiddenLinks};
use super::builder::Builder;
use super::error::SourceError;
use super::exclude::Excludes;
use super::inputs::{Archive, Range, Source};
use super::stream::{Compression, with_thread};
use super::tar::{self, Ending, Rules, TarMember, TarStop, Visitor};
use digest::{Digest, Hashed, HashedStream};
use platform::Platform;
use select::{Asked, Layer};

pub(super) use blobs::Blobs;
pub(super) use directory::in_directory;
pub use directory::is_image_directory;
pub(super) use recognize::{Access, Recognized, Recognizer};

/// All entries of a layer, and how it ends.
type ReadLayer = (Vec<TarMember>, Ending);

/// What the threads that read layers share.
struct Progress {
    /// The next layer to read.
    next: usize,
    /// Layers applied.
    applied: usize,
    /// Layers read and not yet applied.
    read: Vec<Option<Result<ReadLayer, SourceError>>>,
}

/// The digests that a layer is compared with.
struct Verify {
    /// Of the bytes as they are stored.
    stored: Option<Digest>,
    /// Of the bytes without their compression.
    plain: Option<Digest>,
}

struct Reading<'a> {
    /// What messages call the image.
    label: String,
    layers: &'a [(Archive, Verify)],
    ahead: usize,
    progress: Mutex<Progress>,
    changed: Condvar,
    stopped: Hint<bool>,
}

/// Keeps all entries of a layer.
struct Keep<'a> {
    entries: Vec<TarMember>,
    /// Bytes they take, about.
    bytes: usize,
    stopped: &'a Hint<bool>,
}

impl Visitor for Keep<'_> {
    fn entry(&mut self, entry: TarMember) -> Result<bool, TarStop> {
        self.bytes += entry.bytes();
        if self.bytes > super::limits::LAYER_MEMORY {
            let limit = super::limits::LAYER_MEMORY;
            return Err(
                format!("the layer's names and attributes take more than {limit} bytes").into(),
            );
        }
        // Another layer failed, so what is read here is not used.
        if self.stopped.get() {
            return Err("given up".into());
        }
        self.entries.push(entry);
        Ok(false)
    }

    fn data(&mut self, _offset: u64, _bytes: &[u8]) -> Result<(), TarStop> {
        Ok(())
    }

    fn end(&mut self) -> Result<(), TarStop> {
        Ok(())
    }
}

impl Blobs {
    /// Applies all layers at directory `at`.
    pub(super) fn add(
        &self,
        builder: &mut Builder,
        at: u32,
        excludes: &Excludes,
        (platform, image): (Option<&str>, Option<&str>),
        threads: usize,
    ) -> Result<(), SourceError> {
        let platform = platform.map(Platform::parse).transpose()?;
        let asked = Asked { platform, image };
        let layers = select::layers(self, asked)?;
        let layers: Vec<_> = layers
            .into_iter()
            .map(|layer| archive_of(self, layer))
            .collect::<Result<_, _>>()?;
        let progress = Progress {
            next: 0,
            applied: 0,
            read: layers.iter().map(|_| None).collect(),
        };
        let reading = Reading {
            label: self.label(),
            layers: &layers,
            ahead: threads.max(1),
            progress: Mutex::new(Rank::Job, progress),
            changed: Condvar::new(),
            stopped: Hint::new(false),
        };
        sync::thread::scope(|scope| {
            for _ in 0..threads.clamp(1, layers.len().max(1)) {
                scope.spawn(|| reading.work());
            }
            let mut result = Ok(());
            let mut links = HiddenLinks::default();
            for (number, (archive, _)) in layers.iter().enumerate() {
                result = reading.take(number).and_then(|(entries, ending)| {
                    builder.tree.warnings.extend(ending.warning(&archive.label));
                    apply(builder, (at, excludes), archive, entries, &mut links)
                });
                if result.is_err() {
                    reading.stopped.set(true);
                    reading.progress.lock().next = layers.len();
                    reading.changed.notify_all();
                    break;
                }
            }
            result
        })
    }
}

fn archive_of(blobs: &Blobs, layer: Layer) -> Result<(Archive, Verify), SourceError> {
    let Layer {
        name,
        blob,
        stored,
        plain,
    } = layer;
    let label = format!("{}: layer {name}", blobs.label());
    let mut magic = [0; 512];
    let held = blob.len.min(512) as usize;
    let wrong = |problem| SourceError::Image {
        image: label.clone(),
        problem,
    };
    let read = host::read_exact_at(&blob.file, &mut magic[..held], blob.start);
    read.map_err(|error| wrong(format!("it can't be read: {error}")))?;
    let compression = Compression::of(&magic[..held]).map_err(wrong)?;
    // Of an uncompressed layer both are the same: it is hashed once.
    let both = compression == Compression::None && stored.as_ref() == Some(&plain);
    let plain = (!both).then_some(plain);
    let verify = Verify { stored, plain };
    let (file, start, len) = (blob.file, blob.start, blob.len);
    let rules = Rules::Layer;
    Ok((
        Archive {
            file,
            start,
            len,
            compression,
            label,
            rules,
        },
        verify,
    ))
}

impl Reading<'_> {
    fn work(&self) {
        loop {
            let number = {
                let mut progress = self.progress.lock();
                while progress.next < self.layers.len()
                    && progress.next > progress.applied + self.ahead
                {
                    self.changed.wait(&mut progress);
                }
                let number = progress.next;
                if number >= self.layers.len() {
                    return;
                }
                progress.next += 1;
                number
            };
            let read = self.read(number);
            self.progress.lock().read[number] = Some(read);
            self.changed.notify_all();
        }
    }

    /// Reads a layer once: its stored bytes are hashed by the thread that decompresses them, the others by this one.
    fn read(&self, number: usize) -> Result<ReadLayer, SourceError> {
        let (archive, verify) = &self.layers[number];
        let Verify { stored, plain } = verify;
        let wrong = |image: &str, problem| SourceError::Image {
            image: image.into(),
            problem,
        };
        let unreadable =
            |error: std::io::Error| wrong(&archive.label, format!("it can't be read: {error}"));
        let bytes = Range {
            file: sync::Arc::clone(&archive.file),
            at: archive.start,
            left: archive.len,
        };
        let mut bytes = Hashed::new(bytes, stored.as_ref());
        let mut keep = Keep {
            entries: Vec::new(),
            bytes: 0,
            stopped: &self.stopped,
        };
        let (read, fits) = with_thread(&mut bytes, archive.compression, |stream| {
            let mut stream = HashedStream::new(stream, plain.as_ref());
            let read = tar::read(&mut stream, &archive.label, archive.rules, &mut keep);
            (read, stream.finish(plain.as_ref()))
        });
        bytes.drain().map_err(unreadable)?;
        // What is damaged is not worth saying what is wrong in it.
        if let Some(digest) = stored
            && !bytes.fits(digest)
        {
            let problem = format!("the blob {digest} has another digest: it is damaged");
            return Err(wrong(&self.label, problem));
        }
        if let (false, Some(digest)) = (fits.map_err(unreadable)?, plain) {
            let problem = format!(
                "uncompressed it has another digest than {digest}, which the configuration has for it (diff_ids): it \
                 is damaged, or a layer of another image"
            );
            return Err(wrong(&archive.label, problem));
        }
        Ok((keep.entries, read?))
    }

    fn take(&self, number: usize) -> Result<ReadLayer, SourceError> {
        let mut progress = self.progress.lock();
        loop {
            if let Some(read) = progress.read[number].take() {
                progress.applied = number + 1;
                drop(progress);
                self.changed.notify_all();
                return read;
            }
            self.changed.wait(&mut progress);
        }
    }
}

fn apply(
    builder: &mut Builder,
    (at, excludes): (u32, &Excludes),
    archive: &Archive,
    entries: Vec<TarMember>,
    links: &mut HiddenLinks,
) -> Result<(), SourceError> {
    let wrong = |offset, entry: Option<&[u8]>, problem| SourceError::Archive {
        archive: archive.label.clone(),
        offset,
        entry: entry.map(|name| String::from_utf8_lossy(name).into_owned()),
        problem,
    };
    let source = builder.add_source(Source::Archive(archive.clone()));
    let source = source.map_err(|problem| wrong(0, None, problem))?;
    let mut apply = Apply::new(builder, at, source, excludes).layer(std::mem::take(links));
    if archive.compression == Compression::None {
        apply = apply.in_place(archive.start);
    }
    for entry in entries {
        let (offset, path) = (entry.header_at, entry.path.clone());
        apply.entry(entry).map_err(|stop| match stop {
            TarStop::Problem(problem) => wrong(offset, Some(&path), problem),
            TarStop::Error(error) => error,
        })?;
    }
    let finished = apply.finish_layer();
    *links = finished.map_err(|(path, problem)| wrong(0, Some(&path), problem))?;
    Ok(())
}
