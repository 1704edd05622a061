//! `lanefs du`: how much space directories take, each file with several names counted once.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Write;

use lanefs::walk::{Step, Walk};
use lanefs::{FileType, Fs, Ino, Metadata};

use crate::args::FsArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::images::Images;
use crate::target::ImagePath;
use crate::{format, json};

/// Show how much space directories of an image take
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// IMAGE, IMAGE:PATH, or IMAGE followed by paths
    #[arg(required = true, value_name = "IMAGE[:PATH]")]
    targets: Vec<OsString>,
    /// Include files, not only directories
    #[arg(short, long, conflicts_with = "summarize")]
    all: bool,
    /// One total for each path
    #[arg(short, long)]
    summarize: bool,
    /// Sizes with units (4.0K, 23M)
    #[arg(short, long)]
    human_readable: bool,
    /// Print file sizes instead of allocated space
    #[arg(long)]
    apparent_size: bool,
    /// In bytes; as --apparent-size
    #[arg(short, long)]
    bytes: bool,
    /// Count files with several names once for each name
    #[arg(short = 'l', long)]
    count_links: bool,
    /// A grand total at the end
    #[arg(short = 'c', long)]
    total: bool,
    /// Show directories down to this depth
    #[arg(short = 'd', long, value_name = "N")]
    max_depth: Option<usize>,
    /// As JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    from: FsArgs,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

struct Usage<'a> {
    args: &'a Args,
    context: &'a Context,
    output: Box<dyn Write>,
    entries: Vec<serde_json::Value>,
    failed: bool,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let targets = ImagePath::parse_all(&self.targets)?;
        let images = Images::open(context, &targets, &self.from)?;
        let output = Box::new(context.stdout());
        let mut usage = Usage {
            args: &self,
            context,
            output,
            entries: Vec::new(),
            failed: false,
        };
        let mut total: u64 = 0;
        for target in &targets {
            total = total.saturating_add(usage.target(images.of(target), target)?);
        }
        if self.total {
            usage.line(total, b"total")?;
        }
        if self.json {
            let entries = std::mem::take(&mut usage.entries);
            json::write(&mut *usage.output, "entries", entries.into())?;
        }
        usage.output.flush()?;
        if usage.failed {
            Err(Failure::told())
        } else {
            Ok(())
        }
    }
}

impl Usage<'_> {
    fn size(&self, metadata: &Metadata) -> u64 {
        if self.args.apparent_size || self.args.bytes {
            // As in du, only a file with contents has a length.
            match metadata.file_type {
                FileType::Regular | FileType::Symlink | FileType::Directory => metadata.size,
                _ => 0,
            }
        } else {
            metadata.blocks.saturating_mul(512)
        }
    }

    fn complain(&mut self, error: impl std::fmt::Display) -> Result<(), Failure> {
        self.output.flush()?;
        self.context.error(error);
        self.failed = true;
        Ok(())
    }

    /// Adds up what a path leads to.
    fn target(&mut self, fs: &Fs, target: &ImagePath) -> Result<u64, Failure> {
        let metadata = match fs.symlink_metadata(target.path()) {
            Ok(metadata) => metadata,
            Err(error) => {
                self.complain(error)?;
                return Ok(0);
            }
        };
        if metadata.file_type != FileType::Directory {
            let size = self.size(&metadata);
            self.line(size, &target.path)?;
            return Ok(size);
        }
        let prefix = if target.path.ends_with(b"/") {
            target.path.clone()
        } else {
            [&target.path[..], b"/"].concat()
        };
        let mut sums = vec![self.size(&metadata)];
        let mut counted: HashSet<Ino> = HashSet::new();
        let deepest = if self.args.summarize {
            0
        } else {
            self.args.max_depth.unwrap_or(usize::MAX)
        };
        for step in Walk::new(fs, metadata.ino) {
            match step {
                Err((path, error)) => self.complain(format_args!(
                    "{}: {error}",
                    format::safe_below(&target.path, &path)
                ))?,
                Ok(Step::Enter(entry)) => {
                    let is_directory = entry.metadata.file_type == FileType::Directory;
                    let again = !self.args.count_links
                        && !is_directory
                        && entry.metadata.nlink > 1
                        && !counted.insert(entry.ino);
                    if again {
                        continue;
                    }
                    let size = self.size(&entry.metadata);
                    if is_directory {
                        sums.push(size);
                        continue;
                    }
                    add(&mut sums, size);
                    if self.args.all && entry.depth <= deepest {
                        self.line(size, &[&prefix[..], &entry.path].concat())?;
                    }
                }
                Ok(Step::Leave(entry)) => {
                    let size = sums.pop().unwrap_or(0);
                    add(&mut sums, size);
                    if entry.depth <= deepest {
                        self.line(size, &[&prefix[..], &entry.path].concat())?;
                    }
                }
            }
        }
        let size = sums.first().copied().unwrap_or(0);
        self.line(size, &target.path)?;
        Ok(size)
    }

    fn line(&mut self, size: u64, path: &[u8]) -> Result<(), Failure> {
        if self.args.json {
            let mut object = json::JsonObject::new();
            object.insert("bytes".into(), size.into());
            json::put_bytes(&mut object, "path", path);
            self.entries.push(object.into());
            return Ok(());
        }
        let shown = if self.args.human_readable {
            format::human(size)
        } else if self.args.bytes {
            size.to_string()
        } else {
            size.div_ceil(1024).to_string()
        };
        write!(self.output, "{shown}\t")?;
        self.output
            .write_all(&format::name(path, self.context.terminal()))?;
        Ok(writeln!(self.output)?)
    }
}

fn add(sums: &mut [u64], size: u64) {
    if let Some(sum) = sums.last_mut() {
        *sum = sum.saturating_add(size);
    }
}
