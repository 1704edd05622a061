//! The commands, one file each. A new one is a `mod` line and a variant here, and an arm in `run`.

mod build;
mod info;
mod mkfs;
mod map;
mod mkfs_args;

use clap::Subcommand;

use crate::context::Context;
use crate::failure::Failure;

/// What `lanefs` can do.
#[derive(Subcommand)]
pub enum Command {
    Info(info::InfoArgs),
    Build(build::BuildArgs),
    Mkfs(mkfs::MkfsCommand),
    Map(map::MapArgs),
}

impl Command {
    /// Runs the command to its end.
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        match self {
            Command::Info(args) => args.run(context),
            Command::Build(args) => args.run(context),
            Command::Mkfs(args) => args.run(context),
            Command::Map(args) => args.run(context),
        }
    }
}
