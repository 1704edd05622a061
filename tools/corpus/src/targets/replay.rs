//! A target of recovery: a log that the input makes up, with all its checksums right, in the journal of a real image.

use std::cell::RefCell;

use engine::{Ino, InodeFs, MountOptions, ReplayPolicy};
use ondisk::jbd2::{
    CommitBlock, DescriptorWriter, JournalFeatures, JournalSuperblock, LogFormat, RevokeWriter,
    TransactionChecksum,
};
use ondisk::{FsBlock, Geometry, Tid, csum};
use sync::Arc;

use crate::overlay::PatchedBytes;
use crate::seeds::{Seed, seeds};
use crate::structures::blocks_of;

/// Blocks that are written into one log.
const BLOCKS: usize = 96;
/// Tags of one descriptor block.
const TAGS: usize = 16;

/// An image with a journal that needs recovery, and where the journal's blocks are.
struct Dirty {
    seed: Seed,
    geometry: Geometry,
    superblock: JournalSuperblock,
    /// The byte at which each block of the journal begins.
    places: Vec<usize>,
}

thread_local! {
    static KEPT: RefCell<Vec<Dirty>> = const { RefCell::new(Vec::new()) };
}

fn dirty_images() -> Vec<Dirty> {
    let dirty = seeds().filter(|seed| seed.name.starts_with("dirty"));
    dirty
        .filter_map(|seed| {
            let image = PatchedBytes::new(Arc::clone(&seed.bytes));
            let options = MountOptions {
                journal: ReplayPolicy::Ignore,
                ..MountOptions::default()
            };
            let fs = InodeFs::open(Arc::new(image), &options).ok()?;
            let geometry = *fs.geometry();
            let inode = fs.inode(Ino::JOURNAL).ok()?;
            let places: Vec<usize> = blocks_of(&inode)
                .map(|(_, block)| block.offset(geometry.block_size()) as usize)
                .collect();
            let superblock = JournalSuperblock::read(seed.bytes.get(*places.first()?..)?)?;
            Some(Dirty {
                seed,
                geometry,
                superblock,
                places,
            })
        })
        .collect()
}

/// The input, taken from its front; zeros follow its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// A block of the file system mostly, or any number.
    fn block(&mut self, geometry: &Geometry) -> FsBlock {
        let word = self.word();
        match word >> 13 {
            7 => FsBlock(u64::from(word) << (self.byte() % 48)),
            _ => FsBlock(u64::from(word) % geometry.blocks_count()),
        }
    }
}

/// A log in the making.
struct Writer<'a> {
    image: PatchedBytes,
    dirty: &'a Dirty,
    format: LogFormat,
    superblock: JournalSuperblock,
    position: u32,
    tid: Tid,
    written: usize,
    /// The sum of the transaction (v1).
    sum: TransactionChecksum,
    /// Bytes of the fast-commit area.
    fast: Vec<u8>,
    fast_crc_from: usize,
}

/// A log. The first byte chooses the image, the next two the journal's features and where the log begins; then each
/// byte is a kind of block, and what follows it the block's contents.
pub fn replay(data: &[u8]) -> bool {
    KEPT.with_borrow_mut(|kept| {
        if kept.is_empty() {
            kept.extend(dirty_images());
            assert!(kept.len() > 2, "dirty images lie in tests/corpus");
        }
        let mut input = Input(data);
        let dirty = &kept[usize::from(input.byte()) % kept.len()];
        let Some(mut writer) = Writer::new(dirty, &mut input) else {
            return false;
        };
        while !input.0.is_empty() && writer.written < BLOCKS {
            writer.step(&mut input);
        }
        writer.finish()
    })
}

impl<'a> Writer<'a> {
    fn new(dirty: &'a Dirty, input: &mut Input<'_>) -> Option<Writer<'a>> {
        let mut superblock = dirty.superblock;
        let (choice, more) = (input.byte(), input.byte());
        let mut features = superblock.features();
        if choice & 1 != 0 {
            let kinds = JournalFeatures::INCOMPAT_CSUM_V2 | JournalFeatures::INCOMPAT_CSUM_V3;
            features.incompat &= !(kinds | JournalFeatures::INCOMPAT_64BIT);
            features.compat &= !JournalFeatures::COMPAT_CHECKSUM;
            match choice >> 1 & 3 {
                1 => features.compat |= JournalFeatures::COMPAT_CHECKSUM,
                2 => features.incompat |= JournalFeatures::INCOMPAT_CSUM_V2,
                3 => features.incompat |= JournalFeatures::INCOMPAT_CSUM_V3,
                _ => {}
            }
            if choice & 8 != 0 {
                features.incompat |= JournalFeatures::INCOMPAT_64BIT;
            }
            if choice & 16 != 0 {
                features.incompat |= JournalFeatures::INCOMPAT_ASYNC_COMMIT;
            }
            if choice & 32 != 0 {
                features.incompat |= JournalFeatures::INCOMPAT_FAST_COMMIT;
            }
            superblock.set_checksum_type(JournalSuperblock::CHECKSUM_TYPE_CRC32C);
        }
        superblock.set_features(features);
        if more & 1 != 0 {
            superblock.set_start(
                superblock
                    .log_end()
                    .saturating_sub(u32::from(more >> 1 & 15) + 1),
            );
        }
        if more & 32 != 0 {
            superblock.set_sequence(Tid(u32::MAX - 1));
        }
        if more & 64 != 0 {
            superblock.set_blocks_count(u32::from(input.word()));
        }
        if more & 128 != 0 {
            superblock.set_fast_commit_blocks_raw(u32::from(input.word()));
        }
        superblock.seal();
        let blocks = dirty.places.len() as u64;
        let format = superblock
            .verify(dirty.geometry.block_size(), blocks)
            .ok()?;
        let mut image = PatchedBytes::new(Arc::clone(&dirty.seed.bytes));
        image.set(dirty.places[0], superblock.bytes().to_vec());
        Some(Writer {
            image,
            dirty,
            format,
            position: superblock.start(),
            tid: superblock.sequence(),
            superblock,
            written: 0,
            sum: TransactionChecksum::new(),
            fast: Vec::new(),
            fast_crc_from: 0,
        })
    }

    /// Writes the next block of the log.
    fn push(&mut self, block: Vec<u8>) {
        if let Some(place) = self.dirty.places.get(self.position as usize) {
            self.image.set(*place, block);
        }
        self.written += 1;
        self.position += 1;
        if self.position >= self.superblock.log_end() {
            self.position = self.superblock.first();
        }
    }

    fn empty(&self) -> Vec<u8> {
        vec![0; self.format.block_size.bytes()]
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0 | 1 => self.descriptor(input),
            2 => self.revoke(input),
            3 | 4 => self.commit(input),
            5 => self.raw(input),
            6 => self.fast_record(input),
            _ => match input.byte() {
                delta @ 0..8 => self.tid = Tid(self.tid.0.wrapping_add(u32::from(delta))),
                delta => {
                    self.position = self
                        .superblock
                        .first()
                        .max(u32::from(delta) % self.superblock.log_end())
                }
            },
        }
    }

    /// A descriptor block and the copies after it: blocks of the file system with a few bytes changed.
    fn descriptor(&mut self, input: &mut Input<'_>) {
        let count = usize::from(input.byte()) % TAGS + 1;
        let mut block = self.empty();
        let mut writer = DescriptorWriter::new(&self.format, self.tid, &mut block);
        let mut copies = Vec::new();
        for _ in 0..count {
            let home = input.block(&self.dirty.geometry);
            let mut copy = self.home(home);
            let edit = input.byte();
            for _ in 0..edit & 3 {
                let at = usize::from(input.word()) % copy.len();
                copy[at] = input.byte();
            }
            let is_escaped = edit & 4 != 0;
            if is_escaped {
                copy[..4].fill(0);
            }
            let sum = self.format.data_checksum(self.tid, &copy) ^ u32::from(edit >> 7);
            if !writer.push(home, is_escaped, sum, &[0; 16]) {
                break;
            }
            copies.push(copy);
        }
        writer.finish();
        self.sum.add(&block);
        self.push(block);
        for copy in copies {
            self.sum.add(&copy);
            self.push(copy);
        }
    }

    fn home(&self, block: FsBlock) -> Vec<u8> {
        let len = self.format.block_size.bytes();
        match usize::try_from(block.0)
            .ok()
            .and_then(|block| block.checked_mul(len))
        {
            Some(at) if at <= self.image.len() - len => self.image.get(at, len),
            _ => vec![0; len],
        }
    }

    fn revoke(&mut self, input: &mut Input<'_>) {
        let mut block = self.empty();
        let mut writer = RevokeWriter::new(&self.format, self.tid, &mut block);
        for _ in 0..input.byte() {
            if !writer.push(input.block(&self.dirty.geometry)) || input.0.is_empty() {
                break;
            }
        }
        writer.finish();
        self.push(block);
    }

    fn commit(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        let mut commit = CommitBlock::new(self.tid, u64::from(choice) << 24, 0);
        if choice & 1 != 0 {
            commit.set_transaction_checksum(self.sum.value() ^ u32::from(choice >> 7));
        }
        let mut block = self.empty();
        commit.write(&self.format, &mut block);
        self.sum = TransactionChecksum::new();
        self.push(block);
        self.tid = self.tid.next();
    }

    /// Any bytes after a header of any kind; sealed as a descriptor or revoke block.
    fn raw(&mut self, input: &mut Input<'_>) {
        let mut block = self.empty();
        block[..4].copy_from_slice(&0xC03B_3998_u32.to_be_bytes());
        block[7] = input.byte();
        block[8..12].copy_from_slice(&self.tid.0.to_be_bytes());
        let len = usize::from(input.byte());
        for byte in &mut block[12..12 + len] {
            *byte = input.byte();
        }
        if len & 1 == 0 {
            self.format.seal_tail(&mut block);
        }
        self.push(block);
    }

    /// A record of the fast-commit area. HEAD and TAIL are made so that they fit, others are any bytes.
    fn fast_record(&mut self, input: &mut Input<'_>) {
        let tag = input.byte() % 10;
        let from = self.fast.len();
        match tag {
            9 => {
                self.fast.extend([9, 0, 8, 0, 0, 0, 0, 0]);
                self.fast.extend(self.tid.0.to_le_bytes());
            }
            8 => {
                let size = self.format.block_size.bytes();
                let end = (from + 12).next_multiple_of(size);
                // The tail fills its block.
                let len = u16::try_from(end - from - 4).unwrap_or(8);
                self.fast.extend([8, 0]);
                self.fast.extend(len.to_le_bytes());
                self.fast.extend(self.tid.0.to_le_bytes());
                let crc = csum::crc32c(0, &self.fast[self.fast_crc_from..]);
                self.fast.extend(crc.to_le_bytes());
                self.fast.resize(end, 0);
                self.fast_crc_from = end;
            }
            _ => {
                let (len, given) = (input.word() % 1024, usize::from(input.byte()));
                self.fast.extend([tag, 0]);
                self.fast.extend(len.to_le_bytes());
                let start = self.fast.len();
                for _ in 0..given.min(len.into()) {
                    self.fast.push(input.byte());
                }
                self.fast.resize(start + usize::from(len), 0);
            }
        }
        self.written += 1;
    }

    /// Reads the image with its journal. Whether it opens, and a transaction was replayed.
    fn finish(mut self) -> bool {
        let size = self.format.block_size.bytes();
        let first = self.superblock.fast_commit_first() as usize;
        let fast = std::mem::take(&mut self.fast);
        for (number, part) in fast.chunks(size).enumerate() {
            if let Some(place) = self.dirty.places.get(first + number) {
                self.image.set(*place, part.to_vec());
            }
        }
        let options = MountOptions {
            journal: ReplayPolicy::Replay,
            cache_bytes: 1 << 20,
            ..MountOptions::default()
        };
        match InodeFs::open(Arc::new(self.image), &options) {
            Ok(fs) => {
                let report = fs.recovery_report().copied();
                for number in 1..20 {
                    let _ = fs.metadata(Ino(number));
                }
                for entry in fs
                    .read_dir(Ino::ROOT)
                    .into_iter()
                    .flatten()
                    .take(100)
                    .flatten()
                {
                    let _ = fs.metadata(entry.ino);
                }
                report.is_some_and(|report| report.transactions > 0)
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                false
            }
        }
    }
}
