//! What reading a file's map yields, whichever form the map has.

use crate::report::Problem;

/// Blocks of a file that lie side by side on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapRun {
    pub lblk: u64,
    pub pblk: u64,
    pub len: u64,
    pub unwritten: bool,
}

/// What takes a map's parts as they are read, in the order of the file.
pub trait Sink {
    /// Blocks of the file, which exist on the device.
    fn run(&mut self, run: MapRun);
    /// A block of the map itself, which exists on the device. False: it is not entered.
    fn node(&mut self, block: u64) -> bool;
    /// Something is wrong with the map.
    fn problem(&mut self, problem: Problem);
}

/// The little-endian word at a byte; 0 beyond the end.
pub fn word16(bytes: &[u8], at: usize) -> u16 {
    match bytes.get(at..at + 2) {
        Some(two) => u16::from_le_bytes([two[0], two[1]]),
        None => 0,
    }
}

/// The little-endian double word at a byte; 0 beyond the end.
pub fn word32(bytes: &[u8], at: usize) -> u32 {
    u32::from(word16(bytes, at)) | u32::from(word16(bytes, at + 2)) << 16
}
