//! Single values in words: times, sizes, UUIDs, names.

use core::fmt::{self, Display, Formatter, Write};

/// Seconds since 1970 as a date and time in UTC, `2026-11-20 11:43:05`; any number of seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utc(pub i64);

impl Display for Utc {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil(self.0.div_euclid(86_400));
        let second = self.0.rem_euclid(86_400);
        write!(
            f,
            "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}",
            second / 3600,
            second / 60 % 60,
            second % 60
        )
    }
}

/// The date of a day counted from 1970-01-01. Years begin in March while counting, so that the leap day comes last.
fn civil(days: i64) -> (i64, i64, i64) {
    // Days from 0000-03-01; 146097 days are 400 years.
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day)
}

/// A number of bytes with a binary unit and three digits: `512 B`, `4.00 KiB`, `63.9 MiB`, `1.50 TiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl Display for Bytes {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut unit = 0;
        while unit < 5 && self.0 >> (10 * (unit + 2)) != 0 {
            unit += 1;
        }
        // Tens of thousands of bytes and more: a double has digits enough for three.
        let number = self.0 as f64 / (1u64 << (10 * (unit + 1))) as f64;
        let decimals = match number {
            n if n < 9.995 => 2,
            n if n < 99.95 => 1,
            _ => 0,
        };
        write!(f, "{number:.decimals$} {}", UNITS[unit as usize])
    }
}

/// A UUID as everyone writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uuid(pub [u8; 16]);

impl Display for Uuid {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 4 | 6 | 8 | 10) {
                "-"
            } else {
                ""
            };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

/// Bytes of a name or label: as text where they are harmless UTF-8, `\xNN` where not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrintedName<'a>(pub &'a [u8]);

impl Display for PrintedName<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                if character == '\\' {
                    f.write_str("\\\\")?;
                } else if character.is_control() {
                    let mut buf = [0; 4];
                    for byte in character.encode_utf8(&mut buf).bytes() {
                        write!(f, "\\x{byte:02x}")?;
                    }
                } else {
                    f.write_char(character)?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Bytes in rows of 16: offset, hexadecimal, characters. Rows equal to the one before become one `*`.
#[derive(Clone, Copy, Debug)]
pub struct Hex<'a>(pub &'a [u8]);

impl Display for Hex<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut previous: Option<&[u8]> = None;
        let mut is_repeat = false;
        for (offset, row) in (0..).step_by(16).zip(self.0.chunks(16)) {
            if previous == Some(row) {
                if !core::mem::replace(&mut is_repeat, true) {
                    f.write_str("*\n")?;
                }
                continue;
            }
            previous = Some(row);
            is_repeat = false;
            write!(f, "{offset:06x} ")?;
            for index in 0..16 {
                let gap = if index == 8 { "  " } else { " " };
                match row.get(index) {
                    Some(byte) => write!(f, "{gap}{byte:02x}")?,
                    None => write!(f, "{gap}  ")?,
                }
            }
            f.write_str("  ")?;
            for byte in row {
                let is_plain = byte.is_ascii_graphic() || *byte == b' ';
                f.write_char(if is_plain { char::from(*byte) } else { '.' })?;
            }
            f.write_str("\n")?;
        }
        write!(f, "{:06x}", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates_in_utc() {
        assert_eq!(Utc(0).to_string(), "1970-01-01 00:00:00");
        assert_eq!(Utc(-1).to_string(), "1969-12-31 23:59:59");
        assert_eq!(Utc(1_700_000_000).to_string(), "2023-11-14 22:13:20");
        assert_eq!(Utc(951_782_400).to_string(), "2000-02-29 00:00:00");
        assert_eq!(Utc(4_107_542_400).to_string(), "2100-03-01 00:00:00");
        assert_eq!(Utc(-0x8000_0000).to_string(), "1901-12-13 20:45:52");
        // The furthest a 34-bit time and a 40-bit time reach.
        assert_eq!(Utc(0x3_7fff_ffff).to_string(), "2446-05-10 22:38:55");
        assert_eq!(Utc(0xFF_FFFF_FFFF).to_string(), "36812-02-20 00:36:15");
        let _ = Utc(i64::MAX).to_string() + &Utc(i64::MIN).to_string();
    }

    #[test]
    fn sizes_keep_three_digits() {
        assert_eq!(Bytes(0).to_string(), "0 B");
        assert_eq!(Bytes(1023).to_string(), "1023 B");
        assert_eq!(Bytes(4096).to_string(), "4.00 KiB");
        assert_eq!(Bytes(67_000_000).to_string(), "63.9 MiB");
        assert_eq!(Bytes(1 << 40).to_string(), "1.00 TiB");
        assert_eq!(Bytes(u64::MAX).to_string(), "16.0 EiB");
    }

    #[test]
    fn names_cannot_drive_a_terminal() {
        assert_eq!(PrintedName("grün".as_bytes()).to_string(), "grün");
        assert_eq!(
            PrintedName(b"a\x1b[2J\n\xff\\").to_string(),
            "a\\x1b[2J\\x0a\\xff\\\\"
        );
        assert_eq!(PrintedName("\u{9b}x".as_bytes()).to_string(), "\\xc2\\x9bx");
    }

    #[test]
    fn repeated_rows_are_shown_once() {
        let mut bytes = vec![0; 64];
        bytes[0] = b'A';
        bytes.push(7);
        let text = Hex(&bytes).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[0].starts_with("000000  41 00") && lines[0].ends_with("A..............."));
        assert_eq!(lines[2], "*");
        assert_eq!(lines[4], "000041");
    }
}
