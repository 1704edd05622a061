//! The `lanefs` command: the only crate that prints, shows progress or draws.
//!
//! Each command is one file under `cmd`. It gets a [`Context`](context::Context) that knows where output goes and
//! gives back a [`Failure`](failure::Failure) that says what went wrong, where, and what to do. Results go to standard
//! output, everything else to standard error. Exit status: 0 done, 1 failed, 2 usage, 130 interrupted, and 141 when
//! the reader of our output went away, as for any program that ends by SIGPIPE.

mod advice;
mod args;
mod change;
mod cmd;
mod context;
mod epoch;
mod failure;
mod format;
mod glob;
mod images;
mod interrupt;
mod json;
mod mount_state;
mod open;
mod preload;
mod progress;
mod raw;
mod table;
mod target;
mod words;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Parser;

/// Build, read, edit, mount and check ext4 images, without root and without the kernel.
#[derive(Parser)]
#[command(
    name = "lanefs",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_help = "IMAGE is a file or block device. IMAGE:PATH splits at the first `:/`; `IMAGE /path` works too.\n\
                  Exit status: 0 done, 1 failed, 2 usage, 130 interrupted."
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

fn main() -> ExitCode {
    let arguments = Arguments::parse_from(std::env::args_os().map(stdin_at));
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
