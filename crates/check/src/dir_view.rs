//! What every check of a directory needs: its flags, the form of its blocks, and where they are.

use ondisk::dirent::DirForm;
use ondisk::{Flags, Ino};

use crate::collected::Directory;
use crate::map::MapRun;
use crate::problem::Code;
use crate::report::Problem;
use crate::volume::Volume;

/// A directory of a volume.
pub struct DirView<'a> {
    pub volume: &'a Volume<'a>,
    pub directory: &'a Directory,
}

impl DirView<'_> {
    pub fn ino(&self) -> Ino {
        self.directory.ino
    }

    pub fn problem(&self, code: Code) -> Problem {
        Problem::new(code).ino(self.directory.ino)
    }

    pub fn flags(&self) -> Flags {
        self.directory.flags
    }

    pub fn seed(&self) -> u32 {
        self.directory.seed
    }

    pub fn form(&self) -> DirForm {
        DirForm::of(&self.volume.geometry, self.flags()).with_any_ino()
    }

    /// Whether names are compared without case.
    pub fn is_folded(&self) -> bool {
        self.flags().contains(Flags::CASEFOLD) && !self.flags().contains(Flags::ENCRYPT)
    }

    pub fn blocks(&self) -> u64 {
        let last = self.directory.runs.last();
        last.map_or(0, |run| run.lblk + run.len)
    }

    /// The block of the device that holds a block of the directory.
    pub fn place(&self, lblk: u64) -> Option<u64> {
        let runs: &[MapRun] = &self.directory.runs;
        let at = runs.partition_point(|run| run.lblk + run.len <= lblk);
        let run = runs.get(at).filter(|run| run.lblk <= lblk)?;
        Some(run.pblk + (lblk - run.lblk))
    }
}
