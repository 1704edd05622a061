//! The words that inodes are made of: types of files, flags, times. Pure values; every function accepts any bits.

use core::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The type of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A symbolic link.
    Symlink,
}

impl FileType {
    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(self) -> bool {
        self == FileType::Directory
    }

    /// Whether it is a regular file.
    #[must_use]
    pub fn is_file(self) -> bool {
        self == FileType::Regular
    }

    /// Whether it is a symbolic link.
    #[must_use]
    pub fn is_symlink(self) -> bool {
        self == FileType::Symlink
    }

    /// The type in the upper four bits of a mode.
    #[must_use]
    pub fn from_mode(mode: u16) -> Option<FileType> {
        match mode & 0o170_000 {
            0o100_000 => Some(FileType::Regular),
            0o040_000 => Some(FileType::Directory),
            0o020_000 => Some(FileType::CharDevice),
            0o060_000 => Some(FileType::BlockDevice),
            0o010_000 => Some(FileType::Fifo),
            0o140_000 => Some(FileType::Socket),
            0o120_000 => Some(FileType::Symlink),
            _ => None,
        }
    }

    /// The upper four bits of a mode.
    #[must_use]
    pub fn mode_bits(self) -> u16 {
        match self {
            FileType::Regular => 0o100_000,
            FileType::Directory => 0o040_000,
            FileType::CharDevice => 0o020_000,
            FileType::BlockDevice => 0o060_000,
            FileType::Fifo => 0o010_000,
            FileType::Socket => 0o140_000,
            FileType::Symlink => 0o120_000,
        }
    }

    /// The number that a directory entry holds for this type, in file systems with `filetype`.
    #[must_use]
    pub fn dirent_code(self) -> u8 {
        match self {
            FileType::Regular => 1,
            FileType::Directory => 2,
            FileType::CharDevice => 3,
            FileType::BlockDevice => 4,
            FileType::Fifo => 5,
            FileType::Socket => 6,
            FileType::Symlink => 7,
        }
    }

    /// The type that a directory entry's number stands for; `None` for 0 (unknown) and for undefined numbers.
    #[must_use]
    pub fn from_dirent_code(code: u8) -> Option<FileType> {
        match code {
            1 => Some(FileType::Regular),
            2 => Some(FileType::Directory),
            3 => Some(FileType::CharDevice),
            4 => Some(FileType::BlockDevice),
            5 => Some(FileType::Fifo),
            6 => Some(FileType::Socket),
            7 => Some(FileType::Symlink),
            _ => None,
        }
    }

    /// The first letter of an entry in `ls -l`.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            FileType::Regular => '-',
            FileType::Directory => 'd',
            FileType::CharDevice => 'c',
            FileType::BlockDevice => 'b',
            FileType::Fifo => 'p',
            FileType::Socket => 's',
            FileType::Symlink => 'l',
        }
    }
}

/// A set of inode flags. Every function keeps unknown bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[repr(transparent)]
pub struct Flags(pub u32);

macro_rules! flags {
    ($( $(#[$m:meta])* $name:ident = $bits:literal, $letter:literal, $word:literal; )*) => {
        impl Flags {
            $( $(#[$m])* pub const $name: Flags = Flags($bits); )*

            /// Every flag with a meaning, in the order of `lsattr`: the flag, its letter in `chattr` (or `-`),
            /// its name in `lsattr -l`.
            pub const NAMED: &[(Flags, char, &str)] = &[ $( (Flags::$name, $letter, $word), )* ];
        }
    };
}

flags! {
    /// Overwrite with zeros on delete; Linux ignores it.
    SECURE_DELETE = 0x0000_0001, 's', "Secure_Deletion";
    /// Keep for undelete; Linux ignores it.
    UNDELETE = 0x0000_0002, 'u', "Undelete";
    /// Writes are synchronous.
    SYNC = 0x0000_0008, 'S', "Synchronous_Updates";
    /// Changes of the directory are synchronous.
    DIR_SYNC = 0x0001_0000, 'D', "Synchronous_Directory_Updates";
    /// May not change at all.
    IMMUTABLE = 0x0000_0010, 'i', "Immutable";
    /// May only grow.
    APPEND = 0x0000_0020, 'a', "Append_Only";
    /// Left out by dump(8).
    NO_DUMP = 0x0000_0040, 'd', "No_Dump";
    /// Access times are not updated.
    NO_ATIME = 0x0000_0080, 'A', "No_Atime";
    /// Compress; Linux ignores it.
    COMPRESS = 0x0000_0004, 'c', "Compression_Requested";
    /// Contents and (in directories) names are encrypted.
    ENCRYPT = 0x0000_0800, 'E', "Encrypted";
    /// Data goes through the journal.
    JOURNAL_DATA = 0x0000_4000, 'j', "Journaled_Data";
    /// The directory is hashed.
    INDEX = 0x0000_1000, 'I', "Indexed_directory";
    /// The tail is not merged; Linux ignores it.
    NO_TAIL = 0x0000_8000, 't', "No_Tailmerging";
    /// Directories in this one are unrelated: they are spread over groups.
    TOP_DIR = 0x0002_0000, 'T', "Top_of_Directory_Hierarchies";
    /// Mapped by extents.
    EXTENTS = 0x0008_0000, 'e', "Extents";
    /// Not copied on write; Linux ignores it.
    NO_COW = 0x0080_0000, 'C', "No_COW";
    /// Read and written past the page cache where possible.
    DAX = 0x0200_0000, 'x', "DAX";
    /// Names in the directory are compared without regard to case.
    CASEFOLD = 0x4000_0000, 'F', "Casefold";
    /// Contents begin in the inode.
    INLINE_DATA = 0x1000_0000, 'N', "Inline_Data";
    /// New files and directories in the directory get its project.
    PROJECT_INHERIT = 0x2000_0000, 'P', "Project_Hierarchy";
    /// Protected by a hash tree beyond its end (fs-verity).
    VERITY = 0x0010_0000, 'V', "Verity";
    /// Not compressed; Linux ignores it.
    NO_COMPRESS = 0x0000_0400, 'm', "Dont_Compress";
    /// The space is counted in blocks, not in sectors.
    HUGE_FILE = 0x0004_0000, '-', "Huge_file";
    /// Holds the value of an extended attribute.
    EA_INODE = 0x0020_0000, '-', "EA_Inode";
    /// Is a snapshot; only old patches set it.
    SNAPFILE = 0x0100_0000, '-', "Snapfile";
}

impl Flags {
    /// Whether all of `flags` are set.
    #[must_use]
    pub fn contains(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// With `flags` set as well.
    #[must_use]
    pub fn with(self, flags: Flags) -> Flags {
        Flags(self.0 | flags.0)
    }

    /// With `flags` cleared.
    #[must_use]
    pub fn without(self, flags: Flags) -> Flags {
        Flags(self.0 & !flags.0)
    }
}

/// The flags as `lsattr` shows them: a letter for each flag that is set, `-` for the others.
impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = Flags::NAMED.iter().filter(|(_, letter, _)| *letter != '-');
        for (flag, letter, _) in shown {
            write!(f, "{}", if self.contains(*flag) { *letter } else { '-' })?;
        }
        Ok(())
    }
}

/// Nanoseconds in a second.
const NANOSECONDS: u32 = 1_000_000_000;

/// A moment: seconds since 1970 and nanoseconds after them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Timestamp {
    /// Seconds since 1970 began, in UTC.
    pub seconds: i64,
    /// Nanoseconds, 0 to 999,999,999 (larger only if the disk has a larger number).
    pub nanoseconds: u32,
}

impl Timestamp {
    /// The first and the last second that an inode with extra fields can hold.
    pub const RANGE: core::ops::RangeInclusive<i64> = -0x8000_0000..=0x3_7fff_ffff;

    /// A time from the seconds word and the extra word (2 bits of epoch, 30 bits of nanoseconds).
    #[must_use]
    pub fn decode(low: u32, extra: u32) -> Timestamp {
        // The low word is signed; each epoch adds 2^32 seconds to it.
        Timestamp {
            seconds: i64::from(low.cast_signed()) + (i64::from(extra & 3) << 32),
            nanoseconds: extra >> 2,
        }
    }

    /// The seconds word and the extra word. Seconds outside [`Self::RANGE`] become the nearest end of the range; at
    /// both ends the nanoseconds are 0, as in Linux.
    #[must_use]
    pub fn encode(self) -> (u32, u32) {
        let (first, last) = (*Timestamp::RANGE.start(), *Timestamp::RANGE.end());
        let seconds = self.seconds.clamp(first, last);
        let nanoseconds = if seconds == first || seconds == last {
            0
        } else {
            self.nanoseconds
        };
        let low = (seconds & 0xffff_ffff) as u32;
        let epoch = (seconds - i64::from(low.cast_signed())) >> 32 & 3;
        (low, nanoseconds << 2 | epoch as u32)
    }

    /// The seconds word of an inode without extra fields, from 1901 to 2038; times outside become the nearest end.
    #[must_use]
    pub fn encode_seconds(self) -> u32 {
        let seconds = self.seconds.clamp(i32::MIN.into(), i32::MAX.into());
        (seconds & 0xffff_ffff) as u32
    }
}

/// Keeps times outside [`Timestamp::RANGE`] unchanged.
impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Timestamp {
        let whole = |seconds| i64::try_from(seconds).unwrap_or(i64::MAX);
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Timestamp {
                seconds: whole(after.as_secs()),
                nanoseconds: after.subsec_nanos(),
            },
            Err(before) => {
                // Nanoseconds count forward from the second before.
                let before = before.duration();
                let part = before.subsec_nanos();
                Timestamp {
                    seconds: -whole(before.as_secs()) - i64::from(part > 0),
                    nanoseconds: (NANOSECONDS - part) % NANOSECONDS,
                }
            }
        }
    }
}

/// A time outside [`Timestamp::RANGE`] becomes the nearest end of it, as on disk. Nanoseconds are added even if they
/// make more than a second.
impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> SystemTime {
        let (first, last) = (*Timestamp::RANGE.start(), *Timestamp::RANGE.end());
        let seconds = time.seconds.clamp(first, last);
        let whole = Duration::from_secs(seconds.unsigned_abs());
        let second = if seconds < 0 {
            UNIX_EPOCH - whole
        } else {
            UNIX_EPOCH + whole
        };
        second + Duration::from_nanos(time.nanoseconds.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_host_and_of_the_disk_are_the_same_moments() {
        for (seconds, nanoseconds) in [
            (0, 0),
            (1, 999_999_999),
            (-1, 0),
            (-1, 1),
            (-2, 999_999_999),
            (-0x8000_0000, 5),
            (0x3_7fff_ffff, 5),
        ] {
            let time = Timestamp {
                seconds,
                nanoseconds,
            };
            assert_eq!(Timestamp::from(SystemTime::from(time)), time);
        }
        let half_before = UNIX_EPOCH - Duration::from_millis(1500);
        let expected = Timestamp {
            seconds: -2,
            nanoseconds: 500_000_000,
        };
        assert_eq!(Timestamp::from(half_before), expected);
        let far = Timestamp {
            seconds: i64::MAX,
            nanoseconds: u32::MAX,
        };
        let end = SystemTime::from(far).duration_since(UNIX_EPOCH).unwrap();
        assert_eq!(end.as_secs(), 0x3_7fff_ffff + 4);
    }

    #[test]
    fn times_keep_their_epoch_and_nanoseconds() {
        for seconds in [
            -0x7fff_ffff,
            -1,
            0,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_ffff,
            0x1_7fff_ffff,
            0x1_8000_0000,
            0x3_7fff_fffe,
        ] {
            let time = Timestamp {
                seconds,
                nanoseconds: 999_999_999,
            };
            let (low, extra) = time.encode();
            assert_eq!(Timestamp::decode(low, extra), time);
        }
    }

    #[test]
    fn the_ends_of_the_range_have_no_nanoseconds() {
        let (first, last) = (*Timestamp::RANGE.start(), *Timestamp::RANGE.end());
        for (seconds, end) in [
            (first, first),
            (first - 1, first),
            (i64::MIN, first),
            (last, last),
            (last + 1, last),
            (i64::MAX, last),
        ] {
            let time = Timestamp {
                seconds,
                nanoseconds: 999_999_999,
            };
            let expected = Timestamp {
                seconds: end,
                nanoseconds: 0,
            };
            let (low, extra) = time.encode();
            assert_eq!(Timestamp::decode(low, extra), expected, "{seconds}");
        }
    }

    /// The examples of the kernel's documentation: ext4/inodes, "Inode Timestamps".
    #[test]
    fn the_documented_epochs_decode() {
        assert_eq!(Timestamp::decode(0x8000_0000, 0).seconds, -0x8000_0000);
        assert_eq!(Timestamp::decode(0x8000_0000, 1).seconds, 0x8000_0000);
        assert_eq!(Timestamp::decode(0x7fff_ffff, 3).seconds, 0x3_7fff_ffff);
    }

    #[test]
    fn types_and_codes_are_one_to_one() {
        for code in 1..=7 {
            let file_type = FileType::from_dirent_code(code).unwrap();
            assert_eq!(file_type.dirent_code(), code);
            assert_eq!(FileType::from_mode(file_type.mode_bits()), Some(file_type));
        }
        assert_eq!(FileType::from_dirent_code(0), None);
        assert_eq!(FileType::from_mode(0), None);
    }
}
