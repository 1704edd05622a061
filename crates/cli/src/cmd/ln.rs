//! `lanefs ln`: further names, and symbolic links.

use std::ffi::OsString;
use std::path::Path;

use lanefs::Fs;

use crate::change::{Change, target_of};
use crate::context::Context;
use crate::failure::Failure;

/// Give a file of an image one more name, or make a symbolic link in it
#[derive(clap::Args)]
pub struct Ln {
    /// TARGET LINK: without -s both are places in the image, with it the target is any text
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

impl Change for Ln {
    fn places(&mut self) -> &mut Vec<OsString> {
        if self.symbolic && self.target.is_none() {
            self.target = Some(self.places.remove(0));
        }
        &mut self.places
    }

    fn apply(&self, _: &Context, fs: &Fs) -> Result<(), Failure> {
        let (target, link) = match (&self.target, &self.places[..]) {
            (Some(target), [link]) | (None, [target, link]) => (target, link),
            _ => return Err(Failure::usage("name one target and one link")),
        };
        let target = Path::new(target);
        let link = target_of(fs, target, Path::new(link), 1)?;
        if self.force && fs.symlink_metadata(&link).is_ok() {
            fs.remove_file(&link).map_err(Failure::new)?;
        }
        let made = match self.symbolic {
            true => fs.symlink(target, link),
            false => fs.hard_link(target, link),
        };
        made.map_err(Failure::new)
    }
}
