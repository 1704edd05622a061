//! Workloads on names: made, removed, looked up, listed, renamed, opened.

use lanefs::Error;

use super::{WorkerJob, WorkerPlace, Workload, numbered};
use crate::target::Target;

/// Files of a directory.
const BATCH: usize = 256;
/// Files that are looked at.
const FILES: usize = 1000;
/// Rounds of a batch that opens.
const OPENINGS: usize = 32;
/// How often a name is made anew before it is removed.
const RECREATIONS: usize = 1000;

/// Makes files or directories and removes them; which of it is timed depends.
pub(super) struct Making<'t, T: Target> {
    place: WorkerPlace<'t, T>,
    workload: Workload,
    directories: Vec<T::Dir>,
    there: bool,
}

impl<'t, T: Target> Making<'t, T> {
    pub(super) fn new(place: WorkerPlace<'t, T>, workload: Workload) -> Result<Self, Error> {
        let many = match workload {
            Workload::CreateUnlink => 1,
            _ => place.several,
        };
        let make = |number| place.target.mkdir(&place.directory, &numbered(number));
        let directories = (0..many).map(make).collect::<Result<Vec<_>, Error>>()?;
        let mut making = Making {
            place,
            workload,
            directories,
            there: false,
        };
        making.between()?;
        Ok(making)
    }

    /// Says how many.
    fn make(&mut self) -> Result<u64, Error> {
        let target = self.place.target;
        for directory in &self.directories {
            for number in 0..BATCH {
                match self.workload {
                    Workload::MakeDirs => drop(target.mkdir(directory, &numbered(number))?),
                    _ => drop(target.create(directory, &numbered(number))?),
                }
            }
        }
        self.there = true;
        Ok((self.directories.len() * BATCH) as u64)
    }

    /// Says how many.
    fn remove(&mut self) -> Result<u64, Error> {
        let target = self.place.target;
        for directory in &self.directories {
            for number in 0..BATCH {
                match self.workload {
                    Workload::MakeDirs => target.rmdir(directory, &numbered(number))?,
                    _ => target.unlink(directory, &numbered(number))?,
                }
            }
        }
        self.there = false;
        Ok((self.directories.len() * BATCH) as u64)
    }
}

impl<T: Target> WorkerJob for Making<'_, T> {
    fn batch(&mut self) -> Result<u64, Error> {
        match self.workload {
            Workload::CreateUnlink => Ok(self.make()? + self.remove()?),
            Workload::Unlink => self.remove(),
            _ => self.make(),
        }
    }

    fn pauses(&self) -> bool {
        let pauses = [Workload::Unlink, Workload::Create, Workload::MakeDirs];
        pauses.contains(&self.workload)
    }

    fn between(&mut self) -> Result<(), Error> {
        match (self.workload, self.there) {
            (Workload::Unlink, false) => self.make().map(drop),
            (Workload::Create | Workload::MakeDirs, true) => self.remove().map(drop),
            _ => Ok(()),
        }
    }

    fn finish(mut self: Box<Self>) -> Result<(), Error> {
        if self.there {
            self.remove()?;
        }
        let Making {
            place, directories, ..
        } = *self;
        for number in 0..directories.len() {
            place.target.rmdir(&place.directory, &numbered(number))?;
        }
        drop(directories);
        place.remove()
    }
}

/// Looks at files that are there, lists them, or renames them to and fro.
pub(super) struct Looking<'t, T: Target> {
    place: WorkerPlace<'t, T>,
    workload: Workload,
    /// Which name comes next.
    next: usize,
    renamed: bool,
}

impl<'t, T: Target> Looking<'t, T> {
    pub(super) fn new(place: WorkerPlace<'t, T>, workload: Workload) -> Result<Self, Error> {
        let looking = Looking {
            place,
            workload,
            next: 0,
            renamed: false,
        };
        for number in 0..looking.files() {
            let WorkerPlace {
                target, directory, ..
            } = &looking.place;
            target.create(directory, &numbered(number))?;
        }
        Ok(looking)
    }

    fn files(&self) -> usize {
        match self.workload {
            Workload::Rename => BATCH,
            _ => FILES,
        }
    }

    fn name(&self, number: usize, renamed: bool) -> String {
        if renamed {
            format!("other-{number:04}")
        } else {
            numbered(number)
        }
    }
}

impl<T: Target> WorkerJob for Looking<'_, T> {
    fn batch(&mut self) -> Result<u64, Error> {
        let WorkerPlace {
            target, directory, ..
        } = &self.place;
        match self.workload {
            Workload::Rename => {
                for number in 0..BATCH {
                    let name = self.name(number, self.renamed);
                    target.rename(directory, &name, &self.name(number, !self.renamed))?;
                }
                self.renamed = !self.renamed;
                Ok(BATCH as u64)
            }
            Workload::ReadDir => {
                let mut count = 0;
                target.read_dir(directory, &mut |_, _| count += 1)?;
                Ok(count)
            }
            _ => {
                for _ in 0..BATCH {
                    // 37 and 1,000 have no divisor in common: every name has its turn, neighbours apart.
                    self.next = (self.next + 37) % FILES;
                    target.stat(directory, &numbered(self.next))?;
                }
                Ok(BATCH as u64)
            }
        }
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        for number in 0..self.files() {
            let WorkerPlace {
                target, directory, ..
            } = &self.place;
            target.unlink(directory, &self.name(number, self.renamed))?;
        }
        self.place.remove()
    }
}

/// Opens, closes and unlinks one name again and again.
pub(super) struct Opening<'t, T: Target> {
    pub(super) place: WorkerPlace<'t, T>,
    pub(super) workload: Workload,
}

impl<T: Target> WorkerJob for Opening<'_, T> {
    fn batch(&mut self) -> Result<u64, Error> {
        let WorkerPlace {
            target, directory, ..
        } = &self.place;
        let name = "file";
        if self.workload == Workload::Recreate {
            for _ in 0..RECREATIONS {
                target.close(target.creat(directory, name)?)?;
            }
            target.unlink(directory, name)?;
            return Ok(RECREATIONS as u64);
        }
        for _ in 0..OPENINGS {
            let file = target.creat(directory, name)?;
            if self.workload == Workload::OpenUnlink {
                target.unlink(directory, name)?;
                target.write(&file, 0, &[0x5a; 4096])?;
                target.close(file)?;
            } else {
                target.close(file)?;
                target.unlink(directory, name)?;
            }
        }
        Ok(OPENINGS as u64)
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        self.place.remove()
    }
}
