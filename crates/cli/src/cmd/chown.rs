//! `lanefs chown`: owners by number.

use std::ffi::OsString;

use crate::change::{Editing, ImageChange, each};
use crate::context::Context;
use crate::failure::Failure;

/// Set owner and group of files in an image
#[derive(clap::Args)]
pub struct Chown {
    /// UID, UID:GID or :GID, as numbers (names belong to the image's system, not this one)
    #[arg(value_parser = parse, value_name = "UID:GID")]
    owner: Owner,
    /// IMAGE:PATH ..., or IMAGE followed by paths; in a script, paths
    #[arg(required = true, value_name = "IMAGE:PATH")]
    places: Vec<OsString>,
    /// Change directories recursively
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change symbolic links themselves, not their targets
    #[arg(long)]
    no_dereference: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    uid: Option<u32>,
    gid: Option<u32>,
}

fn parse(text: &str) -> Result<Owner, String> {
    let number = |text: &str| match text {
        "" => Ok(None),
        digits => match digits.parse() {
            // To system calls it means to leave the owner as it is.
            Ok(u32::MAX) => Err(format!("{} is reserved in Linux", u32::MAX)),
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(format!(
                "invalid owner `{text}`: owners are given as UID:GID"
            )),
        },
    };
    let (uid, gid) = text.split_once(':').unwrap_or((text, ""));
    let owner = Owner {
        uid: number(uid)?,
        gid: number(gid)?,
    };
    match owner.uid.or(owner.gid) {
        Some(_) => Ok(owner),
        None => Err("owners are given as UID, UID:GID or :GID".into()),
    }
}

impl ImageChange for Chown {
    fn places(&mut self) -> &mut Vec<OsString> {
        &mut self.places
    }

    fn apply(&self, _: &Context, fs: &Editing<'_>) -> Result<(), Failure> {
        let Owner { uid, gid } = self.owner;
        each(fs, &self.places, self.recursive, |path| {
            if self.recursive || self.no_dereference {
                fs.set_symlink_owner(path, uid, gid)
            } else {
                fs.set_owner(path, uid, gid)
            }
        })
    }
}
