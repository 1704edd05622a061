//! `lanefs mkfs`: an empty file system on a file or a block device.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::Args;
use lanefs::make::{self, MakeError};
use lanefs::mkfs::{FormatSummary, Options, parse_size};
use sync::Arc;
use sync::atomic::AtomicBool;

use crate::context::Context;
use crate::epoch;
use crate::failure::Failure;
use crate::interrupt;
use crate::progress::human_bytes;

/// Make an empty file system in a file or on a block device
#[derive(Args)]
pub struct MkfsCommand {
    /// The file (created if it does not exist) or block device
    image: PathBuf,
    /// Size: a number with K, M, G or T, or of blocks [default: that of the file or device]
    size: Option<OsString>,
    /// Only show what would be made
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Overwrite an existing file system, partition table or other content
    #[arg(short = 'F', long)]
    force: bool,
    /// Do not make lost+found
    #[arg(long)]
    no_lost_found: bool,
    #[command(flatten)]
    mkfs: super::mkfs_args::MkfsArgs,
    /// What mke2fs has and we have not: refused by name
    #[command(flatten)]
    refused: Refused,
}

/// Letters of mke2fs that are refused with the reason.
#[derive(Args)]
struct Refused {
    #[arg(short = 'c', hide = true)]
    check: bool,
    #[arg(short = 'l', hide = true)]
    bad_blocks: Option<String>,
    #[arg(short = 'd', hide = true)]
    directory: Option<String>,
    #[arg(short = 'D', hide = true)]
    direct: bool,
    #[arg(short = 'z', hide = true)]
    undo: Option<String>,
    #[arg(short = 'S', hide = true)]
    superblocks_only: bool,
}

impl MkfsCommand {
    /// Makes the file system.
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        crate::args::refuse_stdout(&self.image)?;
        let mut options = self.options()?;
        let begun = sync::clock::now();
        let unit = options
            .block_size
            .map_or(1024, ondisk::BlockSize::bytes_u64);
        let size = match &self.size {
            Some(text) => {
                Some(parse_size("SIZE", &text.to_string_lossy(), unit).map_err(Failure::usage)?)
            }
            None => None,
        };
        let explain = |error| explain(&self.image, error);
        if options.time.is_some() {
            let bytes = make::size_for(&self.image, size, &options).map_err(explain)?;
            make::identify_empty(&mut options, bytes);
        }
        let (verb, summary) = if self.dry_run {
            let size = make::size_for(&self.image, size, &options).map_err(explain)?;
            (
                "would make",
                make::rehearse(size, &options).map_err(explain)?,
            )
        } else {
            let _deferred = self.defer_signals()?;
            let made = make::make(&self.image, size, &options, self.force);
            ("made", made.map_err(explain)?)
        };
        epoch::warn_of_small_inodes(context, options.inode_size);
        context.detail(format_args!("{:.3} s", begun.elapsed().as_secs_f64()));
        if context.quiet() {
            return Ok(());
        }
        let mut out = context.stdout();
        write!(
            out,
            "{verb} {}",
            describe(
                &self.image,
                &summary,
                context.verbosity() > 0 || self.dry_run
            )
        )?;
        out.flush()?;
        Ok(())
    }

    /// From here on signals do not end the command where it writes to a file: that takes a moment, and half a file
    /// system is nothing to leave. A block device can take long.
    fn defer_signals(&self) -> Result<Option<Arc<AtomicBool>>, Failure> {
        let found = self.image.metadata();
        let is_device = found.is_ok_and(|found| found.file_type().is_block_device());
        (!is_device).then(interrupt::flag).transpose()
    }

    fn options(&self) -> Result<Options, Failure> {
        let refused = &self.refused;
        let asked = [
            ('c', refused.check),
            ('l', refused.bad_blocks.is_some()),
            ('d', refused.directory.is_some()),
            ('D', refused.direct),
            ('z', refused.undo.is_some()),
            ('S', refused.superblocks_only),
        ];
        let mut options = self.mkfs.options().map_err(Failure::usage)?;
        for (letter, _) in asked.iter().filter(|(_, asked)| *asked) {
            options.set(*letter, "").map_err(Failure::usage)?;
        }
        options.time = epoch::source_date()?;
        options.lost_found = !self.no_lost_found;
        Ok(options)
    }
}

/// The failure, with the next step where there is one.
pub fn explain(path: &Path, error: MakeError) -> Failure {
    let failure = match &error {
        MakeError::Device(source) => crate::open::cannot_open(path, source),
        MakeError::Mkfs(lanefs::mkfs::Error::Option { .. }) => return Failure::usage(&error),
        _ => Failure::new(&error).at(path.display()),
    };
    match error {
        MakeError::Occupied(_) => failure.hint("-F overwrites it"),
        MakeError::InUse(_) => {
            failure.hint("end that use of it first (umount, losetup -d, swapoff)")
        }
        MakeError::NotInPartition { table, .. } => {
            let lines = table.partitions.iter().map(|partition| {
                format!(
                    "  {:>4}  -E offset={}  {} bytes",
                    partition.number, partition.start, partition.len
                )
            });
            failure.hint(format!(
                "-F makes it nevertheless; the disk has these partitions:\n{}",
                lines.collect::<Vec<_>>().join("\n")
            ))
        }
        MakeError::NoSize => failure.hint(format!("give one: lanefs mkfs {} 1G", path.display())),
        _ => failure,
    }
}

/// What was made, in a few lines.
fn describe(path: &Path, summary: &FormatSummary, verbose: bool) -> String {
    let block = u64::from(summary.block_size);
    let bytes = |blocks: u64| human_bytes(blocks * block);
    let what = if summary.features.has(ondisk::Feature::JOURNAL_DEV) {
        "external journal".to_owned()
    } else {
        format!("{} file system", summary.kind())
    };
    let mut text = format!("an {what} in {}\n", path.display());
    let mut line = |name: &str, value: std::fmt::Arguments<'_>| {
        // Writing to a string can't fail.
        let _ = writeln!(text, "  {name:<9} {value}");
    };
    line(
        "size",
        format_args!(
            "{}: {} blocks of {}, {} groups",
            bytes(summary.blocks),
            summary.blocks,
            human_bytes(block),
            summary.groups
        ),
    );
    line(
        "free",
        format_args!(
            "{}, {} of {} inodes",
            bytes(summary.free_blocks),
            summary.free_inodes,
            summary.inodes
        ),
    );
    match summary.journal_blocks {
        0 => line("journal", format_args!("none")),
        blocks => line("journal", format_args!("{}", bytes(blocks))),
    }
    line("features", format_args!("{}", summary.features));
    if !summary.label.is_empty() {
        line(
            "label",
            format_args!("{}", String::from_utf8_lossy(&summary.label)),
        );
    }
    line("UUID", format_args!("{}", summary.uuid_text()));
    if verbose && !summary.backups.is_empty() {
        let places: Vec<String> = summary.backups.iter().map(ToString::to_string).collect();
        line(
            "backups",
            format_args!("superblocks at blocks {}", places.join(", ")),
        );
    }
    text
}
