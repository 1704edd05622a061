//! One 512-byte header block: v7, ustar and old GNU fields. Numbers are octal text or, with the top bit set, base 256.

/// The size of a header in bytes; data are padded to a multiple of it.
pub(crate) const BLOCK: usize = 512;

/// A header block whose checksum is right.
pub(super) struct Header(pub(super) [u8; BLOCK]);

/// The format of a header, which decides the fields that it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    V7,
    Ustar,
    Gnu,
}

/// Whether these bytes are the beginning of a tar that has entries.
pub(crate) fn is_header(start: &[u8]) -> bool {
    let first = start.first_chunk().map(|block| Header(*block));
    first.is_some_and(|header| !header.is_zero() && header.checksum_fits())
}

impl Header {
    /// Whether the block is all zeros, as at the end of an archive.
    pub(super) fn is_zero(&self) -> bool {
        self.0.iter().all(|byte| *byte == 0)
    }

    /// Whether the checksum is right: as a sum of unsigned bytes, or of signed ones, which some old programs wrote.
    pub(super) fn checksum_fits(&self) -> bool {
        let Some(stored) = number(&self.0[148..156]) else {
            return false;
        };
        let bytes = self.0.iter().enumerate();
        let bytes = bytes.map(|(at, byte)| {
            if (148..156).contains(&at) {
                b' '
            } else {
                *byte
            }
        });
        let unsigned: i64 = bytes.clone().map(i64::from).sum();
        let signed: i64 = bytes.map(|byte| i64::from(byte.cast_signed())).sum();
        stored == unsigned || stored == signed
    }

    pub(super) fn format(&self) -> Format {
        match &self.0[257..265] {
            b"ustar  \0" => Format::Gnu,
            magic if magic.starts_with(b"ustar") => Format::Ustar,
            _ => Format::V7,
        }
    }

    pub(super) fn typeflag(&self) -> u8 {
        self.0[156]
    }

    /// The name, with the prefix of a ustar header.
    pub(super) fn name(&self) -> Vec<u8> {
        let name = text(&self.0[..100]);
        let prefix = text(&self.0[345..500]);
        if self.format() != Format::Ustar || prefix.is_empty() {
            return name.to_vec();
        }
        [prefix, b"/", name].concat()
    }

    pub(super) fn link_name(&self) -> &[u8] {
        text(&self.0[157..257])
    }

    pub(super) fn mode(&self) -> Option<i64> {
        number(&self.0[100..108])
    }

    pub(super) fn uid(&self) -> Option<i64> {
        number(&self.0[108..116])
    }

    pub(super) fn gid(&self) -> Option<i64> {
        number(&self.0[116..124])
    }

    pub(super) fn size(&self) -> Option<i64> {
        number(&self.0[124..136])
    }

    pub(super) fn mtime(&self) -> Option<i64> {
        number(&self.0[136..148])
    }

    /// Major and minor number.
    pub(super) fn device(&self) -> (Option<i64>, Option<i64>) {
        if self.format() == Format::V7 {
            return (Some(0), Some(0));
        }
        (number(&self.0[329..337]), number(&self.0[337..345]))
    }

    /// Old GNU headers of incremental archives: the other two times, if they are set.
    pub(super) fn gnu_times(&self) -> (Option<i64>, Option<i64>) {
        let field = |range: std::ops::Range<usize>| {
            let field = &self.0[range];
            let blank = field.iter().all(|byte| matches!(byte, 0 | b' '));
            if self.format() == Format::Gnu && !blank {
                number(field)
            } else {
                None
            }
        };
        (field(345..357), field(357..369))
    }

    /// Old GNU sparse headers: offset and length of up to four data runs.
    pub(super) fn gnu_sparse(&self) -> &[u8] {
        &self.0[386..482]
    }

    /// Old GNU sparse headers: whether blocks with more runs follow.
    pub(super) fn gnu_sparse_continues(&self) -> bool {
        self.0[482] != 0
    }

    /// Old GNU sparse headers: the file's size with its holes.
    pub(super) fn gnu_real_size(&self) -> Option<i64> {
        number(&self.0[483..495])
    }
}

/// A field up to its first NUL.
fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0);
    &field[..end.unwrap_or(field.len())]
}

/// The number in a field; an empty field is 0. `None` if the field has no number, or the number does not fit.
pub(super) fn number(field: &[u8]) -> Option<i64> {
    let first = *field.first()?;
    if first & 0x80 != 0 {
        // Two's complement, the most significant byte first. 0x80 marks a positive number and is not one of its bits.
        let negative = first & 0x40 != 0;
        let start = if negative {
            -1
        } else {
            i64::from(first & 0x3f)
        };
        return field[1..].iter().try_fold(start, |value, byte| {
            value.checked_mul(256)?.checked_add(i64::from(*byte))
        });
    }
    let spaces = |byte: &u8| matches!(byte, b' ' | 0);
    let start = field
        .iter()
        .position(|byte| *byte != b' ')
        .unwrap_or(field.len());
    let digits = &field[start..];
    let end = digits.iter().position(spaces).unwrap_or(digits.len());
    if !digits[end..].iter().all(spaces) {
        return None;
    }
    digits[..end].iter().try_fold(0_i64, |value, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 8)?;
        value.checked_mul(8)?.checked_add(i64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_are_octal_or_base_256_of_either_sign() {
        for (field, expected) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"        ", Some(0)),
            (b"\0\0\0\0", Some(0)),
            (b"77777777777", Some(0o77_777_777_777)),
            (b"0000648\0", None),
            (b"12 34\0", None),
            (b"\x80\0\0\0\0\0\x01\0", Some(256)),
            (b"\x80\0\0\0\0\x02\0\0\0\0\0\0", Some(2 << 48)),
            (
                b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe",
                Some(-2),
            ),
            (b"\xbf\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe", None),
            (b"", None),
        ] {
            assert_eq!(number(field), expected, "{field:?}");
        }
    }
}
