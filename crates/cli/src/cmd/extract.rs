//! `lanefs extract`: an image, or a directory of one, becomes a directory or a tar archive.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use lanefs::extract::{self, Existing, Keep, Options, Summary};
use lanefs::in_use::Replaced;
use lanefs::{FileType, Fs};

use crate::args::FsArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::format;
use crate::interrupt::{self, Stoppable};
use crate::open::open_fs;
use crate::preload;
use crate::target::ImagePath;

/// Extract an image into a directory or a tar archive
///
/// Into a directory, root restores owners, modes, devices, extended attributes, ACLs, times to the nanosecond, hard
/// links and holes, and another user those that the system allows. A tar has all of these for every user, but no
/// sockets. An empty lost+found is left out. A file that could not be extracted completely is removed.
#[derive(clap::Args)]
#[command(override_usage = "lanefs extract [OPTIONS] IMAGE[:PATH] DEST")]
pub struct Args {
    /// IMAGE[:PATH], or IMAGE and PATH; then the destination: a directory (created if it does not exist), a file whose
    /// name ends in .tar, or - for a tar on standard output
    #[arg(required = true, num_args = 1.., value_name = "IMAGE[:PATH] DEST")]
    arguments: Vec<OsString>,
    /// Replace files that exist in the destination
    #[arg(long)]
    overwrite: bool,
    /// Do not set owners and groups
    #[arg(long)]
    no_owner: bool,
    /// Leave out extended attributes, ACLs and capabilities
    #[arg(long)]
    no_xattrs: bool,
    /// Number of threads (0: one for each core)
    #[arg(
        short = 'j',
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true
    )]
    threads: usize,
    #[command(flatten)]
    from: FsArgs,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let (destination, source) = match self.arguments.split_last() {
            Some((destination, source)) if !source.is_empty() => (destination, source),
            _ => return Err(Failure::usage("name an image and a destination")),
        };
        let targets = ImagePath::parse_all(source)?;
        let [target] = targets.as_slice() else {
            return Err(Failure::usage("extract takes one image, or one path of it"));
        };
        let fs = open_fs(context, &target.image, &self.from)?;
        let from = fs.resolve(target.path()).map_err(Failure::new)?;
        let keep = Keep {
            owner: !self.no_owner,
            xattrs: !self.no_xattrs,
            acls: !self.no_xattrs,
            ..Keep::ALL
        };
        let options = Options {
            keep,
            existing: if self.overwrite {
                Existing::Replace
            } else {
                Existing::Refuse
            },
            umask: context.umask(),
            threads: self.threads,
            cancel: None,
        };
        let path = Path::new(destination);
        let is_directory = fs
            .metadata(target.path())
            .is_ok_and(|metadata| metadata.file_type == FileType::Directory);
        let begun = sync::clock::now();
        let summary = if destination == OsStr::new("-") {
            if io::stdout().is_terminal() {
                let failure = Failure::usage("a tar archive is not for a terminal");
                return Err(failure.hint("pipe it to tar, or name a file that ends in .tar"));
            }
            let mut output = io::stdout().lock();
            let summary = extract::to_tar(&fs, from, target.name(), &mut output, &options);
            summary.map_err(|error| match error {
                lanefs::Error::Output(error) => Failure::output(&error),
                other => Failure::new(other),
            })?
        } else if path.extension() == Some(OsStr::new("tar")) {
            self.to_file(&fs, from, target, path, &options)?
        } else {
            if !self.no_owner {
                preload::refuse_if_static(context, "extract to a tar, or say --no-owner")?;
            }
            let cancel = interrupt::flag()?;
            let options = Options {
                cancel: Some(&cancel),
                ..options
            };
            let _replaced = replaced(path)?;
            let summary = if is_directory {
                extract::to_directory(&fs, from, path, &options)
            } else {
                extract::to_name(&fs, from, path, target.name(), &options)
            };
            let summary = summary.map_err(|error| not_empty(&error))?;
            stopped(path, &summary)?;
            summary
        };
        let seconds = begun.elapsed().as_secs_f64();
        report(context, target, is_directory, &summary, seconds)
    }

    /// Writes a tar under a name that appears only when it is whole.
    fn to_file(
        &self,
        fs: &Fs,
        from: lanefs::Ino,
        target: &ImagePath,
        path: &Path,
        options: &Options<'_>,
    ) -> Result<Summary, Failure> {
        let failed =
            |error: io::Error| Failure::new(format!("creating {} failed: {error}", path.display()));
        if !self.overwrite && path.symlink_metadata().is_ok() {
            let failure = Failure::new(format!("{} exists", path.display()));
            return Err(failure.hint("name a new file, or say --overwrite"));
        }
        // An existing file is locked until it is replaced, and refused if it is in use.
        let _replaced = replaced(path)?;
        let flag = interrupt::flag()?;
        let unfinished = Unfinished::beside(path);
        let file = File::create_new(&unfinished.0).map_err(failed)?;
        let mut output = Stoppable::new(BufWriter::with_capacity(1 << 20, file), flag);
        let summary = extract::to_tar(fs, from, target.name(), &mut output, options);
        if output.is_stopped() {
            return Err(Failure::interrupted());
        }
        let written = |error| Failure::new(format!("writing {} failed: {error}", path.display()));
        let summary = summary.map_err(|error| match error {
            lanefs::Error::Output(error) => written(error),
            other => Failure::new(other),
        })?;
        output.flush().map_err(written)?;
        std::fs::rename(&unfinished.0, path).map_err(failed)?;
        Ok(summary)
    }
}

/// Locks a file that is about to be replaced, which may be an image in use.
pub fn replaced(path: &Path) -> Result<Replaced, Failure> {
    Replaced::hold(path).map_err(Failure::new)
}

/// A file that goes away unless it is renamed.
struct Unfinished(PathBuf);

impl Unfinished {
    fn beside(path: &Path) -> Unfinished {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        Unfinished(PathBuf::from(name))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // After the rename there is nothing to remove.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Why nothing was extracted, with the next step where there is one.
fn not_empty(error: &lanefs::Error) -> Failure {
    let failure = Failure::new(error);
    match error {
        lanefs::Error::Host { source, .. } if source.kind() == io::ErrorKind::DirectoryNotEmpty => {
            failure.hint("name a new directory, or say --overwrite")
        }
        _ => failure,
    }
}

/// Fails when the user interrupted, and says what the destination holds now.
pub fn stopped(destination: &Path, summary: &Summary) -> Result<(), Failure> {
    if !summary.cancelled {
        return Ok(());
    }
    if !destination.is_dir() {
        return Err(if destination.exists() {
            Failure::interrupted().hint(format!("{} is whole", destination.display()))
        } else {
            Failure::interrupted()
        });
    }
    Err(Failure::interrupted().hint(format!(
        "{} holds {} whole files in {} directories, which still lack their attributes; no file is half written",
        destination.display(),
        summary.files,
        summary.directories
    )))
}

/// Tells what was not restored, in one line, and what failed, line by line.
pub fn report(
    context: &Context,
    target: &ImagePath,
    is_directory: bool,
    summary: &Summary,
    seconds: f64,
) -> Result<(), Failure> {
    for (path, error) in &summary.errors {
        // A single file has the name of its copy here.
        let below = if is_directory { &path[..] } else { b"" };
        context.error(format_args!(
            "{}: {}: {error}",
            target.image.display(),
            format::safe_below(&target.path, below)
        ));
    }
    let lost: Vec<String> = [
        (summary.lost_owners, "owners"),
        (summary.lost_modes, "modes"),
        (summary.lost_xattrs, "extended attributes"),
        (summary.lost_devices, "devices"),
    ]
    .iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect();
    if !lost.is_empty() {
        let why = if rustix::process::geteuid().is_root() {
            "the destination does not take them"
        } else {
            "this is not root"
        };
        context.warn(format_args!(
            "not restored: {} ({why}); a tar keeps them all",
            lost.join(", ")
        ));
    }
    if summary.lost_sockets > 0 {
        context.warn(format_args!(
            "not restored: {} sockets, which a tar can't hold; a directory gets them",
            summary.lost_sockets
        ));
    }
    context.detail(format_args!(
        "{} files, {} directories, {} links, {} hard links, {} others; {} in {seconds:.2} s",
        summary.files,
        summary.directories,
        summary.symlinks,
        summary.hard_links,
        summary.special,
        format::human(summary.bytes)
    ));
    match summary.failed {
        0 => Ok(()),
        failed => {
            let s = if failed == 1 { "y" } else { "ies" };
            Err(Failure::new(format!(
                "{failed} entr{s} could not be extracted"
            )))
        }
    }
}
