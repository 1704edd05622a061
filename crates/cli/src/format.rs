//! How numbers, modes, times and names look, as the usual tools show them.

use std::borrow::Cow;

use lanefs::{FileType, Metadata, Timestamp};

/// The ten characters of `ls -l`.
pub fn mode(mode: u16) -> String {
    let kind = match FileType::from_mode(mode) {
        Some(FileType::Regular) => '-',
        Some(FileType::Directory) => 'd',
        Some(FileType::Symlink) => 'l',
        Some(FileType::CharDevice) => 'c',
        Some(FileType::BlockDevice) => 'b',
        Some(FileType::Fifo) => 'p',
        Some(FileType::Socket) => 's',
        None => '?',
    };
    let mut text = String::from(kind);
    for (shift, special, with_x, without_x) in [
        (6, 0o4000, 's', 'S'),
        (3, 0o2000, 's', 'S'),
        (0, 0o1000, 't', 'T'),
    ] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => with_x,
            (false, true) => without_x,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// The name of a kind of file, as `stat` says it.
pub fn kind(kind: FileType, size: u64) -> &'static str {
    match kind {
        FileType::Regular if size == 0 => "regular empty file",
        FileType::Regular => "regular file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::CharDevice => "character special file",
        FileType::BlockDevice => "block special file",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    }
}

/// The short name of a kind of file, for JSON.
pub fn kind_word(kind: FileType) -> &'static str {
    match kind {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::CharDevice => "char-device",
        FileType::BlockDevice => "block-device",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    }
}

/// A size with a unit, rounded up, as `ls -h` and `du -h` show it: `4.0K`, `23M`.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    if bytes < 1024 {
        return bytes.to_string();
    }
    let mut unit = 1;
    let mut scale: u128 = 1024;
    let bytes = u128::from(bytes);
    loop {
        let tenths = (bytes * 10).div_ceil(scale);
        if tenths < 100 {
            return format!("{}.{}{}", tenths / 10, tenths % 10, UNITS[unit]);
        }
        let whole = bytes.div_ceil(scale);
        if whole < 1024 || unit == UNITS.len() - 1 {
            return format!("{whole}{}", UNITS[unit]);
        }
        unit += 1;
        scale *= 1024;
    }
}

/// A time in the user's zone: `2026-11-20 12:00:00.123456789 +0000`.
pub fn time_full(time: Timestamp) -> String {
    let Some(zoned) = zoned(time) else {
        return time.seconds.to_string();
    };
    format!(
        "{}.{:09} {}",
        zoned.strftime("%Y-%m-%d %H:%M:%S"),
        time.nanoseconds,
        zoned.strftime("%z")
    )
}

/// A time as `ls -l` shows it: with the hour when it is within the last half year, else with the year.
pub fn time_short(time: Timestamp, now: i64) -> String {
    /// Half of an average year.
    const HALF_YEAR: i64 = 31_556_952 / 2;
    let Some(zoned) = zoned(time) else {
        return format!("{:>12}", time.seconds);
    };
    let recent = time.seconds <= now && now.saturating_sub(time.seconds) < HALF_YEAR;
    let form = if recent { "%b %e %H:%M" } else { "%b %e  %Y" };
    zoned.strftime(form).to_string()
}

/// A time to the second, with the zone's offset: `2026-11-20 12:00:00 +0100`.
pub fn time_seconds(time: Timestamp) -> String {
    zoned(time).map_or_else(
        || time.seconds.to_string(),
        |zoned| zoned.strftime("%F %T %z").to_string(),
    )
}

/// A time in UTC, for JSON: `2026-11-20T12:00:00.123456789Z`.
pub fn time_json(time: Timestamp) -> String {
    jiff::Timestamp::new(
        time.seconds,
        time.nanoseconds.min(999_999_999).cast_signed(),
    )
    .map_or_else(|_| time.seconds.to_string(), |stamp| format!("{stamp:.9}"))
}

fn zoned(time: Timestamp) -> Option<jiff::Zoned> {
    let nanoseconds = time.nanoseconds.min(999_999_999).cast_signed();
    let stamp = jiff::Timestamp::new(time.seconds, nanoseconds).ok()?;
    Some(stamp.to_zoned(jiff::tz::TimeZone::system()))
}

/// A name as it may be shown: on a terminal, what could steer the terminal becomes `?`; elsewhere it is given as it is.
pub fn name(bytes: &[u8], terminal: bool) -> Cow<'_, [u8]> {
    if !terminal {
        return Cow::Borrowed(bytes);
    }
    let text = String::from_utf8_lossy(bytes);
    if !text.contains(|c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER) {
        return Cow::Borrowed(bytes);
    }
    let shown = text.replace(
        |c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER,
        "?",
    );
    Cow::Owned(shown.into_bytes())
}

/// A name in the color of its kind, as `ls` has them by default.
pub fn colored(name: &[u8], metadata: &Metadata) -> Vec<u8> {
    let color = match metadata.file_type {
        FileType::Directory => "1;34",
        FileType::Symlink => "1;36",
        FileType::CharDevice | FileType::BlockDevice => "1;33",
        FileType::Fifo => "33",
        FileType::Socket => "1;35",
        FileType::Regular if metadata.mode & 0o6000 != 0 => "37;41",
        FileType::Regular if metadata.mode & 0o111 != 0 => "1;32",
        FileType::Regular => return name.to_vec(),
    };
    [b"\x1b[", color.as_bytes(), b"m", name, b"\x1b[0m"].concat()
}

/// A name for messages: always safe to print.
pub fn safe(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&name(bytes, true)).into_owned()
}

/// The path of something below a path, for messages.
pub fn safe_below(path: &[u8], relative: &[u8]) -> String {
    let separator: &[u8] = if path.ends_with(b"/") || relative.is_empty() {
        b""
    } else {
        b"/"
    };
    safe(&[path, separator, relative].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_look_as_in_ls() {
        assert_eq!(mode(0o100_644), "-rw-r--r--");
        assert_eq!(mode(0o104_755), "-rwsr-xr-x");
        assert_eq!(mode(0o041_777), "drwxrwxrwt");
        assert_eq!(mode(0o042_640), "drw-r-S---");
        assert_eq!(mode(0o120_777), "lrwxrwxrwx");
    }

    #[test]
    fn sizes_are_rounded_up_as_in_ls_h() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10_188, "10K"),
            (10_240, "10K"),
            (1_048_575, "1.0M"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn names_can_not_steer_the_terminal() {
        assert_eq!(&*name(b"a\x1b[31m", true), b"a?[31m");
        assert_eq!(&*name(b"a\x1b[31m", false), b"a\x1b[31m");
        assert_eq!(&*name("ä".as_bytes(), true), "ä".as_bytes());
    }
}
