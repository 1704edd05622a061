//! `lanefs build`: a file system image from directories, tar archives and OCI images.
//!
//! SIGINT, SIGTERM and SIGHUP only set a flag that the builder looks at; it then removes its temporary file, and we
//! exit with 130.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use lanefs::build::{
    self, BuildError, BuildOptions, Extra, Input, Size, SourceOptions, SourcePlace, parse_owner,
};
use lanefs::make;

use crate::args::{parse_size, refuse_stdout};
use crate::context::Context;
use crate::epoch;
use crate::failure::Failure;
use crate::interrupt;
use crate::preload;
use crate::progress::{Bar, human_bytes};

/// Build an image from directories, tar archives and OCI images
#[derive(Args)]
#[command(override_usage = "lanefs build [OPTIONS] SOURCE[:/PATH]... IMAGE")]
pub struct BuildArgs {
    /// Sources, then the image to write. A source is a directory, a tar (plain, gz, zst, xz; - for stdin), or a
    /// container image (an OCI layout or what docker save writes, as a directory or a tar). With `:/PATH`, it is put
    /// into that directory of the image
    #[arg(required = true, num_args = 1.., value_name = "SOURCE... IMAGE")]
    paths: Vec<OsString>,
    /// Size of the image: `auto` (what is needed, and at least 5% and 4 MiB free), `min` (the smallest that fits),
    /// `auto+SIZE`, `auto+N%` (larger than `min` by SIZE or N%, of which less is free: see docs/build.md), or a size
    /// (K, M, G, T)
    #[arg(long, default_value = "auto", value_parser = parse_image_size, allow_hyphen_values = true)]
    size: Size,
    /// Owner and group of everything
    #[arg(long, value_name = "UID:GID")]
    owner: Option<String>,
    /// A table of owners, modes and devices (the form Buildroot uses)
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// SELinux labels by path (a `file_contexts` file)
    #[arg(long, value_name = "FILE")]
    file_contexts: Option<PathBuf>,
    /// Leave out what this pattern matches (may be repeated)
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Choose an image of a multi-platform OCI index
    #[arg(long, value_name = "OS/ARCH[/VARIANT]")]
    platform: Option<String>,
    /// Choose one of several container images: a tag, name, digest or `NAME@DIGEST`
    #[arg(long, value_name = "NAME")]
    image: Option<String>,
    /// The most space in TMPDIR for a container image that is compressed or comes through a pipe [default: half of the
    /// free space there]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    spool: Option<u64>,
    /// Overwrite a file system, partition table or other content on a block device
    #[arg(short = 'F', long)]
    force: bool,
    /// Do not make lost+found
    #[arg(long)]
    no_lost_found: bool,
    /// Make the same bytes from the same input on any host, at any time (as with SOURCE_DATE_EPOCH)
    #[arg(long)]
    reproducible: bool,
    /// Number of threads that read and copy [default: one for each core]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// Return only when the image is on the medium
    #[arg(long)]
    sync: bool,
    #[command(flatten)]
    mkfs: super::mkfs_args::MkfsArgs,
}

/// Whether a source is a directory whose files' owners are asked for.
fn has_directory(sources: &[OsString]) -> bool {
    sources
        .iter()
        .any(|source| match Input::parse(source).place {
            SourcePlace::Path(path) => path.is_dir() && !build::is_image_directory(&path),
            SourcePlace::Stdin => false,
        })
}

/// Reads `auto`, `min`, `auto+SIZE`, `auto+N%`, `+SIZE`, `+N%` or a size.
fn parse_image_size(text: &str) -> Result<Size, String> {
    match text {
        "auto" => return Ok(Size::Auto(Extra::Usable)),
        "min" => return Ok(Size::Auto(Extra::None)),
        _ => {}
    }
    let rest = text.strip_prefix("auto").unwrap_or(text);
    match rest.strip_prefix('+') {
        Some(percent) if percent.ends_with('%') => {
            let number = percent.trim_end_matches('%').parse();
            let number = number
                .map_err(|_| format!("invalid size `{text}`: expected one such as auto+10%"))?;
            Ok(Size::Auto(Extra::Percent(number)))
        }
        Some(bytes) => Ok(Size::Auto(Extra::Bytes(parse_size(bytes)?))),
        None => Ok(Size::Fixed(parse_size(text)?)),
    }
}

impl BuildArgs {
    /// Builds the image.
    pub fn run(mut self, context: &Context) -> Result<(), Failure> {
        let output = match self.paths.pop() {
            Some(output) if !self.paths.is_empty() => PathBuf::from(output),
            _ => return Err(Failure::usage("name the sources and the image")),
        };
        refuse_stdout(&output)?;
        if self.owner.is_none() && self.table.is_none() && has_directory(&self.paths) {
            preload::refuse_if_static(
                context,
                "name owners with --owner or --table, or build from a tar",
            )?;
        }
        let options = self.options()?;
        if !self.force {
            make::refuse_occupied_device(&output)
                .map_err(|error| super::mkfs::explain(&output, error))?;
        }
        let wants_journal = options.mkfs.has_feature(ondisk::Feature::HAS_JOURNAL);
        let cancel = interrupt::flag()?;
        let begun = sync::clock::now();
        let bar = Bar::new(context);
        let result = build::build(&options, &output, &bar, &cancel);
        bar.finish();
        let report = result.map_err(|error| match error {
            BuildError::Interrupted => Failure::interrupted(),
            BuildError::Device(error @ lanefs::DeviceError::InUse { .. }) => Failure::new(error)
                .hint("end that use of it (umount, losetup -d, swapoff), or name another image"),
            BuildError::Device(error) => {
                Failure::new(format_args!("{}: {error}", output.display()))
            }
            error => Failure::new(error),
        })?;
        let made = &report.file_system;
        for warning in &report.warnings {
            context.warn(warning);
        }
        epoch::warn_of_small_inodes(context, options.mkfs.inode_size);
        context.note(format_args!(
            "{}: {} inodes, {} of data, image of {} with {} and {} inodes free{}, {:.2} s",
            output.display(),
            report.inodes,
            human_bytes(report.data_bytes),
            human_bytes(report.image_bytes),
            human_bytes(made.free_blocks * u64::from(made.block_size)),
            made.free_inodes,
            if wants_journal && !made.features.has(ondisk::Feature::HAS_JOURNAL) {
                ", too small for a journal"
            } else {
                ""
            },
            begun.elapsed().as_secs_f64()
        ));
        Ok(())
    }

    fn options(&self) -> Result<BuildOptions, Failure> {
        let owner = match &self.owner {
            Some(text) => Some(parse_owner(text).map_err(Failure::usage)?),
            None => None,
        };
        let newest_time = epoch::source_date()?;
        let mut mkfs = self.mkfs.options().map_err(Failure::usage)?;
        if self.reproducible && mkfs.random_uuid {
            let text = "--reproducible contradicts -U random; leave one of the two out";
            return Err(Failure::usage(text));
        }
        mkfs.lost_found = !self.no_lost_found;
        Ok(BuildOptions {
            source: SourceOptions {
                inputs: self.paths.iter().map(|path| Input::parse(path)).collect(),
                exclude: self.exclude.clone(),
                owner,
                table: self.table.clone(),
                file_contexts: self.file_contexts.clone(),
                platform: self.platform.clone(),
                image: self.image.clone(),
                spool: self.spool,
                ..SourceOptions::default()
            },
            mkfs,
            size: self.size,
            threads: self.threads,
            reproducible: self.reproducible,
            newest_time,
            sync: self.sync,
        })
    }
}
