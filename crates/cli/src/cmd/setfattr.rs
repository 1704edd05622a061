//! `lanefs setfattr`: extended attributes, with the values that setfattr(1) takes.

use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine as _, alphabet};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::change::{Editing, ImageChange, paths};
use crate::context::Context;
use crate::failure::Failure;

const AFTER: &str = "A value is text (in double quotes or not, \\\\, \\\" and \\ooo as in C), 0x... in hexadecimal, or \
    0s... in base64. lanefs stat shows the attributes of a file.";

/// Set or remove extended attributes of files in an image
#[derive(clap::Args)]
#[command(after_help = AFTER)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["name", "remove"])))]
pub struct Setfattr {
    /// The attribute to set: user.NAME, trusted.NAME, security.NAME
    #[arg(short, long)]
    name: Option<OsString>,
    /// The value; without it, an empty one
    #[arg(short, long, requires = "name", allow_hyphen_values = true, value_parser = value)]
    value: Option<Value>,
    /// Remove this attribute
    #[arg(short = 'x', long, value_name = "NAME")]
    remove: Option<OsString>,
    /// Print more; twice for still more (-v is the value here, as in setfattr)
    #[arg(id = "verbose", long = "verbose", action = clap::ArgAction::Count)]
    _verbose: u8,
    /// Change a symbolic link itself, not its target
    #[arg(long)]
    no_dereference: bool,
    /// IMAGE:PATH ..., or IMAGE followed by paths; in a script, paths
    #[arg(required = true, value_name = "IMAGE:PATH")]
    places: Vec<OsString>,
}

/// A value's bytes; a type of its own, so that clap takes it for one argument.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Value(Vec<u8>);

impl ImageChange for Setfattr {
    fn places(&mut self) -> &mut Vec<OsString> {
        &mut self.places
    }

    fn apply(&self, _: &Context, fs: &Editing<'_>) -> Result<(), Failure> {
        let empty = Value::default();
        let value = &self.value.as_ref().unwrap_or(&empty).0;
        for path in paths(&self.places) {
            let done = match (&self.name, &self.remove, self.no_dereference) {
                (Some(name), _, false) => fs.set_xattr(path, name.as_bytes(), value),
                (Some(name), _, true) => fs.set_symlink_xattr(path, name.as_bytes(), value),
                (None, Some(name), false) => fs.remove_xattr(path, name.as_bytes()),
                (None, Some(name), true) => fs.remove_symlink_xattr(path, name.as_bytes()),
                (None, None, _) => Ok(()),
            };
            done.map_err(Failure::new)?;
            fs.keep();
        }
        Ok(())
    }
}

/// The usual letters, with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Reads a value as setfattr does.
fn value(text: &str) -> Result<Value, String> {
    let bytes = OsString::from(text).into_vec();
    let encoded = |prefixes: [&str; 2]| prefixes.iter().find_map(|p| text.strip_prefix(p));
    if let Some(digits) = encoded(["0x", "0X"]) {
        return hexadecimal(digits.as_bytes())
            .map(Value)
            .ok_or_else(|| format!("`{text}` is not hexadecimal"));
    }
    if let Some(letters) = encoded(["0s", "0S"]) {
        let bytes = BASE64.decode(letters);
        return bytes
            .map(Value)
            .map_err(|_| format!("`{text}` is not base64"));
    }
    let quoted = bytes
        .strip_prefix(b"\"")
        .and_then(|b| b.strip_suffix(b"\""));
    Ok(Value(unescaped(quoted.unwrap_or(&bytes))))
}

fn hexadecimal(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: &u8| (*byte as char).to_digit(16);
    // Digits may be set apart by blanks; two make a byte.
    let digits: Vec<u8> = digits.iter().filter(|b| **b != b' ').copied().collect();
    let pair = |pair: &[u8]| match pair {
        // Below 256.
        [high, low] => Some((digit(high)? * 16 + digit(low)?) as u8),
        _ => None,
    };
    digits.chunks(2).map(pair).collect()
}

/// Text with `\\`, `\"` and `\ooo` taken for what they say.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    loop {
        let (byte, after) = match rest {
            [] => return bytes,
            [b'\\', escaped @ (b'\\' | b'"'), after @ ..] => (*escaped, after),
            [
                b'\\',
                high @ b'0'..=b'3',
                middle @ b'0'..=b'7',
                low @ b'0'..=b'7',
                after @ ..,
            ] => (
                (high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0'),
                after,
            ),
            [byte, after @ ..] => (*byte, after),
        };
        bytes.push(byte);
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_setfattr_reads_them() {
        let read = |text| value(text).map(|value| value.0);
        assert_eq!(read("plain").unwrap(), b"plain");
        assert_eq!(
            read("\"quoted \\\"text\\\" \\\\\"").unwrap(),
            b"quoted \"text\" \\"
        );
        assert_eq!(read("a\\012b\\400").unwrap(), b"a\nb\\400");
        assert_eq!(read("0x00fF10").unwrap(), [0, 255, 16]);
        assert_eq!(read("0sAAECAw==").unwrap(), [0, 1, 2, 3]);
        assert_eq!(read("0SaGVsbG8=").unwrap(), b"hello");
        assert_eq!(read("\"").unwrap(), b"\"");
        assert_eq!(read("").unwrap(), b"");
        for wrong in ["0x0", "0xzz", "0sA", "0s????"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
