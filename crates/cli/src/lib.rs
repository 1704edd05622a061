//! The `lanefs` command: the only crate that prints, shows progress or draws. It is a library, so that the man pages,
//! the completions and the tests of the examples use the same definition as the program.
//!
//! Each command is one file under `cmd`. It gets a [`Context`](context::Context) with the outputs, and returns a
//! [`Failure`](failure::Failure), which names what went wrong, where, and what to do. Results are written to standard
//! output, everything else to standard error. Exit status: 0 done, 1 failed, 2 usage, 130 interrupted, and 141 when the
//! reader of standard output has ended, as for any program that SIGPIPE ends.

mod advice;
mod args;
mod change;
mod cmd;
mod context;
mod epoch;
pub mod examples;
mod failure;
mod format;
mod glob;
mod images;
mod interrupt;
mod json;
mod mount_call;
mod mount_state;
mod on_disk;
mod open;
mod preload;
mod program;
mod progress;
mod suggestions;
mod table;
mod target;
mod words;

pub use program::{command, run};
