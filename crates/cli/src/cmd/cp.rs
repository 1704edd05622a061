//! `lanefs cp`: copies files and trees out of an image or into one, as cp(1) does. Nothing is written through a
//! symbolic link below the destination.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use lanefs::extract::{self, Existing, Keep, Options};
use lanefs::{FileType, Fs, Metadata};

use super::copy_in::{self, CopyFlags};
use super::{cat, extract as report};
use crate::args::FsArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::images::Images;
use crate::interrupt;
use crate::target::ImagePath;

/// Copy files and directories out of an image, or into one
#[derive(clap::Args)]
#[command(
    override_usage = "lanefs cp [OPTIONS] IMAGE:PATH... DEST\n       lanefs cp [OPTIONS] FILE... IMAGE:PATH",
    after_help = "Into an image: lanefs cp FILE... IMAGE:PATH. Each file is there whole or not at all, whenever the \
                         power fails. Without -p it belongs to root."
)]
pub struct Args {
    /// IMAGE:PATH ..., or IMAGE followed by paths; then the destination: a file, a directory, or - for standard output.
    /// Or files of the host (- for standard input), then IMAGE:PATH
    #[arg(required = true, num_args = 1.., value_name = "SOURCE... DEST")]
    arguments: Vec<OsString>,
    #[command(flatten)]
    flags: CopyFlags,
    #[command(flatten)]
    from: FsArgs,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let (destination, sources) = match self.arguments.split_last() {
            Some((destination, sources)) if !sources.is_empty() => (destination, sources),
            _ => return Err(Failure::usage("name the files to copy and the destination")),
        };
        self.flags.refuse_if_unseen(context)?;
        if copy_in::is_in_image(destination) {
            let image = self.from.for_writing()?;
            return copy_in::run(context, sources, destination, self.flags, image);
        }
        let targets = ImagePath::parse_all(sources)?;
        if let Some(target) = targets.iter().find(|target| !target.has_path) {
            let failure = Failure::usage(format!("{} names no path in it", target.image.display()));
            return Err(failure.hint("write IMAGE:/PATH, or IMAGE:/ for all of it"));
        }
        let images = Images::open(context, &targets, &self.from)?;
        if destination == OsStr::new("-") {
            return to_stdout(context, &targets, &images);
        }
        let cancel = interrupt::flag()?;
        let options = Options {
            cancel: Some(&cancel),
            ..self.options(context)
        };
        let to = To {
            destination: Path::new(destination),
            count: targets.len(),
            options,
        };
        let mut failed = false;
        for target in &targets {
            if let Err(failure) = self.one(context, images.of(target), target, &to) {
                if failure.is_interruption() {
                    return Err(failure);
                }
                failure.report(context);
                failed = true;
            }
        }
        if failed { Err(Failure::told()) } else { Ok(()) }
    }

    fn one(
        &self,
        context: &Context,
        fs: &Fs,
        target: &ImagePath,
        to: &To<'_>,
    ) -> Result<(), Failure> {
        let (destination, options) = (to.destination, &to.options);
        let metadata = self.source(fs, target)?;
        let is_directory = metadata.file_type == FileType::Directory;
        if is_directory && !self.flags.recursive && !self.flags.archive {
            let failure = Failure::new(format!("{} is a directory", target.shown()));
            return Err(failure.hint("say -r to copy it with all below it"));
        }
        let (parent, name) = place(target, destination, to.count)?;
        // The root of an image copied into a directory has no name to go by: what is in it goes there.
        let path = match &name {
            Some(name) => parent.join(OsStr::from_bytes(name)),
            None => parent.clone(),
        };
        let _replaced = report::replaced(&path)?;
        let begun = sync::clock::now();
        let summary = match name {
            _ if is_directory => {
                let is_link = path
                    .symlink_metadata()
                    .is_ok_and(|metadata| metadata.is_symlink());
                if is_link && path != destination {
                    let failure = Failure::new(format!("{} is a symbolic link", path.display()));
                    return Err(failure.hint("remove it, or choose another destination"));
                }
                extract::to_directory(fs, metadata.ino, &path, options)
            }
            Some(name) => extract::to_name(fs, metadata.ino, &parent, &name, options),
            None => return Err(Failure::new(format!("{} has no name", target.shown()))),
        };
        let mut summary = summary.map_err(Failure::new)?;
        if !rustix::process::geteuid().is_root() {
            // Owners are kept where they can be, as cp does without a word.
            summary.lost_owners = 0;
        }
        report::stopped(&path, &summary)?;
        let seconds = begun.elapsed().as_secs_f64();
        report::report(context, target, is_directory, &summary, seconds)
    }

    /// What to copy: with -r and -a a link itself, else what it leads to.
    fn source(&self, fs: &Fs, target: &ImagePath) -> Result<Metadata, Failure> {
        let itself = self.flags.recursive || self.flags.archive;
        let path = target.path();
        let metadata = if itself {
            fs.symlink_metadata(path)
        } else {
            fs.metadata(path)
        };
        metadata.map_err(|error| Failure::new(error).at(target.image.display()))
    }

    fn options(&self, context: &Context) -> Options<'static> {
        let preserve = self.flags.preserve || self.flags.archive;
        let keep = Keep {
            owner: preserve,
            mode: preserve,
            times: preserve,
            xattrs: self.flags.archive,
            acls: preserve,
            special_bits: true,
            hard_links: self.flags.archive,
        };
        Options {
            keep,
            existing: if self.flags.no_clobber {
                Existing::Keep
            } else {
                Existing::Replace
            },
            umask: context.umask(),
            threads: 0,
            cancel: None,
        }
    }
}

/// Where copies go, and how they are made.
struct To<'a> {
    destination: &'a Path,
    /// How many things are copied there.
    count: usize,
    options: Options<'a>,
}

/// The directory to copy into, and the name there.
fn place(
    target: &ImagePath,
    destination: &Path,
    count: usize,
) -> Result<(PathBuf, Option<Vec<u8>>), Failure> {
    let own_name = || match target.name() {
        b"." | b".." => None,
        name => Some(name.to_vec()),
    };
    if destination.is_dir() {
        return Ok((destination.to_path_buf(), own_name()));
    }
    if count > 1 {
        return Err(Failure::new(format!(
            "{} is not a directory",
            destination.display()
        )));
    }
    let parent = match destination.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !parent.is_dir() {
        return Err(Failure::new(format!(
            "{} is not a directory",
            parent.display()
        )));
    }
    match destination.file_name() {
        Some(name) => Ok((parent.to_path_buf(), Some(name.as_bytes().to_vec()))),
        None => Err(Failure::new(format!(
            "{} is not a directory",
            destination.display()
        ))),
    }
}

fn to_stdout(context: &Context, targets: &[ImagePath], images: &Images) -> Result<(), Failure> {
    let mut output = context.stdout();
    let mut whole = true;
    for target in targets {
        let file = images
            .of(target)
            .file(target.path())
            .map_err(Failure::new)?;
        whole &= cat::copy(context, target, &file, &mut output)?;
    }
    output.flush()?;
    if whole { Ok(()) } else { Err(Failure::told()) }
}
