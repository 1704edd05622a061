//! How the names of encrypted directories are shown: the base64 of their bytes, with `-` and `_`, without padding
//! (RFC 4648, section 5). Unlike the kernel's names without a key these hold the whole name and no hash, so they can
//! have 340 bytes.

/// The longest encoded name: that of 255 bytes.
pub(super) const ENCODED_MAX: usize = 340;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The form in which a name is shown.
pub(super) fn encode(name: &[u8]) -> Vec<u8> {
    let mut shown = Vec::with_capacity(name.len().div_ceil(3) * 4);
    for bytes in name.chunks(3) {
        let byte = |i: usize| u32::from(bytes.get(i).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..=bytes.len() {
            let value = word >> (18 - 6 * digit) & 0x3F;
            shown.push(DIGITS[value as usize]);
        }
    }
    shown
}

/// The name that is shown like this; none if no name is.
pub(super) fn decode(shown: &[u8]) -> Option<Vec<u8>> {
    let mut name = Vec::with_capacity(shown.len());
    for digits in shown.chunks(4) {
        let mut word = 0_u32;
        for digit in digits {
            let value = DIGITS.iter().position(|it| it == digit)?;
            // Below 64.
            word = word << 6 | value as u32;
        }
        word <<= 6 * (4 - digits.len());
        let bytes = word.to_be_bytes();
        name.extend_from_slice(&bytes[1..digits.len()]);
    }
    (encode(&name) == shown).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_the_rfc_without_padding() {
        for (name, shown) in [
            (&b""[..], &b""[..]),
            (b"f", b"Zg"),
            (b"fo", b"Zm8"),
            (b"foo", b"Zm9v"),
            (b"foob", b"Zm9vYg"),
            (b"fooba", b"Zm9vYmE"),
            (b"foobar", b"Zm9vYmFy"),
            (b"\xfb\xff\xfe", b"-__-"),
        ] {
            assert_eq!(encode(name), shown);
            assert_eq!(decode(shown), Some(name.to_vec()));
        }
        assert_eq!(encode(&[0xA5; 255]).len(), ENCODED_MAX);
    }

    #[test]
    fn what_is_not_so_encoded_is_no_name() {
        for shown in [&b"Zg=="[..], b"Z", b"Zh", b"a b", b"+/+/", b"Zm9vY"] {
            assert_eq!(decode(shown), None);
        }
    }
}
