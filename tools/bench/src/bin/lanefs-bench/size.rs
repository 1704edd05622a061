//! Sizes in bytes on the command line.

/// Reads a size: a number of bytes, or one with the suffix K, M, G or T (powers of 1024).
///
/// # Errors
/// A sentence that says what was expected.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.to_ascii_uppercase().as_str() {
        "" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(unknown(text)),
    };
    let number: u64 = number.parse().map_err(|_| unknown(text))?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("`{text}` is more than 2^64 bytes"))
}

fn unknown(text: &str) -> String {
    format!("invalid size `{text}`: expected a number of bytes such as 4096, 64K or 1G")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_the_usual_suffixes() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64k"), Ok(65536));
        assert_eq!(parse_size("2GiB"), Ok(2 << 30));
        for text in ["", "K", "1X", "-1", "99999999T", "99999999999999999999"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
