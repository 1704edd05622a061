//! What commands that change an image have in common: they name places in one image, which is opened for writing,
//! changed, and closed even if the change failed. In a script the places are paths in the script's image.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::ops::Deref;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use device::{DeviceError, HeldDevice};
use lanefs::Fs;

use crate::args::ImageArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::open::open_for_writing;
use crate::target::ImagePath;

/// A command that changes an image.
pub trait ImageChange {
    /// Those of its arguments that are places in the image.
    fn places(&mut self) -> &mut Vec<OsString>;

    /// Makes the change; the places are absolute paths by now. Stops at the first failure; the operands that were done
    /// before stay ([`Editing::keep`]).
    fn apply(&self, context: &Context, fs: &Editing<'_>) -> Result<(), Failure>;
}

// A change with the image given by its arguments. (clap would show a doc comment here instead of the change's own.)
#[derive(clap::Args)]
pub struct InImage<C: clap::Args> {
    #[command(flatten)]
    image: ImageArgs,
    // The last: the command says of itself what this says of itself.
    #[command(flatten)]
    change: C,
}

impl<C: clap::Args + ImageChange> InImage<C> {
    /// Opens the image, makes the change and closes the image.
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let mut change = self.change;
        let image = name_image(change.places())?;
        with_image(context, image.as_ref(), &self.image, |fs| {
            change.apply(context, fs)
        })
    }
}

/// Turns places that name an image into paths in it; they must all name the same.
fn name_image(places: &mut Vec<OsString>) -> Result<OsString, Failure> {
    let targets = ImagePath::parse_all(places)?;
    let image = targets[0].image.clone();
    for target in &targets {
        if !target.has_path {
            let failure = Failure::usage(format!("{} names no path in it", target.image.display()));
            return Err(failure.hint("write IMAGE:/PATH"));
        }
        if target.image != image {
            let both = format!("{} and {}", image.display(), target.image.display());
            return Err(Failure::usage(format!("{both} are two images")));
        }
    }
    *places = targets
        .into_iter()
        .map(|target| OsString::from_vec(target.path))
        .collect();
    Ok(image.into())
}

/// An image that a command changes.
pub struct Editing<'a> {
    fs: &'a Fs,
    /// Whether something was done that stays, whatever fails after it.
    is_kept: Cell<bool>,
}

impl<'a> Editing<'a> {
    fn of(fs: &'a Fs) -> Editing<'a> {
        Editing {
            fs,
            is_kept: Cell::new(false),
        }
    }

    /// An operand, or a line of a script, is done: it stays, although a later one may fail.
    pub fn keep(&self) {
        self.is_kept.set(true);
    }
}

impl Deref for Editing<'_> {
    type Target = Fs;

    fn deref(&self) -> &Fs {
        self.fs
    }
}

/// Opens an image for writing, works on it, and closes it. Work of which nothing was done leaves the image byte for
/// byte as it was: all that is written waits in memory, up to `HELD_BYTES`, until something is done.
pub fn with_image(
    context: &Context,
    image: &Path,
    options: &ImageArgs,
    work: impl FnOnce(&Editing<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (fs, held) = open_for_writing(context, image, options)?;
    let (done, is_kept) = {
        let editing = Editing::of(&fs);
        (work(&editing), editing.is_kept.get())
    };
    if done.is_err() && !is_kept && held.is_untouched() {
        fs.abandon();
        return done;
    }
    let failed = |error: lanefs::Error| Failure::new(error).at(image.display());
    let closed = fs.sync().and_then(|()| {
        let statistics = fs.inodes().journal_statistics();
        let has_changed = statistics.is_none_or(|statistics| statistics.commits.sum() > 0);
        fs.close().map(|()| has_changed)
    });
    let closed = closed.map_err(failed).and_then(|has_changed| {
        if has_changed || !held.is_untouched() {
            release(&held, image)
        } else {
            Ok(())
        }
    });
    done.and(closed)
}

/// As [`with_image`], with all of the work as one transaction.
pub fn with_image_atomically(
    context: &Context,
    image: &Path,
    options: &ImageArgs,
    work: impl FnOnce(&Editing<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (fs, held) = open_for_writing(context, image, options)?;
    fs.atomically(|fs| work(&Editing::of(fs)))?;
    release(&held, image)
}

fn release(held: &HeldDevice, image: &Path) -> Result<(), Failure> {
    held.release().map_err(|error| {
        let is_untouched = !matches!(error, DeviceError::Io { .. });
        let failure = Failure::new(error).at(image.display());
        if is_untouched {
            return failure;
        }
        failure.hint(format!(
            "the disk failed while the change was written, so the image is as after a power cut, with the change or \
             without it: lanefs check {}",
            image.display()
        ))
    })
}

/// Every place as a path.
pub fn paths(places: &[OsString]) -> impl Iterator<Item = &Path> {
    places.iter().map(Path::new)
}

/// Calls `visit` with each place, and with `recursive` all below it; links are not followed on the way, and at a place
/// itself only without `recursive`.
pub fn each(
    fs: &Editing<'_>,
    places: &[OsString],
    recursive: bool,
    mut visit: impl FnMut(&Path) -> Result<(), lanefs::Error>,
) -> Result<(), Failure> {
    for place in paths(places) {
        visit(place).map_err(Failure::new)?;
        let metadata = fs.symlink_metadata(place).map_err(Failure::new)?;
        if !recursive || metadata.file_type != lanefs::FileType::Directory {
            fs.keep();
            continue;
        }
        for step in fs.walk(place).map_err(Failure::new)? {
            if let lanefs::walk::Step::Enter(entry) =
                step.map_err(|(path, error)| Failure::new(error).at(crate::format::safe(&path)))?
            {
                visit(&place.join(OsStr::from_bytes(&entry.path))).map_err(Failure::new)?;
            }
        }
        fs.keep();
    }
    Ok(())
}

/// Where something with the name of `from` goes: into `destination` if that is a directory, else exactly there. With a
/// slash at its end, only a directory can go exactly there.
pub fn target_of(
    fs: &Fs,
    from: &Path,
    destination: &Path,
    count: usize,
    from_is_directory: bool,
) -> Result<PathBuf, Failure> {
    let is_directory = match fs.metadata(destination) {
        Ok(metadata) => metadata.file_type == lanefs::FileType::Directory,
        Err(error) if error.is_not_found() => false,
        Err(error) => return Err(Failure::new(error)),
    };
    match from.file_name() {
        Some(name) if is_directory => Ok(destination.join(name)),
        // A path that ends with `..` has no name to go by.
        None if is_directory => Ok(destination.to_path_buf()),
        _ if count > 1
            || (!from_is_directory && destination.as_os_str().as_bytes().ends_with(b"/")) =>
        {
            let shown = crate::format::safe(destination.as_os_str().as_bytes());
            Err(Failure::new(format!("{shown} is not a directory")))
        }
        _ => Ok(destination.to_path_buf()),
    }
}
