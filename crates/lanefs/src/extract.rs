//! Taking files out of an image: into a directory of the host, or as a tar stream.
//!
//! Work on several threads; every thread ends before a call returns. An entry that can't be read or written is
//! reported in the [`Summary`] and does not stop the others. What this user may not restore (owners, devices, some
//! attributes) is counted there too.
//!
//! A regular file is there whole or not at all: one that can't be read or written to its end is removed, and one that
//! replaces another takes its name when it is whole. An extraction that is called off leaves what it had written so
//! far, without the further names of files and without the directories' attributes.

mod acl_text;
mod tar;
mod tar_stream;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(not(target_os = "linux"))]
use elsewhere as system;

use std::io;
use std::ops::Range;

use sync::atomic::AtomicBool;
use sync::{Counter, Mutex, Rank};

use crate::{Error, FileType, Fs, Ino, InodeRef, Metadata};

pub use system::{to_directory, to_name};

/// How many errors a [`Summary`] keeps; the rest is counted.
const MAX_ERRORS: usize = 1000;

/// What of a file's attributes is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keep {
    /// The owner and group, and with them the set-user-ID and set-group-ID bits.
    pub owner: bool,
    /// The permission bits. Otherwise new files get them as `cp -r` gives them, cut by the umask, and those that exist
    /// keep their own.
    pub mode: bool,
    /// The times of last access and modification.
    pub times: bool,
    /// Extended attributes, and with them capabilities and security labels.
    pub xattrs: bool,
    /// ACLs, which are a part of what `mode` says: what is extracted has those of the image and no others.
    pub acls: bool,
    /// That a file that is replaced, and a directory, keep the special bits (set-user-ID, set-group-ID, sticky) that
    /// they have or inherit, where the image's have none: as with `cp -p`, while `extract` sets exactly the image's.
    pub special_bits: bool,
    /// That several names are one file. Otherwise each becomes a file of its own. (A tar always keeps it.)
    pub hard_links: bool,
}

impl Keep {
    /// Everything there is.
    pub const ALL: Keep = Keep {
        owner: true,
        mode: true,
        times: true,
        xattrs: true,
        acls: true,
        special_bits: false,
        hard_links: true,
    };
    /// Contents only, as `cp -r` does.
    pub const NONE: Keep = Keep {
        owner: false,
        mode: false,
        times: false,
        xattrs: false,
        acls: false,
        special_bits: false,
        hard_links: false,
    };
}

/// What becomes of what already has a name that is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Existing {
    /// A destination must be empty or not exist.
    Refuse,
    /// Files stay as they are, and directories are filled up.
    Keep,
    /// Files are replaced, and directories are filled up.
    Replace,
}

/// How to extract.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// What of the attributes is kept.
    pub keep: Keep,
    /// What becomes of files and directories that exist.
    pub existing: Existing,
    /// Rights of others to write that new directories do not get where `keep` is without modes, below an ACL, too. The
    /// kernel applies the process's own umask to all else.
    pub umask: u16,
    /// How many threads work at once; 0 for as many as there are processors.
    pub threads: usize,
    /// Set by anyone, at any time, to call off an extraction to a directory.
    pub cancel: Option<&'a AtomicBool>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options {
            keep: Keep::ALL,
            existing: Existing::Refuse,
            umask: 0o022,
            threads: 0,
            cancel: None,
        }
    }
}

impl Options<'_> {
    fn threads(&self) -> usize {
        match self.threads {
            0 => sync::thread::available_parallelism(),
            threads => threads,
        }
    }
}

/// What could not be restored, because this user or the destination may not.
#[derive(Debug, Default)]
struct Lost {
    owners: Counter,
    modes: Counter,
    xattrs: Counter,
    devices: Counter,
    sockets: Counter,
}

/// What was extracted, and what was not.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Summary {
    /// Regular files, each counted once however many names it has.
    pub files: u64,
    /// Directories, the uppermost included.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices, FIFOs and sockets.
    pub special: u64,
    /// Further names of files.
    pub hard_links: u64,
    /// Bytes of file data, holes not counted.
    pub bytes: u64,
    /// Entries whose owner could not be set.
    pub lost_owners: u64,
    /// Entries whose permissions could not be set.
    pub lost_modes: u64,
    /// Extended attributes that could not be set.
    pub lost_xattrs: u64,
    /// Devices that could not be made.
    pub lost_devices: u64,
    /// Sockets left out of a tar, which has no way to hold them.
    pub lost_sockets: u64,
    /// Whether it was called off before its end.
    pub cancelled: bool,
    /// How many entries failed.
    pub failed: u64,
    /// The paths that failed (the first thousand), with the reasons.
    pub errors: Vec<(Vec<u8>, Error)>,
}

/// What the threads of one extraction count together.
#[derive(Debug)]
struct Tally {
    files: Counter,
    directories: Counter,
    symlinks: Counter,
    special: Counter,
    hard_links: Counter,
    bytes: Counter,
    lost: Lost,
    failed: Counter,
    /// The first errors. `[leaf]`
    errors: Mutex<Vec<(Vec<u8>, Error)>>,
}

impl Tally {
    fn new() -> Tally {
        Tally {
            files: Counter::new(),
            directories: Counter::new(),
            symlinks: Counter::new(),
            special: Counter::new(),
            hard_links: Counter::new(),
            bytes: Counter::new(),
            lost: Lost::default(),
            failed: Counter::new(),
            errors: Mutex::new(Rank::Leaf, Vec::new()),
        }
    }

    fn fail(&self, path: &[u8], error: impl Into<Error>) {
        self.failed.add(1);
        let mut errors = self.errors.lock();
        if errors.len() < MAX_ERRORS {
            errors.push((path.to_vec(), error.into()));
        }
    }

    fn finish(self, cancelled: bool) -> Summary {
        Summary {
            cancelled,
            files: self.files.sum(),
            directories: self.directories.sum(),
            symlinks: self.symlinks.sum(),
            special: self.special.sum(),
            hard_links: self.hard_links.sum(),
            bytes: self.bytes.sum(),
            lost_owners: self.lost.owners.sum(),
            lost_modes: self.lost.modes.sum(),
            lost_xattrs: self.lost.xattrs.sum(),
            lost_devices: self.lost.devices.sum(),
            lost_sockets: self.lost.sockets.sum(),
            failed: self.failed.sum(),
            errors: self.errors.into_inner(),
        }
    }
}

/// Whether this is the root's `lost+found`, with nothing in it.
fn is_empty_lost_and_found(fs: &Fs, path: &[u8], metadata: &Metadata) -> bool {
    let is_empty = || Ok::<_, engine::Error>(fs.list(metadata.ino)?.next().is_none());
    path == b"lost+found"
        && metadata.file_type == FileType::Directory
        && is_empty().unwrap_or(false)
}

/// Ranges of bytes, or what is wrong.
type Ranges<'a> = Box<dyn Iterator<Item = Result<Range<u64>, Error>> + 'a>;

/// Where a file has data, in bytes; between lie holes.
fn data_ranges<'a>(fs: &Fs, inode: &'a InodeRef<'_>, size: u64) -> Result<Ranges<'a>, Error> {
    if inode.is_inline() {
        return Ok(Box::new(std::iter::once(Ok(0..size))));
    }
    let bits = fs.inodes().geometry().block_size().bits();
    let ranges = inode.mappings()?.filter_map(move |mapping| match mapping {
        Ok(mapping) if mapping.is_data() => {
            // Blocks count to 2^32 at most, and a block has 2^16 bytes at most.
            let range = (mapping.logical << bits).min(size)..(mapping.end() << bits).min(size);
            (!range.is_empty()).then_some(Ok(range))
        }
        Ok(_) => None,
        Err(error) => Some(Err(error.into())),
    });
    Ok(Box::new(ranges))
}

/// Whether a name is invalid for a file, or leads out of its directory.
pub fn is_unsafe_name(name: &[u8]) -> bool {
    name.is_empty() || name.contains(&b'/') || name.contains(&0) || matches!(name, b"." | b"..")
}

/// Writes what is at `from` as a tar archive (POSIX pax, with GNU sparse files): a directory as `./` and what
/// is below it, anything else under `name`. Hard links, nanoseconds, extended attributes and ACLs are kept.
///
/// # Errors
/// When `output` fails. Errors of single entries are in the summary; their data is filled with zeros.
pub fn to_tar(
    fs: &Fs,
    from: Ino,
    name: &[u8],
    output: &mut dyn io::Write,
    options: &Options<'_>,
) -> Result<Summary, Error> {
    tar_stream::write(fs, from, name, output, options)
}
