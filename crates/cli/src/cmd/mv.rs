//! `lanefs mv`: renames files, and moves them to other directories.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use lanefs::{Fs, RenameFlag};

use crate::change::{Editing, ImageChange, paths, target_of};
use crate::context::Context;
use crate::failure::Failure;
use crate::format::safe;

/// Rename files in an image, or move them to another directory of it
#[derive(clap::Args)]
pub struct Mv {
    /// The files, as IMAGE:PATH ..., or IMAGE followed by paths; then the destination: a directory, or a name
    #[arg(required = true, num_args = 2.., value_name = "IMAGE:PATH")]
    places: Vec<OsString>,
    /// Fail if the name exists
    #[arg(short, long)]
    no_clobber: bool,
}

impl ImageChange for Mv {
    fn places(&mut self) -> &mut Vec<OsString> {
        &mut self.places
    }

    fn apply(&self, _: &Context, fs: &Editing<'_>) -> Result<(), Failure> {
        let (destination, sources) = match self.places.split_last() {
            Some((destination, sources)) if !sources.is_empty() => (destination, sources),
            _ => return Err(Failure::usage("name the files to move and the destination")),
        };
        let flag = if self.no_clobber {
            RenameFlag::NoReplace
        } else {
            RenameFlag::Replace
        };
        for from in paths(sources) {
            let is_directory = fs.symlink_metadata(from).is_ok_and(|found| found.is_dir());
            let destination = Path::new(destination);
            let to = target_of(fs, from, destination, sources.len(), is_directory)?;
            match relation(fs, from, &to) {
                Relation::SameName => {
                    let shown = |path: &Path| safe(path.as_os_str().as_bytes());
                    let (from, to) = (shown(from), shown(&to));
                    return Err(Failure::new(format!("{from} and {to} are the same file")));
                }
                // rename(2) leaves both names.
                Relation::SameFile if !self.no_clobber => fs.remove_file(from),
                _ => fs.rename_with(from, to, flag),
            }
            .map_err(Failure::new)?;
            fs.keep();
        }
        Ok(())
    }
}

/// What two paths lead to.
enum Relation {
    /// One name.
    SameName,
    /// Two names of a file that is not a directory.
    SameFile,
    /// Different files, or nothing.
    Different,
}

fn relation(fs: &Fs, from: &Path, to: &Path) -> Relation {
    let (Ok(old), Ok(new)) = (fs.symlink_metadata(from), fs.symlink_metadata(to)) else {
        return Relation::Different;
    };
    if old.ino != new.ino {
        return Relation::Different;
    }
    let parent = |path: &Path| {
        let parent = path.parent().unwrap_or(Path::new("/"));
        fs.metadata(parent).ok().map(|found| found.ino)
    };
    if old.is_dir() || (parent(from) == parent(to) && from.file_name() == to.file_name()) {
        Relation::SameName
    } else {
        Relation::SameFile
    }
}
