//! The failure of a run: what failed, where, and the exit status for scripts.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// The exit status of a run that failed.
const FAILED: u8 = 1;
/// The exit status of a command line that can't be understood.
const USAGE: u8 = 2;
/// The exit status when the reader of the output has gone (128 + SIGPIPE).
const BROKEN_PIPE: u8 = 141;

/// Why a run failed.
#[derive(Debug)]
pub struct Failure {
    message: Option<String>,
    status: u8,
}

impl Failure {
    /// The run could not be carried out: what failed, and where.
    pub fn new(message: impl Display) -> Failure {
        Failure {
            message: Some(message.to_string()),
            status: FAILED,
        }
    }

    /// The command line is invalid.
    pub fn usage(message: impl Display) -> Failure {
        Failure {
            status: USAGE,
            ..Failure::new(message)
        }
    }

    /// Errors were already reported one by one; only the exit status is left.
    pub fn told() -> Failure {
        Failure {
            message: None,
            status: FAILED,
        }
    }

    /// Where it happened, put before the message.
    #[must_use]
    pub fn at(self, place: impl Display) -> Failure {
        Failure {
            message: self.message.map(|message| format!("{place}: {message}")),
            ..self
        }
    }

    /// Prints the message; returns the exit status.
    pub fn report(&self) -> ExitCode {
        if let Some(message) = &self.message {
            // Standard error may be closed; the exit status still reports the failure.
            let _ = writeln!(io::stderr().lock(), "lanefs-bench: error: {message}");
        }
        ExitCode::from(self.status)
    }
}

/// For `?` on writes to standard output, which are the only bare I/O errors: errors of files name the file.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure {
                message: None,
                status: BROKEN_PIPE,
            },
            _ => Failure::new(format!("writing to standard output failed: {error}")),
        }
    }
}
