//! What an archive that is read once holds, kept until it is needed: the blobs of a container image, and the first
//! members of an archive while nobody knows yet what it is.
//!
//! The first MiB stays in memory. Beyond it all bytes are in a file without a name in `TMPDIR` (or `/tmp`), which is
//! gone with the process, however that ends. The bytes are never written beyond the spool's limit.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, Mode, OFlags};

/// Bytes that stay in memory.
const MEMORY: u64 = 1 << 20;
/// Names that are tried for a file where the file system has no files without names.
const ATTEMPTS: u32 = 100;

/// Bytes that were written one after another and can be read at any place.
pub(crate) struct Spool {
    /// Where they are; absent before the first byte.
    file: Option<File>,
    written: u64,
    /// The most bytes that it may hold: what the user allows, or half of what is free where they are.
    limit: Option<u64>,
    /// Where the file is; absent as long as the bytes are in memory.
    directory: Option<PathBuf>,
}

impl Spool {
    /// An empty one, for at most `limit` bytes: by default half of what is free in its directory.
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self {
            file: None,
            written: 0,
            limit,
            directory: None,
        }
    }

    /// Bytes so far: where the next one is written.
    pub(crate) fn len(&self) -> u64 {
        self.written
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// Why it can't hold them, and what to do.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        let end = self.written + bytes.len() as u64;
        if self.directory.is_none() && end > MEMORY.min(self.limit.unwrap_or(MEMORY)) {
            self.check_limit(end)?;
            self.move_to_disk()?;
        }
        self.check_limit(end)?;
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(in_memory()?),
        };
        let written = file.write_all_at(bytes, self.written);
        written.map_err(|error| {
            let directory = self.directory.as_deref().unwrap_or(Path::new("memory"));
            format!(
                "cannot write what must be kept to {}: {error}; {NEXT}",
                directory.display()
            )
        })?;
        self.written = end;
        Ok(())
    }

    fn check_limit(&self, end: u64) -> Result<(), String> {
        match (self.limit, &self.directory) {
            (Some(limit), _) if end <= limit => Ok(()),
            (None, _) => Ok(()),
            (Some(limit), Some(directory)) => Err(format!(
                "what must be kept takes more than the {limit} bytes that may be used in {}; allow more with --spool \
                 SIZE, {NEXT}",
                directory.display()
            )),
            (Some(limit), None) => Err(format!(
                "what must be kept takes more than {limit} bytes; allow more with --spool SIZE, {NEXT}"
            )),
        }
    }

    /// Moves the bytes from memory to a file.
    fn move_to_disk(&mut self) -> Result<(), String> {
        let directory = std::env::var_os("TMPDIR").filter(|name| !name.is_empty());
        let directory = PathBuf::from(directory.unwrap_or_else(|| OsString::from("/tmp")));
        let failed = |error: std::io::Error| {
            format!(
                "cannot keep a temporary file in {}: {error}; {NEXT}",
                directory.display()
            )
        };
        let file = without_name(&directory).map_err(failed)?;
        if self.limit.is_none() {
            let found = rustix::fs::fstatvfs(&file).map_err(|errno| failed(errno.into()))?;
            self.limit = Some(found.f_bavail.saturating_mul(found.f_frsize) / 2);
        }
        if let Some(memory) = self.file.take() {
            let mut bytes = vec![0; self.written as usize];
            let moved = memory.read_exact_at(&mut bytes, 0);
            moved
                .and_then(|()| file.write_all_at(&bytes, 0))
                .map_err(failed)?;
        }
        self.file = Some(file);
        self.directory = Some(directory);
        Ok(())
    }

    /// Fills `buf` with the bytes from `at` on.
    pub(crate) fn read(&self, at: u64, buf: &mut [u8]) -> std::io::Result<()> {
        match &self.file {
            Some(file) => file.read_exact_at(buf, at),
            None if buf.is_empty() => Ok(()),
            None => Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// The file that holds the bytes.
    ///
    /// # Errors
    /// When there are none and an empty file can't be made.
    pub(crate) fn into_file(self) -> Result<File, String> {
        match self.file {
            Some(file) => Ok(file),
            None => in_memory(),
        }
    }
}

/// What to do about a spool that can't hold enough.
const NEXT: &str = "name another directory with TMPDIR, or save the archive as a file, uncompressed, and build from \
     that";

fn in_memory() -> Result<File, String> {
    let fd = rustix::fs::memfd_create("spool", MemfdFlags::CLOEXEC);
    fd.map(File::from)
        .map_err(|errno| format!("cannot keep what is read in memory: {errno}"))
}

/// A new file in `directory` that has no name.
fn without_name(directory: &Path) -> std::io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    if let Ok(fd) = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
        return Ok(File::from(fd));
    }
    // Not every file system has such files; and its error says less than that of making one with a name.
    let mut last = None;
    for attempt in 0..ATTEMPTS {
        let name = format!(".lanefs-{}-{attempt}", std::process::id());
        let path = directory.join(name);
        let mut options = File::options();
        let made = options
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        match made {
            Ok(file) => {
                std::fs::remove_file(&path)?;
                return Ok(file);
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.unwrap_or_else(|| std::io::ErrorKind::AlreadyExists.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_back_from_memory_and_from_a_file() {
        let mut spool = Spool::new(None);
        let piece: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
        for round in 0..10 {
            assert_eq!(spool.len(), round * piece.len() as u64);
            spool.write(&piece).unwrap();
            let mut back = vec![0; piece.len()];
            spool.read(round * piece.len() as u64, &mut back).unwrap();
            assert_eq!(back, piece);
        }
        assert_eq!(spool.directory.is_some(), spool.len() > MEMORY);
        let mut back = vec![0; piece.len()];
        spool
            .into_file()
            .unwrap()
            .read_exact_at(&mut back, 0)
            .unwrap();
        assert_eq!(back, piece);
    }

    #[test]
    fn a_limit_holds_to_the_byte_in_memory_and_beyond() {
        for limit in [0, 1000, 3 << 20] {
            let mut spool = Spool::new(Some(limit));
            let mut left = limit;
            while left > 0 {
                let count = left.min(700_000);
                spool.write(&vec![1; count as usize]).unwrap();
                left -= count;
            }
            let message = spool.write(&[1]).unwrap_err();
            assert!(
                message.contains("--spool") && message.contains(&limit.to_string()),
                "{message}"
            );
            assert_eq!(spool.len(), limit);
        }
    }
}
