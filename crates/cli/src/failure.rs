//! Why a command failed: what, where, and what to do next; and the exit status that reports it to scripts.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use inspect::InspectError;

use crate::context::Context;

/// The exit status of a failed command.
const FAILED: u8 = 1;
/// The exit status of a command that can't be understood.
const USAGE: u8 = 2;
/// The exit status of an interrupted command (128 + SIGINT).
const INTERRUPTED: u8 = 130;
/// The exit status when the reader of our output is gone (128 + SIGPIPE).
const BROKEN_PIPE: u8 = 141;

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    message: Option<String>,
    hint: Option<String>,
    status: u8,
}

impl Failure {
    /// The command could not be carried out: what failed, and where.
    pub fn new(message: impl Display) -> Failure {
        Failure {
            message: Some(message.to_string()),
            hint: None,
            status: FAILED,
        }
    }

    /// The command makes no sense as given.
    pub fn usage(message: impl Display) -> Failure {
        Failure {
            status: USAGE,
            ..Failure::new(message)
        }
    }

    /// The user interrupted.
    pub fn interrupted() -> Failure {
        Failure {
            message: Some("interrupted".into()),
            hint: None,
            status: INTERRUPTED,
        }
    }

    /// Whether the user interrupted.
    pub fn is_interruption(&self) -> bool {
        self.status == INTERRUPTED
    }

    /// Errors were already reported one by one; only the exit status is left.
    pub fn told() -> Failure {
        Failure {
            message: None,
            hint: None,
            status: FAILED,
        }
    }

    /// The same with another exit status, where a command has its own.
    #[must_use]
    pub fn status(self, status: u8) -> Failure {
        Failure { status, ..self }
    }

    /// What the user can do about it, as one sentence.
    #[must_use]
    pub fn hint(self, hint: impl Display) -> Failure {
        Failure {
            hint: Some(hint.to_string()),
            ..self
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

    /// What a failed write to standard output means: a reader that went away is not worth a message.
    pub fn output(error: &io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure {
                message: None,
                hint: None,
                status: BROKEN_PIPE,
            };
        }
        Failure::new(format!("writing to standard output failed: {error}"))
    }

    /// What failed, as one sentence; empty if everything was reported already.
    pub fn text(&self) -> String {
        self.message.clone().unwrap_or_default()
    }

    /// Tells the user, and says the exit status.
    pub fn report(&self, context: &Context) -> ExitCode {
        if let Some(message) = &self.message {
            context.error(message);
        }
        if let Some(hint) = &self.hint {
            context.hint(hint);
        }
        ExitCode::from(self.status)
    }
}

impl From<InspectError> for Failure {
    fn from(error: InspectError) -> Failure {
        match error {
            InspectError::InvalidInode(_) => Failure::usage(error),
            _ => Failure::new(error),
        }
    }
}

/// Only writes to standard output use `?` on a bare I/O error; those on files say which file.
impl From<lanefs::Error> for Failure {
    fn from(error: lanefs::Error) -> Failure {
        Failure::new(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::output(&error)
    }
}
