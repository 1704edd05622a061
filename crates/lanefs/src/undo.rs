//! Undo files: the bytes that a repair is going to overwrite, so that the repair can be undone.
//!
//! A repair with an undo file runs twice. It first runs on a [`Draft`], which keeps all writes in memory and so shows
//! which parts of the image change. Once the old bytes of those parts are on disk, it runs on the image. An undo file
//! records the size of its file system and the UUID before and after the repair, and ends in a checksum. It is always a
//! new file: if the name exists, [`Draft::save`] fails, and the image is not touched.
//!
//! ```text
//! magic 8  version 4  reserved 4  size 8  UUIDs 16, 16  pieces 8  { offset 8  length 4  bytes }  CRC-32C 4
//! ```
//!
//! An undo file belongs to an image of the same size that has one of the two UUIDs. [`apply`] does not check that the
//! image is as the repair left it.
//!
//! # Crash
//!
//! - Before the repair writes to the image: the image is unchanged. The undo file is missing; or it is incomplete, and
//!   [`apply`] refuses it because of its checksum; or it is complete, and applying it changes nothing.
//! - During the repair: a part of it is on the image, and the undo file and its name are durable. It can be applied, or
//!   the repair run again with another one.
//! - While an undo file is applied: a part of the old bytes is back. It can be applied again.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::Path;

use device::{BlockDevice, DeviceError};
use ondisk::{Superblock, csum};
use sync::{Arc, Mutex, Rank};

const MAGIC: &[u8; 8] = b"lanefsUN";
const VERSION: u32 = 2;
/// Bytes of a piece.
const PIECE: u64 = 4096;

/// Why an undo file could not be written or applied.
#[derive(Debug)]
#[non_exhaustive]
pub enum UndoError {
    /// The file can't be read or written.
    File(std::io::Error),
    /// The image can't be read or written.
    Device(DeviceError),
    /// The file is not an undo file, or is incomplete.
    Damaged,
    /// The undo file belongs to another file system.
    Foreign {
        /// The size of the device that it belongs to.
        size: u64,
    },
}

impl std::fmt::Display for UndoError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            UndoError::File(error) => error.fmt(f),
            UndoError::Device(error) => error.fmt(f),
            UndoError::Damaged => f.write_str("not a complete undo file of lanefs"),
            UndoError::Foreign { size } => {
                write!(
                    f,
                    "the undo file belongs to another file system, of {size} bytes"
                )
            }
        }
    }
}

impl std::error::Error for UndoError {}

impl From<std::io::Error> for UndoError {
    fn from(error: std::io::Error) -> UndoError {
        UndoError::File(error)
    }
}

impl From<DeviceError> for UndoError {
    fn from(error: DeviceError) -> UndoError {
        UndoError::Device(error)
    }
}

/// A device that keeps all writes in memory.
pub struct Draft {
    base: Arc<dyn BlockDevice>,
    /// Changed pieces by number. [device order]
    pieces: Mutex<BTreeMap<u64, Vec<u8>>>,
}

impl Draft {
    /// A draft over this device, which is not written to.
    #[must_use]
    pub fn new(base: Arc<dyn BlockDevice>) -> Draft {
        Draft {
            base,
            pieces: Mutex::new(Rank::DeviceOrder, BTreeMap::new()),
        }
    }

    fn piece(&self, number: u64) -> Result<Vec<u8>, DeviceError> {
        let start = number * PIECE;
        // At most the bytes of a piece.
        let len = PIECE.min(self.base.size() - start) as usize;
        let mut bytes = vec![0; len];
        self.base.read_at(start, &mut bytes)?;
        Ok(bytes)
    }

    /// Whether anything was written.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        !self.pieces.lock().is_empty()
    }

    /// Saves the old bytes of the changed pieces to a new file, durably.
    ///
    /// # Errors
    /// When the file exists or can't be written, or the device can't be read.
    pub fn save(&self, path: &Path) -> Result<(), UndoError> {
        let mut out = Vec::new();
        let (before, after) = (uuid(&*self.base), uuid(self));
        let pieces = self.pieces.lock();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.base.size().to_le_bytes());
        out.extend_from_slice(&before);
        out.extend_from_slice(&after);
        out.extend_from_slice(&(pieces.len() as u64).to_le_bytes());
        for number in pieces.keys() {
            let bytes = self.piece(*number)?;
            out.extend_from_slice(&(number * PIECE).to_le_bytes());
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(&bytes);
        }
        let sum = csum::crc32c(csum::INITIAL, &out);
        out.extend_from_slice(&sum.to_le_bytes());
        let mut file = File::create_new(path)?;
        file.write_all(&out)?;
        file.sync_all()?;
        if let Some(folder) = path.parent() {
            let folder = if folder.as_os_str().is_empty() {
                Path::new(".")
            } else {
                folder
            };
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    }
}

fn uuid(device: &dyn BlockDevice) -> [u8; 16] {
    let mut bytes = [0; Superblock::SIZE];
    match device.read_at(Superblock::OFFSET, &mut bytes) {
        Ok(()) => Superblock::view(&bytes).uuid(),
        Err(_) => [0; 16],
    }
}

impl BlockDevice for Draft {
    fn size(&self) -> u64 {
        self.base.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.base.read_at(offset, buf)?;
        let end = offset + buf.len() as u64;
        let pieces = self.pieces.lock();
        for (number, bytes) in pieces.range(offset / PIECE..end.div_ceil(PIECE)) {
            let start = number * PIECE;
            let (from, to) = (start.max(offset), (start + bytes.len() as u64).min(end));
            if from < to {
                let source = &bytes[(from - start) as usize..(to - start) as usize];
                buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
            }
        }
        Ok(())
    }

    fn laid_over_from(&self, _: u64) -> Option<Range<u64>> {
        // A repair treats the device and the writes in memory as one storage.
        None
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        // Fails beyond the end, as the device does.
        self.base.read_at(offset, &mut vec![0; bytes.len()])?;
        let end = offset + bytes.len() as u64;
        let mut pieces = self.pieces.lock();
        for number in offset / PIECE..end.div_ceil(PIECE) {
            let start = number * PIECE;
            let piece = match pieces.entry(number) {
                Entry::Occupied(piece) => piece.into_mut(),
                Entry::Vacant(free) => free.insert(self.piece(number)?),
            };
            let (from, to) = (start.max(offset), (start + piece.len() as u64).min(end));
            let source = &bytes[(from - offset) as usize..(to - offset) as usize];
            piece[(from - start) as usize..(to - start) as usize].copy_from_slice(source);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, _: Range<u64>) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// One piece of an undo file: where it belongs, and its bytes.
type Piece<'a> = (u64, &'a [u8]);

/// Writes the bytes of an undo file back. Writes nothing if a part of them does not fit this device.
///
/// # Errors
/// When the file is damaged or belongs to another file system, or when the device fails; then it can be applied again.
pub fn apply(device: &dyn BlockDevice, path: &Path) -> Result<(), UndoError> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    let (size, uuids, pieces) = parse(&bytes).ok_or(UndoError::Damaged)?;
    let is_right = pieces.iter().all(|(offset, bytes)| {
        offset
            .checked_add(bytes.len() as u64)
            .is_some_and(|end| end <= device.size())
    });
    // An interrupted repair may have left the UUID of before or that of after.
    let is_known = uuids.contains(&uuid(device));
    if size != device.size() || !is_right || !is_known {
        return Err(UndoError::Foreign { size });
    }
    for (offset, bytes) in pieces {
        device.write_at(offset, bytes)?;
    }
    Ok(device.flush()?)
}

/// Returns the size of the device, the two UUIDs, and the pieces.
fn parse(bytes: &[u8]) -> Option<(u64, [[u8; 16]; 2], Vec<Piece<'_>>)> {
    let (body, sum) = bytes.split_last_chunk::<4>()?;
    if u32::from_le_bytes(*sum) != csum::crc32c(csum::INITIAL, body) {
        return None;
    }
    let rest = body.strip_prefix(MAGIC)?;
    let (version, rest) = rest.split_first_chunk::<4>()?;
    let (_, rest) = rest.split_first_chunk::<4>()?;
    let (size, rest) = rest.split_first_chunk::<8>()?;
    let (before, rest) = rest.split_first_chunk::<16>()?;
    let (after, rest) = rest.split_first_chunk::<16>()?;
    let (count, mut rest) = rest.split_first_chunk::<8>()?;
    if u32::from_le_bytes(*version) != VERSION {
        return None;
    }
    let mut pieces = Vec::new();
    for _ in 0..u64::from_le_bytes(*count) {
        let (offset, behind) = rest.split_first_chunk::<8>()?;
        let (len, behind) = behind.split_first_chunk::<4>()?;
        let (bytes, behind) = behind.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        pieces.push((u64::from_le_bytes(*offset), bytes));
        rest = behind;
    }
    rest.is_empty()
        .then_some((u64::from_le_bytes(*size), [*before, *after], pieces))
}
