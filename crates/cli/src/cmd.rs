//! The commands, one file each. A new one is a `mod` line and a variant here, and an arm in `run`.

use clap::Subcommand;

use crate::context::Context;
use crate::failure::Failure;

/// What `lanefs` can do.
#[derive(Subcommand)]
pub enum Command {}

impl Command {
    /// Runs the command to its end.
    pub fn run(self, _context: &Context) -> Result<(), Failure> {
        match self {}
    }
}
