//! `lanefs bench` runs the program `lanefs-bench`, which is installed separately.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::context::Context;
use crate::failure::Failure;

const PROGRAM: &str = "lanefs-bench";

/// Measure workloads: runs lanefs-bench, which is installed separately
///
/// lanefs-bench measures the engine in its own process and any mounted directories. The program must be in the
/// directory of lanefs or in PATH. It gets all words after `bench`: `lanefs bench core --help` shows its options.
#[derive(clap::Args)]
pub struct Args {
    /// The bench and its options, as lanefs-bench takes them
    #[arg(
        value_name = "WORD",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    words: Vec<OsString>,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let mut command = Command::new(beside_this().unwrap_or_else(|| PROGRAM.into()));
        if context.quiet() {
            command.arg("--quiet");
        }
        command.args((0..context.verbosity()).map(|_| "--verbose"));
        // exec returns only if the program can't be started.
        let error = command.args(self.words).exec();
        if error.kind() != io::ErrorKind::NotFound {
            return Err(Failure::new(error).at(command.get_program().display()));
        }
        let missing = Failure::usage("lanefs-bench is neither beside lanefs nor in PATH");
        Err(missing.hint(concat!(
            "build it in a checkout of ",
            env!("CARGO_PKG_REPOSITORY"),
            ": cargo build --release -p lanefs-bench"
        )))
    }
}

/// The path of `lanefs-bench` in the directory of this program, if it exists there.
fn beside_this() -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    let beside = this.with_file_name(PROGRAM);
    beside.is_file().then_some(beside)
}
