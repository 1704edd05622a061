//! Suggestions for a command or an option that does not exist.
//!
//! clap suggests similar words, and by its measure `tree` is similar to `resize`. Here a suggestion is kept only if
//! typing errors lead from one spelling to the other. For a word that is another program's name for a job, lanefs's
//! name for the job is suggested, or the program that does it if lanefs does not.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// A word may have one typing error (a wrong, missing, added or swapped letter) for this number of its letters.
const LETTERS_A_SLIP: usize = 3;

/// Jobs for which lanefs has another name: the words, and what to type.
const OTHER_NAMES: [(&[&str], &str); 25] = [
    (
        &["fsck", "e2fsck", "repair", "verify"],
        "`lanefs check -p IMAGE` checks an image and repairs it",
    ),
    (
        &["mke2fs", "mkfs.ext4", "format", "create", "new"],
        "`lanefs mkfs IMAGE SIZE` makes an empty file system",
    ),
    (
        &["pack", "import"],
        "`lanefs build SOURCE IMAGE` makes an image with the files of SOURCE",
    ),
    (
        &["unpack", "export", "untar", "tar"],
        "`lanefs extract IMAGE DIRECTORY` copies all files out; - writes a tar",
    ),
    (
        &["unmount", "fusermount", "fusermount3"],
        "`lanefs umount DIRECTORY` unmounts an image",
    ),
    (
        &["copy", "get", "put", "push", "pull", "read"],
        "`lanefs cp IMAGE:PATH FILE` copies out, `lanefs cp FILE IMAGE:PATH` in",
    ),
    (
        &["write", "echo", "tee"],
        "`lanefs cp - IMAGE:PATH` writes standard input into a file",
    ),
    (
        &["move", "rename"],
        "`lanefs mv IMAGE:PATH NEW` renames and moves",
    ),
    (
        &["remove", "delete", "del", "unlink"],
        "`lanefs rm IMAGE:PATH` removes; -r also directories",
    ),
    (
        &["rmdir"],
        "`lanefs rm -r IMAGE:PATH` removes a directory and what is in it",
    ),
    (
        &["list", "dir", "ll", "readdir"],
        "`lanefs ls -l IMAGE:PATH` lists a directory",
    ),
    (
        &["show", "print", "type", "more", "less", "head", "tail"],
        "`lanefs cat IMAGE:PATH` prints a file",
    ),
    (
        &["readlink", "getfattr", "lsattr", "getfacl", "getcap"],
        "`lanefs stat IMAGE:PATH` shows a link's target, flags and attributes",
    ),
    (
        &["chgrp"],
        "`lanefs chown :GROUP IMAGE:PATH` sets the group",
    ),
    (
        &["setfacl", "setcap"],
        "`lanefs setfattr` sets attributes by name and value: `lanefs setfattr --help`",
    ),
    (
        &["link", "symlink"],
        "`lanefs ln TARGET IMAGE:PATH` makes a hard link; -s a symbolic one",
    ),
    (
        &["mknod", "mkfifo"],
        "`lanefs build --table FILE` makes device files and pipes while it builds an image",
    ),
    (
        &["tune2fs", "e2label", "label", "set", "config"],
        "`lanefs tune IMAGE NAME=VALUE` changes the superblock: label, uuid, ...",
    ),
    (
        &["dumpe2fs", "blkid", "features", "superblock"],
        "`lanefs info IMAGE` shows the superblock and the features",
    ),
    (
        &["debugfs", "debug", "inode", "block", "journal"],
        "`lanefs dump IMAGE` prints on-disk structures: `lanefs dump --help`",
    ),
    (
        &["filefrag", "e4frag", "e2freefrag"],
        "`lanefs info --frag IMAGE` shows how files and free space are scattered",
    ),
    (
        &["script", "apply", "batch", "run"],
        "`lanefs edit IMAGE SCRIPT` runs a script of changes",
    ),
    (
        &["replay", "recover"],
        "`lanefs check -p IMAGE` replays the journal; so does every command that changes the image",
    ),
    (
        &["help"],
        "`lanefs --help` lists the commands, `lanefs COMMAND --help` explains one",
    ),
    (&["version"], "`lanefs --version` prints the version"),
];

/// Jobs that lanefs does not do: the words, and the program that does them.
const ELSEWHERE: [(&[&str], &str); 8] = [
    (
        &["resize", "resize2fs", "grow", "shrink", "expand"],
        "lanefs does not resize a file system: use `e2fsck -f IMAGE`, then `resize2fs IMAGE SIZE`",
    ),
    (
        &["trim", "fstrim", "discard", "sparsify", "zerofree"],
        "lanefs discards free blocks only of a mounted image: use `fstrim DIR`, or `e2fsck -f -E discard IMAGE`",
    ),
    (
        &["defrag", "e4defrag", "compact"],
        "lanefs does not move the blocks of files: use `e4defrag` on a kernel mount, or build the image anew",
    ),
    (
        &["undelete", "extundelete", "testdisk"],
        "lanefs does not bring deleted files back: use `debugfs` on a copy of the image",
    ),
    (
        &["convert", "qcow2", "vmdk"],
        "lanefs reads and writes raw images: use `qemu-img convert -O raw`",
    ),
    (
        &["encrypt", "luks", "cryptsetup"],
        "lanefs does not encrypt an image: use `cryptsetup`",
    ),
    (
        &["fdisk", "partition", "parted"],
        "lanefs does not write partition tables: use `sfdisk`, and --partition N here",
    ),
    (
        &["snapshot", "clone"],
        "lanefs makes no snapshots: copy the image with `cp --reflink=auto --sparse=always`",
    ),
];

/// Options of e2fsck that `lanefs check` does not have, and what to use instead.
const OF_E2FSCK: [(&[&str], &str); 8] = [
    (
        &["-c", "-k", "-l", "-L"],
        "lanefs does not look for bad blocks or list them: use `e2fsck -c IMAGE`",
    ),
    (
        &["-D"],
        "lanefs does not pack directories: use `e2fsck -fD IMAGE`",
    ),
    (
        &["-E"],
        "lanefs has no extended options: use `e2fsck -E ...`; -j names an external journal, --memory limits the memory",
    ),
    (
        &["-z"],
        "`--undo FILE` saves what a repair overwrites, `--undo-apply FILE` takes it back",
    ),
    (
        &["-d"],
        "`-v` prints every problem, `--json` all that is known of each",
    ),
    (
        &["-t"],
        "`time lanefs check IMAGE` says how long it takes, `-C 0` shows its progress",
    ),
    (&["-F"], "lanefs always reads from the device: leave -F out"),
    (
        &["-r"],
        "e2fsck ignores -r: leave it out, or repair with -p or -y",
    ),
];

/// Words for which `lanefs edit` has a command under another name.
const IN_SCRIPTS: [(&[&str], &str); 7] = [
    (
        &["copy", "put", "push", "write"],
        "in a script, `cp FILE PATH` copies into the image",
    ),
    (
        &["move", "rename"],
        "in a script, `mv PATH NEW` renames and moves",
    ),
    (
        &["remove", "delete", "del", "unlink", "rmdir"],
        "in a script, `rm PATH` removes; -r also directories",
    ),
    (
        &["chgrp"],
        "in a script, `chown :GROUP PATH` sets the group",
    ),
    (
        &["link", "symlink"],
        "in a script, `ln TARGET PATH` makes a hard link; -s a symbolic one",
    ),
    (
        &["setfacl", "setcap"],
        "in a script, `setfattr` sets attributes by name and value",
    ),
    (
        &["ls", "cat", "stat", "find", "tree", "check", "extract"],
        "a script only changes an image: run `lanefs` for this command",
    ),
];

/// The error of a command line with this command, with a useful suggestion in place of one that is only similar.
pub fn sharpened(mut error: clap::Error, command: Option<&str>) -> clap::Error {
    keep_near_spellings(&mut error);
    let option = unknown_option(&error).filter(|_| command == Some("check"));
    let option = option.and_then(|option| found(&OF_E2FSCK, option));
    if let Some(tip) = missing(&error).and_then(job).or(option) {
        error.remove(ContextKind::SuggestedSubcommand);
        let tips = vec![StyledStr::from(tip)];
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    error
}

/// The advice for an error in a line of a script.
pub fn for_script(mut error: clap::Error) -> Option<String> {
    keep_near_spellings(&mut error);
    if let Some(tip) = missing(&error).and_then(|word| found(&IN_SCRIPTS, word)) {
        return Some(tip.to_owned());
    }
    let kinds = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg];
    let names = kinds.into_iter().find_map(|kind| names(error.get(kind)?))?;
    Some(format!("a similar name exists: {}", names.join(", ")))
}

/// The word in the place of a command.
fn missing(error: &clap::Error) -> Option<&str> {
    match (error.kind(), error.get(ContextKind::InvalidSubcommand)) {
        (ErrorKind::InvalidSubcommand, Some(ContextValue::String(word))) => Some(word),
        _ => None,
    }
}

/// The option that the command does not have.
fn unknown_option(error: &clap::Error) -> Option<&str> {
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(option))) => Some(option),
        _ => None,
    }
}

fn job(word: &str) -> Option<&'static str> {
    found(&OTHER_NAMES, word).or_else(|| found(&ELSEWHERE, word))
}

fn found(jobs: &[(&[&str], &'static str)], word: &str) -> Option<&'static str> {
    let job = jobs.iter().find(|(names, _)| names.contains(&word));
    job.map(|(_, tip)| *tip)
}

/// Keeps only the suggestions that are close to the given spelling.
fn keep_near_spellings(error: &mut clap::Error) {
    let pairs = [
        (
            ContextKind::InvalidSubcommand,
            ContextKind::SuggestedSubcommand,
        ),
        (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        (ContextKind::InvalidValue, ContextKind::SuggestedValue),
    ];
    for (given, suggested) in pairs {
        let Some(ContextValue::String(given)) = error.get(given).cloned() else {
            continue;
        };
        let Some(names) = error.get(suggested).and_then(names) else {
            continue;
        };
        let near: Vec<String> = names
            .into_iter()
            .filter(|name| is_near(&given, name))
            .collect();
        if near.is_empty() {
            error.remove(suggested);
        } else {
            error.insert(suggested, ContextValue::Strings(near));
        }
    }
}

fn names(value: &ContextValue) -> Option<Vec<String>> {
    match value {
        ContextValue::String(name) => Some(vec![name.clone()]),
        ContextValue::Strings(names) => Some(names.clone()),
        _ => None,
    }
}

/// Whether a few typing errors turn one spelling into the other, or one is the beginning of the other.
fn is_near(given: &str, known: &str) -> bool {
    let given = given
        .trim_start_matches('-')
        .split('=')
        .next()
        .unwrap_or_default();
    let known = known
        .trim_start_matches('-')
        .split(' ')
        .next()
        .unwrap_or_default();
    let longer = given.chars().count().max(known.chars().count());
    let slips = strsim::osa_distance(given, known);
    slips * LETTERS_A_SLIP <= longer || (given.len() > 1 && known.starts_with(given))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_fingers_is_near_and_another_word_is_not() {
        for (given, known) in [
            ("chekc", "check"),
            ("biuld", "build"),
            ("mout", "mount"),
            ("extr", "extract"),
            ("trunkate", "truncate"),
            ("--superblok", "--superblock <KIB>"),
            ("--partitoin=2", "--partition"),
        ] {
            assert!(is_near(given, known), "{given} {known}");
        }
        for (given, known) in [
            ("resize", "tree"),
            ("trim", "tree"),
            ("rmdir", "mkdir"),
            ("snapshot", "stat"),
            ("cat", "map"),
            ("grow", "rm"),
            ("--sparse", "--spool"),
        ] {
            assert!(!is_near(given, known), "{given} {known}");
        }
    }
}
