//! From the words of the command line to the exit status.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::{advice, cmd, context, interrupt, mount_call, suggestions};

/// Build, read, edit, mount and check ext4 images, without root and without the kernel.
#[derive(Parser)]
#[command(
    name = "lanefs",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_help = "IMAGE is a file or block device. IMAGE:PATH splits at the first `:/`; `IMAGE /path` works too.\n\
                  Exit status: 0 done, 1 failed, 2 usage, 130 interrupted; check, mount and umount have their own."
)]
struct Arguments {
    #[command(flatten)]
    output: context::OutputArgs,
    #[command(subcommand)]
    command: cmd::Command,
}

/// `-:/PATH`, standard input at a path of the image, as what no parser takes for an option.
fn stdin_at(argument: OsString) -> OsString {
    match argument.as_bytes().strip_prefix(b"-:/") {
        Some(path) => [OsStr::new("/dev/stdin:/"), OsStr::from_bytes(path)]
            .into_iter()
            .collect(),
        None => argument,
    }
}

/// Names under which the program is `lanefs check`: what fsck(8) and systemd run for a line of fstab.
const FSCK_NAMES: [&str; 3] = ["fsck.lanefs", "fsck.fuse.lanefs", "fsck.fuseblk.lanefs"];
/// The exit status of a command line that can't be understood; [`usage_status`] names the commands with another one.
const USAGE: u8 = 2;

/// The exit status if the words after a command's name can't be understood. `check`, `mount` and `umount` have that of
/// fsck(8) and mount(8), which run them.
fn usage_status(command: Option<&str>) -> u8 {
    match command {
        Some("check") => 16,
        Some("mount" | "umount") => 1,
        _ => USAGE,
    }
}

fn is_fsck(program: &OsStr) -> bool {
    let name = std::path::Path::new(program).file_name();
    FSCK_NAMES.iter().any(|fsck| name == Some(OsStr::new(fsck)))
}

/// The command line, or the exit status of one that can't be understood (or that only asks for help).
fn parse() -> Result<Arguments, ExitCode> {
    let mut words: Vec<OsString> = std::env::args_os().map(stdin_at).collect();
    let is_fsck = words.first().is_some_and(|program| is_fsck(program));
    if is_fsck {
        // Messages then name a command line that can be typed.
        words[0] = "lanefs".into();
        words.insert(1, "check".into());
    }
    let is_command = |word: &OsStr| Arguments::command().find_subcommand(word).is_some();
    if let Some(mount) = mount_call::words(&words, is_command) {
        words = mount;
    }
    let is_option = |word: &OsStr| word.as_bytes().starts_with(b"-");
    let command = words.iter().skip(1).find(|word| !is_option(word));
    let command = command.and_then(|word| word.to_str());
    let usage = usage_status(command);
    Arguments::try_parse_from(&words).map_err(|error| {
        let error = suggestions::sharpened(error, command);
        // Standard error may be gone; the status is left.
        let _ = error.print();
        match error.exit_code() {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::from(usage),
        }
    })
}

/// The definition of the command line.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Makes the mistake that the environment names, in a build for tests that have to find it.
#[cfg(feature = "canaries")]
fn make_canary() {
    use lanefs::canary::{Canary, make};
    let name = std::env::var("LANEFS_CANARY").unwrap_or_default();
    let named = |canary: &Canary| format!("{canary:?}") == name;
    make(Canary::ALL.into_iter().find(named));
}

/// Runs the command that the words of this process are, and gives its exit status.
pub fn run() -> ExitCode {
    #[cfg(feature = "canaries")]
    make_canary();
    let arguments = match parse() {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    interrupt::survive_file_size_limit();
    let context = context::Context::new(&arguments.output);
    match arguments.command.run(&context) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let status = failure.report(&context);
            advice::after_failure(&context);
            status
        }
    }
}
