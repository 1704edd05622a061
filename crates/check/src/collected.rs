//! What the inode pass collects for the passes after it.

use std::cell::{Cell, RefCell};
use std::ops::Deref;

use ondisk::{Flags, Ino};

use crate::map::MapRun;
use crate::quota;

/// A directory as the inode pass saw it.
#[derive(Clone, Debug)]
pub struct Directory {
    pub ino: Ino,
    pub flags: Flags,
    /// The checksum seed of its blocks.
    pub seed: u32,
    pub runs: Runs,
}

/// The runs of a directory, in order. Most directories have one, which then takes no memory of its own.
#[derive(Clone, Debug)]
pub enum Runs {
    One(MapRun),
    Other(Box<[MapRun]>),
}

impl From<Vec<MapRun>> for Runs {
    fn from(runs: Vec<MapRun>) -> Runs {
        match runs[..] {
            [run] => Runs::One(run),
            _ => Runs::Other(runs.into()),
        }
    }
}

impl Deref for Runs {
    type Target = [MapRun];

    fn deref(&self) -> &[MapRun] {
        match self {
            Runs::One(run) => std::slice::from_ref(run),
            Runs::Other(runs) => runs,
        }
    }
}

/// What one unit of the inode pass collects for the passes behind it. One thread owns it.
#[derive(Default)]
pub struct Collected {
    pub directories: RefCell<Vec<Directory>>,
    /// Bytes and inodes by owner, where the file system counts them.
    pub quota: RefCell<quota::QuotaSums>,
    /// Encrypted inodes and the numbers of their policies.
    pub policies: RefCell<Vec<(u32, u32)>>,
    /// Inodes with a mode of no or a special file, which may be directories.
    pub lookalikes: RefCell<Vec<Ino>>,
    pub fragmented: Cell<u64>,
    pub has_large_files: Cell<bool>,
}

/// What all units collected.
#[derive(Default)]
pub struct Gathered {
    /// By number.
    pub directories: Vec<Directory>,
    pub quota: quota::QuotaSums,
    /// Encrypted inodes, by number, and the numbers of their policies.
    pub policies: Vec<(u32, u32)>,
    pub lookalikes: Vec<Ino>,
    pub fragmented: u64,
    pub has_large_files: bool,
}

impl Gathered {
    pub fn add(&mut self, unit: Collected) {
        self.directories.append(&mut unit.directories.into_inner());
        self.quota.add(&unit.quota.into_inner());
        self.policies.append(&mut unit.policies.into_inner());
        self.lookalikes.append(&mut unit.lookalikes.into_inner());
        self.fragmented += unit.fragmented.get();
        self.has_large_files |= unit.has_large_files.get();
    }
}
