//! Keeps the contents of an archive that is read only once until they are needed: the blobs of a container image, and
//! the first members of an archive whose kind is not known yet.
//!
//! The first MiB stays in memory. If there are more bytes, all of them are put in a file without a name in `TMPDIR` (or
//! `/tmp`), which disappears with the process, however that ends. A spool never holds more bytes than its limit.

use std::fs::File;
use std::path::{Path, PathBuf};

use device::host;

use super::system::temporary;

/// The most bytes that stay in memory.
const MEMORY: u64 = 1 << 20;

/// Bytes that were appended one after another and can be read at any offset.
pub(crate) struct Spool {
    /// The file with the bytes; `None` before the first byte.
    file: Option<File>,
    written: u64,
    /// The most bytes that it may hold: what the user allows, or half of the free space where the file is.
    limit: Option<u64>,
    /// The directory of the file; `None` while the bytes are in memory.
    directory: Option<PathBuf>,
}

impl Spool {
    /// An empty spool for at most `limit` bytes; the default is half of the free space of its directory.
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self {
            file: None,
            written: 0,
            limit,
            directory: None,
        }
    }

    /// The number of bytes, which is also the offset of the next one.
    pub(crate) fn len(&self) -> u64 {
        self.written
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// Why it can't hold the bytes, and what to do.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        let end = self.written + bytes.len() as u64;
        if self.directory.is_none() && end > MEMORY.min(self.limit.unwrap_or(MEMORY)) {
            self.check_limit(end)?;
            self.move_to_disk(end)?;
        }
        self.check_limit(end)?;
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(in_memory()?),
        };
        let written = host::write_all_at(file, bytes, self.written);
        written.map_err(|error| {
            let directory = self.directory.as_deref().unwrap_or(Path::new("memory"));
            format!(
                "cannot write the spooled bytes to {}: {error}; {NEXT}",
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
            (Some(limit), Some(directory)) => Err(too_much_for(limit, directory)),
            (Some(limit), None) => Err(format!(
                "the spooled bytes exceed {limit} bytes; allow more with --spool SIZE, {NEXT}"
            )),
        }
    }

    /// Moves the bytes from memory to a file with room for `end` bytes. On an error they stay in memory.
    fn move_to_disk(&mut self, end: u64) -> Result<(), String> {
        let mut directory = std::env::temp_dir();
        if directory.as_os_str().is_empty() {
            // An empty TMPDIR counts as not set.
            directory = PathBuf::from("/tmp");
        }
        let failed = |error: std::io::Error| {
            format!(
                "cannot keep a temporary file in {}: {error}; {NEXT}",
                directory.display()
            )
        };
        let file = host::open_unnamed(&directory).map_err(failed)?;
        if self.limit.is_none() {
            let free = temporary::free_bytes(&file).map_err(failed)?;
            let limit = free.map_or(u64::MAX, |free| free / 2);
            if end > limit {
                return Err(too_much_for(limit, &directory));
            }
            self.limit = Some(limit);
        }
        if let Some(memory) = &self.file {
            let mut bytes = vec![0; self.written as usize];
            let moved = host::read_exact_at(memory, &mut bytes, 0);
            moved
                .and_then(|()| host::write_all_at(&file, &bytes, 0))
                .map_err(failed)?;
        }
        self.file = Some(file);
        self.directory = Some(directory);
        Ok(())
    }

    /// Fills `buf` with the bytes from offset `at` on.
    pub(crate) fn read(&self, at: u64, buf: &mut [u8]) -> std::io::Result<()> {
        match &self.file {
            Some(file) => host::read_exact_at(file, buf, at),
            None if buf.is_empty() => Ok(()),
            None => Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// The file that holds the bytes.
    ///
    /// # Errors
    /// When there are no bytes and an empty file can't be made.
    pub(crate) fn into_file(self) -> Result<File, String> {
        match self.file {
            Some(file) => Ok(file),
            None => in_memory(),
        }
    }
}

/// The error of a spool that would need more than `limit` bytes in `directory`.
fn too_much_for(limit: u64, directory: &Path) -> String {
    format!(
        "the spooled bytes exceed the {limit} bytes that may be used in {}; allow more with --spool SIZE, \
         {NEXT}",
        directory.display()
    )
}

/// What to do if a spool can't hold enough bytes.
const NEXT: &str = "name another directory with TMPDIR, or save the archive as a file, uncompressed, and build from \
     that";

fn in_memory() -> Result<File, String> {
    let made = temporary::in_memory("spool");
    made.map_err(|error| format!("cannot keep the bytes in memory: {error}"))
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
        host::read_exact_at(&spool.into_file().unwrap(), &mut back, 0).unwrap();
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
