//! How much is printed on standard error, in addition to the tables.

use std::fmt::Display;
use std::io::{self, Write};

/// The options `-q` and `-v`, as in `lanefs`.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Verbosity {
    /// Print only errors on standard error
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Print each sample on standard error
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
}

impl Verbosity {
    /// Prints a detail, with `-v` only.
    pub fn detail(self, text: impl Display) {
        if self.verbose > 0 {
            say("lanefs-bench", text);
        }
    }

    /// Prints a warning, unless `-q` is given.
    pub fn warn(self, text: impl Display) {
        if !self.quiet {
            say("lanefs-bench: warning", text);
        }
    }
}

fn say(before: &str, text: impl Display) {
    // Standard error may be closed; the run continues.
    let _ = writeln!(io::stderr().lock(), "{before}: {text}");
}
