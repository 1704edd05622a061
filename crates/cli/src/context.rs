//! Where a command's output is written, and how much of it.

use std::cell::RefCell;
use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use clap::Args;
use lanefs::locate::Location;
use syslog::{Facility, Formatter3164, LogFormat, Severity};

/// Options that every command takes.
#[derive(Args, Clone, Debug)]
pub struct OutputArgs {
    /// Print only errors on standard error
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Print more; twice for still more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

/// An image that was opened, to be looked at again if the command fails.
#[derive(Clone, Debug)]
pub struct Opened {
    /// Its path.
    pub path: std::path::PathBuf,
    /// Where on it the file system lies.
    pub location: Location,
}

/// What a command knows about its surroundings.
#[derive(Clone, Debug)]
pub struct Context {
    quiet: bool,
    verbose: u8,
    color: bool,
    /// Messages go to the system's log: nobody reads standard error any more.
    is_in_background: bool,
    umask: u16,
    /// The warning that was given last, so that an image that is opened twice is warned of once.
    warned: std::cell::RefCell<String>,
    /// Images that were opened so far.
    opened: RefCell<Vec<Opened>>,
}

impl Context {
    /// Looks at the options, the terminal, `NO_COLOR` and the umask. For a process that has only one thread yet.
    pub fn new(output: &OutputArgs) -> Context {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Context {
            quiet: output.quiet,
            verbose: output.verbose,
            is_in_background: false,
            color: !no_color && !dumb && io::stdout().is_terminal(),
            umask: umask(),
            warned: std::cell::RefCell::default(),
            opened: RefCell::default(),
        }
    }

    /// The context of a process that has left its terminal: messages are written to the system's log.
    pub fn in_background(&self) -> Context {
        Context {
            is_in_background: true,
            ..self.clone()
        }
    }

    /// Permissions that new files don't get.
    pub fn umask(&self) -> u16 {
        self.umask
    }

    /// Keeps where an image is that was opened, for [`crate::advice::after_failure`].
    pub fn opened(&self, opened: Opened) {
        self.opened.borrow_mut().push(opened);
    }

    /// The images that were opened, which are no longer kept.
    pub fn take_opened(&self) -> Vec<Opened> {
        self.opened.take()
    }

    /// Whether standard output is a terminal that wants colors.
    pub fn color(&self) -> bool {
        self.color
    }

    /// Whether standard output is a terminal.
    pub fn terminal(&self) -> bool {
        io::stdout().is_terminal()
    }

    /// How many characters fit a line of the terminal, or of what stands for it.
    pub fn width(&self) -> usize {
        let asked = std::env::var("COLUMNS")
            .ok()
            .and_then(|columns| columns.parse().ok());
        let real = || {
            rustix::termios::tcgetwinsize(io::stdout())
                .ok()
                .map(|size| size.ws_col.into())
        };
        asked.or_else(real).filter(|width| *width > 0).unwrap_or(80)
    }

    /// How often `-v` was given.
    pub fn verbosity(&self) -> u8 {
        self.verbose
    }

    /// Whether `-q` was given.
    pub fn quiet(&self) -> bool {
        self.quiet
    }

    /// Whether a progress bar may be drawn on standard error.
    pub fn progress(&self) -> bool {
        !self.quiet && io::stderr().is_terminal()
    }

    /// Standard output, buffered. Flush it at the end, so that an error on it is seen.
    pub fn stdout(&self) -> BufWriter<StdoutLock<'static>> {
        BufWriter::with_capacity(64 * 1024, io::stdout().lock())
    }

    /// Tells the user something that is not an error, unless `-q`.
    pub fn note(&self, text: impl Display) {
        if !self.quiet {
            self.say(Severity::LOG_NOTICE, "lanefs", &text);
        }
    }

    /// Tells the user what only `-v` asks for.
    pub fn detail(&self, text: impl Display) {
        if self.verbose > 0 {
            self.say(Severity::LOG_INFO, "lanefs", &text);
        }
    }

    /// Tells the user what was not done, or not done fully, unless `-q`.
    pub fn warn(&self, text: impl Display) {
        if !self.quiet {
            self.say(Severity::LOG_WARNING, "lanefs: warning", &text);
        }
    }

    /// As [`Context::warn`], but not the same text twice in a row.
    pub fn warn_once(&self, text: impl Display) {
        let text = text.to_string();
        if *self.warned.borrow() != text {
            self.warn(&text);
            self.warned.replace(text);
        }
    }

    /// Tells the user of an error, always.
    pub fn error(&self, text: impl Display) {
        self.say(Severity::LOG_ERR, "lanefs: error", &text);
    }

    /// Tells the user what to do about the error before, always.
    pub fn hint(&self, text: impl Display) {
        self.say(Severity::LOG_NOTICE, "  hint", &text);
    }

    fn say(&self, severity: Severity, who: &str, text: &dyn Display) {
        if self.is_in_background {
            return log(severity, text);
        }
        // Nobody is left to tell when standard error is gone.
        let _ = writeln!(io::stderr().lock(), "{who}: {text}");
    }
}

/// Tells the system's log. The connection is made anew for each of the few messages, so that one that was restarted
/// meanwhile hears of them.
fn log(severity: Severity, text: &dyn Display) {
    let formatter = Formatter3164 {
        facility: Facility::LOG_DAEMON,
        hostname: None,
        process: "lanefs".to_owned(),
        pid: std::process::id(),
    };
    let Ok(mut logger) = syslog::unix(formatter.clone()) else {
        // The system has no log, and the message reaches no reader.
        return;
    };
    let _ = formatter.format(&mut logger.backend, severity, text.to_string());
}

/// The process's umask, which can only be read by setting another one.
fn umask() -> u16 {
    use rustix::process::umask;
    let mask = umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    umask(mask);
    // Within 9 bits.
    mask.as_raw_mode() as u16
}
