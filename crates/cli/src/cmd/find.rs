//! `lanefs find`: the files of an image that meet an expression, as `find` does.

mod expression;

use std::ffi::OsString;
use std::io::Write;

use lanefs::walk::{Step, Walk};
use lanefs::{FileType, Fs, Metadata};

use self::expression::{Action, Candidate, Expression};
use crate::args::FsArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::images::Images;
use crate::target::ImagePath;
use crate::{format, json};

/// Find files of an image
#[derive(clap::Args)]
#[command(after_help = "\
The expression is that of find: tests joined by -a (or nothing) and -o, negated by ! or -not, grouped by ( ).
Tests: -name -iname -path -ipath -type -size -empty -perm -uid -gid -links -inum -newer -mtime
  -mmin -samefile -true -false
Bounds: -maxdepth N, -mindepth N
Actions: -print -print0 -ls -prune -quit
Options of lanefs come before the image: lanefs find --json disk.img:/etc -name '*.conf'")]
pub struct Args {
    /// Print everything about the files that are found, as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    from: FsArgs,
    /// IMAGE, IMAGE:PATH or IMAGE followed by paths; then the expression
    #[arg(
        required = true,
        value_name = "IMAGE[:PATH] [EXPRESSION]",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    arguments: Vec<OsString>,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let is_expression = |word: &OsString| {
            let bytes = word.as_encoded_bytes();
            bytes.starts_with(b"-") && bytes.len() > 1 || matches!(bytes, b"(" | b")" | b"!" | b",")
        };
        let split = self
            .arguments
            .iter()
            .position(is_expression)
            .unwrap_or(self.arguments.len());
        let (places, words) = self.arguments.split_at(split);
        let targets = ImagePath::parse_all(places)?;
        let images = Images::open(context, &targets, &self.from)?;
        let now = sync::clock::wall().0;
        let mut search = Search {
            context,
            output: Box::new(context.stdout()),
            json: self.json.then(Vec::new),
            failed: false,
            now,
        };
        for target in &targets {
            let fs = images.of(target);
            let expression = Expression::parse(words, fs, now)?;
            if !search.target(fs, target, &expression)? {
                break;
            }
        }
        if let Some(entries) = search.json.take() {
            json::write(&mut *search.output, "entries", entries.into())?;
        }
        search.output.flush()?;
        if search.failed {
            Err(Failure::told())
        } else {
            Ok(())
        }
    }
}

struct Search<'a> {
    context: &'a Context,
    output: Box<dyn Write>,
    json: Option<Vec<serde_json::Value>>,
    failed: bool,
    now: i64,
}

impl Search<'_> {
    fn complain(&mut self, error: impl std::fmt::Display) -> Result<(), Failure> {
        self.output.flush()?;
        self.context.error(error);
        self.failed = true;
        Ok(())
    }

    /// Searches below a path; returns whether the search continues.
    fn target(
        &mut self,
        fs: &Fs,
        target: &ImagePath,
        expression: &Expression,
    ) -> Result<bool, Failure> {
        let metadata = match fs.symlink_metadata(target.path()) {
            Ok(metadata) => metadata,
            Err(error) => {
                self.complain(error)?;
                return Ok(true);
            }
        };
        let mut verdict = self.judge(fs, expression, &target.path, target.name(), &metadata, 0)?;
        if verdict.quit
            || verdict.prune
            || metadata.file_type != FileType::Directory
            || expression.max_depth == 0
        {
            return Ok(!verdict.quit);
        }
        let prefix: &[u8] = if target.path.ends_with(b"/") {
            b""
        } else {
            b"/"
        };
        let mut walk = Walk::new(fs, metadata.ino);
        while let Some(step) = walk.next() {
            let entry = match step {
                Ok(Step::Enter(entry)) => entry,
                Ok(Step::Leave(_)) => continue,
                Err((path, error)) => {
                    self.complain(format_args!(
                        "{}: {error}",
                        format::safe_below(&target.path, &path)
                    ))?;
                    continue;
                }
            };
            let path = [&target.path, prefix, &entry.path].concat();
            verdict = self.judge(
                fs,
                expression,
                &path,
                entry.name(),
                &entry.metadata,
                entry.depth,
            )?;
            if verdict.quit {
                return Ok(false);
            }
            if verdict.prune || entry.depth >= expression.max_depth {
                walk.prune();
            }
        }
        Ok(true)
    }

    fn judge(
        &mut self,
        fs: &Fs,
        expression: &Expression,
        path: &[u8],
        name: &[u8],
        metadata: &Metadata,
        depth: usize,
    ) -> Result<Verdict, Failure> {
        let mut verdict = Verdict {
            prune: false,
            quit: false,
        };
        if depth < expression.min_depth {
            return Ok(verdict);
        }
        // The name of a root is its slash, as in find.
        let name = if name == b"." { b"/" } else { name };
        let mut actions = Vec::new();
        expression.evaluate(
            &Candidate {
                fs,
                path,
                name,
                metadata,
            },
            &mut actions,
        );
        for action in actions {
            match action {
                Action::Prune => verdict.prune = true,
                Action::Quit => verdict.quit = true,
                Action::Print | Action::PrintZero | Action::List if self.json.is_some() => {
                    let mut object = json::metadata(metadata);
                    json::put_bytes(&mut object, "path", path);
                    self.json.get_or_insert_default().push(object.into());
                }
                Action::Print => {
                    self.output
                        .write_all(&format::name(path, self.context.terminal()))?;
                    self.output.write_all(b"\n")?;
                }
                Action::PrintZero => {
                    self.output.write_all(path)?;
                    self.output.write_all(b"\0")?;
                }
                Action::List => self.list(fs, path, metadata)?,
            }
            if verdict.quit {
                break;
            }
        }
        Ok(verdict)
    }

    fn list(&mut self, fs: &Fs, path: &[u8], metadata: &Metadata) -> Result<(), Failure> {
        let (mode, time) = (
            format::mode(metadata.mode),
            format::time_short(metadata.mtime, self.now),
        );
        let (kib, size) = (metadata.blocks.div_ceil(2), metadata.size);
        let Metadata {
            ino,
            nlink,
            uid,
            gid,
            ..
        } = metadata;
        write!(
            self.output,
            "{ino:>9} {kib:>6} {mode} {nlink:>3} {uid:>5} {gid:>5} {size:>10} {time} "
        )?;
        self.output
            .write_all(&format::name(path, self.context.terminal()))?;
        if metadata.file_type == FileType::Symlink
            && let Ok(target) = fs.inodes().read_link(metadata.ino)
        {
            self.output.write_all(b" -> ")?;
            self.output
                .write_all(&format::name(&target, self.context.terminal()))?;
        }
        Ok(self.output.write_all(b"\n")?)
    }
}

struct Verdict {
    prune: bool,
    quit: bool,
}
