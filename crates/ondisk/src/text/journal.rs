//! The journal in words: its superblock, blocks of its log, fast-commit records; and the multi-mount block.

use core::fmt::{self, Display, Formatter};

use super::{Lines, PrintedName, Utc, Uuid};
use crate::fast_commit::FcRecord;
use crate::jbd2::{
    BlockHeader, BlockKind, CommitBlock, CommitChecksum, JournalFeatures, JournalSuperblock,
    LogFormat, Tags, revoked,
};
use crate::mmp::{Mmp, MmpUse};

/// Prints the journal's superblock, checked or not.
#[derive(Clone, Copy)]
pub struct JournalText<'a>(pub &'a JournalSuperblock);

/// The names of a journal's features, as dumpe2fs prints them.
struct FeatureWords(JournalFeatures);

impl Display for FeatureWords {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let all = [
            (
                self.0.compat,
                JournalFeatures::COMPAT_CHECKSUM,
                "journal_checksum",
            ),
            (
                self.0.incompat,
                JournalFeatures::INCOMPAT_REVOKE,
                "journal_incompat_revoke",
            ),
            (
                self.0.incompat,
                JournalFeatures::INCOMPAT_64BIT,
                "journal_64bit",
            ),
            (
                self.0.incompat,
                JournalFeatures::INCOMPAT_ASYNC_COMMIT,
                "journal_async_commit",
            ),
            (
                self.0.incompat,
                JournalFeatures::INCOMPAT_CSUM_V2,
                "journal_checksum_v2",
            ),
            (
                self.0.incompat,
                JournalFeatures::INCOMPAT_CSUM_V3,
                "journal_checksum_v3",
            ),
            (
                self.0.incompat,
                JournalFeatures::INCOMPAT_FAST_COMMIT,
                "fast_commit",
            ),
        ];
        let mut separator = "";
        for (word, bit, name) in all {
            if word & bit != 0 {
                write!(f, "{separator}{name}")?;
                separator = " ";
            }
        }
        if let Some((incompat, ro_compat)) = self.0.unknown() {
            write!(f, "{separator}unknown {incompat:#x} {ro_compat:#x}")?;
            separator = " ";
        }
        if separator.is_empty() {
            f.write_str("(none)")
        } else {
            Ok(())
        }
    }
}

impl Display for JournalText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let sb = self.0;
        let mut lines = Lines::new(f);
        lines.field("UUID", Uuid(sb.uuid()))?;
        lines.field("features", FeatureWords(sb.features()))?;
        lines.field("block size", sb.block_size_raw())?;
        lines.field("blocks", sb.blocks_count())?;
        lines.field("log", format_args!("{}..{}", sb.first(), sb.log_end()))?;
        if sb.fast_commit_blocks() > 0 {
            let (first, end) = (sb.fast_commit_first(), sb.blocks_count());
            lines.field("fast commits", format_args!("{first}..{end}"))?;
        }
        match sb.start() {
            0 => lines.field("start", "0 (clean)")?,
            start => lines.field("start", start)?,
        }
        lines.field("transaction", sb.sequence())?;
        if sb.errno_raw() != 0 {
            lines.field("error", sb.errno_raw().cast_signed())?;
        }
        for user in sb.users().filter(|_| sb.users_count() > 1) {
            lines.field("shared by", Uuid(user))?;
        }
        let computed = sb.computed_checksum();
        let v2_or_v3 = JournalFeatures::INCOMPAT_CSUM_V2 | JournalFeatures::INCOMPAT_CSUM_V3;
        if sb.features().incompat & v2_or_v3 != 0 {
            let state = if sb.checksum() == computed {
                "right"
            } else {
                "WRONG"
            };
            lines.field(
                "checksum",
                format_args!("{:#010x} ({state})", sb.checksum()),
            )?;
        }
        Ok(())
    }
}

/// Prints what one block of the log is; a block without the journal's magic number is a copy or a leftover.
#[derive(Clone, Copy)]
pub struct LogBlockText<'a> {
    /// How the log is laid out.
    pub format: &'a LogFormat,
    /// The block.
    pub block: &'a [u8],
}

impl Display for LogBlockText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(header) = BlockHeader::of(self.block) else {
            return f.write_str("copy of a block, or nothing");
        };
        let tid = header.tid();
        match header.kind() {
            Some(BlockKind::Descriptor) => {
                write!(f, "descriptor of transaction {tid}, for blocks")?;
                for tag in Tags::of(self.format, self.block) {
                    let escaped = if tag.is_escaped { " (escaped)" } else { "" };
                    let deleted = if tag.is_deleted { " (deleted)" } else { "" };
                    write!(f, " {}{escaped}{deleted}", tag.block)?;
                }
                self.tail(f)
            }
            Some(BlockKind::Revoke) => {
                write!(f, "revoke of transaction {tid}, of blocks")?;
                match revoked(self.format, self.block) {
                    Ok(mut blocks) => blocks.try_for_each(|block| write!(f, " {block}"))?,
                    Err(corrupt) => write!(f, ": {corrupt}")?,
                }
                self.tail(f)
            }
            Some(BlockKind::Commit) => {
                write!(f, "commit of transaction {tid}")?;
                if let Some(commit) = CommitBlock::read(self.block) {
                    let seconds = i64::try_from(commit.seconds()).unwrap_or(i64::MAX);
                    write!(f, " at {}.{:09}", Utc(seconds), commit.nanoseconds())?;
                }
                match CommitBlock::verify(self.format, self.block) {
                    CommitChecksum::Bad => f.write_str(", checksum WRONG"),
                    _ => Ok(()),
                }
            }
            Some(BlockKind::SuperblockV1 | BlockKind::SuperblockV2) => {
                f.write_str("journal superblock")
            }
            None => write!(f, "block of an unknown kind, transaction {tid}"),
        }
    }
}

impl LogBlockText<'_> {
    fn tail(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let is_right = !self.format.has_block_checksums() || self.format.verify_tail(self.block);
        if is_right {
            Ok(())
        } else {
            f.write_str(", checksum WRONG")
        }
    }
}

/// Prints one fast-commit record.
#[derive(Clone, Copy)]
pub struct RecordText<'a>(pub &'a FcRecord<'a>);

impl Display for RecordText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut named = |verb: &str, named: &crate::fast_commit::DentryInfo<'_>| {
            let (name, parent, ino) = (PrintedName(named.name), named.parent, named.ino);
            write!(f, "{verb} '{name}' in directory {parent}, inode {ino}")
        };
        match self.0 {
            FcRecord::Creat(entry) => named("create", entry),
            FcRecord::Link(entry) => named("link", entry),
            FcRecord::Unlink(entry) => named("unlink", entry),
            FcRecord::AddRange { ino, extent } => {
                let [a, b, c, d, e, g, ..] = *extent;
                let (first, len) = (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([e, g]));
                write!(
                    f,
                    "map inode {ino} from logical block {first} on (length word {len})"
                )
            }
            FcRecord::DelRange { ino, first, blocks } => {
                write!(
                    f,
                    "unmap {blocks} blocks of inode {ino} from logical block {first} on"
                )
            }
            FcRecord::Inode { ino, raw } => write!(f, "inode {ino}, {} bytes", raw.len()),
            FcRecord::Pad(bytes) => write!(f, "padding, {} bytes", bytes.len()),
            FcRecord::Tail { tid, crc, .. } => {
                write!(f, "tail of transaction {tid}, checksum {crc:#010x}")
            }
            FcRecord::Head { features, tid } => {
                write!(f, "head of transaction {tid}, features {features:#x}")
            }
        }
    }
}

/// Prints the multi-mount protection block, checked or not.
#[derive(Clone, Copy)]
pub struct MmpText<'a> {
    /// The structure.
    pub mmp: &'a Mmp,
    /// The checksum seed, with metadata checksums.
    pub seed: Option<u32>,
}

impl Display for MmpText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mmp = self.mmp;
        let mut lines = Lines::new(f);
        let used = match mmp.used_by() {
            MmpUse::Clean => "nobody".to_string(),
            MmpUse::Check => "a check".to_string(),
            MmpUse::Mounted(_) => "a host that has it mounted, or died".to_string(),
            MmpUse::Unknown(_) => "unknown".to_string(),
        };
        lines.field("in use by", used)?;
        lines.field("sequence", format_args!("{:#x}", mmp.sequence()))?;
        let seconds = i64::try_from(mmp.time()).unwrap_or(i64::MAX);
        lines.field("last written", Utc(seconds))?;
        lines.field("by host", PrintedName(mmp.node()))?;
        lines.field("on device", PrintedName(mmp.device()))?;
        lines.field("check interval", format_args!("{} s", mmp.check_interval()))?;
        match mmp.verify(self.seed) {
            Ok(()) => lines.field("checks", "right"),
            Err(corrupt) => lines.field("checks", corrupt),
        }
    }
}
