//! The command lines of mount(8): `mount -t fuse.lanefs`, `mount -t lanefs` and lines of fstab.
//!
//! mount(8) runs `mount.lanefs SOURCE DIR -o OPTIONS`, or through libfuse's mount.fuse `lanefs SOURCE DIR -o OPTIONS`.
//! Both become the command `lanefs mount`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::cmd::mount_options::Settings;

/// Names under which the program acts as `lanefs mount`.
const NAMES: [&str; 3] = ["mount.lanefs", "mount.fuse.lanefs", "mount.fuseblk.lanefs"];

/// The words of `lanefs mount` for a command line of mount(8), the program's name first; `None` for other commands.
/// `is_command` recognizes the program's own commands.
pub fn words(given: &[OsString], is_command: impl Fn(&OsStr) -> bool) -> Option<Vec<OsString>> {
    let (program, rest) = given.split_first()?;
    let name = Path::new(program).file_name()?;
    let is_helper = NAMES.iter().any(|helper| name == OsStr::new(helper));
    if !is_helper && !is_call_of_mount_fuse(rest, is_command) {
        return None;
    }
    let mut words: Vec<OsString> = vec![program.clone(), "mount".into()];
    if let Some(call) = Call::parse(rest) {
        let lists = call.lists.iter().map(|list| {
            if call.is_sloppy {
                known_only(list)
            } else {
                list.clone()
            }
        });
        for list in lists.filter(|list| !list.is_empty()) {
            words.extend(["-o".into(), list]);
        }
        if call.is_fake {
            words.push("--fake".into());
        }
        words.push("--".into());
        words.extend(call.places);
    } else {
        // The command refuses or explains words that mount(8) never uses.
        words.extend_from_slice(rest);
    }
    Some(words)
}

/// Whether the words are `IMAGE DIR`, perhaps with options: an existing image in place of a command, and a directory.
fn is_call_of_mount_fuse(rest: &[OsString], is_command: impl Fn(&OsStr) -> bool) -> bool {
    let [image, directory, options @ ..] = rest else {
        return false;
    };
    let is_option = |word: &OsString| word.as_bytes().starts_with(b"-");
    // The commands are asked last: to make the list of them takes a third of a start.
    !is_option(image)
        && !is_option(directory)
        && options.first().is_none_or(is_option)
        && Path::new(image).exists()
        && !is_command(image)
}

/// A command line of mount(8).
#[derive(Default)]
struct Call {
    /// The source and the directory.
    places: Vec<OsString>,
    /// The arguments of `-o`, each a list of options.
    lists: Vec<OsString>,
    /// Whether unknown options are to be ignored (`-s`).
    is_sloppy: bool,
    /// Whether everything is to be done except the mount itself (`-f`).
    is_fake: bool,
}

impl Call {
    /// Reads a command line; `None` if it is not one of mount(8).
    fn parse(rest: &[OsString]) -> Option<Call> {
        let mut call = Call::default();
        let mut words = rest.iter();
        while let Some(word) = words.next() {
            let Some(letters) = word.as_bytes().strip_prefix(b"-") else {
                call.places.push(word.clone());
                continue;
            };
            match letters {
                b"o" => call.lists.push(words.next()?.clone()),
                // The type is known, and is skipped.
                b"t" => drop(words.next()?),
                [b'o', list @ ..] => call.lists.push(OsStr::from_bytes(list).to_owned()),
                letters => call.take_letters(letters)?,
            }
        }
        (call.places.len() == 2).then_some(call)
    }

    fn take_letters(&mut self, letters: &[u8]) -> Option<()> {
        if letters.is_empty() {
            return None;
        }
        for letter in letters {
            match letter {
                b's' => self.is_sloppy = true,
                b'f' => self.is_fake = true,
                // These have no effect: no table of mounts is written, and errors are always reported.
                b'n' | b'v' => {}
                _ => return None,
            }
        }
        Some(())
    }
}

/// The options of a list that are known.
fn known_only(list: &OsStr) -> OsString {
    let text = list.to_string_lossy();
    let known = text
        .split(',')
        .filter(|word| Settings::parse([*word]).is_ok());
    known.collect::<Vec<_>>().join(",").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> Option<String> {
        let given: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let words = words(&given, |word| word == "ls")?;
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        Some(words.join(" "))
    }

    #[test]
    fn what_mount_runs_becomes_the_command() {
        let cases = [
            (
                "/sbin/mount.lanefs a.img m -o rw,commit=9",
                "/sbin/mount.lanefs mount -o rw,commit=9 -- a.img m",
            ),
            (
                "mount.fuse.lanefs a.img m -sn -t fuse.lanefs -oro,frobnicate",
                "mount.fuse.lanefs mount -o ro -- a.img m",
            ),
            (
                "mount.lanefs a.img m -f",
                "mount.lanefs mount --fake -- a.img m",
            ),
            ("mount.lanefs --help", "mount.lanefs mount --help"),
            ("mount.lanefs a.img", "mount.lanefs mount a.img"),
            (
                "lanefs /dev/null m -o rw",
                "lanefs mount -o rw -- /dev/null m",
            ),
        ];
        for (given, expected) in cases {
            assert_eq!(translated(given).as_deref(), Some(expected));
        }
        for other in [
            "lanefs",
            "lanefs ls a.img",
            "lanefs ls /dev/null m",
            "lanefs /nonexistent m -o rw",
            "lanefs /dev/null",
            "lanefs /dev/null a b",
            "lanefs -q /dev/null m",
        ] {
            assert_eq!(translated(other), None, "{other}");
        }
    }
}
