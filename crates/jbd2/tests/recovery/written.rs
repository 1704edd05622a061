//! Small images in memory with a journal of random transactions, and plain maps of what replay must make of them. Needs
//! neither other programs nor root.

use std::collections::BTreeMap;

use device::{BlockDevice, MemoryDevice};
use ondisk::extent::{self, Extent, ExtentEntries};
use ondisk::jbd2::{
    BlockHeader, BlockKind, CommitBlock, DescriptorWriter, JournalFeatures, JournalSuperblock,
    LogFormat, MAGIC, RevokeWriter, Tags, TransactionChecksum,
};
use ondisk::{
    BlockSize, Feature, Features, FileType, Flags, FsBlock, Geometry, Group, GroupDesc, Ino, Inode,
    LBlock, Superblock, Tid, superblock,
};
use sync::Arc;
use testkit::Random;

/// Blocks of the file system; the journal has those from [`JOURNAL`], and transactions name those in [`TARGETS`].
const BLOCKS: u32 = 512;
const JOURNAL: u32 = 300;
const TARGETS: std::ops::Range<usize> = 100..140;
const UUID: [u8; 16] = *b"lanefs test uuid";

/// An image and what replay must make of it.
pub struct Written {
    pub device: Arc<MemoryDevice>,
    pub sb: Superblock,
    pub geometry: Geometry,
    pub format: LogFormat,
    pub journal: JournalSuperblock,
    /// What replay changes.
    pub expected: BTreeMap<u64, Vec<u8>>,
    pub transactions: u32,
    pub size: BlockSize,
    /// Whether the journal's inode is zeros.
    pub needs_backup_map: bool,
}

/// A transaction not yet in the log.
#[derive(Default, Clone)]
struct Transaction {
    copies: Vec<(u64, Vec<u8>)>,
    revokes: Vec<u64>,
}

impl Written {
    /// An image of 512 blocks whose journal's format, place, transactions and end all depend on `random`.
    pub fn new(random: &mut Random) -> Written {
        let size = [BlockSize::K1, BlockSize::K1, BlockSize::K1, BlockSize::K4][random.index(4)];
        let journal_blocks = 40 + random.index(100);
        let journal_blocks = u32::try_from(journal_blocks).unwrap();
        let mut journal = JournalSuperblock::new(size, journal_blocks, 1);
        let checksum = random.index(4);
        let mut features = JournalFeatures {
            compat: u32::from(checksum == 1),
            incompat: JournalFeatures::INCOMPAT_REVOKE,
            ro_compat: 0,
        };
        features.incompat |= match checksum {
            2 => JournalFeatures::INCOMPAT_CSUM_V2,
            3 => JournalFeatures::INCOMPAT_CSUM_V3,
            _ => 0,
        };
        if random.one_in(2) {
            features.incompat |= JournalFeatures::INCOMPAT_64BIT;
        }
        journal.set_features(features);
        journal.set_checksum_type(if checksum >= 2 { 4 } else { 0 });
        journal.set_uuid(UUID);
        let first = [1, 7, 0xFFFF_FFFD, 0x7FFF_FFFE][random.index(4)];
        journal.set_sequence(Tid(first));
        let start = 1 + random.index(journal_blocks as usize - 1);
        journal.set_start(u32::try_from(start).unwrap());
        journal.seal();
        if features.compat == 0
            && features.incompat == JournalFeatures::INCOMPAT_REVOKE
            && random.one_in(2)
        {
            // The first format of superblock, which has no features.
            let mut bytes: [u8; JournalSuperblock::SIZE] = journal.bytes().try_into().unwrap();
            bytes[4..8].copy_from_slice(&3_u32.to_be_bytes());
            journal = JournalSuperblock::from_bytes(bytes);
        }
        let format = journal.verify(size, journal_blocks.into()).unwrap();

        let device = Arc::new(MemoryDevice::new(size.bytes_u64() * u64::from(BLOCKS)));
        let sb = file_system(size, journal_blocks, random.one_in(2));
        device.write_at(Superblock::OFFSET, sb.bytes()).unwrap();
        let geometry = Geometry::new(&sb, device.size()).unwrap();
        let mut written = Written {
            device,
            sb,
            geometry,
            format,
            journal,
            expected: BTreeMap::new(),
            transactions: 0,
            size,
            needs_backup_map: random.one_in(4),
        };
        if !written.needs_backup_map {
            written.put_inode();
        }
        written.put(0, journal.bytes());
        written.fill(random);
        written
    }

    /// Where a block of the journal is: the journal's second half is placed before its first.
    fn place(&self, position: u32) -> u64 {
        u64::from(place(position, self.journal.blocks_count()))
    }

    /// Writes bytes at the start of a block of the journal.
    pub fn put(&self, position: u32, bytes: &[u8]) {
        let offset = FsBlock(self.place(position)).offset(self.size);
        self.device.write_at(offset, bytes).unwrap();
    }

    /// Writes the journal's inode, with the map that the superblock has a copy of.
    pub fn put_inode(&self) {
        let mut desc = GroupDesc::zeroed();
        desc.set_inode_table(FsBlock(20));
        let mut raw = [0; 32];
        desc.store(&mut raw, &self.geometry, Group(0));
        let (block, at) = self.geometry.desc_place(Group(0));
        let offset = block.offset(self.size) + at as u64;
        self.device.write_at(offset, &raw).unwrap();
        let mut inode = Inode::zeroed();
        let words = self.sb.journal_backup();
        for (index, word) in words.iter().take(15).enumerate() {
            inode.set_block_word(index, *word);
        }
        if words[0]
            .to_le_bytes()
            .starts_with(&extent::MAGIC.to_le_bytes())
        {
            inode.set_flags(Flags::EXTENTS);
        }
        inode.set_mode(FileType::Regular.mode_bits());
        inode.set_links_count(1);
        inode.set_size(words[16].into());
        let mut slot = [0; 256];
        inode.write_to(&mut slot);
        let (block, at) = self.geometry.inode_place(FsBlock(20), 7);
        let offset = block.offset(self.size) + at as u64;
        self.device.write_at(offset, &slot).unwrap();
    }

    pub fn get(&self, position: u32) -> Vec<u8> {
        let mut bytes = vec![0; self.size.bytes()];
        let offset = FsBlock(self.place(position)).offset(self.size);
        self.device.read_at(offset, &mut bytes).unwrap();
        bytes
    }

    fn after(&self, position: u32) -> u32 {
        match position + 1 {
            next if next == self.journal.blocks_count() => 1,
            next => next,
        }
    }

    /// Fills the log with transactions and ends it in one of several ways.
    fn fill(&mut self, random: &mut Random) {
        let room = self.journal.blocks_count() - 4;
        let mut used = 0;
        let mut position = self.journal.start();
        let mut tid = self.journal.sequence();
        let mut done: Vec<Transaction> = Vec::new();
        loop {
            let transaction = Transaction::new(random, self.size);
            let blocks = transaction.blocks();
            if used + blocks > room || done.len() > 12 {
                break;
            }
            let is_last = random.one_in(8);
            if is_last && random.one_in(2) {
                // Never committed.
                self.write(&transaction, tid, position, false);
                break;
            }
            position = self.write(&transaction, tid, position, true);
            used += blocks;
            tid = tid.next();
            done.push(transaction);
            if is_last && used + 12 <= room {
                // An older life of the journal follows.
                let older = Transaction::new(random, self.size);
                self.write(&older, Tid(tid.0 ^ 64), position, true);
            }
            if is_last {
                break;
            }
        }
        self.transactions = u32::try_from(done.len()).unwrap();
        self.expected = replayed(&done);
    }

    /// Writes a transaction to the log and returns the position after it.
    fn write(&self, transaction: &Transaction, tid: Tid, mut position: u32, commit: bool) -> u32 {
        let mut sum = TransactionChecksum::new();
        let mut block = vec![0; self.size.bytes()];
        for copies in transaction.copies.chunks(3) {
            let mut logged: Vec<Vec<u8>> = copies.iter().map(|copy| copy.1.clone()).collect();
            let mut writer = DescriptorWriter::new(&self.format, tid, &mut block);
            for (target, bytes) in copies.iter().zip(&mut logged) {
                let is_escaped = bytes.starts_with(&MAGIC.to_be_bytes());
                if is_escaped {
                    bytes[..4].fill(0);
                }
                let checksum = self.format.data_checksum(tid, bytes);
                assert!(writer.push(FsBlock(target.0), is_escaped, checksum, &UUID));
            }
            writer.finish();
            for bytes in std::iter::once(&block).chain(&logged) {
                sum.add(bytes);
                self.put(position, bytes);
                position = self.after(position);
            }
        }
        if !transaction.revokes.is_empty() {
            let mut writer = RevokeWriter::new(&self.format, tid, &mut block);
            for target in &transaction.revokes {
                assert!(writer.push(FsBlock(*target)));
            }
            writer.finish();
            self.put(position, &block);
            position = self.after(position);
        }
        if commit {
            let mut commit = CommitBlock::new(tid, 1_700_000_000, 0);
            if !self.format.has_block_checksums() {
                commit.set_transaction_checksum(sum.value());
            }
            commit.write(&self.format, &mut block);
            self.put(position, &block);
            position = self.after(position);
        }
        position
    }

    /// Makes the checksum of a block of the journal right again, if it has one.
    pub fn seal(&self, position: u32) {
        let mut block = self.get(position);
        seal_block(&self.format, &mut block);
        self.put(position, &block);
    }

    /// Gives the copies after a descriptor block the checksums that its tags record.
    pub fn seal_copies(&self, position: u32) {
        let mut descriptor = self.get(position);
        let Some(header) = BlockHeader::of(&descriptor) else {
            return;
        };
        if header.kind() != Some(BlockKind::Descriptor) || !self.format.has_block_checksums() {
            return;
        }
        let tags: Vec<_> = Tags::of(&self.format, &descriptor).collect();
        let mut at = position;
        let mut writer = DescriptorWriter::new(&self.format, header.tid(), &mut descriptor);
        for tag in tags {
            at = self.after(at);
            let checksum = self.format.data_checksum(header.tid(), &self.get(at));
            if !writer.push(tag.block, tag.is_escaped, checksum, &UUID) {
                break;
            }
        }
        writer.finish();
        self.put(position, &descriptor);
    }
}

/// Makes the checksum of a journal's block right, if it has one.
pub fn seal_block(format: &LogFormat, block: &mut [u8]) {
    match BlockHeader::of(block).and_then(|header| header.kind()) {
        Some(BlockKind::Descriptor | BlockKind::Revoke) => format.seal_tail(block),
        Some(BlockKind::Commit) if format.has_block_checksums() => {
            CommitBlock::read(block).unwrap().write(format, block);
        }
        Some(BlockKind::SuperblockV2) => {
            let mut sb = JournalSuperblock::read(block).unwrap();
            sb.seal();
            block[..JournalSuperblock::SIZE].copy_from_slice(sb.bytes());
        }
        _ => {}
    }
}

impl Transaction {
    fn new(random: &mut Random, size: BlockSize) -> Transaction {
        let target = |random: &mut Random| (TARGETS.start + random.index(TARGETS.len())) as u64;
        let mut transaction = Transaction::default();
        for _ in 0..1 + random.index(7) {
            let mut bytes = vec![random.index(256) as u8; size.bytes()];
            if random.one_in(4) {
                bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
            }
            transaction.copies.push((target(random), bytes));
        }
        if random.one_in(3) {
            for _ in 0..1 + random.index(5) {
                transaction.revokes.push(target(random));
            }
        }
        transaction
    }

    /// Blocks of the log that it takes.
    fn blocks(&self) -> u32 {
        let copies = self.copies.len() + self.copies.len().div_ceil(3);
        u32::try_from(copies + usize::from(!self.revokes.is_empty()) + 1).unwrap()
    }
}

/// What the transactions leave: a copy counts unless its own or a later transaction revokes its block.
fn replayed(transactions: &[Transaction]) -> BTreeMap<u64, Vec<u8>> {
    let mut blocks = BTreeMap::new();
    for (number, transaction) in transactions.iter().enumerate() {
        for (target, bytes) in &transaction.copies {
            let mut rest = transactions[number..].iter();
            if !rest.any(|later| later.revokes.contains(target)) {
                blocks.insert(*target, bytes.clone());
            }
        }
    }
    blocks
}

fn place(position: u32, journal_blocks: u32) -> u32 {
    let half = journal_blocks / 2;
    match position.checked_sub(half) {
        None => JOURNAL + (journal_blocks - half) + position,
        Some(after_half) => JOURNAL + after_half,
    }
}

/// A superblock with a copy of the journal inode's map.
fn file_system(size: BlockSize, journal_blocks: u32, with_extents: bool) -> Superblock {
    let mut sb = Superblock::zeroed();
    sb.set_magic(superblock::MAGIC);
    sb.set_revision(1);
    sb.set_features(Features::of(&[
        Feature::HAS_JOURNAL,
        Feature::NEEDS_RECOVERY,
        Feature::FILETYPE,
        Feature::EXTENT,
    ]));
    let first_data_block = u32::from(size == BlockSize::K1);
    sb.set_first_data_block(first_data_block);
    sb.set_blocks_count(BLOCKS.into());
    sb.set_log_block_size(size.log());
    sb.set_log_cluster_size(size.log());
    sb.set_blocks_per_group(8192);
    sb.set_clusters_per_group(8192);
    sb.set_inodes_per_group(64);
    sb.set_inodes_count(64);
    sb.set_inode_size(256);
    sb.set_first_ino(Ino(11));
    sb.set_uuid(UUID);
    sb.set_journal_ino(Some(Ino(8)));
    sb.set_journal_backup_type(1);
    let mut words = [0_u32; 17];
    words[16] = journal_blocks << size.bits();
    if with_extents {
        let half = journal_blocks / 2;
        let run = |from: u32, to: u32| {
            let start = FsBlock(place(from, journal_blocks).into());
            Extent::new(
                LBlock(from),
                u16::try_from(to - from).unwrap(),
                start,
                false,
            )
        };
        let mut area = [0; 60];
        let extents = [run(0, half), run(half, journal_blocks)];
        extent::encode(&mut area, 0, ExtentEntries::Extents(&extents));
        for (word, bytes) in words.iter_mut().zip(area.chunks_exact(4)) {
            *word = u32::from_le_bytes(bytes.try_into().unwrap());
        }
    } else {
        for (position, word) in (0..12).zip(&mut words) {
            *word = place(position, journal_blocks);
        }
        // One block of pointers, which `pointers` fills.
        words[12] = POINTERS;
    }
    sb.set_journal_backup(words);
    sb
}

/// The block of pointers of a journal mapped by them.
const POINTERS: u32 = 200;

impl Written {
    /// Writes the block of pointers; harmless where extents map the journal.
    pub fn with_pointers(self) -> Written {
        let mut block = vec![0; self.size.bytes()];
        for (position, bytes) in (12..self.journal.blocks_count()).zip(block.chunks_exact_mut(4)) {
            let place = place(position, self.journal.blocks_count());
            bytes.copy_from_slice(&place.to_le_bytes());
        }
        let offset = FsBlock(POINTERS.into()).offset(self.size);
        self.device.write_at(offset, &block).unwrap();
        self
    }
}
