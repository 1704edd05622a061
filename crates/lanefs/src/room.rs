//! Whether what is to be copied into an image can fit, asked before anything is written.
//!
//! Only data and inodes are counted: what is refused here can't fit, and what passes may still lack a few blocks for
//! directories and maps. The tree may change meanwhile; the copy itself reports that.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::Path;

use device::host::HostAttributes;

use crate::host_run::HostRun;
use crate::system::next_run;
use crate::{CopyOptions, Error, Fs};

/// What a copy takes at least.
#[derive(Default)]
struct Need {
    blocks: u64,
    inodes: u64,
}

impl Fs {
    /// Refuses a copy that can't fit. A copy into a tree that exists is not judged: what it replaces becomes free.
    pub(crate) fn refuse_without_room(
        &self,
        host: &Path,
        path: &Path,
        options: &CopyOptions,
    ) -> Result<(), Error> {
        let failed = |error| Error::host("reading", host, error);
        let metadata = if options.recursive {
            fs::symlink_metadata(host)
        } else {
            fs::metadata(host)
        };
        let metadata = metadata.map_err(failed)?;
        let is_new = !self.try_exists(path)?;
        let space = self.statfs()?;
        let need = match metadata.is_dir() {
            true if options.recursive && is_new => below(host, space.block_size)?,
            true => return Ok(()),
            false if !options.replace && !is_new => return Ok(()),
            false => Need {
                blocks: blocks(host, &metadata, space.block_size)?,
                inodes: 1,
            },
        };
        if need.blocks > space.free || need.inodes > space.free_files {
            self.named(path, Err(engine::Error::NoSpace))
        } else {
            Ok(())
        }
    }
}

/// What a tree takes: every file once, whatever number of names it has. A directory that can't be read fails.
fn below(root: &Path, block_size: u64) -> Result<Need, Error> {
    let mut need = Need::default();
    let mut seen = HashSet::new();
    let mut paths = vec![root.to_path_buf()];
    while let Some(path) = paths.pop() {
        let failed = |error| Error::host("reading", &path, error);
        let metadata = fs::symlink_metadata(&path).map_err(failed)?;
        let own = HostAttributes::of(&metadata);
        let shared = own.identity.filter(|_| !metadata.is_dir() && own.nlink > 1);
        if shared.is_some_and(|identity| !seen.insert(identity)) {
            continue;
        }
        need.inodes += 1;
        if metadata.is_file() {
            need.blocks += blocks(&path, &metadata, block_size)?;
        } else if metadata.is_dir() {
            for entry in fs::read_dir(&path).map_err(failed)? {
                paths.push(entry.map_err(failed)?.path());
            }
        }
    }
    Ok(need)
}

/// The blocks of a file's data, without its holes; 0 for what has no size before it is read.
fn blocks(path: &Path, metadata: &fs::Metadata, block_size: u64) -> Result<u64, Error> {
    let size = metadata.len();
    if !metadata.is_file() || size == 0 {
        return Ok(0);
    }
    let failed = |error| Error::host("reading", path, error);
    let file = File::open(path).map_err(failed)?;
    if HostAttributes::of(metadata).held >= size {
        return Ok(size.div_ceil(block_size));
    }
    let (mut at, mut counted, mut blocks) = (0, 0, 0);
    loop {
        let (data, hole) = match next_run(&file, at) {
            Ok(HostRun::Data(run)) => (run.start, run.end),
            Ok(HostRun::End(_)) => return Ok(blocks),
            // The file system does not tell its holes.
            Ok(HostRun::Unknown) | Err(_) => return Ok(size.div_ceil(block_size)),
        };
        at = hole;
        // Two runs may share a block.
        let first = (data / block_size).max(counted);
        counted = at.div_ceil(block_size).max(first);
        blocks += counted - first;
        if at <= data {
            return Ok(blocks);
        }
    }
}
