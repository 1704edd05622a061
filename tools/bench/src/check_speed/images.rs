//! Images to be checked. `lanefs build` makes those of whole files from a tar that is written while it reads; files in
//! pieces grow in turn, in this process.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::Stdio;

use device::FileDevice;
use engine::{MountOptions, Variants};
use lanefs::Error;
use sync::Arc;

use crate::in_process::{InProcess, unknown};
use crate::programs::{failed, lanefs};
use crate::target::Target;

/// Empty files in a directory.
pub(super) const IN_EACH: usize = 200;
/// Directories of small files, and the bytes of each file.
pub(super) const DIRECTORIES: usize = 500;
pub(super) const SMALL: usize = 1500;
/// Files with many extents, and how many extents each has among this number of empty files in the first image.
const PIECED: usize = 8;
const EXTENTS: usize = 32_768;
const USUAL_FILES: usize = 500_000;
/// Bytes of a block of the image.
const BLOCK: usize = 4096;
/// Bytes for the journal and the tables. The image of those files is this much larger than five quarters of their size.
const ROOM: u64 = 64 << 20;
/// Bytes of a tar's block.
const TAR_BLOCK: usize = 512;

/// What is in an image.
#[derive(Clone, Copy, Debug)]
pub(super) enum Image {
    /// This many empty files.
    Empty(usize),
    /// This many small ones.
    Small(usize),
    /// Files with this many extents each. An extent is one block, and between two of a file lie blocks of the others.
    Pieced(usize),
}

/// All images, where the first has this many files.
pub(super) fn all(files: usize) -> [Image; 3] {
    [
        Image::Empty(files),
        Image::Small((files / 5).max(1)),
        Image::Pieced((EXTENTS * files / USUAL_FILES).max(1)),
    ]
}

/// A number with commas.
pub(super) fn commas(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl Image {
    /// Its name in tables and charts.
    pub(super) fn name(&self) -> String {
        match self {
            Image::Empty(files) => format!("{} empty files", commas(*files)),
            Image::Small(files) => format!("{} of {} bytes", commas(*files), commas(SMALL)),
            Image::Pieced(extents) => format!("{PIECED} of {} extents", commas(*extents)),
        }
    }

    /// Makes it at a path; a file that is there is replaced.
    ///
    /// # Errors
    /// If `lanefs build` can't be started or fails, or the file system can't be made or written.
    pub(super) fn make(&self, path: &Path) -> Result<(), Error> {
        if let Image::Pieced(extents) = *self {
            return pieced(path, extents);
        }
        let mut build = lanefs();
        build.args(["build", "-q", "-"]).arg(path);
        build.stdin(Stdio::piped()).stderr(Stdio::piped());
        let fail = |error| failed("building", path, error);
        let mut child = build.spawn().map_err(fail)?;
        let written = match child.stdin.take() {
            Some(input) => self.write(Tar(BufWriter::new(input))),
            None => Ok(()),
        };
        let output = child.wait_with_output().map_err(fail)?;
        if !output.status.success() {
            // It knows more of the cause than the pipe that it closed.
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(fail(io::Error::other(text)));
        }
        written.map_err(fail)
    }

    fn write(&self, mut tar: Tar<impl Write>) -> io::Result<()> {
        match *self {
            Image::Empty(files) => {
                for directory in 0..files.div_ceil(IN_EACH) {
                    tar.directory(directory)?;
                    for file in 0..IN_EACH.min(files - directory * IN_EACH) {
                        tar.file(directory, file, &[])?;
                    }
                }
            }
            Image::Small(files) => {
                let contents = [0x5a; SMALL];
                for directory in 0..DIRECTORIES {
                    tar.directory(directory)?;
                    for file in (directory..files).step_by(DIRECTORIES) {
                        tar.file(directory, file, &contents)?;
                    }
                }
            }
            // Not made of a tar.
            Image::Pieced(_) => {}
        }
        tar.end()
    }
}

/// Makes an image whose files grow in turn by a block. Its blocks of data are not written.
fn pieced(path: &Path, extents: usize) -> Result<(), Error> {
    let blocks = (PIECED * extents) as u64;
    let size = (blocks * BLOCK as u64 / 4 * 5 + ROOM).next_multiple_of(BLOCK as u64);
    let _ = std::fs::remove_file(path);
    let device = FileDevice::create_new(path, size).map_err(lanefs::make::MakeError::from)?;
    let mut variants = Variants::default();
    // Blocks kept for a file would make its extents longer.
    variants.set("prealloc=off").map_err(unknown)?;
    let options = MountOptions {
        variants,
        ..MountOptions::default()
    };
    let target = InProcess::on(Arc::new(device), None, &options)?;
    let directory = target.mkdir(target.root(), "pieced")?;
    let make = |number| target.creat(&directory, &format!("f{number}"));
    let files = (0..PIECED).map(make).collect::<Result<Vec<_>, Error>>()?;
    for extent in 0..extents {
        for file in &files {
            target.fallocate(file, (extent * BLOCK) as u64, BLOCK as u64)?;
        }
    }
    for file in files {
        let found = target.pieces(&file)?;
        if found != Some(extents as u64) {
            let error = io::Error::other(format!("a file has {found:?} extents, not {extents}"));
            return Err(failed("fragmenting", path, error));
        }
        Target::close(&target, file)?;
    }
    target.close()
}

/// A tar that is being written.
struct Tar<W>(W);

impl<W: Write> Tar<W> {
    fn directory(&mut self, number: usize) -> io::Result<()> {
        self.header(&format!("d{number}/"), b'5', 0)
    }

    fn file(&mut self, directory: usize, number: usize, contents: &[u8]) -> io::Result<()> {
        self.header(&format!("d{directory}/f{number}"), b'0', contents.len())?;
        self.padded(contents)
    }

    /// A header as POSIX.1-1988 (ustar) has it.
    fn header(&mut self, name: &str, kind: u8, size: usize) -> io::Result<()> {
        let mut block = [0; TAR_BLOCK];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, name.as_bytes());
        put(100, b"0000755\0");
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{size:011o}\0").as_bytes());
        put(136, b"00000000000\0");
        // The sum is taken with spaces in its place.
        put(148, b"        ");
        put(156, &[kind]);
        put(257, b"ustar\x0000");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.write_all(&block)
    }

    fn padded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)?;
        let padding = bytes.len().next_multiple_of(TAR_BLOCK) - bytes.len();
        self.0.write_all(&[0; TAR_BLOCK][..padding])
    }

    fn end(mut self) -> io::Result<()> {
        self.0.write_all(&[0; 2 * TAR_BLOCK])?;
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_a_comma_before_each_third_digit_from_the_end() {
        assert_eq!(commas(1_234_567), "1,234,567");
        assert_eq!(commas(500), "500");
    }

    #[test]
    fn each_block_of_a_pieced_file_is_an_extent_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        pieced(&path, 300).unwrap();
        if testkit::have("e2fsck") {
            testkit::e2fsck(&path);
        }
    }
}
