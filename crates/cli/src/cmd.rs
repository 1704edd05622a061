//! The commands, one file each. A new one is a `mod` line, and a variant of the enum with its arm below.

mod bench;
mod build;
mod cat;
mod chattr;
mod check;
mod chmod;
mod chown;
mod copy_in;
mod cp;
mod df;
mod du;
mod dump;
mod edit;
mod extract;
mod find;
mod info;
mod ln;
mod ls;
mod map;
mod mkdir;
mod mkfs;
mod mkfs_args;
mod mount;
pub mod mount_options;
mod mv;
mod rm;
mod setfattr;
mod stat;
mod top;
mod touch;
mod tree;
mod truncate;
mod tune;
mod umount;

use clap::Subcommand;

use crate::change::InImage;
use crate::context::Context;
use crate::failure::Failure;

/// What `lanefs` can do.
#[derive(Subcommand)]
pub enum Command {
    Build(build::BuildArgs),
    Mkfs(mkfs::MkfsCommand),
    Ls(ls::Args),
    Tree(tree::Args),
    Cat(cat::Args),
    Stat(stat::Args),
    Find(find::Args),
    Du(du::Args),
    Df(df::Args),
    Cp(cp::Args),
    Mv(InImage<mv::Mv>),
    Rm(InImage<rm::Rm>),
    Mkdir(InImage<mkdir::Mkdir>),
    Ln(InImage<ln::Ln>),
    Chmod(InImage<chmod::Chmod>),
    Chown(InImage<chown::Chown>),
    Touch(InImage<touch::Touch>),
    Truncate(InImage<truncate::Truncate>),
    Setfattr(InImage<setfattr::Setfattr>),
    Chattr(InImage<chattr::Chattr>),
    Edit(edit::Args),
    Extract(extract::Args),
    Check(check::CheckArgs),
    Info(info::InfoArgs),
    Map(map::MapArgs),
    Dump(dump::DumpArgs),
    Bench(bench::Args),
    Mount(mount::Args),
    Umount(umount::Args),
    Tune(tune::Args),
    Top(top::Args),
}

impl Command {
    /// Runs the command to its end.
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        match self {
            Command::Build(args) => args.run(context),
            Command::Mkfs(args) => args.run(context),
            Command::Ls(args) => args.run(context),
            Command::Tree(args) => args.run(context),
            Command::Cat(args) => args.run(context),
            Command::Stat(args) => args.run(context),
            Command::Find(args) => args.run(context),
            Command::Du(args) => args.run(context),
            Command::Df(args) => args.run(context),
            Command::Cp(args) => args.run(context),
            Command::Mv(args) => args.run(context),
            Command::Rm(args) => args.run(context),
            Command::Mkdir(args) => args.run(context),
            Command::Ln(args) => args.run(context),
            Command::Chmod(args) => args.run(context),
            Command::Chown(args) => args.run(context),
            Command::Touch(args) => args.run(context),
            Command::Truncate(args) => args.run(context),
            Command::Setfattr(args) => args.run(context),
            Command::Chattr(args) => args.run(context),
            Command::Edit(args) => args.run(context),
            Command::Extract(args) => args.run(context),
            Command::Check(args) => args.run(context),
            Command::Info(args) => args.run(context),
            Command::Map(args) => args.run(context),
            Command::Dump(args) => args.run(context),
            Command::Bench(args) => args.run(context),
            Command::Mount(args) => args.run(context),
            Command::Umount(args) => args.run(context),
            Command::Tune(args) => args.run(context),
            Command::Top(args) => args.run(context),
        }
    }
}
