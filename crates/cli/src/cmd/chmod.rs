//! `lanefs chmod`: permissions, in octal or as changes.

use std::ffi::OsString;

use lanefs::FileType;

use crate::change::{Editing, ImageChange, each};
use crate::context::Context;
use crate::failure::Failure;

/// Set permissions of files in an image
#[derive(clap::Args)]
pub struct Chmod {
    /// Octal (0644), or changes as u+x,go-w,a=rX (without u, g, o or a: for all)
    #[arg(allow_hyphen_values = true, value_parser = parse)]
    mode: Mode,
    /// IMAGE:PATH ..., or IMAGE followed by paths; in a script, paths
    #[arg(required = true, value_name = "IMAGE:PATH")]
    places: Vec<OsString>,
    /// Change directories recursively
    #[arg(short = 'R', long)]
    recursive: bool,
}

impl ImageChange for Chmod {
    fn places(&mut self) -> &mut Vec<OsString> {
        &mut self.places
    }

    fn apply(&self, _: &Context, fs: &Editing<'_>) -> Result<(), Failure> {
        each(fs, &self.places, self.recursive, |path| {
            let metadata = if self.recursive {
                fs.symlink_metadata(path)?
            } else {
                fs.metadata(path)?
            };
            if metadata.file_type == FileType::Symlink {
                return Ok(());
            }
            let is_directory = metadata.file_type == FileType::Directory;
            fs.set_permissions(path, self.mode.of(metadata.mode & 0o7777, is_directory))
        })
    }
}

/// Permissions, or a change of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    Set(u16),
    Change(Vec<ModeChange>),
}

/// Such as `go-w`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeChange {
    /// Whose bits: a mask of the three groups of three.
    who: u16,
    operator: char,
    /// Bits for everyone, of which `who` takes its part.
    bits: u16,
    /// `s`, which takes its part by `who`, too; `t`, which belongs to all.
    set_id: bool,
    sticky: bool,
    /// `X`: executable if it is a directory or executable already.
    if_executable: bool,
}

const ALL: u16 = 0o777;

impl Mode {
    pub fn of(&self, mode: u16, is_directory: bool) -> u16 {
        match self {
            Mode::Set(mode) => *mode,
            Mode::Change(steps) => steps
                .iter()
                .fold(mode, |mode, step| step.of(mode, is_directory)),
        }
    }
}

impl ModeChange {
    fn of(self, mode: u16, is_directory: bool) -> u16 {
        let mut bits = self.bits;
        if self.if_executable && (is_directory || mode & 0o111 != 0) {
            bits |= 0o111;
        }
        bits &= self.who;
        let special = self.who & 0o700 & if self.set_id { ALL } else { 0 };
        bits |= if special == 0 { 0 } else { 0o4000 };
        if self.set_id && self.who & 0o070 != 0 {
            bits |= 0o2000;
        }
        bits |= if self.sticky { 0o1000 } else { 0 };
        match self.operator {
            '+' => mode | bits,
            '-' => mode & !bits,
            _ => {
                // As in GNU chmod, a directory keeps set-user-ID and set-group-ID unless told otherwise.
                let mut cleared = self.who;
                if !is_directory && self.who & 0o700 != 0 {
                    cleared |= 0o4000;
                }
                if !is_directory && self.who & 0o070 != 0 {
                    cleared |= 0o2000;
                }
                if self.who == ALL {
                    cleared |= 0o1000;
                }
                mode & !cleared | bits
            }
        }
    }
}

/// Reads permissions as chmod does.
pub fn parse(text: &str) -> Result<Mode, String> {
    let wrong = || format!("invalid mode `{text}`: write 0644, or changes as u+x,go-w,a=rX");
    if text.starts_with(|first: char| first.is_ascii_digit()) {
        let mode = u16::from_str_radix(text, 8).map_err(|_| wrong())?;
        return if mode <= 0o7777 {
            Ok(Mode::Set(mode))
        } else {
            Err(wrong())
        };
    }
    let mut steps = Vec::new();
    for clause in text.split(',') {
        let operator = clause.find(['+', '-', '=']).ok_or_else(wrong)?;
        let (who, mut rest) = clause.split_at(operator);
        let who = who.chars().try_fold(0, |mask, letter| match letter {
            'u' => Ok(mask | 0o700),
            'g' => Ok(mask | 0o070),
            'o' => Ok(mask | 0o007),
            'a' => Ok(ALL),
            _ => Err(wrong()),
        })?;
        while let Some(operator) = rest.chars().next() {
            let end = rest[1..]
                .find(['+', '-', '='])
                .map_or(rest.len(), |at| at + 1);
            let who = if who == 0 { ALL } else { who };
            steps.push(step(who, operator, &rest[1..end]).ok_or_else(wrong)?);
            rest = &rest[end..];
        }
    }
    Ok(Mode::Change(steps))
}

fn step(who: u16, operator: char, letters: &str) -> Option<ModeChange> {
    let mut step = ModeChange {
        who,
        operator,
        bits: 0,
        set_id: false,
        sticky: false,
        if_executable: false,
    };
    for letter in letters.chars() {
        match letter {
            'r' => step.bits |= 0o444,
            'w' => step.bits |= 0o222,
            'x' => step.bits |= 0o111,
            'X' => step.if_executable = true,
            's' => step.set_id = true,
            't' => step.sticky = true,
            _ => return None,
        }
    }
    Some(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, mode: u16, is_directory: bool) -> u16 {
        parse(text).unwrap().of(mode, is_directory)
    }

    #[test]
    fn modes_are_read_as_chmod_reads_them() {
        assert_eq!(of("4755", 0, false), 0o4755);
        assert_eq!(of("u+x,go-w", 0o666, false), 0o744);
        assert_eq!(of("a=rX", 0o700, false), 0o555);
        assert_eq!(of("a=rX", 0o600, false), 0o444);
        assert_eq!(of("a=rX", 0o600, true), 0o555);
        assert_eq!(of("-w", 0o777, false), 0o555);
        assert_eq!(of("u+s,g+s", 0o755, false), 0o6755);
        assert_eq!(of("u-s", 0o6755, false), 0o2755);
        assert_eq!(of("u=rwx", 0o4000, true), 0o4700);
        assert_eq!(of("u=rwx", 0o4000, false), 0o700);
        assert_eq!(of("+t", 0o777, true), 0o1777);
        assert_eq!(of("g=", 0o2777, false), 0o707);
        assert_eq!(of("u+r-w", 0o200, false), 0o400);
        for wrong in ["888", "10000", "u", "z+x", "u+q", ""] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
