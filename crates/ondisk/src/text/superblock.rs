//! The superblock in words, section by section; fields of a feature are left out if the feature is off.

use core::fmt::{self, Display, Formatter};

use super::{Bytes, Lines, PrintedName, Utc, Uuid};
use crate::features::Feature;
use crate::superblock::{Superblock, flags, state};

/// Prints a superblock, checked or not.
#[derive(Clone, Copy)]
pub struct SuperblockText<'a>(pub &'a Superblock);

impl Display for SuperblockText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut lines = Lines::new(f);
        self.identity(&mut lines)?;
        self.sizes(&mut lines)?;
        self.layout(&mut lines)?;
        self.special_inodes(&mut lines)?;
        self.life(&mut lines)?;
        self.errors(&mut lines)
    }
}

/// A field of bits: the number and the words of those set.
struct Bits<'a>(u32, &'a [(u32, &'a str)]);

impl Display for Bits<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)?;
        let mut rest = self.0;
        let mut separator = " (";
        for (bit, word) in self.1 {
            if self.0 & bit != 0 {
                write!(f, "{separator}{word}")?;
                separator = ", ";
                rest &= !bit;
            }
        }
        if rest != 0 {
            write!(f, "{separator}{rest:#x} unknown")?;
            separator = ", ";
        }
        if separator == ", " {
            f.write_str(")")
        } else {
            Ok(())
        }
    }
}

/// What a directory hash's number means.
pub(super) fn hash_name(version: u8) -> &'static str {
    match version {
        0 => "legacy",
        1 => "half_md4",
        2 => "tea",
        3 => "legacy, unsigned",
        4 => "half_md4, unsigned",
        5 => "tea, unsigned",
        6 => "siphash",
        _ => "unknown",
    }
}

const MOUNT_OPTIONS: &[(u32, &str)] = &[
    (0x1, "debug"),
    (0x2, "bsdgroups"),
    (0x4, "user_xattr"),
    (0x8, "acl"),
    (0x10, "uid16"),
    (0x20, "journal_data"),
    (0x40, "journal_data_ordered"),
    (0x100, "nobarrier"),
    (0x200, "block_validity"),
    (0x400, "discard"),
    (0x800, "nodelalloc"),
];

const STATES: &[(u32, &str)] = &[
    (state::VALID as u32, "clean"),
    (state::ERROR as u32, "errors"),
    (state::ORPHANS as u32, "orphans being removed"),
    (state::FC_REPLAY as u32, "fast commits being replayed"),
];

const FLAGS: &[(u32, &str)] = &[
    (flags::SIGNED_HASH, "signed directory hash"),
    (flags::UNSIGNED_HASH, "unsigned directory hash"),
    (flags::TEST_FILESYS, "test file system"),
];

fn or_none(text: &[u8]) -> String {
    if text.is_empty() {
        "(none)".into()
    } else {
        PrintedName(text).to_string()
    }
}

fn time(seconds: u64) -> String {
    match i64::try_from(seconds) {
        Ok(seconds) if seconds > 0 => Utc(seconds).to_string(),
        _ => "never".into(),
    }
}

impl SuperblockText<'_> {
    fn has(&self, feature: Feature) -> bool {
        self.0.features().has(feature)
    }

    fn identity(&self, lines: &mut Lines<'_, '_>) -> fmt::Result {
        let sb = self.0;
        lines.field("label", or_none(sb.label()))?;
        lines.field("UUID", Uuid(sb.uuid()))?;
        lines.field("magic", format_args!("{:#06x}", sb.magic()))?;
        lines.field(
            "revision",
            format_args!("{}.{}", sb.revision(), sb.minor_revision()),
        )?;
        lines.field("features", sb.features())?;
        lines.field("state", Bits(sb.state().into(), STATES))?;
        lines.field("flags", Bits(sb.flags(), FLAGS))?;
        let creator = match sb.creator_os() {
            0 => "Linux",
            1 => "Hurd",
            2 => "Masix",
            3 => "FreeBSD",
            4 => "Lites",
            _ => "unknown",
        };
        lines.field("made by", creator)
    }

    fn sizes(&self, lines: &mut Lines<'_, '_>) -> fmt::Result {
        let sb = self.0;
        // A shift by a number from disk: only what ext4 knows is a size.
        let unit = |log: u32| 1024u64.checked_shl(log).filter(|_| log <= 20).map(Bytes);
        lines.section("Sizes")?;
        lines.field(
            "block size",
            OrLog(unit(sb.log_block_size()), sb.log_block_size()),
        )?;
        if self.has(Feature::BIGALLOC) {
            let log = sb.log_cluster_size();
            lines.field("cluster size", OrLog(unit(log), log))?;
        }
        lines.field("blocks", sb.blocks_count())?;
        lines.field("free blocks", sb.free_blocks_count())?;
        lines.field("reserved blocks", sb.reserved_blocks_count())?;
        lines.field("overhead clusters", sb.overhead_clusters())?;
        lines.field("inodes", sb.inodes_count())?;
        lines.field("free inodes", sb.free_inodes_count())?;
        lines.field(
            "inode size",
            if sb.revision() == 0 {
                128
            } else {
                sb.inode_size()
            },
        )?;
        lines.field(
            "extra inode size",
            format_args!(
                "at least {}, wanted {}",
                sb.min_extra_isize(),
                sb.want_extra_isize()
            ),
        )
    }

    fn layout(&self, lines: &mut Lines<'_, '_>) -> fmt::Result {
        let sb = self.0;
        lines.section("Layout")?;
        lines.field("first data block", sb.first_data_block())?;
        lines.field("blocks per group", sb.blocks_per_group())?;
        if self.has(Feature::BIGALLOC) {
            lines.field("clusters per group", sb.clusters_per_group())?;
        }
        lines.field("inodes per group", sb.inodes_per_group())?;
        lines.field("copy in group", sb.block_group_number())?;
        if self.has(Feature::BIT64) {
            lines.field("descriptor size", sb.desc_size())?;
        }
        if self.has(Feature::RESIZE_INODE) {
            lines.field(
                "reserved descriptors",
                format_args!("{} blocks", sb.reserved_gdt_blocks()),
            )?;
        }
        if self.has(Feature::META_BG) {
            lines.field("first meta group", sb.first_meta_bg())?;
        }
        if self.has(Feature::FLEX_BG) {
            lines.field(
                "flexible group",
                format_args!("2^{} groups", sb.log_groups_per_flex()),
            )?;
        }
        if self.has(Feature::SPARSE_SUPER2) {
            let [first, second] = sb.backup_groups();
            lines.field("backups in groups", format_args!("{first}, {second}"))?;
        }
        if sb.raid_stride() != 0 || sb.raid_stripe_width() != 0 {
            lines.field(
                "RAID stride, stripe",
                format_args!("{}, {} blocks", sb.raid_stride(), sb.raid_stripe_width()),
            )?;
        }
        Ok(())
    }

    fn special_inodes(&self, lines: &mut Lines<'_, '_>) -> fmt::Result {
        let sb = self.0;
        lines.section("Inodes with a purpose, hashes, checksums")?;
        lines.field("first unreserved inode", sb.first_ino())?;
        lines.maybe("journal inode", sb.journal_ino())?;
        if self.has(Feature::HAS_JOURNAL) && sb.journal_ino().is_none() {
            lines.field("journal device", format_args!("{:#x}", sb.journal_device()))?;
            lines.field("journal UUID", Uuid(sb.journal_uuid()))?;
        }
        if sb.journal_backup_type() == 1 {
            let words = sb.journal_backup();
            let size = u64::from(words[16]) | u64::from(words[15]) << 32;
            lines.field(
                "journal size",
                format_args!("{} (from the copy of its inode)", Bytes(size)),
            )?;
        }
        lines.maybe("orphan file inode", sb.orphan_file_ino())?;
        lines.maybe("first orphan", sb.last_orphan())?;
        lines.maybe("user quota inode", sb.user_quota_ino())?;
        lines.maybe("group quota inode", sb.group_quota_ino())?;
        lines.maybe("project quota inode", sb.project_quota_ino())?;
        lines.field("directory hash", hash_name(sb.hash_version()))?;
        lines.field("hash seed", Uuid(seed_bytes(sb.hash_seed())))?;
        if self.has(Feature::CASEFOLD) {
            let strict = if sb.encoding_flags() & 1 == 1 {
                ", strict"
            } else {
                ""
            };
            let encoding = if sb.encoding() == 1 {
                "UTF-8 12.1"
            } else {
                "unknown"
            };
            lines.field("name encoding", format_args!("{encoding}{strict}"))?;
        }
        if self.has(Feature::MMP) {
            let (block, seconds) = (sb.mmp_block(), sb.mmp_interval());
            lines.field(
                "multi-mount block",
                format_args!("{block}, every {seconds} s"),
            )?;
        }
        if self.has(Feature::METADATA_CSUM) {
            let state = if sb.checksum() == sb.computed_checksum() {
                "right"
            } else {
                "WRONG"
            };
            lines.field("checksum seed", format_args!("{:#010x}", sb.csum_seed()))?;
            lines.field(
                "checksum",
                format_args!("{:#010x} ({state})", sb.checksum()),
            )?;
        }
        Ok(())
    }

    fn life(&self, lines: &mut Lines<'_, '_>) -> fmt::Result {
        let sb = self.0;
        lines.section("Life")?;
        lines.field("made", time(sb.mkfs_time()))?;
        lines.field("last mounted", time(sb.mount_time()))?;
        lines.field("last mounted at", or_none(sb.last_mounted()))?;
        lines.field("last written", time(sb.write_time()))?;
        lines.field("last checked", time(sb.last_check()))?;
        let max = sb.max_mount_count();
        let bound = if matches!(max, 0 | 0xFFFF) {
            "no bound".to_string()
        } else {
            format!("check after {max}")
        };
        lines.field(
            "mounts since then",
            format_args!("{} ({bound})", sb.mount_count()),
        )?;
        lines.field(
            "written in its life",
            Bytes(sb.kbytes_written().saturating_mul(1024)),
        )?;
        let options = Bits(sb.default_mount_options(), MOUNT_OPTIONS);
        lines.field("default mount options", options)?;
        if !sb.mount_options().is_empty() {
            lines.field("mount options", PrintedName(sb.mount_options()))?;
        }
        lines.field(
            "reserve is for",
            format_args!("uid {}, gid {}", sb.reserve_uid(), sb.reserve_gid()),
        )
    }

    fn errors(&self, lines: &mut Lines<'_, '_>) -> fmt::Result {
        let sb = self.0;
        lines.section("Errors")?;
        let behaviour = match sb.errors() {
            1 => "continue",
            2 => "remount read-only",
            3 => "panic",
            _ => "unknown",
        };
        lines.field("on errors", behaviour)?;
        lines.field("errors so far", sb.error_count())?;
        if sb.error_count() == 0 {
            return Ok(());
        }
        lines.field(
            "first error",
            format_args!(
                "{}, {}:{}, inode {}, block {}",
                time(sb.first_error_time()),
                PrintedName(sb.first_error_function()),
                sb.first_error_line(),
                sb.first_error_ino(),
                sb.first_error_block()
            ),
        )?;
        lines.field(
            "last error",
            format_args!(
                "{}, {}:{}, inode {}, block {}",
                time(sb.last_error_time()),
                PrintedName(sb.last_error_function()),
                sb.last_error_line(),
                sb.last_error_ino(),
                sb.last_error_block()
            ),
        )
    }
}

/// A size, or the impossible power of two instead of it.
struct OrLog(Option<Bytes>, u32);

impl Display for OrLog {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => bytes.fmt(f),
            None => write!(f, "1024 * 2^{} (impossible)", self.1),
        }
    }
}

fn seed_bytes(seed: [u32; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, word) in bytes.chunks_exact_mut(4).zip(seed) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_can_be_printed() {
        for byte in [0x00, 0x7F, 0x80, 0xFF] {
            let text = SuperblockText(Superblock::view(&[byte; 1024])).to_string();
            assert!(text.contains("\nLayout\n"), "{text}");
        }
    }

    #[test]
    fn bits_are_named_and_unknown_ones_are_not_lost() {
        assert_eq!(Bits(0, STATES).to_string(), "0x0");
        assert_eq!(
            Bits(0x43, STATES).to_string(),
            "0x43 (clean, errors, 0x40 unknown)"
        );
    }
}
