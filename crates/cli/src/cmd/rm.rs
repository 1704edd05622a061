//! `lanefs rm`: removes names.

use std::ffi::OsString;

use lanefs::FileType;

use crate::change::{Editing, ImageChange, paths};
use crate::context::Context;
use crate::failure::Failure;

/// Remove files from an image
#[derive(clap::Args)]
pub struct Rm {
    /// IMAGE:PATH ..., or IMAGE followed by paths; in a script, paths
    #[arg(required = true, value_name = "IMAGE:PATH")]
    places: Vec<OsString>,
    /// Remove directories recursively
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Remove empty directories
    #[arg(short, long)]
    dir: bool,
    /// Ignore files that do not exist
    #[arg(short, long)]
    force: bool,
}

impl ImageChange for Rm {
    fn places(&mut self) -> &mut Vec<OsString> {
        &mut self.places
    }

    fn apply(&self, _: &Context, fs: &Editing<'_>) -> Result<(), Failure> {
        for path in paths(&self.places) {
            let metadata = match fs.symlink_metadata(path) {
                Err(error) if self.force && error.is_not_found() => continue,
                found => found.map_err(Failure::new)?,
            };
            let is_directory = metadata.file_type == FileType::Directory;
            let removed = match is_directory {
                true if self.recursive => fs.remove_dir_all(path),
                true if self.dir => fs.remove_dir(path),
                _ => fs.remove_file(path),
            };
            removed.map_err(|error| {
                let failure = Failure::new(error);
                if is_directory && !self.recursive && !self.dir {
                    failure.hint("say -r to remove it with all below it")
                } else {
                    failure
                }
            })?;
            fs.keep();
        }
        Ok(())
    }
}
