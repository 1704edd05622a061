//! Changes fields of a file system's superblock by name and as text, as tune2fs does, while the file system is not
//! open.
//!
//! All changes of one call are one write of the superblock, after the replay of the journal; a crash leaves all of them
//! or none. The journal's area for fast commits is made before that write, and removed after it.

use std::fmt;

use device::BlockDevice;
pub use engine::Clock;
use engine::{Feature, Superblock};
use sync::Arc;

use crate::Error;

/// A field that can be changed.
pub struct Tunable {
    /// The field's name.
    pub name: &'static str,
    /// Which values it takes, in a few words.
    pub values: &'static str,
    get: fn(&Superblock) -> String,
    /// Sets the field, or returns why the value is impossible.
    set: fn(&mut Superblock, &str) -> Result<(), String>,
}

impl Tunable {
    /// The field's value in a superblock.
    #[must_use]
    pub fn get(&self, superblock: &Superblock) -> String {
        (self.get)(superblock)
    }
}

/// Why nothing was changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum TuneError {
    /// No field has this name.
    Unknown(String),
    /// Lanefs can't change the field yet; tune2fs can.
    NotYet(String),
    /// The field can't have this value.
    Value {
        /// The name of the field.
        name: &'static str,
        /// What is wrong with the value.
        why: String,
    },
    /// The file system can't be written to.
    Fs(Error),
}

impl fmt::Display for TuneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TuneError::Unknown(name) => {
                let known: Vec<&str> = TUNABLES.iter().map(|known| known.name).collect();
                write!(f, "unknown name `{name}`; known are {}", known.join(", "))
            }
            TuneError::NotYet(name) => write!(f, "{name} can't be changed yet"),
            TuneError::Value { name, why } => write!(f, "{name}: {why}"),
            TuneError::Fs(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TuneError {}

impl From<engine::Error> for TuneError {
    fn from(error: engine::Error) -> TuneError {
        TuneError::Fs(error.into())
    }
}

/// What tune2fs can change and lanefs can't yet: features, and values that every checksum depends on.
const NOT_YET: [&str; 11] = [
    "uuid",
    "has_journal",
    "metadata_csum",
    "64bit",
    "orphan_file",
    "dir_index",
    "large_dir",
    "quota",
    "project",
    "casefold",
    "inode_size",
];

/// All fields that can be changed.
pub const TUNABLES: &[Tunable] = &[
    Tunable {
        name: "label",
        values: "at most 16 bytes",
        get: |superblock| String::from_utf8_lossy(superblock.label()).into_owned(),
        set: |superblock, value| {
            let label = text(value, LABEL_BYTES)?;
            superblock.set_label(label);
            Ok(())
        },
    },
    Tunable {
        name: "errors",
        values: "continue, remount-ro, panic",
        get: |superblock| one_of(superblock.errors(), ON_ERROR),
        set: |superblock, value| {
            superblock.set_errors(number_of(value, ON_ERROR)?);
            Ok(())
        },
    },
    Tunable {
        name: "reserved_percent",
        values: "0 to 50, of all blocks, for reserved_uid and reserved_gid",
        get: |superblock| percent(superblock),
        set: set_percent,
    },
    Tunable {
        name: "reserved_blocks",
        values: "0 to half of all blocks",
        get: |superblock| superblock.reserved_blocks_count().to_string(),
        set: |superblock, value| {
            let most = superblock.blocks_count() / 2;
            superblock.set_reserved_blocks_count(number(value, most)?);
            Ok(())
        },
    },
    Tunable {
        name: "reserved_uid",
        values: "a user's number",
        get: |superblock| superblock.reserve_uid().to_string(),
        set: |superblock, value| {
            superblock.set_reserve_uid(small(value)?);
            Ok(())
        },
    },
    Tunable {
        name: "reserved_gid",
        values: "a group's number",
        get: |superblock| superblock.reserve_gid().to_string(),
        set: |superblock, value| {
            superblock.set_reserve_gid(small(value)?);
            Ok(())
        },
    },
    Tunable {
        name: "default_mount_opts",
        values: "options separated by commas, or nothing: debug, bsdgroups, user_xattr, acl, uid16, journal_data, \
                 journal_data_ordered, journal_data_writeback, nobarrier, block_validity, discard, nodelalloc",
        get: |superblock| default_options(superblock.default_mount_options()),
        set: set_default_options,
    },
    Tunable {
        name: "mount_opts",
        values: "options separated by commas, at most 63 bytes",
        get: |superblock| String::from_utf8_lossy(superblock.mount_options()).into_owned(),
        set: |superblock, value| {
            superblock.set_mount_options(text(value, OPTION_BYTES)?);
            Ok(())
        },
    },
    Tunable {
        name: "max_mount_count",
        values: "mounts until e2fsck looks at it; 0 for never",
        get: |superblock| match superblock.max_mount_count() {
            u16::MAX => "0".into(),
            count => count.to_string(),
        },
        set: |superblock, value| {
            superblock.set_max_mount_count(match small(value)? {
                0 => u16::MAX,
                count => count,
            });
            Ok(())
        },
    },
    Tunable {
        name: "mount_count",
        values: "mounts since e2fsck looked at it",
        get: |superblock| superblock.mount_count().to_string(),
        set: |superblock, value| {
            superblock.set_mount_count(small(value)?);
            Ok(())
        },
    },
    Tunable {
        name: "check_interval",
        values: "time until e2fsck looks at it: 3600s, 30d, 4w, 6m; 0 for never",
        get: |superblock| interval(superblock.check_interval()),
        set: |superblock, value| {
            superblock.set_check_interval(seconds(value)?);
            Ok(())
        },
    },
    Tunable {
        name: "stride",
        values: "blocks on one disk of a RAID before the next",
        get: |superblock| superblock.raid_stride().to_string(),
        set: |superblock, value| {
            superblock.set_raid_stride(small(value)?);
            Ok(())
        },
    },
    Tunable {
        name: "stripe_width",
        values: "blocks on all data disks of a RAID",
        get: |superblock| superblock.raid_stripe_width().to_string(),
        set: |superblock, value| {
            // The value is at most `u32::MAX`.
            let width = number(value, u32::MAX.into())? as u32;
            superblock.set_raid_stripe_width(width);
            Ok(())
        },
    },
    Tunable {
        name: "hash_alg",
        values: "of new directories' indexes: legacy, half_md4, tea",
        get: |superblock| one_of(superblock.hash_version().into(), HASHES),
        set: |superblock, value| {
            // There are only a few numbers.
            superblock.set_hash_version(number_of(value, HASHES)? as u8);
            Ok(())
        },
    },
    Tunable {
        name: "fast_commit",
        values: "on, off: an area in the journal for what a single fsync needs",
        get: |superblock| {
            let is_on = superblock.features().has(Feature::FAST_COMMIT);
            if is_on { "on" } else { "off" }.into()
        },
        set: set_fast_commit,
    },
];

const LABEL_BYTES: usize = 16;
/// The bytes of the field, which has 64, without the zero at its end.
const OPTION_BYTES: usize = 63;
const ON_ERROR: &[(u16, &str)] = &[(1, "continue"), (2, "remount-ro"), (3, "panic")];
const HASHES: &[(u16, &str)] = &[(0, "legacy"), (1, "half_md4"), (2, "tea")];
/// The bits of the default mount options. The way in which data are journaled takes two bits, for one of three values.
const OPTIONS: &[(u32, &str)] = &[
    (0x1, "debug"),
    (0x2, "bsdgroups"),
    (0x4, "user_xattr"),
    (0x8, "acl"),
    (0x10, "uid16"),
    (0x60, "journal_data_writeback"),
    (0x40, "journal_data_ordered"),
    (0x20, "journal_data"),
    (0x100, "nobarrier"),
    (0x200, "block_validity"),
    (0x400, "discard"),
    (0x800, "nodelalloc"),
];
const DATA_MODE: u32 = 0x60;
const UNITS: &[(u32, &str)] = &[
    (30 * 24 * 3600, "m"),
    (7 * 24 * 3600, "w"),
    (24 * 3600, "d"),
    (1, "s"),
];

/// The field with this name.
///
/// # Errors
/// `Unknown`; `NotYet`.
pub fn tunable(name: &str) -> Result<&'static Tunable, TuneError> {
    match TUNABLES.iter().find(|known| known.name == name) {
        Some(known) => Ok(known),
        None if NOT_YET.contains(&name) => Err(TuneError::NotYet(name.into())),
        None => Err(TuneError::Unknown(name.into())),
    }
}

/// Sets the named fields to these values, all at once, in a file system that is not open. `clock` supplies the time of
/// the change.
///
/// # Errors
/// Names a field or a value that is not possible; nothing is changed then. Also when the device can't be written.
pub fn tune(
    device: &Arc<dyn BlockDevice>,
    changes: &[(&str, &str)],
    clock: Clock,
) -> Result<(), TuneError> {
    let changes: Vec<(&Tunable, &str)> = changes
        .iter()
        .map(|(name, value)| Ok((tunable(name)?, *value)))
        .collect::<Result<_, TuneError>>()?;
    engine::tune(device, clock, |superblock| {
        for (tunable, value) in &changes {
            let wrong = |why| TuneError::Value {
                name: tunable.name,
                why,
            };
            (tunable.set)(superblock, value).map_err(wrong)?;
        }
        Ok(())
    })
}

fn text(value: &str, most: usize) -> Result<&[u8], String> {
    if value.len() > most || value.contains('\0') {
        Err(format!("`{value}` has more than {most} bytes"))
    } else {
        Ok(value.as_bytes())
    }
}

fn number(value: &str, most: u64) -> Result<u64, String> {
    let number = value.parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| format!("`{value}` is not a number from 0 to {most}"))
}

fn small(value: &str) -> Result<u16, String> {
    // The value is below `u16::MAX`.
    Ok(number(value, u64::from(u16::MAX) - 1)? as u16)
}

fn one_of(number: u16, words: &[(u16, &str)]) -> String {
    let known = words.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| number.to_string(), |(_, word)| (*word).to_owned())
}

fn number_of(value: &str, words: &[(u16, &str)]) -> Result<u16, String> {
    let known = words.iter().find(|(_, word)| *word == value);
    let all: Vec<&str> = words.iter().map(|(_, word)| *word).collect();
    known.map_or_else(
        || Err(format!("`{value}` is not one of: {}", all.join(", "))),
        |(number, _)| Ok(*number),
    )
}

/// The share of reserved blocks in percent, with up to two decimals, as text.
fn percent(superblock: &Superblock) -> String {
    let all = u128::from(superblock.blocks_count().max(1));
    let hundredths = (u128::from(superblock.reserved_blocks_count()) * 10_000 + all / 2) / all;
    let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn set_percent(superblock: &mut Superblock, value: &str) -> Result<(), String> {
    let wrong = || format!("`{value}` is not a number from 0 to 50");
    let (whole, part) = value.split_once('.').unwrap_or((value, ""));
    if part.len() > 4 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let whole = number(whole, 50).map_err(|_| wrong())?;
    let part: u64 = format!("{part:0<4}").parse().map_err(|_| wrong())?;
    let millionths = u128::from(whole * 10_000 + part);
    if millionths > 500_000 {
        return Err(wrong());
    }
    let blocks = u128::from(superblock.blocks_count()) * millionths / 1_000_000;
    // At most half of a count of blocks.
    superblock.set_reserved_blocks_count(blocks as u64);
    Ok(())
}

fn default_options(bits: u32) -> String {
    let is_set = |mask: u32| match mask & DATA_MODE {
        0 => bits & mask != 0,
        _ => bits & DATA_MODE == mask,
    };
    let words = OPTIONS.iter().filter(|(mask, _)| is_set(*mask));
    words.map(|(_, word)| *word).collect::<Vec<_>>().join(",")
}

fn set_default_options(superblock: &mut Superblock, value: &str) -> Result<(), String> {
    let known = OPTIONS.iter().fold(0, |all, (mask, _)| all | mask);
    // Bits that this program does not know are kept.
    let mut bits = superblock.default_mount_options() & !known;
    for word in value.split(',').filter(|word| !word.is_empty()) {
        let found = OPTIONS.iter().find(|(_, known)| *known == word);
        let (mask, _) =
            found.ok_or_else(|| format!("`{word}` is not a mount option by default"))?;
        let is_mode = mask & DATA_MODE != 0;
        if is_mode && bits & DATA_MODE != 0 {
            return Err(format!("`{value}` says twice how data are journaled"));
        }
        bits |= mask;
    }
    superblock.set_default_mount_options(bits);
    Ok(())
}

fn set_fast_commit(superblock: &mut Superblock, value: &str) -> Result<(), String> {
    let features = superblock.features();
    let features = match value {
        "on" if !features.has(Feature::HAS_JOURNAL) => {
            return Err("the image has no journal".into());
        }
        "on" => features.with(Feature::FAST_COMMIT),
        "off" => features.without(Feature::FAST_COMMIT),
        _ => return Err(format!("`{value}` is not one of: on, off")),
    };
    superblock.set_features(features);
    Ok(())
}

fn interval(seconds: u32) -> String {
    let unit = UNITS.iter().find(|(unit, _)| seconds.is_multiple_of(*unit));
    match (seconds, unit) {
        (0, _) | (_, None) => "0".into(),
        (seconds, Some((unit, word))) => format!("{}{word}", seconds / unit),
    }
}

fn seconds(value: &str) -> Result<u32, String> {
    let wrong = || format!("invalid time `{value}`: write 3600s, 30d, 4w, 6m or 0");
    if value == "0" {
        return Ok(0);
    }
    let unit = UNITS.iter().find(|(_, word)| value.ends_with(word));
    let (unit, word) = unit.ok_or_else(wrong)?;
    let count: u32 = value
        .strip_suffix(word)
        .and_then(|count| count.parse().ok())
        .ok_or_else(wrong)?;
    count.checked_mul(*unit).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(superblock: &mut Superblock, name: &str, value: &str) -> Result<String, String> {
        let tunable = tunable(name).map_err(|error| error.to_string())?;
        (tunable.set)(superblock, value)?;
        Ok(tunable.get(superblock))
    }

    #[test]
    fn values_read_as_they_were_written_and_what_is_wrong_is_refused() {
        let mut superblock = Superblock::zeroed();
        superblock.set_blocks_count(100_000);
        for (name, value) in [
            ("label", "root"),
            ("label", ""),
            ("errors", "remount-ro"),
            ("reserved_percent", "1.5"),
            ("reserved_percent", "50"),
            ("reserved_blocks", "1234"),
            ("reserved_uid", "1000"),
            (
                "default_mount_opts",
                "user_xattr,acl,journal_data_writeback,discard",
            ),
            ("default_mount_opts", ""),
            ("mount_opts", "noatime,commit=30"),
            ("max_mount_count", "0"),
            ("max_mount_count", "25"),
            ("check_interval", "0"),
            ("check_interval", "6m"),
            ("check_interval", "10d"),
            ("check_interval", "61s"),
            ("stride", "16"),
            ("stripe_width", "4000000000"),
            ("hash_alg", "tea"),
            ("fast_commit", "off"),
        ] {
            assert_eq!(
                set(&mut superblock, name, value).as_deref(),
                Ok(value),
                "{name}"
            );
        }
        for (name, value) in [
            ("label", "seventeen letters"),
            ("errors", "ignore"),
            ("reserved_percent", "50.0001"),
            ("reserved_percent", "1.x"),
            ("reserved_percent", ""),
            ("reserved_blocks", "50001"),
            ("reserved_uid", "-1"),
            ("default_mount_opts", "journal_data,journal_data_ordered"),
            ("default_mount_opts", "noatime"),
            ("max_mount_count", "65535"),
            ("check_interval", "6"),
            ("check_interval", "999999999m"),
            ("fast_commit", "yes"),
            ("uuid", "random"),
            ("speed", "11"),
        ] {
            assert!(set(&mut superblock, name, value).is_err(), "{name}={value}");
        }
    }
}
