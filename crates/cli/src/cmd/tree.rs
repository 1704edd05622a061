//! `lanefs tree`: draws a directory and everything below it with lines, and counts the entries.

use std::ffi::OsString;
use std::io::Write;

use lanefs::walk::{Entry, Step};
use lanefs::{FileType, Fs};

use crate::args::FsArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::images::Images;
use crate::target::ImagePath;
use crate::{format, json};

/// Draw directories of an image as trees
#[derive(clap::Args)]
pub struct Args {
    /// IMAGE, IMAGE:PATH, or IMAGE followed by paths
    #[arg(required = true, value_name = "IMAGE[:PATH]")]
    targets: Vec<OsString>,
    /// Include entries that begin with a dot
    #[arg(short, long)]
    all: bool,
    /// Directories only
    #[arg(short, long)]
    directories: bool,
    /// At most N levels deep
    #[arg(short = 'L', long, value_name = "N")]
    level: Option<usize>,
    /// Print sizes next to the names
    #[arg(short, long)]
    size: bool,
    /// Print everything as JSON: a flat list of paths
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    from: FsArgs,
}

#[derive(Default)]
struct Counts {
    directories: u64,
    files: u64,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let targets = ImagePath::parse_all(&self.targets)?;
        let images = Images::open(context, &targets, &self.from)?;
        let mut output = context.stdout();
        let mut failed = false;
        let mut counts = Counts::default();
        let mut entries = Vec::new();
        for target in &targets {
            let fs = images.of(target);
            if !self.json {
                output.write_all(&format::name(&target.path, context.terminal()))?;
                writeln!(output)?;
            }
            failed |= !self.draw(context, fs, target, &mut output, &mut counts, &mut entries)?;
        }
        if self.json {
            json::write(&mut output, "entries", entries.into())?;
        } else {
            let word = |count, one, many| if count == 1 { one } else { many };
            let Counts { directories, files } = counts;
            let directory = word(directories, "directory", "directories");
            writeln!(output)?;
            if self.directories {
                writeln!(output, "{directories} {directory}")?
            } else {
                writeln!(
                    output,
                    "{directories} {directory}, {files} {}",
                    word(files, "file", "files")
                )?
            }
        }
        output.flush()?;
        if failed { Err(Failure::told()) } else { Ok(()) }
    }

    /// Draws a tree; returns whether all of it could be read.
    fn draw(
        &self,
        context: &Context,
        fs: &Fs,
        target: &ImagePath,
        output: &mut dyn Write,
        counts: &mut Counts,
        entries: &mut Vec<serde_json::Value>,
    ) -> Result<bool, Failure> {
        let mut walk = match fs.walk(target.path()) {
            Ok(walk) => walk,
            Err(error) => {
                output.flush()?;
                context.error(error);
                return Ok(false);
            }
        };
        let (all, directories) = (self.all, self.directories);
        walk.set_filter(move |name, metadata| {
            (all || !name.starts_with(b"."))
                && (!directories || metadata.file_type == FileType::Directory)
        });
        let mut whole = true;
        // For each level above, whether its entry is the last of its directory, so that no line is drawn below it.
        let mut last: Vec<bool> = Vec::new();
        while let Some(step) = walk.next() {
            let entry = match step {
                Ok(Step::Enter(entry)) => entry,
                Ok(Step::Leave(_)) => continue,
                Err((path, error)) => {
                    output.flush()?;
                    context.error(format_args!(
                        "{}: {error}",
                        format::safe_below(&target.path, &path)
                    ));
                    whole = false;
                    continue;
                }
            };
            let is_directory = entry.metadata.file_type == FileType::Directory;
            if is_directory && self.level.is_some_and(|level| entry.depth >= level) {
                walk.prune();
            }
            *(if is_directory {
                &mut counts.directories
            } else {
                &mut counts.files
            }) += 1;
            if self.json {
                entries.push(self.json_of(fs, &entry)?);
                continue;
            }
            last.truncate(entry.depth.saturating_sub(1));
            for is_last in &last {
                output.write_all(if *is_last { "    " } else { "│   " }.as_bytes())?;
            }
            output.write_all(
                if entry.is_last {
                    "└── "
                } else {
                    "├── "
                }
                .as_bytes(),
            )?;
            last.push(entry.is_last);
            self.line(context, fs, &entry, output)?;
        }
        Ok(whole)
    }

    fn line(
        &self,
        context: &Context,
        fs: &Fs,
        entry: &Entry,
        output: &mut dyn Write,
    ) -> Result<(), Failure> {
        let terminal = context.terminal();
        if self.size {
            write!(output, "[{:>5}]  ", format::human(entry.metadata.size))?;
        }
        let name = format::name(entry.name(), terminal);
        if context.color() {
            output.write_all(&format::colored(&name, &entry.metadata))?
        } else {
            output.write_all(&name)?
        }
        if entry.metadata.file_type == FileType::Symlink
            && let Ok(target) = fs.inodes().read_link(entry.ino)
        {
            output.write_all(b" -> ")?;
            output.write_all(&format::name(&target, terminal))?;
        }
        Ok(writeln!(output)?)
    }

    fn json_of(&self, fs: &Fs, entry: &Entry) -> Result<serde_json::Value, Failure> {
        let mut object = json::metadata(&entry.metadata);
        json::put_bytes(&mut object, "path", &entry.path);
        if entry.metadata.file_type == FileType::Symlink
            && let Ok(target) = fs.inodes().read_link(entry.ino)
        {
            json::put_bytes(&mut object, "target", &target);
        }
        Ok(object.into())
    }
}
