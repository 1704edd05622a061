//! `lanefs-bench`: measures workloads in this process and on mounted directories. `lanefs bench` runs this program.
//!
//! Tables are written to standard output, everything else to standard error. Exit status: 0 done, 1 failed, 2 usage,
//! and 141 when the reader of the output has gone. An interrupted run ends by the signal itself.

mod chart;
mod check;
mod command;
mod failure;
mod figures;
mod interrupted;
mod measured;
mod null_server;
mod raw;
mod report;
mod size;
mod verbosity;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    survive_file_size_limit();
    let mut words: Vec<OsString> = std::env::args_os().collect();
    // `lanefs bench` puts these before the name.
    let before = ["-q", "--quiet", "-v", "--verbose"];
    let is_name = |word: &OsString| !before.iter().any(|option| word == option);
    let name = words.iter().skip(1).position(is_name).map(|at| at + 1);
    // No benches, and other options: commands of their own.
    let ended = match name.map(|at| (at, words[at].to_str())) {
        Some((at, Some(null_server::NAME))) => {
            words.remove(at);
            null_server::Args::parse_from(words).run()
        }
        Some((at, Some(check::NAME))) => {
            words.remove(at);
            check::Args::parse_from(words).run()
        }
        _ => command::Args::parse().run(),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Makes a write beyond the limit of file sizes (`ulimit -f`) fail with an error. The signal would end the program and
/// leave half-written files.
fn survive_file_size_limit() {
    let unread = sync::Arc::new(sync::atomic::AtomicBool::new(false));
    // If the signal can't be caught, it ends the program as it does by default.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, unread);
}
