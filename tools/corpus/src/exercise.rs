//! Reads everything of an image that lanefs can read, whatever comes of it.

use std::collections::HashSet;

use device::BlockDevice;
use engine::{Error, FileType, Ino, InodeFs, InodeRef, MountOptions, ReplayPolicy};
use ondisk::text::{DirectoryText, GroupText, IndexText, InodeText, LogBlockText, SuperblockText};
use ondisk::{Geometry, Superblock, htree};
use sync::Arc;

use crate::overlay::PatchedBytes;
use crate::structures::{Kind, Structure};

/// Inodes that are looked at, whatever an image says.
const INODES: u32 = 3_000;
/// Entries of a directory, runs of a file that are looked at.
const STEPS: usize = 100_000;
/// Names of a directory that are looked up.
const LOOKUPS: usize = 20;
/// Bytes of each part of a file that is read.
const PART: usize = 64 << 10;

/// What there was.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExerciseSummary {
    /// How often the image was opened (of two ways to).
    pub opened: u32,
    /// Inodes in use.
    pub inodes: u32,
    /// Entries of directories.
    pub entries: usize,
    /// Runs of blocks.
    pub runs: usize,
    /// Bytes of contents.
    pub bytes: u64,
    /// Extended attributes.
    pub xattrs: usize,
    /// Errors of any kind.
    pub errors: usize,
    /// The first of them.
    pub first_error: Option<String>,
}

impl ExerciseSummary {
    fn take<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.errors += 1;
                // Messages, too, are made of what the image says.
                let text = error.to_string();
                self.first_error.get_or_insert(text);
                None
            }
        }
    }
}

/// Opens an image with its journal and without, and reads all that there is.
#[must_use]
pub fn exercise(image: &PatchedBytes) -> ExerciseSummary {
    let mut summary = ExerciseSummary::default();
    for journal in [ReplayPolicy::Replay, ReplayPolicy::Ignore] {
        exercise_with(image, journal, &mut summary);
    }
    summary
}

/// Opens an image in one of the ways to, and reads all that there is.
pub fn exercise_with(image: &PatchedBytes, journal: ReplayPolicy, summary: &mut ExerciseSummary) {
    let device: Arc<dyn BlockDevice> = Arc::new(image.clone());
    let options = MountOptions {
        journal,
        cache_bytes: 1 << 20,
        ..MountOptions::default()
    };
    if let Some(fs) = summary.take(InodeFs::open(device, &options)) {
        summary.opened += 1;
        read_all(&fs, summary);
    }
}

fn read_all(fs: &InodeFs, summary: &mut ExerciseSummary) {
    summary.take(fs.statfs());
    for path in [
        &b"/"[..],
        b"deep/a/b/../b/c",
        b"long-link",
        b"names/./../small",
        b"link/",
    ] {
        for follow in [true, false] {
            // A path that leads nowhere is not an error here.
            let _ = fs.resolve(path, follow);
        }
    }
    for ino in 1..=fs.geometry().inodes_count().min(INODES) {
        match fs.inode(Ino(ino)) {
            Ok(inode) => {
                summary.inodes += 1;
                read_inode(fs, Ino(ino), &inode, summary);
            }
            // Most are free.
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    walk(fs, summary);
}

fn read_inode(fs: &InodeFs, ino: Ino, inode: &InodeRef<'_>, summary: &mut ExerciseSummary) {
    let metadata = inode.metadata();
    summary.xattrs += summary.take(inode.xattrs()).map_or(0, |all| all.len());
    if let Some(runs) = summary.take(inode.mappings()) {
        for run in runs.take(STEPS) {
            summary.runs += usize::from(summary.take(run).is_some());
        }
    }
    match metadata.file_type {
        FileType::Regular => {
            let mut part = vec![0; PART];
            let middle = metadata.size / 2;
            for offset in [0, middle, metadata.size.saturating_sub(100), u64::MAX - 5] {
                let read = summary.take(inode.read(offset, &mut part));
                summary.bytes += read.unwrap_or(0) as u64;
            }
        }
        FileType::Symlink => drop(summary.take(inode.read_link())),
        FileType::Directory => read_directory(fs, ino, summary),
        _ => {}
    }
}

fn read_directory(fs: &InodeFs, ino: Ino, summary: &mut ExerciseSummary) {
    let Some(entries) = summary.take(fs.read_dir(ino)) else {
        return;
    };
    for (i, entry) in entries.take(STEPS).enumerate() {
        let Some(entry) = summary.take(entry) else {
            continue;
        };
        summary.entries += 1;
        if i < LOOKUPS {
            summary.take(fs.lookup(ino, &entry.name));
        }
        if i == LOOKUPS
            && let Some(rest) = summary.take(fs.read_dir_from(ino, entry.cookie))
        {
            rest.take(LOOKUPS).for_each(drop);
        }
    }
    let _ = fs.lookup(ino, b"a name that is nowhere");
}

/// Goes down the tree as `extract` does: each directory once.
fn walk(fs: &InodeFs, summary: &mut ExerciseSummary) {
    let mut met = HashSet::from([Ino::ROOT]);
    let mut left = vec![Ino::ROOT];
    while let Some(ino) = left.pop() {
        let Ok(entries) = fs.read_dir(ino) else {
            continue;
        };
        for entry in entries.take(STEPS).flatten() {
            if let Some(metadata) = summary.take(fs.metadata(entry.ino))
                && metadata.file_type == FileType::Directory
                && met.insert(entry.ino)
            {
                left.push(entry.ino);
            }
        }
    }
}

/// Prints a structure as `dump` does, checked or not; returns how long the text is.
#[must_use]
pub fn print_structure(structure: &Structure, bytes: &[u8], geometry: &Geometry) -> usize {
    let text = match structure.kind {
        Kind::Superblock => match <&[u8; Superblock::SIZE]>::try_from(bytes) {
            Ok(raw) => SuperblockText(Superblock::view(raw)).to_string(),
            Err(_) => String::new(),
        },
        Kind::Descriptor(group) => GroupText {
            raw: bytes,
            geometry,
            group,
        }
        .to_string(),
        Kind::Inode(ino) => InodeText {
            slot: bytes,
            geometry,
            ino,
        }
        .to_string(),
        Kind::Directory(form, _) => DirectoryText { block: bytes, form }.to_string(),
        Kind::Index(form, htree::Kind::Node, _) => match htree::node(bytes, form) {
            Ok(index) => IndexText(index).to_string(),
            Err(corrupt) => corrupt.to_string(),
        },
        Kind::Index(form, htree::Kind::Root, _) => match htree::root(bytes, form, 2, false) {
            Ok((_, index)) => IndexText(index).to_string(),
            Err(corrupt) => corrupt.to_string(),
        },
        Kind::Log(format) => LogBlockText {
            format: &format,
            block: bytes,
        }
        .to_string(),
        _ => String::new(),
    };
    text.len()
}
