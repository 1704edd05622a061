//! Blocks of the fast-commit area: records one after the other, none of which crosses a block's end.
//!
//! The first fast commit of a transaction begins with HEAD. Each fast commit ends with TAIL, which fills the rest of
//! its block and holds the checksum of everything since the previous TAIL. A block always keeps room for one PAD
//! header, as in Linux (`ext4_fc_reserve_space`).
//!
//! After HEAD comes an empty fast commit, within the first sector. If a power cut tears the first block, a scan finds
//! this one complete and ends there. If no complete fast commit came before the torn one, Linux would take the area for
//! damaged and refuse to mount.

use ondisk::Tid;
use ondisk::csum::crc32c;
use ondisk::fast_commit::FcRecord;

/// Bytes of a record's header.
const HEADER: usize = 4;
/// Bytes of TAIL's value, without the zeros after it.
const TAIL: usize = 8;

/// Packs one fast commit.
pub(crate) struct Packer {
    tid: Tid,
    block_bytes: usize,
    bytes: Vec<u8>,
    /// Where the fast commit begins.
    start: usize,
}

impl Packer {
    /// A packer for a fast commit of a transaction; the transaction's first one begins the area.
    pub(crate) fn new(tid: Tid, block_bytes: usize, is_first: bool) -> Packer {
        let mut packer = Packer {
            tid,
            block_bytes,
            bytes: Vec::with_capacity(block_bytes),
            start: 0,
        };
        if is_first {
            packer.push(&FcRecord::Head { features: 0, tid });
            packer.end(&[]);
        }
        packer
    }

    /// Bytes left in the block, without the PAD header that it keeps.
    fn room(&self) -> usize {
        let used = self.bytes.len() % self.block_bytes;
        self.block_bytes - used - HEADER
    }

    /// Begins a new block if this one has fewer bytes left than `len`.
    fn make_room(&mut self, len: usize) {
        let room = self.room();
        if len > room {
            let zeros = vec![0; room];
            FcRecord::Pad(&zeros).write(&mut self.bytes);
        }
    }

    /// Appends a record, which fits into a block.
    pub(crate) fn push(&mut self, record: &FcRecord<'_>) {
        let mut bytes = Vec::new();
        record.write(&mut bytes);
        self.make_room(bytes.len());
        self.bytes.extend_from_slice(&bytes);
    }

    /// Ends the fast commit; returns whole blocks.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.make_room(HEADER + TAIL);
        let rest = vec![0; self.room() - TAIL];
        self.end(&rest);
        self.bytes
    }

    /// Appends TAIL, followed by the zeros `rest`.
    fn end(&mut self, rest: &[u8]) {
        let (at, tid) = (self.bytes.len(), self.tid);
        let tail = |crc| FcRecord::Tail { tid, crc, rest };
        tail(0).write(&mut self.bytes);
        // The checksum covers the bytes before it, with TAIL's header and the transaction's number.
        let crc = crc32c(0, &self.bytes[self.start..at + HEADER + TAIL / 2]);
        self.bytes.truncate(at);
        tail(crc).write(&mut self.bytes);
        self.start = self.bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use ondisk::fast_commit::{DentryInfo, FcScan, Scan, ScanStep};
    use ondisk::{Ino, LBlock};

    use super::*;

    /// Packs records of `names` names.
    fn pack(block_bytes: usize, names: usize, is_first: bool) -> Vec<u8> {
        let mut packer = Packer::new(Tid(9), block_bytes, is_first);
        for number in 0..names {
            packer.push(&FcRecord::Unlink(DentryInfo {
                parent: Ino(2),
                ino: Ino(12),
                name: format!("{number:0len$}", len = 1 + number % 200).as_bytes(),
            }));
        }
        packer.push(&FcRecord::DelRange {
            ino: Ino(12),
            first: LBlock(0),
            blocks: 1,
        });
        packer.finish()
    }

    #[test]
    fn a_scan_finds_each_fast_commit_whole_whatever_its_length() {
        for block_bytes in [1024, 4096] {
            for names in 0..70 {
                let mut scan = Scan::new(Tid(9), 256);
                let (one, two) = (
                    pack(block_bytes, names, true),
                    pack(block_bytes, names / 2, false),
                );
                assert!(one.len() % block_bytes == 0 && two.len() % block_bytes == 0);
                for block in one.chunks(block_bytes).chain(two.chunks(block_bytes)) {
                    assert_eq!(scan.block(block), ScanStep::Continue);
                }
                let expected = FcScan {
                    commits: 2,
                    changes: (names + names / 2 + 2) as u32,
                    blocks: ((one.len() + two.len()) / block_bytes) as u32,
                    damage: None,
                };
                assert_eq!(scan.found(), expected);
            }
        }
    }

    #[test]
    fn a_first_block_that_is_torn_behind_its_first_sector_is_no_damage() {
        let whole = pack(4096, 60, true);
        // The TAIL is in the sixth sector.
        for sectors in 1..=5 {
            for old in [0, 0xff] {
                let mut torn = whole[..4096].to_vec();
                torn[512 * sectors..].fill(old);
                let mut scan = Scan::new(Tid(9), 256);
                assert_eq!(scan.block(&torn), ScanStep::Stop);
                assert_eq!(scan.found(), FcScan::default());
            }
        }
    }
}
