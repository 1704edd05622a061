//! Finds out, in one pass over a tar archive, whether it is a container image or a plain archive.
//!
//! An image is known by its `manifest.json`, or by `oci-layout` and `index.json`, and these may come last. So members
//! are held until the answer is known, and the data of those that can't be read again is written to a [`Spool`]:
//!
//! ```text
//! undecided --(manifest.json lists images, or oci-layout and index.json)--> image: all is held to the end
//!     |
//!     +--(something that no image has)--> plain: what was held is applied, and all else as it is read
//! ```
//!
//! No image has devices, set-user-ID files, more than [`limits::OTHER_MEMBERS`] members or [`limits::OTHER_BYTES`] of
//! data that have neither an image's names nor look like JSON, tar or something compressed. An archive that can be read
//! again is always held to its end, because that costs no space. In one that can't, a `manifest.json` that comes too
//! late is an error: no archive is silently taken for another kind.

use std::fs::File;
use std::io::ErrorKind;

use device::host;
use sync::Arc;

use super::super::apply::{Apply, clean, is_blob_name, is_image_name};
use super::super::error::SourceError;
use super::super::limits;
use super::super::spool::Spool;
use super::super::stream::Compression;
use super::super::tar::{self, Ending, TarMember, TarStop, Visitor, What};
use super::super::tree::DataExtent;
use super::blobs::Blobs;
use super::documents;
use super::members::{Member, Members};

/// What to do about an image that a pipe can't give.
const AS_A_FILE: &str = "save it as a file and build from that";
/// Bytes that are read back from the spool at a time.
const PIECE: usize = 256 * 1024;

/// How the archive is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Access {
    /// Its data can be read at their places.
    InPlace,
    /// It can be read again from its start.
    Again,
    /// Once.
    Once,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Undecided,
    Image,
    Plain,
}

/// What came of an archive.
pub(in super::super) enum Recognized {
    /// It was applied as a plain archive.
    Plain,
    /// It is an image, to be applied.
    Image(Blobs),
    /// It is one, and must be read again with [`Recognizer::for_image`]: its blobs were not kept.
    ImageNotKept,
}

/// What is known of the file whose data comes.
#[derive(Default)]
struct Current {
    /// Its data was looked at.
    seen: bool,
    /// Its name is one that images have.
    named: bool,
    size: u64,
    /// Plain: its data is for the tree.
    passed: bool,
    /// It is the archive's `manifest.json`, whose text is kept in memory, too.
    captured: bool,
}

/// Receives an archive's members.
pub(in super::super) struct Recognizer<'a, 'l> {
    apply: Apply<'a>,
    label: &'l str,
    access: Access,
    state: State,
    /// Members before the decision, and about how many bytes they take.
    held: Vec<TarMember>,
    held_bytes: usize,
    /// Where the data of held members goes, as long as it does.
    spool: Option<Spool>,
    /// Why the archive was taken for a plain one, or its data is no longer kept.
    reason: Option<String>,
    /// Members that look like nothing an image has, and their bytes.
    others: usize,
    other_bytes: u64,
    /// A name is not one that OCI or docker-save gives to its files.
    foreign: bool,
    /// A name is one that only they give to their files.
    has_blobs: bool,
    /// `manifest.json`, `index.json` and `oci-layout` came.
    deciding: [bool; 3],
    /// The text of `manifest.json`, at most one byte more than a document may have; absent where it can be read later.
    manifest: Option<Vec<u8>>,
    current: Current,
}

const DECIDING: [&[u8]; 3] = [b"manifest.json", b"index.json", b"oci-layout"];

impl<'a, 'l> Recognizer<'a, 'l> {
    pub(in super::super) fn new(
        apply: Apply<'a>,
        label: &'l str,
        access: Access,
        spool: Spool,
    ) -> Self {
        Self {
            apply,
            label,
            access,
            state: State::Undecided,
            held: Vec::new(),
            held_bytes: 0,
            spool: (access != Access::InPlace).then_some(spool),
            reason: None,
            others: 0,
            other_bytes: 0,
            foreign: false,
            has_blobs: false,
            deciding: [false; 3],
            manifest: None,
            current: Current::default(),
        }
    }

    /// For an archive that is known to be an image.
    pub(in super::super) fn for_image(mut self) -> Self {
        self.state = State::Image;
        self
    }

    /// What the archive is, when `read` is what came of reading it. An uncompressed one lies in `file` from `start` on.
    pub(in super::super) fn finish(
        mut self,
        read: Result<Ending, SourceError>,
        file: Option<(Arc<File>, u64)>,
    ) -> Result<Recognized, SourceError> {
        let ending = match (read, self.state) {
            (Ok(ending), _) => ending,
            (Err(error), State::Undecided) => {
                // An error of an earlier member is reported first, as in any archive.
                self.become_plain().map_err(|stop| self.told(stop, None))?;
                return Err(error);
            }
            (Err(error), _) => return Err(error),
        };
        if self.state == State::Plain {
            self.refuse_late_image()?;
        } else {
            match self.image(file)? {
                Some(recognized) => return Ok(recognized),
                None => self.become_plain().map_err(|stop| self.told(stop, None))?,
            }
        }
        self.apply.finish_archive(ending, self.label)?;
        Ok(Recognized::Plain)
    }

    /// Whether the held members are an image.
    fn image(&mut self, file: Option<(Arc<File>, u64)>) -> Result<Option<Recognized>, SourceError> {
        let old_save = !self.foreign && !self.deciding[0] && !self.deciding[1];
        if !old_save && !self.deciding[0] && !self.deciding[1] {
            return Ok(None);
        }
        let start = file.as_ref().map_or(0, |(_, start)| *start);
        let Some(mut members) = Members::new(self.held.iter().cloned(), start) else {
            return Ok(None);
        };
        if old_save {
            return if self
                .held
                .iter()
                .any(|entry| is_old_layer(&entry.path, &mut members))
            {
                Err(self.wrong(documents::OLD_SAVE.into()))
            } else {
                Ok(None)
            };
        }
        let mut manifest = self.manifest.take();
        let mut text = |name: &str| match (
            members.find(name),
            manifest.take_if(|_| name == "manifest.json"),
        ) {
            (Some(Member::File(..)), Some(text)) => Some(text),
            (Some(Member::File(at, len)), None) => {
                let mut text = vec![0; len.min(limits::JSON + 1) as usize];
                let read = match (&file, &self.spool) {
                    (Some((file, _)), _) => host::read_exact_at(file, &mut text, at),
                    (None, Some(spool)) => spool.read(at, &mut text),
                    (None, None) => Err(ErrorKind::NotFound.into()),
                };
                read.ok().map(|()| text)
            }
            _ => None,
        };
        let (manifest, index) = (text("manifest.json"), text("index.json"));
        let texts = Texts {
            manifest: manifest.as_deref(),
            index: index.as_deref(),
        };
        if !is_image(|name| members.find(name), &texts, self.is_foreign()) {
            return Ok(None);
        }
        let file = match (file, self.spool.take()) {
            (Some((file, _)), _) => file,
            (None, Some(spool)) => {
                let file = spool.into_file().map_err(|problem| self.wrong(problem))?;
                Arc::new(file)
            }
            (None, None) => return Ok(Some(Recognized::ImageNotKept)),
        };
        Ok(Some(Recognized::Image(Blobs::of_archive(
            self.label, file, members,
        ))))
    }

    /// Refuses what turned out to be an image after it was taken for a plain archive.
    fn refuse_late_image(&mut self) -> Result<(), SourceError> {
        let apply = &mut self.apply;
        let text = self.manifest.as_deref().unwrap_or_default();
        let listed = match documents::saved_images(text) {
            Ok(images) => images.unwrap_or_default().0.iter().any(|image| {
                let mut files = image.layers.0.iter().chain([&image.config]);
                files.all(|name| apply.holds(name.as_bytes()))
            }),
            Err(_) => documents::looks_saved(text, |name| apply.holds(name.as_bytes())),
        };
        let layout = self.deciding[1] && self.deciding[2];
        let layout =
            layout && DECIDING[1..].iter().all(|name| apply.holds(name)) && apply.holds(b"blobs");
        if !listed && !layout {
            return Ok(());
        }
        let reason = self
            .reason
            .take()
            .unwrap_or_else(|| format!("it has too many members; {AS_A_FILE}"));
        Err(self.wrong(format!(
            "this is a container image, but what says so came too late: {reason} (or, if its files are what you want, \
             unpack it and build from DIRECTORY/.)"
        )))
    }

    fn wrong(&self, problem: String) -> SourceError {
        SourceError::Image {
            image: self.label.into(),
            problem,
        }
    }

    /// The error about a held member.
    fn told(&self, stop: TarStop, place: Option<(u64, &[u8])>) -> SourceError {
        match stop {
            TarStop::Error(error) => error,
            TarStop::Problem(problem) => SourceError::Archive {
                archive: self.label.into(),
                offset: place.map_or(0, |(at, _)| at),
                entry: place
                    .map(|(_, name)| String::from_utf8_lossy(name).chars().take(500).collect()),
                problem,
            },
        }
    }

    /// Whether the names alone do not show that this is an image.
    fn is_foreign(&self) -> bool {
        self.foreign || !self.has_blobs
    }

    /// Why no image has `entry`.
    fn judge(&mut self, path: &[u8], entry: &TarMember) -> Option<&'static str> {
        let named = is_image_name(path);
        self.foreign |= !named;
        self.has_blobs |= is_blob_name(path);
        let (mut bytes, mut size) = (0, 0);
        match &entry.what {
            What::Special(..) => return Some("no image has a device or fifo"),
            What::File {
                size: all, extents, ..
            } => {
                if entry.attributes.mode & 0o6000 != 0 {
                    return Some("no image has a set-user-ID or set-group-ID file");
                }
                size = *all;
                bytes = extents.as_deref().map_or(*all, total);
            }
            _ => {}
        }
        self.current = Current {
            named,
            size: bytes,
            ..Current::default()
        };
        // What has data is judged by them.
        let other = !named && size == 0;
        self.others += usize::from(other);
        (self.others > limits::OTHER_MEMBERS).then_some("it has too many members that no image has")
    }

    /// Ends that data of an undecided archive is kept, because of `reason`.
    fn stop_keeping(&mut self, reason: String) -> Result<(), TarStop> {
        self.reason.get_or_insert(reason);
        match self.access {
            Access::Once => self.become_plain(),
            Access::Again => {
                self.spool = None;
                Ok(())
            }
            Access::InPlace => Ok(()),
        }
    }

    /// Applies the held members. The data of the last may still be coming.
    fn become_plain(&mut self) -> Result<(), TarStop> {
        self.state = State::Plain;
        let spool = self.spool.take();
        let held = std::mem::take(&mut self.held);
        let count = held.len();
        for (number, entry) in held.into_iter().enumerate() {
            let (at, path) = (entry.header_at, entry.path.clone());
            let partial = number + 1 == count && self.current.seen;
            let applied = self.reapply(entry, spool.as_ref(), partial);
            applied.map_err(|stop| TarStop::Error(self.told(stop, Some((at, &path)))))?;
        }
        Ok(())
    }

    fn reapply(
        &mut self,
        entry: TarMember,
        spool: Option<&Spool>,
        partial: bool,
    ) -> Result<(), TarStop> {
        let file = match &entry.what {
            What::File {
                size,
                offset,
                extents,
                ..
            } => Some((*size, *offset, extents.clone())),
            _ => None,
        };
        let wanted = self.apply.entry(entry)?;
        let (Some((size, mut from, extents)), Some(spool), true) = (file, spool, wanted) else {
            return Ok(());
        };
        let whole = DataExtent {
            offset: 0,
            len: size,
        };
        let mut buffer = vec![0; PIECE.min(size as usize)];
        for run in extents.unwrap_or_else(|| vec![whole]) {
            let mut done = 0;
            while done < run.len && from < spool.len() {
                let count = (run.len - done)
                    .min(buffer.len() as u64)
                    .min(spool.len() - from);
                let piece = &mut buffer[..count as usize];
                let read = spool.read(from, piece);
                read.map_err(|error| format!("cannot read what was kept of it: {error}"))?;
                self.apply.data(run.offset + done, piece)?;
                done += count;
                from += count;
            }
        }
        self.current.passed = partial;
        if partial { Ok(()) } else { self.apply.end() }
    }

    /// Takes a member of a plain archive.
    fn pass(&mut self, path: Option<&[u8]>, entry: TarMember) -> Result<bool, TarStop> {
        self.current = Current::default();
        if let Some(path) = path {
            self.note(path, &entry);
        }
        self.current.passed = self.apply.entry(entry)?;
        Ok(self.current.passed || self.current.captured)
    }

    /// Notes whether `path` is one of the names that tell an image, and keeps the text of a `manifest.json`.
    fn note(&mut self, path: &[u8], entry: &TarMember) {
        for (came, name) in self.deciding.iter_mut().zip(DECIDING) {
            *came |= path == name;
        }
        if path == DECIDING[0] {
            self.manifest = None;
            let whole = matches!(&entry.what, What::File { extents: None, .. });
            let in_place = self.access == Access::InPlace && self.state != State::Plain;
            self.current.captured = whole && !in_place;
            if self.current.captured {
                self.manifest = Some(Vec::new());
            }
        }
    }

    /// Looks at the first bytes of a file of an undecided archive, and returns why the file is not part of an image.
    fn look_at(&mut self, bytes: &[u8]) -> Option<&'static str> {
        if self.current.named || is_of_an_image(bytes) {
            return None;
        }
        self.others += 1;
        self.other_bytes = self.other_bytes.saturating_add(self.current.size);
        if self.others > limits::OTHER_MEMBERS {
            return Some("it has too many members that no image has");
        }
        (self.other_bytes > limits::OTHER_BYTES).then_some("it has data that no image has")
    }

    /// Keeps bytes of the file that is read.
    fn keep(&mut self, bytes: &[u8]) -> Result<(), TarStop> {
        let Some(spool) = &mut self.spool else {
            return Ok(());
        };
        match spool.write(bytes) {
            Ok(()) => Ok(()),
            Err(problem) if self.state == State::Image || !self.is_foreign() => {
                Err(TarStop::Error(self.wrong(format!(
                    "it is a container image, whose blobs are read out of order: {problem}"
                ))))
            }
            Err(problem) => self.stop_keeping(problem),
        }
    }

    /// Whether what came says already that the archive is an image.
    fn decide(&mut self) {
        if self.state != State::Undecided {
            return;
        }
        let text = self.manifest.as_deref().filter(|_| self.current.captured);
        let listed = text.is_some_and(|text| {
            matches!(documents::saved_images(text), Ok(Some(images)) if !images.0.is_empty())
        });
        if listed || self.deciding[1] && self.deciding[2] {
            self.state = State::Image;
        }
    }
}

impl Visitor for Recognizer<'_, '_> {
    fn entry(&mut self, mut entry: TarMember) -> Result<bool, TarStop> {
        self.current = Current::default();
        let path = match clean(&entry.path) {
            Ok(path) if self.state != State::Plain => path,
            Ok(path) => return self.pass(Some(&path), entry),
            Err(problem) if self.state == State::Image => return Err(problem.into()),
            Err(_) => {
                if self.state == State::Undecided {
                    self.become_plain()?;
                }
                return self.pass(None, entry);
            }
        };
        if let Some(reason) = self.judge(&path, &entry)
            && self.state == State::Undecided
        {
            self.stop_keeping(format!("{reason}; {AS_A_FILE}"))?;
        }
        let full = self.held.len() >= limits::BLOBS || self.held_bytes > limits::HELD_NAMES;
        if full && self.state == State::Image {
            return Err("the archive has more members than an image".into());
        }
        if full && self.state == State::Undecided {
            self.become_plain()?;
        }
        if self.state == State::Plain {
            return self.pass(Some(&path), entry);
        }
        self.note(&path, &entry);
        self.held_bytes += entry.bytes();
        let mut wanted = self.current.captured;
        if let (What::File { offset, .. }, Some(spool)) = (&mut entry.what, &self.spool) {
            *offset = spool.len();
            wanted = true;
        }
        self.held.push(entry);
        if !wanted || self.current.size == 0 {
            self.decide();
        }
        Ok(wanted)
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), TarStop> {
        if let (true, Some(text)) = (self.current.captured, &mut self.manifest) {
            // One that is longer is refused, or another program's.
            let room = limits::JSON as usize + 1 - text.len();
            text.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
        if self.state != State::Plain {
            if !self.current.seen {
                self.current.seen = true;
                if let Some(reason) = self.look_at(bytes)
                    && self.state == State::Undecided
                {
                    self.stop_keeping(format!("{reason}; {AS_A_FILE}"))?;
                }
            }
            if self.state != State::Plain {
                self.keep(bytes)?;
            }
        }
        if self.state == State::Plain && self.current.passed {
            return self.apply.data(offset, bytes);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), TarStop> {
        if self.state == State::Plain {
            return if self.current.passed {
                self.apply.end()
            } else {
                Ok(())
            };
        }
        self.current.seen = false;
        self.decide();
        Ok(())
    }
}

fn total(extents: &[DataExtent]) -> u64 {
    extents.iter().map(|extent| extent.len).sum()
}

/// Whether a file that begins with `bytes` may be one of an image: JSON, a tar (also an empty one), or compressed.
fn is_of_an_image(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii_start();
    let start = &bytes[..bytes.len().min(tar::header::BLOCK)];
    text.starts_with(b"{")
        || text.starts_with(b"[")
        || tar::is_header(bytes)
        || start.len() == tar::header::BLOCK && start.iter().all(|byte| *byte == 0)
        || Compression::of(bytes) != Ok(Compression::None)
}

/// How the documents of an archive or directory begin, where they can be read.
pub(super) struct Texts<'t> {
    pub(super) manifest: Option<&'t [u8]>,
    pub(super) index: Option<&'t [u8]>,
}

/// Whether an archive or directory is an image: `find` looks for a name in it, and `foreign` means that its names are
/// not only those of images. Other programs have files with the names of `texts`, too: their `index.json` has no
/// manifests, and their `manifest.json` lists nothing that is there.
pub(super) fn is_image(
    mut find: impl FnMut(&str) -> Option<Member>,
    texts: &Texts<'_>,
    foreign: bool,
) -> bool {
    let mut has_file = |name| matches!(find(name), Some(Member::File(..)));
    if has_file("index.json") {
        let is_index = || texts.index.is_none_or(documents::looks_like_index);
        if has_file("oci-layout") || !foreign && is_index() {
            return true;
        }
    }
    let Some(text) = texts.manifest else {
        return false;
    };
    let mut has = |name: &str| find(name).is_some();
    match documents::saved_images(text) {
        Ok(Some(images)) => !foreign || images.names().any(|name| has(name)),
        Ok(None) => false,
        Err(_) => !foreign || documents::looks_saved(text, has),
    }
}

/// Whether `path` is a layer of a save from before Docker 1.10: `ID/layer.tar` beside `ID/json`.
fn is_old_layer(path: &[u8], members: &mut Members) -> bool {
    let path = clean(path).unwrap_or_default();
    let id = path
        .strip_suffix(b"/layer.tar")
        .and_then(|id| std::str::from_utf8(id).ok());
    id.is_some_and(|id| members.find(&format!("{id}/json")).is_some())
}
