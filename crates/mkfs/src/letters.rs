//! mke2fs's option letters and their arguments as text, for the command line and for scripts that use them.

use ondisk::BlockSize;

use crate::{BlocksOrBytes, Error, FsType, Options, UsageType};

/// The error for a letter whose argument can't be read.
fn bad(option: &str, value: &str, wanted: &str) -> Error {
    Error::option(format!("{option} {value}"), format!("is not {wanted}"))
}

/// A whole number that fits its field, written in a form that [`whole`] accepts.
fn number<T: TryFrom<u64>>(option: &str, value: &str, wanted: &str) -> Result<T, Error> {
    let number = whole(value.trim()).and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| bad(option, value, wanted))
}

/// A whole number in a form that C's `strtoul` accepts with base 0, as mke2fs reads all numbers: decimal, hexadecimal
/// after `0x`, octal after `0`.
fn whole(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let (digits, base) = match lower.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None if lower.len() > 1 && lower.starts_with('0') => (&lower[1..], 8),
        None => (&lower[..], 10),
    };
    // `from_str_radix` would accept a sign.
    let signed = digits.starts_with(['+', '-']);
    u64::from_str_radix(digits, base).ok().filter(|_| !signed)
}

/// A size as mke2fs accepts it: a number followed by `K`, `M`, `G`, `T` (powers of 1024, in bytes) or `s` (sectors of
/// 512 bytes); without a letter, a number of units of `unit` bytes. `KiB`, `MiB` and so on are accepted, too.
///
/// # Errors
/// If `text` is not such a number, or the size does not fit 64 bits.
pub fn parse_size(option: &str, text: &str, unit: u64) -> Result<u64, Error> {
    let size = split_size(option, text)?;
    let bytes = size.number.checked_mul(size.factor.unwrap_or(unit));
    bytes.ok_or_else(|| bad(option, text, "a size below 16 EiB"))
}

/// A size as a number and the factor of its letter.
struct Size {
    number: u64,
    /// The factor from the letter's unit to bytes; `None` without a letter.
    factor: Option<u64>,
}

fn split_size(option: &str, text: &str) -> Result<Size, Error> {
    let wanted = "a size (a number with K, M, G, T, or s for sectors)";
    let text = text.trim();
    let is_hex = text.starts_with("0x") || text.starts_with("0X");
    let is_digit = |(at, c): &(usize, char)| {
        if is_hex {
            *at < 2 || c.is_ascii_hexdigit()
        } else {
            c.is_ascii_digit()
        }
    };
    let end = text.char_indices().find(|place| !is_digit(place));
    let (digits, letter) = text.split_at(end.map_or(text.len(), |(at, _)| at));
    let factor = match letter.to_ascii_lowercase().as_str() {
        "" => None,
        "s" => Some(512),
        "k" | "kib" => Some(1 << 10),
        "m" | "mib" => Some(1 << 20),
        "g" | "gib" => Some(1 << 30),
        "t" | "tib" => Some(1 << 40),
        _ => return Err(bad(option, text, wanted)),
    };
    match whole(digits) {
        Some(number) => Ok(Size { number, factor }),
        None => Err(bad(option, text, wanted)),
    }
}

/// Sixteen bytes written as a UUID.
fn parse_uuid(option: &str, text: &str) -> Result<[u8; 16], Error> {
    uuid_of(text.trim()).ok_or_else(|| bad(option, text, "a UUID"))
}

/// The bytes of a UUID that is written as 32 hexadecimal digits, without dashes or with all four in their places.
fn uuid_of(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = match text.len() {
        32 => text.bytes().collect(),
        36 => {
            let is_dashed = (text.bytes().zip(0..))
                .all(|(byte, at)| (byte == b'-') == matches!(at, 8 | 13 | 18 | 23));
            is_dashed.then(|| text.bytes().filter(|byte| *byte != b'-').collect())?
        }
        _ => return None,
    };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()?;
    }
    Some(uuid)
}

fn switch(option: &str, value: Option<&str>) -> Result<bool, Error> {
    match value {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(other) => Err(bad(option, other, "0 or 1")),
    }
}

impl Options {
    /// Sets an option by mke2fs's letter and its argument (empty for letters without one): `set('b', "4096")`,
    /// `set('E', "stride=16,lazy_itable_init=0")`. Letters that only control how the program runs (`n`, `q`, `v`, `F`)
    /// are not accepted.
    ///
    /// # Errors
    /// Letters and arguments that are unknown or not supported, by name.
    pub fn set(&mut self, letter: char, value: &str) -> Result<(), Error> {
        let option = &format!("-{letter}");
        match letter {
            'b' => match value.trim().strip_prefix('-') {
                Some(least) => self.least_block_size = Some(block_size(least)?),
                None => self.block_size = Some(block_size(value)?),
            },
            'C' => self.cluster_size = Some(parse_size(option, value, 1)?),
            'E' => return self.set_list(option, value, Options::set_extended),
            'G' => self.groups_per_flex = Some(number(option, value, "a number of groups")?),
            'I' => self.inode_size = Some(number(option, value, "a number of bytes")?),
            'J' => {
                self.wants_journal = true;
                return self.set_list(option, value, Options::set_journal);
            }
            'L' => self.label = value.as_bytes().to_vec(),
            'M' => self.last_mounted = value.as_bytes().to_vec(),
            'N' => self.inodes = Some(parse_size(option, value, 1)?),
            'O' if self.features.is_empty() => self.features = value.into(),
            'O' => self.features = format!("{},{value}", self.features),
            'T' => self.usage_types = usage_types(value)?,
            'U' => {
                self.uuid = uuid(value)?;
                self.random_uuid = self.uuid.is_none();
            }
            'e' => self.errors = errors(value)?,
            'g' => self.blocks_per_group = Some(number(option, value, "a number of blocks")?),
            'i' => self.inode_ratio = Some(parse_size(option, value, 1)?),
            'j' => self.wants_journal = true,
            'm' => {
                let percent = value.trim().parse();
                self.reserved_percent =
                    percent.map_err(|_| bad(option, value, "a number of percent"))?;
            }
            'o' => self.creator_os = creator_os(value)?,
            'r' => revision(value)?,
            't' => self.fs_type = fs_type(value)?,
            'c' | 'l' => {
                return Err(Error::option(
                    option,
                    "bad blocks aren't supported: disks remap them themselves",
                ));
            }
            'd' => {
                return Err(Error::option(
                    option,
                    "`lanefs build SOURCE IMAGE` makes a populated image",
                ));
            }
            'S' => {
                return Err(Error::option(
                    option,
                    "would only write superblocks; use `mke2fs -S`",
                ));
            }
            'D' => return Err(Error::option(option, "direct I/O is not supported")),
            'z' => {
                return Err(Error::option(
                    option,
                    "undo files are not supported; keep a copy of the image",
                ));
            }
            _ => return Err(Error::option(option, "is unknown")),
        }
        Ok(())
    }

    fn set_list(
        &mut self,
        option: &str,
        list: &str,
        set: fn(&mut Options, &str, &str, Option<&str>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for item in list.split(',').filter(|item| !item.is_empty()) {
            let (name, value) = match item.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (item, None),
            };
            set(
                self,
                &format!("{option} {name}"),
                &name.replace('-', "_"),
                value,
            )?;
        }
        Ok(())
    }

    fn set_extended(&mut self, option: &str, name: &str, value: Option<&str>) -> Result<(), Error> {
        // If a required value is missing, the code that reads it reports that.
        let text = value.unwrap_or_default();
        let count = "a number";
        match name {
            "desc_size" => self.desc_size = Some(number(option, text, count)?),
            "hash_seed" => self.hash_seed = Some(parse_uuid(option, text)?),
            "offset" => self.offset = parse_size(option, text, 1)?,
            "mmp_update_interval" => {
                self.mmp_interval = Some(number(option, text, "a number of seconds")?)
            }
            "num_backup_sb" => self.backup_superblocks = Some(number(option, text, count)?),
            "packed_meta_blocks" => self.packed_meta_blocks = switch(option, value)?,
            "stride" => self.stride = Some(number(option, text, "a number of blocks up to 65535")?),
            "stripe_width" => self.stripe_width = Some(number(option, text, "a number of blocks")?),
            "resize" => self.resize = Some(blocks_or_bytes(option, text)?),
            "lazy_itable_init" => self.lazy_itable_init = switch(option, value)?,
            "lazy_journal_init" => self.lazy_journal_init = switch(option, value)?,
            "assume_storage_prezeroed" => self.device_is_zero = switch(option, value)?,
            "test_fs" => self.test_fs = true,
            "root_owner" => self.root_owner = Some(owner(option, value)?),
            "discard" => self.discard = true,
            "nodiscard" => self.discard = false,
            "encoding" => self.encoding = Some(text.into()),
            "encoding_flags" => self.strict_encoding = strict(option, text)?,
            "orphan_file_size" => self.orphan_file_size = Some(blocks_or_bytes(option, text)?),
            "quotatype" => {
                return Err(Error::option(
                    option,
                    "quota files can't be made; `tune2fs -O quota` adds them",
                ));
            }
            "android_sparse" => {
                return Err(Error::option(
                    option,
                    "Android's sparse format can't be written",
                ));
            }
            _ => return Err(Error::option(option, "is unknown")),
        }
        Ok(())
    }

    fn set_journal(&mut self, option: &str, name: &str, value: Option<&str>) -> Result<(), Error> {
        let text = value.unwrap_or_default();
        match name {
            "size" => self.journal.size_mib = Some(mebibytes(option, text)?),
            "fast_commit_size" => {
                self.journal.fast_commit_kib = Some(parse_size(option, text, 1024)? >> 10)
            }
            "location" => self.journal.location = Some(number(option, text, "a block number")?),
            "device" if text.starts_with("UUID=") || text.starts_with("LABEL=") => {
                return Err(Error::option(
                    option,
                    "can't be searched for; give its path",
                ));
            }
            "device" => self.journal.device_path = Some(text.into()),
            _ => return Err(Error::option(option, "is unknown")),
        }
        Ok(())
    }
}

fn block_size(value: &str) -> Result<BlockSize, Error> {
    let bytes = parse_size("-b", value, 1)?;
    BlockSize::from_bytes(bytes)
        .ok_or_else(|| bad("-b", value, "a power of two from 1024 to 65536"))
}

/// A number of blocks, or of bytes if it has a letter.
fn blocks_or_bytes(option: &str, text: &str) -> Result<BlocksOrBytes, Error> {
    let size = split_size(option, text)?;
    match size.factor {
        None => Ok(BlocksOrBytes::Blocks(size.number)),
        Some(_) => parse_size(option, text, 1).map(BlocksOrBytes::Bytes),
    }
}

/// A number of MiB, with or without a letter.
fn mebibytes(option: &str, text: &str) -> Result<u64, Error> {
    Ok(parse_size(option, text, 1 << 20)? >> 20)
}

fn usage_types(value: &str) -> Result<Vec<UsageType>, Error> {
    let known = |name: &str| {
        UsageType::from_name(name).ok_or_else(|| {
            let names: Vec<&str> = UsageType::ALL.iter().map(|(name, _)| *name).collect();
            bad("-T", name, &format!("one of {}", names.join(", ")))
        })
    };
    value
        .split(',')
        .filter(|name| !name.is_empty())
        .map(known)
        .collect()
}

fn fs_type(value: &str) -> Result<FsType, Error> {
    match value {
        "ext2" => Ok(FsType::Ext2),
        "ext3" => Ok(FsType::Ext3),
        "ext4" => Ok(FsType::Ext4),
        _ => Err(bad("-t", value, "one of ext2, ext3, ext4")),
    }
}

fn uuid(value: &str) -> Result<Option<[u8; 16]>, Error> {
    match value {
        "random" => Ok(None),
        "clear" => Ok(Some([0; 16])),
        "time" => Err(Error::option(
            "-U time",
            "would tell when and where the image was made; use random, or a UUID",
        )),
        _ => parse_uuid("-U", value).map(Some),
    }
}

fn errors(value: &str) -> Result<u16, Error> {
    match value {
        "continue" => Ok(1),
        "remount-ro" => Ok(2),
        "panic" => Ok(3),
        _ => Err(bad("-e", value, "one of continue, remount-ro, panic")),
    }
}

fn creator_os(value: &str) -> Result<u32, Error> {
    const NAMES: [&str; 5] = ["linux", "hurd", "masix", "freebsd", "lites"];
    let lower = value.to_ascii_lowercase();
    match (0..).zip(NAMES).find(|(_, name)| *name == lower) {
        // The translators of GNU/Hurd are stored in fields that this program does not write.
        Some((1, _)) => Err(Error::option(
            "-o hurd",
            "the Hurd's own fields can't be made; use mke2fs",
        )),
        Some((number, _)) => Ok(number),
        None => number("-o", value, "linux, masix, freebsd, lites or a number"),
    }
}

fn revision(value: &str) -> Result<(), Error> {
    match value {
        "1" => Ok(()),
        "0" => Err(Error::option(
            "-r 0",
            "revision 0 has no features and dates from 1995; leave it out",
        )),
        _ => Err(bad("-r", value, "1")),
    }
}

/// An owner; without a value it is the caller, as in mke2fs.
fn owner(option: &str, value: Option<&str>) -> Result<(u32, u32), Error> {
    let Some(value) = value else {
        return Ok(device::host::user());
    };
    let (uid, gid) = value
        .split_once(':')
        .ok_or_else(|| bad(option, value, "UID:GID"))?;
    Ok((
        number(option, uid, "a user's number")?,
        number(option, gid, "a group's number")?,
    ))
}

fn strict(option: &str, value: &str) -> Result<bool, Error> {
    match value {
        "strict" => Ok(true),
        "nostrict" | "no-strict" => Ok(false),
        _ => Err(bad(option, value, "strict or nostrict")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_mke2fs_letters() {
        for (text, bytes) in [
            ("12", 12 * 1024),
            ("12K", 12 << 10),
            ("3m", 3 << 20),
            ("2G", 2 << 30),
            ("15T", 15 << 40),
            ("8s", 4096),
            ("1MiB", 1 << 20),
            ("0x10", 16 << 10),
            ("0xFm", 15 << 20),
            ("010", 8 << 10),
            ("0", 0),
        ] {
            assert_eq!(parse_size("SIZE", text, 1024).unwrap(), bytes, "{text}");
        }
        for text in [
            "",
            "K",
            "-1",
            "+1",
            "1.5G",
            "12X",
            "99999999T",
            "0x",
            "0xg",
            "08",
        ] {
            assert!(parse_size("SIZE", text, 1024).is_err(), "{text}");
        }
    }

    #[test]
    fn letters_become_fields() {
        let mut options = Options::default();
        for (letter, value) in [
            ('b', "4096"),
            ('O', "^has_journal"),
            ('O', "bigalloc"),
            ('C', "64K"),
            (
                'E',
                "stride=16,stripe-width=32,hash_seed=01020304-0506-0708-090a-0b0c0d0e0f10,root_owner=5:6",
            ),
            ('E', "lazy_itable_init=0,nodiscard"),
            ('J', "size=64,location=7"),
            ('U', "clear"),
            ('T', "news"),
        ] {
            options.set(letter, value).unwrap();
        }
        assert_eq!(options.block_size, Some(BlockSize::K4));
        assert_eq!(options.features, "^has_journal,bigalloc");
        assert_eq!(options.cluster_size, Some(65536));
        assert_eq!((options.stride, options.stripe_width), (Some(16), Some(32)));
        assert_eq!(options.root_owner, Some((5, 6)));
        options.set('E', "root_owner").unwrap();
        assert_eq!(options.root_owner, Some(device::host::user()));
        assert_eq!((options.lazy_itable_init, options.discard), (false, false));
        assert_eq!(
            (options.journal.size_mib, options.journal.location),
            (Some(64), Some(7))
        );
        assert_eq!(options.uuid, Some([0; 16]));
        assert_eq!(options.hash_seed.map(|seed| seed[15]), Some(16));
    }

    #[test]
    fn a_negative_block_size_is_the_least_one() {
        let mut options = Options::default();
        options.set('b', "-2048").unwrap();
        assert_eq!(options.block_size, None);
        assert_eq!(options.least_block_size, BlockSize::from_bytes(2048));
        assert!(options.set('b', "-3000").is_err());
        assert!(options.set('b', "--2048").is_err());
    }

    #[test]
    fn what_cannot_be_made_is_named() {
        for (letter, value, word) in [
            ('E', "quotatype=usr", "quotatype"),
            ('E', "colour=red", "colour"),
            ('E', "stride", "stride"),
            ('J', "colour=red", "colour"),
            ('b', "3000", "3000"),
            ('T', "tiny", "floppy"),
            ('r', "0", "revision 0"),
            ('d', "dir", "lanefs build"),
            ('o', "hurd", "Hurd"),
            ('y', "", "-y"),
        ] {
            let error = Options::default()
                .set(letter, value)
                .unwrap_err()
                .to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
