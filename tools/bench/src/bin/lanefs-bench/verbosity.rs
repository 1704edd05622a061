//! How much is printed on standard error beside the tables.

use std::fmt::Display;
use std::io::{self, Write};

/// The options that choose it, as `lanefs` has them.
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
    /// Prints what only `-v` asks for.
    pub fn detail(self, text: impl Display) {
        if self.verbose > 0 {
            say("lanefs-bench", text);
        }
    }

    /// Prints what was not done, unless `-q`.
    pub fn warn(self, text: impl Display) {
        if !self.quiet {
            say("lanefs-bench: warning", text);
        }
    }
}

fn say(before: &str, text: impl Display) {
    // Standard error may be closed; the run goes on.
    let _ = writeln!(io::stderr().lock(), "{before}: {text}");
}
