//! Inodes, extent nodes and attribute lists as text.

use core::fmt::{self, Display, Formatter};

use super::{Lines, PrintedName, Utc};
use crate::extent::{ExtentEntries, ExtentNode};
use crate::features::Feature;
use crate::geometry::Geometry;
use crate::inode::{Inode, verify_checksum};
use crate::inode_words::{FileType, Flags, Timestamp};
use crate::numbers::Ino;
use crate::xattr::{self, Value};

/// Prints one inode from its slot in the inode table, whether verified or not.
#[derive(Clone, Copy)]
pub struct InodeText<'a> {
    /// The inode's bytes in the table.
    pub slot: &'a [u8],
    /// The file system's geometry.
    pub geometry: &'a Geometry,
    /// The inode's number.
    pub ino: Ino,
}

struct Mode(u16);

impl Display for Mode {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let kind = match FileType::from_mode(self.0) {
            Some(FileType::Regular) => "regular file",
            Some(FileType::Directory) => "directory",
            Some(FileType::Symlink) => "symbolic link",
            Some(FileType::CharDevice) => "character device",
            Some(FileType::BlockDevice) => "block device",
            Some(FileType::Fifo) => "fifo",
            Some(FileType::Socket) => "socket",
            None => "no type",
        };
        write!(
            f,
            "{:06o} ({kind}, permissions {:04o})",
            self.0,
            self.0 & 0o7777
        )
    }
}

struct FlagWords(Flags);

impl Display for FlagWords {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0.0)?;
        let mut rest = self.0;
        for (flag, _, word) in Flags::NAMED {
            if self.0.contains(*flag) {
                write!(f, " {word}")?;
                rest = rest.without(*flag);
            }
        }
        if rest.0 == 0 {
            Ok(())
        } else {
            write!(f, " {:#x} unknown", rest.0)
        }
    }
}

struct Moment(Timestamp);

impl Display for Moment {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", Utc(self.0.seconds), self.0.nanoseconds)
    }
}

impl Display for InodeText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut lines = Lines::new(f);
        lines.field("inode", self.ino)?;
        let inode = match Inode::parse(self.slot) {
            Ok(inode) => inode,
            Err(corrupt) => return lines.line(corrupt),
        };
        self.attributes(&inode, &mut lines)?;
        self.contents(&inode, &mut lines)?;
        if self.geometry.has_metadata_csum() {
            let state = match verify_checksum(self.slot, self.geometry.csum_seed(), self.ino) {
                Ok(()) => "right",
                Err(_) => "WRONG",
            };
            lines.field(
                "checksum",
                format_args!("{:#010x} ({state})", inode.checksum()),
            )?;
        }
        Ok(())
    }
}

impl InodeText<'_> {
    fn attributes(&self, inode: &Inode, lines: &mut Lines<'_, '_>) -> fmt::Result {
        lines.field("mode", Mode(inode.mode()))?;
        lines.field(
            "owner",
            format_args!("uid {}, gid {}", inode.uid(), inode.gid()),
        )?;
        if self.geometry.has(Feature::PROJECT) {
            lines.field("project", inode.project())?;
        }
        lines.field("links", inode.links_count())?;
        lines.field("size", inode.size(self.geometry.has(Feature::LARGE_DIR)))?;
        let sectors = inode.sectors(
            self.geometry.has(Feature::HUGE_FILE),
            self.geometry.block_size(),
        );
        lines.field("sectors", format_args!("{sectors} of 512 bytes"))?;
        lines.field("flags", FlagWords(inode.flags()))?;
        lines.field("generation", inode.generation())?;
        lines.field("version", inode.version())?;
        lines.field("extra size", inode.extra_size())?;
        lines.field("accessed", Moment(inode.atime()))?;
        lines.field("modified", Moment(inode.mtime()))?;
        lines.field("changed", Moment(inode.ctime()))?;
        lines.maybe("created", inode.crtime().map(Moment))?;
        if inode.dtime() != 0 {
            let seconds = Utc(inode.dtime().into());
            lines.field(
                "deleted",
                format_args!("{seconds} (or the next orphan, {})", inode.dtime()),
            )?;
        }
        if inode.xattr_block().0 != 0 {
            lines.field("attribute block", inode.xattr_block())?;
        }
        Ok(())
    }

    fn contents(&self, inode: &Inode, lines: &mut Lines<'_, '_>) -> fmt::Result {
        let flags = inode.flags();
        let area = inode.block_area();
        match inode.file_type() {
            Some(FileType::CharDevice | FileType::BlockDevice) => {
                let (major, minor) = inode.device_number();
                lines.field("device", format_args!("{major}:{minor}"))
            }
            Some(FileType::Fifo | FileType::Socket) => Ok(()),
            _ if flags.contains(Flags::INLINE_DATA) => lines.field("contents", "in the inode"),
            _ if flags.contains(Flags::EXTENTS) => lines.field("contents", "mapped by extents"),
            Some(FileType::Symlink) if inode.size(false) < area.len() as u64 => {
                // Less than 60, as the guard checks.
                let target = &area[..inode.size(false) as usize];
                lines.field("target", PrintedName(target))
            }
            _ => {
                lines.field("contents", "mapped by block pointers")?;
                let words: Vec<String> = (0..15)
                    .map(|index| inode.block_word(index).to_string())
                    .collect();
                lines.field("direct blocks", words[..12].join(" "))?;
                lines.field("indirect blocks", words[12..].join(" "))
            }
        }
    }
}

/// Prints one node of an extent tree, one line for each entry.
#[derive(Clone, Copy)]
pub struct ExtentNodeText<'a>(pub &'a ExtentNode<'a>);

impl Display for ExtentNodeText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let header = self.0.header();
        let mut lines = Lines::new(f);
        let (depth, used, max) = (header.depth(), header.entries(), header.max());
        lines.line(format_args!("depth {depth}, {used} of {max} entries"))?;
        match self.0.entries() {
            ExtentEntries::Extents(extents) => extents.iter().try_for_each(|extent| {
                let unwritten = if extent.is_unwritten() {
                    " unwritten"
                } else {
                    ""
                };
                let (first, len) = (u64::from(extent.block()), u64::from(extent.len()));
                let start = extent.start().0;
                let last = first + len.saturating_sub(1);
                let end = start + len.saturating_sub(1);
                lines.line(format_args!(
                    "  {first}..={last} -> {start}..={end} ({len} blocks{unwritten})"
                ))
            }),
            ExtentEntries::Indices(indices) => indices.iter().try_for_each(|index| {
                lines.line(format_args!(
                    "  from {} -> node in block {}",
                    index.block(),
                    index.leaf()
                ))
            }),
        }
    }
}

/// Prints a list of attributes, one on each line.
#[derive(Clone, Copy)]
pub struct XattrsText<'a>(pub xattr::ListPlace<'a>);

impl Display for XattrsText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut lines = Lines::new(f);
        let entries = match xattr::entries(self.0) {
            Ok(entries) => entries,
            Err(corrupt) => return lines.line(corrupt),
        };
        for entry in entries {
            let prefix = match xattr::prefix(entry.index) {
                Some(prefix) => prefix.to_string(),
                None => format!("({}).", entry.index),
            };
            let name = PrintedName(entry.name);
            match entry.value {
                Value::Here(value) => {
                    let (len, shown) = (value.len(), PrintedName(value.get(..64).unwrap_or(value)));
                    let more = if len > 64 { "..." } else { "" };
                    lines.line(format_args!("{prefix}{name} ({len} bytes) = {shown}{more}"))?;
                }
                Value::Inode { ino, size } => {
                    lines.line(format_args!("{prefix}{name} ({size} bytes) in inode {ino}"))?;
                }
            }
        }
        Ok(())
    }
}
