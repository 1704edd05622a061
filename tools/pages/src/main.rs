//! `pages FOLDER` writes the man pages and the completions into a folder.

use std::io::{Error, Result};
use std::path::Path;

fn main() -> Result<()> {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    match words.as_slice() {
        [folder] => lanefs_pages::write(Path::new(folder)),
        _ => Err(Error::other("usage: pages FOLDER")),
    }
}
