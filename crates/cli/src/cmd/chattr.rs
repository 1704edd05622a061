//! `lanefs chattr`: flags, by the letters of chattr(1).

use std::ffi::OsString;

use lanefs::Flags;

use crate::change::{Editing, ImageChange, each};
use crate::context::Context;
use crate::failure::Failure;

/// Change flags of files in an image
#[derive(clap::Args)]
pub struct Chattr {
    /// Flags as chattr takes them: +ai sets, -ai clears, =ai sets these alone (a append only, i immutable, A no access
    /// times, d no dump, S synchronous, D synchronous directory; c, P, s, t, T, u)
    #[arg(allow_hyphen_values = true, value_parser = parse)]
    flags: Changed,
    /// IMAGE:PATH ..., or IMAGE followed by paths; in a script, paths
    #[arg(required = true, value_name = "IMAGE:PATH")]
    places: Vec<OsString>,
    /// Change directories recursively
    #[arg(short = 'R', long)]
    recursive: bool,
}

/// Flags that are set, and flags that are cleared before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Changed {
    set: Flags,
    cleared: Flags,
}

/// The letters of flags that can be changed.
const LETTERS: &str = "aAcdDiPsStTu";

impl ImageChange for Chattr {
    fn places(&mut self) -> &mut Vec<OsString> {
        &mut self.places
    }

    fn apply(&self, _: &Context, fs: &Editing<'_>) -> Result<(), Failure> {
        let is_link = |file_type| file_type == lanefs::FileType::Symlink;
        each(fs, &self.places, self.recursive, |path| {
            let metadata = fs.symlink_metadata(path)?;
            if self.recursive && is_link(metadata.file_type) {
                return Ok(());
            }
            let flags = fs.metadata(path)?.flags;
            let flags = flags.without(self.flags.cleared).with(self.flags.set);
            fs.set_flags(path, flags)
        })
    }
}

fn of_letter(letter: char) -> Option<Flags> {
    let mut named = Flags::NAMED.iter();
    let found = named.find(|(_, known, _)| *known == letter && LETTERS.contains(letter))?;
    Some(found.0)
}

/// Reads a change as chattr does.
fn parse(text: &str) -> Result<Changed, String> {
    let wrong =
        || format!("invalid change of flags `{text}`: write +, - or = and letters of {LETTERS}");
    let mut letters = text.chars();
    let operator = letters.next().ok_or_else(wrong)?;
    let flags = letters.try_fold(Flags(0), |flags, letter| {
        Some(flags.with(of_letter(letter)?))
    });
    let flags = flags.ok_or_else(wrong)?;
    let none = Flags(0);
    let (set, cleared) = match operator {
        '+' => (flags, none),
        '-' => (none, flags),
        '=' => {
            let all = LETTERS
                .chars()
                .filter_map(of_letter)
                .fold(none, Flags::with);
            (flags, all)
        }
        _ => return Err(wrong()),
    };
    if flags == none && operator != '=' {
        Err(wrong())
    } else {
        Ok(Changed { set, cleared })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_as_chattr_reads_them() {
        let none = Flags(0);
        let both = Flags::IMMUTABLE.with(Flags::NO_ATIME);
        let (set, cleared) = (both, none);
        assert_eq!(parse("+iA"), Ok(Changed { set, cleared }));
        let (set, cleared) = (none, Flags::APPEND);
        assert_eq!(parse("-a"), Ok(Changed { set, cleared }));
        let alone = parse("=d").unwrap();
        assert_eq!(alone.set, Flags::NO_DUMP);
        assert!(alone.cleared.contains(both) && !alone.cleared.contains(Flags::EXTENTS));
        for wrong in ["", "i", "+", "+e", "+ij", "*i"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
