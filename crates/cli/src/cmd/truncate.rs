//! `lanefs truncate`: the size of files.

use std::ffi::OsString;

use crate::args::parse_size;
use crate::change::{Editing, ImageChange, paths};
use crate::context::Context;
use crate::failure::Failure;

/// Set the size of files in an image
#[derive(clap::Args)]
pub struct Truncate {
    /// The new size; with + or - the change (suffixes K, M, G, T)
    #[arg(short, long, value_name = "SIZE", allow_hyphen_values = true, value_parser = parse)]
    size: Size,
    /// IMAGE:PATH ..., or IMAGE followed by paths; in a script, paths
    #[arg(required = true, value_name = "IMAGE:PATH")]
    places: Vec<OsString>,
}

#[derive(Clone, Copy, Debug)]
enum Size {
    Set(u64),
    More(u64),
    Less(u64),
}

fn parse(text: &str) -> Result<Size, String> {
    match (text.strip_prefix('+'), text.strip_prefix('-')) {
        (Some(more), _) => parse_size(more).map(Size::More),
        (_, Some(less)) => parse_size(less).map(Size::Less),
        _ => parse_size(text).map(Size::Set),
    }
}

impl ImageChange for Truncate {
    fn places(&mut self) -> &mut Vec<OsString> {
        &mut self.places
    }

    fn apply(&self, _: &Context, fs: &Editing<'_>) -> Result<(), Failure> {
        for path in paths(&self.places) {
            let size = match self.size {
                Size::Set(size) => size,
                change => {
                    let now = fs.metadata(path).map_err(Failure::new)?.size;
                    match change {
                        Size::More(by) => now.saturating_add(by),
                        Size::Less(by) | Size::Set(by) => now.saturating_sub(by),
                    }
                }
            };
            fs.set_len(path, size).map_err(Failure::new)?;
            fs.keep();
        }
        Ok(())
    }
}
