//! `lanefs edit`: a script of changes to one image, one command on each line.
//!
//! The whole script is read and understood before anything is changed. Each command is journaled; the script stops at
//! the first that fails, and the changes of the lines before it stay. With `--atomic` the script is one transaction of
//! the journal: a failure, and a crash at any moment, leave all of it or nothing.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use super::{chattr, chmod, chown, copy_in, ln, mkdir, mv, rm, setfattr, touch, truncate};
use crate::args::ImageArgs;
use crate::change::{Editing, ImageChange, with_image, with_image_atomically};
use crate::context::Context;
use crate::failure::Failure;
use crate::{suggestions, words};

const AFTER: &str = "Words are quoted as in sh; # begins a comment; nothing is expanded. Paths are paths in the \
    image, except the sources of cp, which are files of the host.\nExample: printf \
    'mkdir -p /etc/app\\ncp app.conf /etc/app/\\n' | lanefs edit disk.img";

/// Bytes of a script: all of it is in memory, read and understood, before it begins.
const LONGEST: u64 = 16 << 20;

/// Change an image by a script of commands, one on each line (they do not name the image)
#[derive(clap::Args)]
#[command(after_help = AFTER)]
pub struct Args {
    /// The image
    image: PathBuf,
    /// A file with the script, or - for standard input
    #[arg(default_value = "-")]
    script: PathBuf,
    /// Apply all or nothing, also if the power fails; refused if the script does not fit one transaction
    #[arg(long)]
    atomic: bool,
    #[command(flatten)]
    at: ImageArgs,
}

/// A line of a script.
#[derive(Parser)]
#[command(
    no_binary_name = true,
    disable_help_flag = true,
    disable_help_subcommand = true
)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

/// What a script can do.
#[derive(Subcommand)]
enum Command {
    Cp(copy_in::CopyIn),
    Mv(mv::Mv),
    Rm(rm::Rm),
    Mkdir(mkdir::Mkdir),
    Ln(ln::Ln),
    Chmod(chmod::Chmod),
    Chown(chown::Chown),
    Touch(touch::Touch),
    Truncate(truncate::Truncate),
    Setfattr(setfattr::Setfattr),
    Chattr(chattr::Chattr),
}

impl Command {
    fn change(&self) -> &dyn ImageChange {
        match self {
            Command::Cp(change) => change,
            Command::Mv(change) => change,
            Command::Rm(change) => change,
            Command::Mkdir(change) => change,
            Command::Ln(change) => change,
            Command::Chmod(change) => change,
            Command::Chown(change) => change,
            Command::Touch(change) => change,
            Command::Truncate(change) => change,
            Command::Setfattr(change) => change,
            Command::Chattr(change) => change,
        }
    }
}

impl Args {
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let name = if self.script.as_os_str() == "-" {
            "standard input".to_owned()
        } else {
            self.script.display().to_string()
        };
        let script = read(&self.script)
            .map_err(|error| Failure::new(format!("reading {name} failed: {error}")))?;
        // Made once for all lines: it takes longer than to understand one.
        let mut language = Line::command();
        let mut lines = Vec::new();
        for (index, line) in script.split(|byte| *byte == b'\n').enumerate() {
            let place = format!("{name}, line {}", index + 1);
            if let Some(command) =
                parse(&mut language, line).map_err(|failure| failure.at(&place))?
            {
                lines.push((place, command));
            }
        }
        if self.atomic {
            with_image_atomically(context, &self.image, &self.at, |fs| {
                let done = run_all(context, fs, &lines);
                done.map_err(|failure| failure.hint("nothing was changed"))
            })
        } else {
            with_image(context, &self.image, &self.at, |fs| {
                run_all(context, fs, &lines)
            })
        }
    }
}

fn run_all(
    context: &Context,
    fs: &Editing<'_>,
    lines: &[(String, Command)],
) -> Result<(), Failure> {
    for (place, command) in lines {
        let done = command.change().apply(context, fs);
        done.map_err(|failure| failure.at(place))?;
        fs.keep();
    }
    Ok(())
}

fn read(script: &Path) -> std::io::Result<Vec<u8>> {
    if script.as_os_str() != "-" {
        return read_all(std::fs::File::open(script)?);
    }
    read_all(std::io::stdin().lock())
}

fn read_all(script: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    script.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        Err(std::io::Error::other("a script has at most 16 MiB"))
    } else {
        Ok(bytes)
    }
}

/// The command of a line, if there is one.
fn parse(language: &mut clap::Command, line: &[u8]) -> Result<Option<Command>, Failure> {
    let words = words::split(line).map_err(|unfinished| Failure::new(unfinished.0))?;
    if words.is_empty() {
        return Ok(None);
    }
    let words = words.into_iter().map(OsString::from_vec);
    let understood = language
        .try_get_matches_from_mut(words)
        .and_then(|mut found| Line::from_arg_matches_mut(&mut found));
    match understood {
        Ok(line) => Ok(Some(line.command)),
        Err(error) => {
            let error = error.format(language);
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            let failure = Failure::new(first.trim_start_matches("error: "));
            Err(match suggestions::for_script(error) {
                Some(hint) => failure.hint(hint),
                None => failure,
            })
        }
    }
}
