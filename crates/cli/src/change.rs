//! What commands that change an image have in common: they name places in one image, which is opened for writing,
//! changed, and closed whatever came of it. In a script the places are paths in the script's image.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use lanefs::Fs;

use crate::args::ImageArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::open::open_for_writing;
use crate::target::Target;

/// A command that changes an image.
pub trait Change {
    /// Those of its arguments that are places in the image.
    fn places(&mut self) -> &mut Vec<OsString>;

    /// Makes the change; the places are absolute paths by now. Stops at the first failure; what was done stays.
    fn apply(&self, context: &Context, fs: &Fs) -> Result<(), Failure>;
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

impl<C: clap::Args + Change> InImage<C> {
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
    let targets = Target::parse_all(places)?;
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

/// Opens an image for writing, works on it, and closes it whatever came of that.
pub fn with_image(
    context: &Context,
    image: &Path,
    options: &ImageArgs,
    work: impl FnOnce(&Fs) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let fs = open_for_writing(context, image, options)?;
    let done = work(&fs);
    let closed = fs
        .close()
        .map_err(|error| Failure::new(error).at(image.display()));
    done.and(closed)
}

/// Every place as a path.
pub fn paths(places: &[OsString]) -> impl Iterator<Item = &Path> {
    places.iter().map(Path::new)
}

/// Calls `visit` with each place, and with `recursive` all below it; links are not followed on the way, and at a place
/// itself only without `recursive`.
pub fn each(
    fs: &Fs,
    places: &[OsString],
    recursive: bool,
    mut visit: impl FnMut(&Path) -> Result<(), lanefs::Error>,
) -> Result<(), Failure> {
    for place in paths(places) {
        visit(place).map_err(Failure::new)?;
        let metadata = fs.symlink_metadata(place).map_err(Failure::new)?;
        if !recursive || metadata.file_type != lanefs::FileType::Directory {
            continue;
        }
        for step in fs.walk(place).map_err(Failure::new)? {
            if let lanefs::walk::Step::Enter(entry) =
                step.map_err(|(path, error)| Failure::new(error).at(crate::format::safe(&path)))?
            {
                visit(&place.join(OsStr::from_bytes(&entry.path))).map_err(Failure::new)?;
            }
        }
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
            Err(Failure::new(format!("{shown} is no directory")))
        }
        _ => Ok(destination.to_path_buf()),
    }
}
