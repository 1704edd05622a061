//! `lanefs touch`: sets times, and makes empty files.

use std::ffi::OsString;

use lanefs::{SetTime, Timestamp};

use crate::change::{Editing, ImageChange, paths};
use crate::context::Context;
use crate::epoch;
use crate::failure::Failure;

/// Set the times of files in an image; create files that do not exist
#[derive(clap::Args)]
pub struct Touch {
    /// IMAGE:PATH ..., or IMAGE followed by paths; in a script, paths
    #[arg(required = true, value_name = "IMAGE:PATH")]
    places: Vec<OsString>,
    /// Use this time instead of now: 2026-11-20, 2026-11-20T12:00:00, 2026-11-20T12:00:00Z, or @SECONDS since 1970
    #[arg(short, long, value_name = "TIME", value_parser = parse)]
    date: Option<Timestamp>,
    /// Change only the access time
    #[arg(short, conflicts_with = "modified")]
    accessed: bool,
    /// Change only the modification time
    #[arg(short)]
    modified: bool,
    /// Do not create files
    #[arg(short = 'c', long)]
    no_create: bool,
}

impl ImageChange for Touch {
    fn places(&mut self) -> &mut Vec<OsString> {
        &mut self.places
    }

    fn apply(&self, context: &Context, fs: &Editing<'_>) -> Result<(), Failure> {
        for path in paths(&self.places) {
            let time = self.date.map_or(SetTime::Now, SetTime::At);
            let atime = Some(time).filter(|_| !self.modified);
            let mtime = Some(time).filter(|_| !self.accessed);
            match fs.touch(path, atime, mtime, !self.no_create) {
                Err(error) if error.is_not_found() && self.no_create => continue,
                touched => touched.map_err(Failure::new)?,
            }
            let now = || fs.inodes().now();
            let time = self.date.map_or_else(now, Ok);
            let time = time.map_err(|error| Failure::new(lanefs::Error::from(error)))?;
            epoch::warn_of_cut_time(context, fs, time.seconds);
            fs.keep();
        }
        Ok(())
    }
}

fn parse(text: &str) -> Result<Timestamp, String> {
    let wrong = || format!("invalid time `{text}`: write 2026-11-20T12:00:00 or @SECONDS");
    let stamp = if let Some(seconds) = text.strip_prefix('@') {
        let (seconds, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
        if fraction.len() > 9 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        return Ok(Timestamp {
            seconds: seconds.parse().map_err(|_| wrong())?,
            nanoseconds: format!("{fraction:0<9}").parse().map_err(|_| wrong())?,
        });
    } else if let Ok(stamp) = text.parse::<jiff::Timestamp>() {
        stamp
    } else {
        let local: jiff::civil::DateTime = text.parse().map_err(|_| wrong())?;
        let zoned = local.to_zoned(jiff::tz::TimeZone::system());
        zoned.map_err(|_| wrong())?.timestamp()
    };
    let nanoseconds = stamp.as_nanosecond();
    // The remainder is below a billion, and the seconds are those of a year that jiff supports.
    Ok(Timestamp {
        seconds: i64::try_from(nanoseconds.div_euclid(1_000_000_000)).map_err(|_| wrong())?,
        nanoseconds: nanoseconds.rem_euclid(1_000_000_000) as u32,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_touch_reads_them() {
        let stamp = |seconds, nanoseconds| {
            Ok(Timestamp {
                seconds,
                nanoseconds,
            })
        };
        assert_eq!(parse("@5"), stamp(5, 0));
        assert_eq!(parse("@-5.25"), stamp(-5, 250_000_000));
        assert_eq!(parse("2001-02-03T04:05:06Z"), stamp(981_173_106, 0));
        assert_eq!(
            parse("2001-02-03T04:05:06.5+01:00"),
            stamp(981_169_506, 500_000_000)
        );
        assert!(parse("2001-02-03").is_ok() && parse("2001-02-03 04:05").is_ok());
        assert!(parse("yesterday").is_err() && parse("@1.0000000001").is_err());
    }
}
