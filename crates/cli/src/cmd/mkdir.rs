//! `lanefs mkdir`: directories.

use std::ffi::OsString;

use lanefs::{FileType, NewInode};

use super::chmod::{Mode, parse};
use crate::change::{Editing, ImageChange, paths};
use crate::context::Context;
use crate::failure::Failure;

/// Make directories in an image
#[derive(clap::Args)]
pub struct Mkdir {
    /// IMAGE:PATH ..., or IMAGE followed by paths; in a script, paths
    #[arg(required = true, value_name = "IMAGE:PATH")]
    places: Vec<OsString>,
    /// Make missing parents too; the directory may exist
    #[arg(short, long)]
    parents: bool,
    /// Permissions, as chmod takes them
    #[arg(short, long, default_value = "0755", value_parser = parse)]
    mode: Mode,
}

impl ImageChange for Mkdir {
    fn places(&mut self) -> &mut Vec<OsString> {
        &mut self.places
    }

    fn apply(&self, _: &Context, fs: &Editing<'_>) -> Result<(), Failure> {
        let new = NewInode {
            mode: self.mode.of(0o777, true),
            uid: 0,
            gid: 0,
            umask: 0,
            held: false,
        };
        for path in paths(&self.places) {
            let is_directory = |found: lanefs::Metadata| found.file_type == FileType::Directory;
            if self.parents && fs.metadata(path).is_ok_and(is_directory) {
                continue;
            }
            if let Some(parent) = path.parent().filter(|_| self.parents) {
                fs.create_dir_all(parent).map_err(Failure::new)?;
            }
            fs.create_dir_with(path, new).map_err(Failure::new)?;
            fs.keep();
        }
        Ok(())
    }
}
