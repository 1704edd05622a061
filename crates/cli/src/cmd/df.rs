//! `lanefs df`: how full images are, counted as the kernel's `statfs` counts.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use lanefs::StatFs;

use crate::args::FsArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::open::open_fs;
use crate::{format, json};

/// Show how full images are
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The images
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<OsString>,
    /// Sizes with units (4.0K, 23M)
    #[arg(short, long)]
    human_readable: bool,
    /// Inodes instead of space
    #[arg(short, long)]
    inodes: bool,
    /// Print all numbers as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    from: FsArgs,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let mut lines = vec![self.heading()];
        let mut objects = Vec::new();
        let mut failed = false;
        for image in &self.images {
            let path = PathBuf::from(image);
            let opened = open_fs(context, &path, &self.from).and_then(|fs| {
                let numbers = fs.statfs();
                let numbers = numbers.map_err(|error| Failure::new(error).at(path.display()))?;
                Ok((fs, numbers))
            });
            let (fs, numbers) = match opened {
                Ok(opened) => opened,
                // The other images are shown nevertheless.
                Err(failure) => {
                    failure.report(context);
                    failed = true;
                    continue;
                }
            };
            let label = String::from_utf8_lossy(fs.inodes().superblock().label()).into_owned();
            lines.push(self.line(&path.display().to_string(), &numbers));
            objects.push(json_of(&path.display().to_string(), &label, &numbers));
        }
        let mut output = context.stdout();
        if self.json {
            json::write(&mut output, "filesystems", objects.into())?;
        } else {
            let widths: Vec<usize> = (0..lines[0].len())
                .map(|cell| {
                    lines
                        .iter()
                        .map(|line| line[cell].chars().count())
                        .max()
                        .unwrap_or(0)
                })
                .collect();
            for line in &lines {
                write!(output, "{:<1$}", line[0], widths[0])?;
                for (cell, width) in line.iter().zip(&widths).skip(1) {
                    write!(output, " {cell:>width$}")?;
                }
                writeln!(output)?;
            }
        }
        output.flush()?;
        if failed { Err(Failure::told()) } else { Ok(()) }
    }

    fn heading(&self) -> Vec<String> {
        let words: [&str; 5] = match (self.inodes, self.human_readable) {
            (true, _) => ["Image", "Inodes", "IUsed", "IFree", "IUse%"],
            (false, true) => ["Image", "Size", "Used", "Avail", "Use%"],
            (false, false) => ["Image", "1K-blocks", "Used", "Available", "Use%"],
        };
        words.map(str::to_owned).to_vec()
    }

    fn line(&self, name: &str, numbers: &StatFs) -> Vec<String> {
        let name = name.to_owned();
        if self.inodes {
            let used = numbers.files.saturating_sub(numbers.free_files);
            let show = |count: u64| {
                if self.human_readable {
                    format::human(count)
                } else {
                    count.to_string()
                }
            };
            let cells = [show(numbers.files), show(used), show(numbers.free_files)];
            return [
                vec![name],
                cells.to_vec(),
                vec![percent(used, numbers.free_files)],
            ]
            .concat();
        }
        let used = numbers.blocks.saturating_sub(numbers.free);
        let show = |blocks: u64| {
            let bytes = blocks.saturating_mul(numbers.block_size);
            if self.human_readable {
                format::human(bytes)
            } else {
                bytes.div_ceil(1024).to_string()
            }
        };
        let cells = [show(numbers.blocks), show(used), show(numbers.available)];
        [
            vec![name],
            cells.to_vec(),
            vec![percent(used, numbers.available)],
        ]
        .concat()
    }
}

/// The part that is used, rounded up, as `df` does.
fn percent(used: u64, rest: u64) -> String {
    match u128::from(used) + u128::from(rest) {
        0 => "-".to_owned(),
        all => format!("{}%", (u128::from(used) * 100).div_ceil(all)),
    }
}

fn json_of(image: &str, label: &str, numbers: &StatFs) -> serde_json::Value {
    serde_json::json!({
        "image": image,
        "label": label,
        "block_size": numbers.block_size,
        "blocks": numbers.blocks,
        "overhead": numbers.overhead,
        "free": numbers.free,
        "available": numbers.available,
        "inodes": numbers.files,
        "free_inodes": numbers.free_files,
    })
}
