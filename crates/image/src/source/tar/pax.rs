//! The records of PAX headers: `LENGTH KEY=VALUE\n`, each overriding a field of the header that follows.

use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine as _, alphabet};
use std::collections::BTreeMap;

use super::super::limits;
use super::super::time::Time;
use super::super::xattrs::Xattrs;
use super::super::xattrs::is_stored;

/// Why a record can't be used.
pub(super) type Wrong = String;

/// Records by key, the last value of each. Keys that mean nothing here are not kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Records {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// GNU sparse format 0.0 repeats its keys: offset and length of each run, in order.
    pub(super) runs: Vec<(u64, u64)>,
    offset: Option<u64>,
    /// Extended attributes by full name, not yet interned.
    pub(super) xattrs: Xattrs,
}

const KEPT: [&[u8]; 12] = [
    b"path",
    b"linkpath",
    b"size",
    b"uid",
    b"gid",
    b"mtime",
    b"atime",
    b"ctime",
    b"SCHILY.acl.access",
    b"SCHILY.acl.default",
    b"SCHILY.devmajor",
    b"SCHILY.devminor",
];

impl Records {
    /// Adds the records of one header over those that are there.
    pub(super) fn read(&mut self, mut rest: &[u8]) -> Result<(), Wrong> {
        while !rest.is_empty() {
            // Some programs pad with NUL bytes.
            if rest.iter().all(|byte| *byte == 0) {
                break;
            }
            let (record, after) = record(rest).ok_or("a PAX record is malformed")?;
            rest = after;
            let equals = record.iter().position(|byte| *byte == b'=');
            let equals = equals.ok_or("a PAX record has no `=`")?;
            self.set(&record[..equals], &record[equals + 1..])?;
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Wrong> {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            self.xattr(&unescaped(name), value)
        } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            let name = percent_decoded(name);
            let value = BASE64
                .decode(value)
                .map_err(|_| "an extended attribute is not valid base64")?;
            self.xattr(&name, &value)
        } else if key == b"RHT.security.selinux" {
            let mut label = value.to_vec();
            // As the kernel stores it: with the NUL at its end.
            if !label.ends_with(&[0]) {
                label.push(0);
            }
            self.xattr(b"security.selinux", &label)
        } else if key == b"GNU.sparse.offset" {
            self.offset = Some(decimal(value).ok_or("a sparse offset is not a number")?);
            Ok(())
        } else if key == b"GNU.sparse.numbytes" {
            let offset = self
                .offset
                .take()
                .ok_or("a sparse length comes without an offset")?;
            if self.runs.len() >= limits::FILE_EXTENTS {
                return Err(format!(
                    "a file has more than {} data runs",
                    limits::FILE_EXTENTS
                ));
            }
            let len = decimal(value).ok_or("a sparse length is not a number")?;
            self.runs.push((offset, len));
            Ok(())
        } else {
            if value.is_empty() {
                self.values.remove(key);
            } else if KEPT.contains(&key) || key.starts_with(b"GNU.sparse.") {
                self.values.insert(key.to_vec(), value.to_vec());
            }
            Ok(())
        }
    }

    fn xattr(&mut self, name: &[u8], value: &[u8]) -> Result<(), Wrong> {
        if !is_stored(name) {
            return Ok(());
        }
        if self.xattrs.len() >= limits::XATTRS && self.xattrs.get(name).is_none() {
            return Err(format!("more than {} extended attributes", limits::XATTRS));
        }
        self.xattrs.set(name, value);
        Ok(())
    }

    /// Bytes of all that is kept.
    pub(super) fn bytes(&self) -> usize {
        let values = self
            .values
            .iter()
            .map(|(key, value)| key.len() + value.len());
        values.sum::<usize>() + self.runs.len() * 16 + self.xattrs.bytes()
    }

    pub(super) fn text(&self, key: &str) -> Option<&[u8]> {
        self.values.get(key.as_bytes()).map(Vec::as_slice)
    }

    /// A number that must not be negative.
    pub(super) fn number(&self, key: &str) -> Result<Option<u64>, Wrong> {
        let Some(text) = self.text(key) else {
            return Ok(None);
        };
        decimal(text).map(Some).ok_or_else(|| {
            format!(
                "`{}` is not a value for {key}",
                text[..text.len().min(80)].escape_ascii()
            )
        })
    }

    pub(super) fn time(&self, key: &str) -> Result<Option<Time>, Wrong> {
        let Some(text) = self.text(key) else {
            return Ok(None);
        };
        time(text).map(Some).ok_or_else(|| {
            format!(
                "`{}` is not a value for {key}",
                text[..text.len().min(80)].escape_ascii()
            )
        })
    }
}

/// The first record of `bytes`, without length and newline, and what follows it.
fn record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let len = usize::try_from(decimal(&bytes[..space])?).ok()?;
    if len <= space + 1 || len > bytes.len() || bytes[len - 1] != b'\n' {
        return None;
    }
    Some((&bytes[space + 1..len - 1], &bytes[len..]))
}

pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |value, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Seconds with an optional fraction and sign; digits beyond nanoseconds are cut off, towards the past.
fn time(text: &[u8]) -> Option<Time> {
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let (whole, fraction) = match text.iter().position(|byte| *byte == b'.') {
        Some(dot) => (&text[..dot], &text[dot + 1..]),
        None => (text, &b""[..]),
    };
    if !fraction.iter().all(u8::is_ascii_digit) || whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let seconds = if whole.is_empty() { 0 } else { decimal(whole)? };
    let seconds = i64::try_from(seconds).ok()?;
    let digit = |at| fraction.get(at).map_or(0, |byte| u32::from(byte - b'0'));
    let nanoseconds = (0..9).fold(0, |value, at| value * 10 + digit(at));
    if !negative {
        return Some(Time::new(seconds, nanoseconds));
    }
    let cut = fraction.iter().skip(9).any(|byte| *byte != b'0');
    let nanoseconds = nanoseconds + u32::from(cut);
    Some(if nanoseconds == 0 {
        Time::new(-seconds, 0)
    } else {
        Time::new(-seconds - 1, 1_000_000_000 - nanoseconds)
    })
}

/// GNU tar writes `=` as `%3D` and `%` as `%25` within names.
fn unescaped(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let [first, after @ ..] = rest {
        let (byte, next) = match rest {
            [b'%', b'3', b'D', next @ ..] => (b'=', next),
            [b'%', b'2', b'5', next @ ..] => (b'%', next),
            _ => (*first, after),
        };
        out.push(byte);
        rest = next;
    }
    out
}

fn percent_decoded(name: &[u8]) -> Vec<u8> {
    let hex = |byte: u8| char::from(byte).to_digit(16);
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let [first, after @ ..] = rest {
        let coded = match rest {
            [b'%', high, low, next @ ..] => hex(*high)
                .zip(hex(*low))
                .map(|(high, low)| ((high * 16 + low) as u8, next)),
            _ => None,
        };
        let (byte, next) = coded.unwrap_or((*first, after));
        out.push(byte);
        rest = next;
    }
    out
}

/// The usual letters, with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_by_their_length_and_the_last_of_a_key_counts() {
        let mut records = Records::default();
        records
            .read(b"10 path=a\n12 path=b=\n\n20 SCHILY.xattr.a=b\n\0\0")
            .unwrap();
        assert_eq!(records.text("path"), Some(&b"b=\n"[..]));
        assert!(records.xattrs.is_empty(), "`a` is no name that ext4 stores");
        records.read(b"8 path=\n").unwrap();
        assert_eq!(records.text("path"), None);
        for wrong in [
            &b"8 path=a\n"[..],
            b"99 path=a\n",
            b"3 a",
            b"a",
            b"5 abc\n",
            b"0 \n",
        ] {
            assert!(Records::default().read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn times_have_fractions_and_may_be_before_1970() {
        for (text, seconds, nanoseconds) in [
            ("1", 1, 0),
            ("1.5", 1, 500_000_000),
            ("1.0000000019", 1, 1),
            ("-1.25", -2, 750_000_000),
            ("-3", -3, 0),
            ("-0.0000000001", -1, 999_999_999),
        ] {
            let time = time(text.as_bytes()).unwrap();
            assert_eq!(
                (time.seconds(), time.nanoseconds()),
                (seconds, nanoseconds),
                "{text}"
            );
        }
        for wrong in ["", "-", ".", "1.x", "1e3", "99999999999999999999"] {
            assert!(time(wrong.as_bytes()).is_none(), "{wrong}");
        }
    }

    #[test]
    fn extended_attributes_come_in_three_spellings() {
        let mut records = Records::default();
        records.set(b"SCHILY.xattr.user.a%3Db", b"1\0=").unwrap();
        records
            .set(b"LIBARCHIVE.xattr.user.x%20y", b"AQID")
            .unwrap();
        records.set(b"RHT.security.selinux", b"u:r:t:s0").unwrap();
        assert_eq!(records.xattrs.get(b"user.a=b"), Some(&b"1\0="[..]));
        assert_eq!(records.xattrs.get(b"user.x y"), Some(&[1, 2, 3][..]));
        assert_eq!(
            records.xattrs.get(b"security.selinux"),
            Some(&b"u:r:t:s0\0"[..])
        );
        assert!(records.set(b"LIBARCHIVE.xattr.user.x", b"?").is_err());
    }
}
