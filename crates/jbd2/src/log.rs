//! The log itself: a ring of blocks into which one transaction after another is written.
//!
//! If an area for fast commits follows the log, the log is not used as a ring. e2fsck 1.47.0, and Linux until 2023,
//! take the area's end for the log's end, so they lose every transaction after the one that reaches the end and
//! continues at the first block. So the part of the log that recovery reads never crosses the log's end: before a
//! transaction would cross it, all that is committed is written home, and the log begins again at its first block
//! ([`Log::has_room_before_its_end`]).
//!
//! Order of a transaction: revoke blocks, then descriptors each followed by its copies; flush; commit record; flush.
//! The first flush covers the file data that the transaction maps, too: if the log is on a device of its own, the file
//! system's device is flushed before the log's. The first transaction of an empty log is preceded by the superblock
//! that names its place, made durable by the first flush. CRASH: before the commit record is durable the transaction
//! does not exist; after it, it exists whole.
//!
//! With async commit ([`Transaction::is_async`]) all of it is written, then flushed once, but only if the log has
//! checksums of version 1, which cover a whole transaction: with them, recovery takes a copy that never arrived for the
//! log's end. With version 2 or 3 it would take that for damage; with `metadata_csum` a log always has one of these.
//!
//! The tail moves on disk, flushed, before the blocks behind it are used again. CRASH: a tail that moved too late
//! only replays what is home already.
//!
//! Everything here is done by one leader under [`sync::Rank::LogArea`].

use device::BlockDevice;
use ondisk::jbd2::{
    BlockKind, CommitBlock, DescriptorWriter, JournalChecksum, JournalFeatures, JournalSuperblock,
    LogFormat, MAGIC, RevokeWriter, TransactionChecksum,
};
use ondisk::{FsBlock, Tid};
use sync::{Arc, Counter};

use crate::canary::{self, Canary};
use crate::error::JournalError;
use crate::map::LogMap;

/// Blocks that a log has at least (jbd2's `JBD2_MIN_JOURNAL_BLOCKS`), without its superblock.
const LOG_BLOCKS_MIN: u32 = 1023;
/// Blocks of an area for fast commits at least: two are left unused, one before it (jbd2) and its last one.
const FAST_BLOCKS_MIN: u32 = 3;
/// Blocks of a new area for fast commits, if the journal is neither large nor short (jbd2's
/// `JBD2_DEFAULT_FAST_COMMIT_BLOCKS`).
const FAST_BLOCKS_DEFAULT: u32 = 256;
/// In a large journal the area takes one block in this number, as with mke2fs.
const FAST_PART: u32 = 64;
/// In a short journal the area is smaller, but has this number of blocks at least: they hold a few fsyncs.
const FAST_BLOCKS_USEFUL: u32 = 16;
/// Bytes gathered before they are written.
const BUFFER_BYTES: usize = 1 << 20;

/// Blocks that a descriptor names at least: 1 KiB blocks, checksum v3 and 64-bit numbers.
const TAGS_A_BLOCK: u32 = 60;
/// Numbers that a revoke block holds at least.
const REVOKES_A_BLOCK: u32 = 120;

/// Blocks of the log that a transaction of these numbers of changed and revoked blocks takes at most, with descriptors
/// and commit record.
#[must_use]
pub fn cost(blocks: u32, revokes: u32) -> u32 {
    if blocks == 0 && revokes == 0 {
        return 0;
    }
    let revoke_blocks = if revokes == 0 {
        0
    } else {
        revokes / REVOKES_A_BLOCK + 1
    };
    blocks
        .saturating_add(blocks / TAGS_A_BLOCK + 2)
        .saturating_add(revoke_blocks)
}

/// A log that transactions are written to, by one thread at a time.
pub struct Log {
    map: LogMap,
    /// The file system's own device, when the log is on another: flushed before each commit record.
    data_device: Option<Arc<dyn BlockDevice>>,
    format: LogFormat,
    superblock: JournalSuperblock,
    /// Block of the journal that holds its superblock.
    superblock_at: u32,
    /// The next block to write.
    head: u32,
    next_tid: Tid,
}

/// The features that a log is opened with.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LogOptions {
    /// Checksums over whole transactions, so that a commit needs only one flush. Without effect if the log has
    /// checksums of version 2 or 3.
    pub async_commit: bool,
    /// Checksums of version 3, if the log has neither those nor those of version 2.
    pub has_checksums: bool,
    /// Block numbers of 64 bits.
    pub is_64bit: bool,
    /// Fast commits, if the journal has an area for them that leaves the log long enough.
    pub fast_commits: bool,
}

/// The counters that a log adds to.
#[derive(Clone, Copy, Debug)]
pub struct LogCounters<'a> {
    /// Flushes asked of the devices.
    pub flushes: &'a Counter,
    /// Transactions that took one flush.
    pub async_commits: &'a Counter,
}

/// The contents of one transaction.
pub struct Transaction<'a> {
    /// The new contents of blocks, each with its home.
    pub images: &'a [(FsBlock, Arc<[u8]>)],
    /// Blocks whose older copies no longer count.
    pub revokes: &'a [FsBlock],
    /// Whether one flush is enough: no new data were mapped, and the user wants it.
    pub is_async: bool,
    /// Seconds and nanoseconds since 1970, for the commit record.
    pub time: (i64, u32),
    /// Called when the copies are durable, unless one flush is enough. If it fails, the commit record is not written.
    pub check: &'a dyn Fn() -> Result<(), JournalError>,
}

/// Where in the log a transaction was written.
pub struct Written {
    /// Its number.
    pub tid: Tid,
    /// Its first block.
    pub start: u32,
    /// Its blocks.
    pub blocks: u32,
}

impl Log {
    /// Opens a clean log (nothing to replay); the first transaction is written at its beginning.
    ///
    /// # Errors
    /// `NotReplayed`, `OldFormat`, `Corrupt`; when it can't be read.
    pub fn open(
        map: LogMap,
        superblock_at: u32,
        data_device: Option<Arc<dyn BlockDevice>>,
        options: &LogOptions,
    ) -> Result<Log, JournalError> {
        let mut block = vec![0; map.block_size().bytes()];
        map.read(superblock_at, &mut block)?;
        // The buffer is one block: at least as long as the structure.
        let mut superblock = JournalSuperblock::read(&block).expect("a block holds a superblock");
        superblock.verify(map.block_size(), map.len_blocks().into())?;
        if superblock.start() != 0 {
            return Err(JournalError::NotReplayed);
        }
        if superblock.kind() != Some(BlockKind::SuperblockV2) {
            return Err(JournalError::OldFormat);
        }
        choose_features(&mut superblock, options);
        let format = superblock.verify(map.block_size(), map.len_blocks().into())?;
        let (head, next_tid) = (superblock.first(), superblock.sequence());
        Ok(Log {
            map,
            data_device,
            format,
            superblock,
            superblock_at,
            head,
            next_tid,
        })
    }

    /// A log that is empty but in use, as recovery leaves it before fast commits are replayed: its features and its
    /// area for fast commits stay as they are.
    fn resume(map: LogMap, superblock_at: u32) -> Result<Log, JournalError> {
        let mut block = vec![0; map.block_size().bytes()];
        map.read(superblock_at, &mut block)?;
        // The buffer is one block: at least as long as the structure.
        let superblock = JournalSuperblock::read(&block).expect("a block holds a superblock");
        let format = superblock.verify(map.block_size(), map.len_blocks().into())?;
        if superblock.start() == 0 {
            return Err(JournalError::NotReplayed);
        }
        let (head, next_tid) = (superblock.start(), superblock.sequence());
        Ok(Log {
            map,
            data_device: None,
            format,
            superblock,
            superblock_at,
            head,
            next_tid,
        })
    }

    /// Blocks of the ring.
    pub fn capacity(&self) -> u32 {
        self.superblock.log_end() - self.superblock.first()
    }

    /// Whether what recovery has to read may go over the log's end to its first block.
    fn is_ring(&self) -> bool {
        self.superblock.fast_commit_blocks() == 0
    }

    /// Whether a transaction of at most this number of blocks can be written now; if not, it can once all that is
    /// committed is home.
    pub fn has_room_before_its_end(&self, blocks: u32) -> bool {
        self.is_ring() || self.head.saturating_add(blocks) <= self.superblock.log_end()
    }

    /// Writes a transaction; when this returns it is durable. The caller made sure that it has room:
    /// [`Log::has_room_before_its_end`].
    ///
    /// # Errors
    /// When a device or [`Transaction::check`] fails. If only the last flush failed, the transaction may be durable.
    pub fn write(
        &mut self,
        transaction: &Transaction<'_>,
        counters: LogCounters<'_>,
    ) -> Result<Written, JournalError> {
        let (tid, start) = (self.next_tid, self.head);
        if self.superblock.start() == 0 {
            self.superblock.set_start(start);
            self.superblock.set_sequence(tid);
            self.write_superblock()?;
        }
        let mut appender = Appender::new(self);
        let mut sum = TransactionChecksum::new();
        appender.revokes(tid, transaction.revokes)?;
        appender.copies(tid, transaction.images, &mut sum)?;
        let mut commit =
            CommitBlock::new(tid, transaction.time.0.unsigned_abs(), transaction.time.1);
        if appender.log.format.checksum == JournalChecksum::V1 {
            commit.set_transaction_checksum(sum.value());
        }
        let mut record = vec![0; appender.log.map.block_size().bytes()];
        commit.write(&appender.log.format, &mut record);
        let is_async = transaction.is_async && appender.log.has_whole_checksums();
        if !is_async {
            appender.write_out()?;
            if !canary::makes(Canary::FlushLeftOut) {
                appender.log.flush(true, counters)?;
            }
            // A flush by another thread that failed meanwhile may have lost the copies, or data that they map.
            (transaction.check)()?;
        }
        appender.push(&record)?;
        let (blocks, head) = appender.finish()?;
        self.flush(is_async, counters)?;
        counters.async_commits.add(u64::from(is_async));
        self.head = head;
        self.next_tid = tid.next();
        Ok(Written { tid, start, blocks })
    }

    /// Makes the log durable; with `data`, first the device that holds the file system if it is another one.
    fn flush(&self, data: bool, counters: LogCounters<'_>) -> Result<(), JournalError> {
        if let (true, Some(device)) = (data, &self.data_device) {
            counters.flushes.add(1);
            device.flush()?;
        }
        counters.flushes.add(1);
        Ok(self.map.device().flush()?)
    }

    /// Makes the log begin at `oldest`, or be empty, durably.
    ///
    /// # Errors
    /// When the device fails.
    pub fn move_tail(
        &mut self,
        oldest: Option<(Tid, u32)>,
        counters: LogCounters<'_>,
    ) -> Result<(), JournalError> {
        // Fast commits count only behind a log that is in use, even if it is empty.
        let mut empty = 0;
        if !self.is_ring() {
            empty = self.superblock.first();
            // CRASH: the block there belongs to a transaction that is older than the next.
            if oldest.is_none() {
                self.head = empty;
            }
        }
        let (tid, start) = oldest.unwrap_or((self.next_tid, empty));
        if (self.superblock.start(), self.superblock.sequence()) == (start, tid) {
            return Ok(());
        }
        self.superblock.set_start(start);
        self.superblock.set_sequence(tid);
        self.write_superblock()?;
        self.flush(false, counters)
    }

    /// Records, durably, that the log is empty, so that the image is clean. No handle is open, and none begins before
    /// this returns; [`Log::write`] marks the log in use again. With `for_good` the journal's area for fast commits is
    /// given up, too.
    ///
    /// # Errors
    /// When the device fails.
    pub fn mark_empty(
        &mut self,
        for_good: bool,
        counters: LogCounters<'_>,
    ) -> Result<(), JournalError> {
        if self.superblock.fast_commit_blocks() == 0 {
            return Ok(());
        }
        let mut features = self.superblock.features();
        if for_good {
            features.incompat &= !JournalFeatures::INCOMPAT_FAST_COMMIT;
        }
        self.superblock.set_features(features);
        self.superblock.set_start(0);
        self.superblock.set_sequence(self.next_tid);
        self.write_superblock()?;
        self.flush(false, counters)
    }

    /// Records, durably, that the log is in use though it is empty: fast commits behind it count from then on. Returns
    /// the number of the next transaction.
    ///
    /// Fast commits of an earlier mount are wiped first: where e2fsck finds old ones, it gives up the journal.
    ///
    /// # Errors
    /// When the device fails.
    pub fn begin_use(&mut self) -> Result<Tid, JournalError> {
        if self.superblock.fast_commit_blocks() > 0 {
            self.wipe_area()?;
        }
        self.superblock.set_start(self.head);
        self.superblock.set_sequence(self.next_tid);
        self.write_superblock()?;
        self.map.device().flush()?;
        Ok(self.next_tid)
    }

    /// Makes a log that is empty but in use begin at its first block, durably.
    ///
    /// The old block there is zeroed first: it may belong to a transaction that was cut short and had the next one's
    /// number.
    fn begin_anew(&mut self) -> Result<(), JournalError> {
        let first = self.superblock.first();
        let zeros = vec![0; self.map.block_size().bytes()];
        self.map.write(first, &zeros)?;
        self.map.device().flush()?;
        self.head = first;
        self.superblock.set_start(first);
        self.write_superblock()?;
        Ok(self.map.device().flush()?)
    }

    /// Zeroes the first and the last block of the area, durably: a scan finds no fast commit, and ends at the last
    /// block if not before.
    fn wipe_area(&self) -> Result<(), JournalError> {
        let zeros = vec![0; self.map.block_size().bytes()];
        let first = self.superblock.fast_commit_first();
        self.map.write(first, &zeros)?;
        // An old block there may be the middle of a fast commit, after which a scan would read on.
        let last = self.superblock.blocks_count() - 1;
        if last > first {
            self.map.write(last, &zeros)?;
        }
        Ok(self.map.device().flush()?)
    }

    /// The area for fast commits, if the log has one: the journal's map, the area's first block, and the number of
    /// blocks that may be written. The last block is left unused: after it Linux and e2fsck would read on past the
    /// journal's end, and give up the whole journal.
    pub fn fast_area(&self) -> Option<(LogMap, u32, u32)> {
        let first = self.superblock.fast_commit_first();
        let blocks = self.superblock.blocks_count().saturating_sub(first);
        let blocks = blocks.saturating_sub(1);
        let has_area = self.superblock.fast_commit_blocks() > 0 && blocks > 0;
        has_area.then(|| (self.map.clone(), first, blocks))
    }

    /// Whether its superblock records that the journal was aborted.
    pub fn has_error(&self) -> bool {
        self.superblock.errno_raw() != 0
    }

    /// Clears the record of an abort, durably: for a caller that recorded it elsewhere.
    ///
    /// # Errors
    /// When the device fails.
    pub fn forget_error(&mut self, counters: LogCounters<'_>) -> Result<(), JournalError> {
        self.superblock.set_errno_raw(0);
        self.write_superblock()?;
        self.flush(false, counters)
    }

    /// Records that the journal was aborted, and with which of Linux's error numbers: Linux and e2fsck then take the
    /// file system for one with errors. If the device fails, nothing more is done. CRASH: where the log begins stays as
    /// it was.
    pub fn mark_aborted(&mut self, errno: u32, counters: LogCounters<'_>) {
        if self.superblock.errno_raw() != 0 {
            return;
        }
        // Stored as a negative number.
        self.superblock.set_errno_raw(errno.wrapping_neg());
        let written = self.write_superblock();
        // The journal stays aborted whether this was written or not.
        let _ = written.and_then(|()| self.flush(false, counters));
    }

    fn write_superblock(&mut self) -> Result<(), JournalError> {
        self.superblock.seal();
        Ok(self
            .map
            .write_bytes(self.superblock_at, self.superblock.bytes())?)
    }

    /// Whether a transaction's checksum covers all its blocks, so that recovery sees when one of them never arrived.
    fn has_whole_checksums(&self) -> bool {
        self.format.checksum == JournalChecksum::V1
    }

    /// The block after one of the log. In a log that is not a ring, what follows the last block is the log's end.
    fn after(&self, block: u32) -> u32 {
        if block + 1 < self.superblock.log_end() || !self.is_ring() {
            block + 1
        } else {
            self.superblock.first()
        }
    }
}

/// Commits blocks as the one transaction of a log that is empty but in use, and wipes the fast commits that it
/// replaces. The journal is in the file system itself; `superblock_at` is the block of it that holds its superblock.
///
/// CRASH: before the commit record is durable the fast commits still count; after it the transaction does, and the fast
/// commits no longer have the number of the next one. Their first block is overwritten nevertheless, because e2fsck
/// gives up the whole journal if it finds an old fast commit.
///
/// # Errors
/// When the log has no room for it, and nothing was written; when it can't be read or written.
pub fn commit_in_place_of_fast_commits(
    map: LogMap,
    superblock_at: u32,
    images: &[(FsBlock, Arc<[u8]>)],
    time: (i64, u32),
) -> Result<(), JournalError> {
    let mut log = Log::resume(map, superblock_at)?;
    let needed = cost(u32::try_from(images.len()).unwrap_or(u32::MAX / 2), 0);
    if needed >= log.capacity() {
        return Err(JournalError::Aborted(
            "the log has no room for what its fast commits say".into(),
        ));
    }
    if !log.has_room_before_its_end(needed) {
        log.begin_anew()?;
    }
    let transaction = Transaction {
        images,
        revokes: &[],
        is_async: false,
        time,
        check: &|| Ok(()),
    };
    let (flushes, async_commits) = (&Counter::new(), &Counter::new());
    let counters = LogCounters {
        flushes,
        async_commits,
    };
    log.write(&transaction, counters)?;
    log.wipe_area()
}

/// Whether an empty log has an area for fast commits that leaves the log long enough; one that another program made may
/// not. The journal is in the file system itself, whose superblock has the feature. Nothing is written.
///
/// # Errors
/// `NotReplayed`, `OldFormat`; when it can't be read.
pub fn has_fast_area(map: LogMap, superblock_at: u32) -> Result<bool, JournalError> {
    let options = LogOptions {
        fast_commits: true,
        ..LogOptions::default()
    };
    let features = Log::open(map, superblock_at, None, &options)?
        .superblock
        .features();
    Ok(features.incompat & JournalFeatures::INCOMPAT_FAST_COMMIT != 0)
}

/// Makes an area for fast commits at the end of an empty log, or removes it. The journal is in the file system itself
/// and not in use; `superblock_at` is the block of it that holds its superblock.
///
/// CRASH: the area exists or not, and is empty. It is used only if the file system's superblock has the feature: the
/// caller makes an area before it sets the feature, and removes one after it has cleared it.
///
/// # Errors
/// `TooShort` when the log would be, and nothing was written; `NotReplayed`, `OldFormat`; when it can't be read or
/// written.
pub fn set_fast_area(map: LogMap, superblock_at: u32, is_wanted: bool) -> Result<(), JournalError> {
    let mut log = Log::open(map, superblock_at, None, &LogOptions::default())?;
    let all = log.superblock.blocks_count();
    let mut blocks = 0;
    if is_wanted {
        let most = all.saturating_sub(log.superblock.first() + LOG_BLOCKS_MIN);
        let wanted = FAST_BLOCKS_DEFAULT.max(all / FAST_PART).min(all / 4);
        blocks = wanted.min(most);
        if blocks < FAST_BLOCKS_USEFUL {
            return Err(JournalError::TooShort {
                blocks: all,
                needed: log.superblock.first() + LOG_BLOCKS_MIN + FAST_BLOCKS_USEFUL,
            });
        }
    }
    let features = log.superblock.features();
    log.superblock.set_fast_commit_blocks_raw(blocks);
    if is_wanted {
        let mut with_area = features;
        with_area.incompat |= JournalFeatures::INCOMPAT_FAST_COMMIT;
        log.superblock.set_features(with_area);
        log.wipe_area()?;
        // The next user of the log records that an area exists.
        log.superblock.set_features(features);
    }
    // Where the log ended may be in the area now.
    log.superblock.set_head(0);
    log.write_superblock()?;
    Ok(log.map.device().flush()?)
}

/// The features of the log from now on: they reach the disk with the superblock before the first transaction. Where
/// fast commits are not written, their area is a part of the log; what it holds is older than the next transaction.
fn choose_features(superblock: &mut JournalSuperblock, options: &LogOptions) {
    const CHECKSUMS: u32 = JournalFeatures::INCOMPAT_CSUM_V2 | JournalFeatures::INCOMPAT_CSUM_V3;
    let mut features = superblock.features();
    features.incompat |= JournalFeatures::INCOMPAT_REVOKE;
    features.incompat &=
        !(JournalFeatures::INCOMPAT_FAST_COMMIT | JournalFeatures::INCOMPAT_ASYNC_COMMIT);
    // An area that would leave the log too short is not used. One whose length is not recorded has jbd2's default.
    let mut with_area = features;
    with_area.incompat |= JournalFeatures::INCOMPAT_FAST_COMMIT;
    superblock.set_features(with_area);
    let area = superblock.fast_commit_blocks();
    let room = superblock.blocks_count().saturating_sub(superblock.first());
    if options.fast_commits
        && area >= FAST_BLOCKS_MIN
        && room.saturating_sub(area) >= LOG_BLOCKS_MIN
    {
        features = with_area;
    }
    if options.is_64bit {
        features.incompat |= JournalFeatures::INCOMPAT_64BIT;
    }
    if options.has_checksums && features.incompat & CHECKSUMS == 0 {
        features.incompat |= JournalFeatures::INCOMPAT_CSUM_V3;
    }
    if features.incompat & CHECKSUMS != 0 {
        features.compat &= !JournalFeatures::COMPAT_CHECKSUM;
        superblock.set_checksum_type(JournalSuperblock::CHECKSUM_TYPE_CRC32C);
    } else if options.async_commit {
        features.compat |= JournalFeatures::COMPAT_CHECKSUM;
        features.incompat |= JournalFeatures::INCOMPAT_ASYNC_COMMIT;
    }
    superblock.set_features(features);
    superblock.seal();
}

/// Gathers blocks that follow one another and writes them in large pieces.
struct Appender<'a> {
    log: &'a Log,
    /// Where the gathered blocks begin.
    start: u32,
    gathered: Vec<u8>,
    /// The block after the gathered ones.
    next: u32,
    blocks: u32,
}

impl<'a> Appender<'a> {
    fn new(log: &'a Log) -> Appender<'a> {
        Appender {
            log,
            start: log.head,
            gathered: Vec::new(),
            next: log.head,
            blocks: 0,
        }
    }

    fn push(&mut self, block: &[u8]) -> Result<(), JournalError> {
        self.gathered.extend_from_slice(block);
        let after = self.log.after(self.next);
        let wraps = after != self.next + 1;
        self.next = after;
        self.blocks += 1;
        if wraps || self.gathered.len() >= BUFFER_BYTES {
            self.write_out()?;
        }
        Ok(())
    }

    fn write_out(&mut self) -> Result<(), JournalError> {
        self.log.map.write(self.start, &self.gathered)?;
        self.gathered.clear();
        self.start = self.next;
        Ok(())
    }

    fn finish(mut self) -> Result<(u32, u32), JournalError> {
        self.write_out()?;
        Ok((self.blocks, self.next))
    }

    fn revokes(&mut self, tid: Tid, revokes: &[FsBlock]) -> Result<(), JournalError> {
        let mut block = vec![0; self.log.map.block_size().bytes()];
        let mut rest = revokes;
        while !rest.is_empty() {
            let mut writer = RevokeWriter::new(&self.log.format, tid, &mut block);
            let fit = rest
                .iter()
                .take_while(|revoked| writer.push(**revoked))
                .count();
            writer.finish();
            assert!(fit > 0, "a revoke block holds at least one number");
            rest = &rest[fit..];
            self.push(&block)?;
        }
        Ok(())
    }

    fn copies(
        &mut self,
        tid: Tid,
        images: &[(FsBlock, Arc<[u8]>)],
        sum: &mut TransactionChecksum,
    ) -> Result<(), JournalError> {
        let mut descriptor = vec![0; self.log.map.block_size().bytes()];
        let uuid = self.log.superblock.uuid();
        let mut rest = images;
        while !rest.is_empty() {
            let mut writer = DescriptorWriter::new(&self.log.format, tid, &mut descriptor);
            let mut copies = Vec::new();
            for (block, image) in rest {
                let escaped = escape(image);
                let copy: &[u8] = escaped.as_deref().unwrap_or(image);
                let checksum = self.log.format.data_checksum(tid, copy);
                if !writer.push(*block, escaped.is_some(), checksum, &uuid) {
                    break;
                }
                copies.push(escaped);
            }
            writer.finish();
            assert!(!copies.is_empty(), "a descriptor holds at least one tag");
            sum.add(&descriptor);
            self.push(&descriptor)?;
            for (escaped, (_, image)) in copies.iter().zip(rest) {
                let copy: &[u8] = escaped.as_deref().unwrap_or(image);
                sum.add(copy);
                self.push(copy)?;
            }
            rest = &rest[copies.len()..];
        }
        Ok(())
    }
}

/// The copy of an image that begins like a journal block, and would be taken for one: its first word is zeroed, which
/// the tag records. `None` for any other image.
pub(crate) fn escape(image: &[u8]) -> Option<Vec<u8>> {
    image.starts_with(&MAGIC.to_be_bytes()).then(|| {
        let mut copy = image.to_vec();
        copy[..4].fill(0);
        copy
    })
}
