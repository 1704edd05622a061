//! `lanefs ln`: gives files further names (hard links), and makes symbolic links.

use std::ffi::OsString;
use std::path::Path;

use lanefs::Fs;

use crate::change::{Editing, ImageChange, target_of};
use crate::context::Context;
use crate::failure::Failure;

/// Make hard links and symbolic links in an image
#[derive(clap::Args)]
pub struct Ln {
    /// TARGET LINK: without -s both are places in the image, with it TARGET is any text
    #[arg(required = true, num_args = 2..=3, value_names = ["TARGET", "IMAGE:PATH"])]
    places: Vec<OsString>,
    /// A symbolic link
    #[arg(short, long)]
    symbolic: bool,
    /// Replace a link or file that exists
    #[arg(short, long)]
    force: bool,
    /// What a symbolic link says, once the place of the link is known.
    #[arg(skip)]
    target: Option<OsString>,
}

impl ImageChange for Ln {
    fn places(&mut self) -> &mut Vec<OsString> {
        if self.symbolic && self.target.is_none() {
            self.target = Some(self.places.remove(0));
        }
        &mut self.places
    }

    fn apply(&self, _: &Context, fs: &Editing<'_>) -> Result<(), Failure> {
        let (target, link) = match (&self.target, &self.places[..]) {
            (Some(target), [link]) | (None, [target, link]) => (target, link),
            _ => return Err(Failure::usage("name one target and one link")),
        };
        let target = Path::new(target);
        let is_directory = false;
        let link = target_of(fs, target, Path::new(link), 1, is_directory)?;
        if self.force && fs.symlink_metadata(&link).is_ok() {
            return self.replace(fs, target, &link).map_err(Failure::new);
        }
        self.make(fs, target, &link).map_err(Failure::new)
    }
}

impl Ln {
    fn make(&self, fs: &Fs, target: &Path, link: &Path) -> Result<(), lanefs::Error> {
        if self.symbolic {
            fs.symlink(target, link)
        } else {
            fs.hard_link(target, link)
        }
    }

    /// Makes the link in place of an existing file, which stays if that fails.
    fn replace(&self, fs: &Fs, target: &Path, link: &Path) -> Result<(), lanefs::Error> {
        if self.symbolic {
            fs.symlink_over(target, link)
        } else {
            fs.hard_link_over(target, link)
        }
    }
}
