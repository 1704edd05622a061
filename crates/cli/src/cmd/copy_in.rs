//! `lanefs cp` into an image, and `cp` in a script: files and trees of the host.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use lanefs::CopyOptions;

use crate::args::ImageArgs;
use crate::change::{Editing, ImageChange, target_of, with_image};
use crate::context::Context;
use crate::epoch;
use crate::failure::Failure;
use crate::preload;
use crate::target::ImagePath;

/// What to copy and to keep, in either direction.
#[derive(clap::Args, Clone, Copy)]
pub struct CopyFlags {
    /// Copy directories recursively
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// Keep modes, times and, as far as this user may set them, owners
    #[arg(short, long)]
    pub preserve: bool,
    /// As -rp, and extended attributes, ACLs and hard links too
    #[arg(short, long)]
    pub archive: bool,
    /// Do not replace files that exist
    #[arg(short, long)]
    pub no_clobber: bool,
}

/// Copy files and directories of the host into the image
#[derive(clap::Args)]
pub struct CopyIn {
    /// Files of the host (- for standard input), then a path in the image: a directory, or a name
    #[arg(required = true, num_args = 2.., value_names = ["FILE", "PATH"])]
    arguments: Vec<OsString>,
    #[command(flatten)]
    flags: CopyFlags,
}

impl CopyFlags {
    /// Refuses what needs owners and types of the host that this program can't see.
    pub fn refuse_if_unseen(self, context: &Context) -> Result<(), Failure> {
        if self.recursive || self.preserve || self.archive {
            preload::refuse_if_static(context, "copy files without -r, -p and -a")
        } else {
            Ok(())
        }
    }
}

impl ImageChange for CopyIn {
    fn places(&mut self) -> &mut Vec<OsString> {
        &mut self.arguments
    }

    fn apply(&self, context: &Context, fs: &Editing<'_>) -> Result<(), Failure> {
        self.flags.refuse_if_unseen(context)?;
        match self.arguments.split_last() {
            Some((destination, sources)) if !sources.is_empty() => {
                copy_all(context, fs, sources, Path::new(destination), self.flags)
            }
            _ => Err(Failure::usage("name the files to copy and the destination")),
        }
    }
}

/// Copies files of the host to a place in an image.
pub fn run(
    context: &Context,
    sources: &[OsString],
    destination: &OsStr,
    flags: CopyFlags,
    image: &ImageArgs,
) -> Result<(), Failure> {
    if let Some(source) = sources.iter().find(|source| is_in_image(source)) {
        let both = format!("{} and {}", source.display(), destination.display());
        let failure = Failure::usage(format!("{both} are both in images"));
        return Err(failure.hint("copy out of one image first, then into the other"));
    }
    let target = ImagePath::parse(destination);
    with_image(context, &target.image, image, |fs| {
        let destination = Path::new(OsStr::from_bytes(&target.path));
        copy_all(context, fs, sources, destination, flags)
    })
}

/// Whether an argument names a place in an image. False if the host has a file of that name.
pub fn is_in_image(argument: &OsStr) -> bool {
    ImagePath::parse(argument).has_path && !Path::new(argument).exists()
}

fn copy_all(
    context: &Context,
    fs: &Editing<'_>,
    sources: &[OsString],
    destination: &Path,
    flags: CopyFlags,
) -> Result<(), Failure> {
    let preserve = flags.preserve || flags.archive;
    let options = CopyOptions {
        recursive: flags.recursive || flags.archive,
        owner: preserve,
        mode: preserve,
        umask: context.umask(),
        times: preserve,
        newest_time: epoch::stamp()?,
        xattrs: flags.archive,
        hard_links: flags.archive,
        replace: !flags.no_clobber,
    };
    for source in sources {
        if source == "-" {
            let mut input = std::io::stdin().lock();
            fs.write_from(destination, &mut input)
                .map_err(Failure::new)?;
            fs.keep();
            continue;
        }
        let from = Path::new(source);
        if from.is_dir() && !options.recursive {
            let failure = Failure::new(format!("{} is a directory", from.display()));
            return Err(failure.hint("say -r to copy it with all below it"));
        }
        let to = if names_contents(source) {
            PathBuf::from(destination)
        } else {
            target_of(fs, from, destination, sources.len(), from.is_dir())?
        };
        let copied = fs.copy_in(from, to, &options).map_err(Failure::new)?;
        fs.keep();
        epoch::warn_of_cut_time(context, fs, copied.latest);
        if copied.lost_xattrs > 0 {
            let lost = copied.lost_xattrs;
            context.warn(format_args!(
                "{lost} extended attributes that ext4 has no place for were left out"
            ));
        }
        context.detail(format!(
            "{}: {} files, {} directories, {} others, {} bytes of data",
            from.display(),
            copied.files,
            copied.directories,
            copied.others,
            copied.bytes
        ));
    }
    Ok(())
}

/// Whether a name stands for what is in a directory, as `DIR/.` does.
fn names_contents(source: &OsStr) -> bool {
    let bytes = source.as_bytes();
    matches!(bytes, b"." | b"..") || bytes.ends_with(b"/.") || bytes.ends_with(b"/..")
}
