//! Scans all sources of a build, in order, into one tree.

use std::path::Path;

use super::builder::Builder;
use super::directory::Scan;
use super::error::SourceError;
use super::exclude::Excludes;
use super::options::{Options, Place};
use super::tree::Tree;

/// Looks at all sources and reads no file's data.
///
/// # Errors
/// When a source can't be read, or an option does not fit; then nothing was written anywhere.
pub fn scan(options: &Options) -> Result<Tree, SourceError> {
    let mut builder = Builder::new();
    let excludes = Excludes::new(&options.exclude);
    let outputs: Vec<(u64, u64)> = options
        .outputs
        .iter()
        .filter_map(|path| inode(path))
        .collect();
    let threads = match options.threads {
        0 => sync::thread::available_parallelism(),
        threads => threads,
    };
    for input in &options.inputs {
        let wrong = |problem| SourceError::Tree {
            path: String::from_utf8_lossy(&input.at).into_owned(),
            problem,
        };
        let at = builder.directory(&input.at).map_err(wrong)?;
        match &input.place {
            Place::Path(path) => {
                let scan = Scan {
                    path,
                    excludes: &excludes,
                    outputs: &outputs,
                    threads,
                };
                scan.add(&mut builder, at)?;
            }
            Place::Stdin => {
                return Err(SourceError::Usage("standard input is no directory".into()));
            }
        }
    }
    Ok(builder.finish())
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    let stat = rustix::fs::stat(path).ok()?;
    Some((stat.st_dev, stat.st_ino))
}
