//! Images as bytes in memory and as files. Most of an image is zeros. Pages of zeros that were never written take
//! neither memory nor time, so these functions never write them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{SeekFrom, seek};
use rustix::mm::{Advice, madvise};

/// Bytes that are compared together.
const PIECE: usize = 16 << 10;

/// The pieces that are not only zeros, with their offsets.
fn filled(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    static ZEROS: [u8; PIECE] = [0; PIECE];
    let pieces = bytes.chunks(PIECE).enumerate();
    pieces
        .filter(|(_, piece)| **piece != ZEROS[..piece.len()])
        .map(|(number, piece)| (number * PIECE, piece))
}

/// Bytes of the kernel's large pages, on the processors that are usual.
const LARGE_PAGE: usize = 2 << 20;

/// Memory for an image, in large pages where the kernel gives them: of small ones an image has tens of thousands, and
/// each is a fault of its own, also where zeros are only read.
#[allow(unsafe_code)]
fn zeros(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let skipped = bytes.as_ptr().align_offset(LARGE_PAGE);
    if let Some(rest) = bytes.get_mut(skipped..) {
        let len = rest.len() / LARGE_PAGE * LARGE_PAGE;
        // SAFETY: whole pages of the vector's own memory, of which this advice changes no byte. A kernel without large
        // pages refuses it, and then they are small.
        let _ = unsafe { madvise(rest.as_mut_ptr().cast(), len, Advice::LinuxHugepage) };
    }
    bytes
}

/// A copy of an image.
#[must_use]
pub fn copy_image(bytes: &[u8]) -> Vec<u8> {
    let mut copy = zeros(bytes.len());
    for (at, piece) in filled(bytes) {
        copy[at..at + piece.len()].copy_from_slice(piece);
    }
    copy
}

/// The bytes of an image of `len` bytes, which `read` gives piece by piece: it fills the slice from this offset on.
#[must_use]
pub fn image_of(len: u64, mut read: impl FnMut(u64, &mut [u8])) -> Vec<u8> {
    // Tests have images of a few gigabytes at most.
    let mut bytes = zeros(usize::try_from(len).unwrap());
    let mut piece = [0; PIECE];
    for at in (0..bytes.len()).step_by(PIECE) {
        let end = bytes.len().min(at + PIECE);
        let piece = &mut piece[..end - at];
        read(at as u64, piece);
        for (start, filled) in filled(piece) {
            bytes[at + start..][..filled.len()].copy_from_slice(filled);
        }
    }
    bytes
}

/// Writes an image to a file, with holes where it has zeros.
///
/// # Panics
/// When the file can't be written.
pub fn write_image(path: &Path, bytes: &[u8]) {
    let written = File::create(path).and_then(|file| {
        file.set_len(bytes.len() as u64)?;
        filled(bytes).try_for_each(|(at, piece)| file.write_all_at(piece, at as u64))
    });
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// The bytes of an image in a file, whose holes are zeros.
///
/// # Panics
/// When the file can't be read.
#[must_use]
pub fn read_image(path: &Path) -> Vec<u8> {
    let read = File::open(path).and_then(|file| {
        let len = file.metadata()?.len();
        // Tests have images of a few gigabytes at most.
        let mut bytes = zeros(usize::try_from(len).unwrap());
        let mut at = 0;
        // The last search fails: no data follows.
        while let Ok(start) = seek(&file, SeekFrom::Data(at)) {
            let end = seek(&file, SeekFrom::Hole(start))?;
            // Both lie in the file, whose length fits.
            file.read_exact_at(&mut bytes[start as usize..end as usize], start)?;
            at = end;
        }
        Ok(bytes)
    });
    read.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// How often a mounted image is read until it stays the same.
const READINGS: usize = 1000;

/// The bytes of an image that a kernel or a server may be writing, as they were at one moment: a crash at that moment
/// would have left them. A plain copy mixes the bytes of several moments, which no crash does.
///
/// # Panics
/// When the image can't be read, or never stays the same between two readings.
#[must_use]
pub fn read_mounted_image(path: &Path) -> Vec<u8> {
    let mut before = read_image(path);
    for _ in 0..READINGS {
        let after = read_image(path);
        if before == after {
            return after;
        }
        before = after;
    }
    panic!("{}: it changes all the time", path.display());
}

/// Writes the bytes of a mounted image, as they were at one moment, to another file.
///
/// # Panics
/// As [`read_mounted_image`] and [`write_image`].
pub fn copy_mounted_image(from: &Path, to: &Path) {
    write_image(to, &read_mounted_image(from));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn an_image_that_changes_is_read_as_it_was_at_one_moment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        write_image(&path, &[1; 4 << 20]);
        let file = File::options().write(true).open(&path).unwrap();
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 2..200_u8 {
                    // The last byte before the first: at every moment they are the same or one apart.
                    file.write_all_at(&[number], (4 << 20) - 1).unwrap();
                    file.write_all_at(&[number], 0).unwrap();
                    std::thread::sleep(std::time::Duration::from_micros(500));
                }
                has_ended.store(true, Ordering::Release);
            });
            while !has_ended.load(Ordering::Acquire) {
                let bytes = read_mounted_image(&path);
                let (first, last) = (bytes[0], bytes[bytes.len() - 1]);
                assert!(last == first || last == first + 1, "{first}, {last}");
            }
        });
    }

    #[test]
    fn an_image_comes_back_from_its_file_and_its_copy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        for len in [0, 1, PIECE - 1, PIECE, 10 * PIECE + 77] {
            for step in [1, 777, 3 * PIECE, 100 * PIECE] {
                let mut bytes = vec![0; len];
                bytes
                    .iter_mut()
                    .step_by(step)
                    .skip(1)
                    .for_each(|byte| *byte = 7);
                write_image(&path, &bytes);
                assert!(std::fs::read(&path).unwrap() == bytes, "{len} {step}");
                assert!(read_image(&path) == bytes, "{len} {step}");
                assert!(copy_image(&bytes) == bytes, "{len} {step}");
                let image = image_of(len as u64, |at, piece| {
                    piece.copy_from_slice(&bytes[at as usize..][..piece.len()]);
                });
                assert!(image == bytes, "{len} {step}");
            }
        }
    }
}
