//! Workloads on files' data and blocks: appended, overwritten, reserved, truncated.

use lanefs::Error;

use super::{WorkerJob, WorkerPlace, Workload, numbered};
use crate::target::Target;

/// Bytes of a write.
const WRITE: usize = 4096;
/// Writes between truncations.
const WRITES: usize = 64;
/// Bytes that a file grows to.
const MOST: u64 = 1 << 20;
/// Bytes that are reserved at once.
const STEP: u64 = 8 << 10;
/// Files that are emptied.
const FILES: usize = 256;
/// Bytes cut off in a batch, one by one.
const CUTS: u64 = 256;

const BYTES: [u8; WRITE] = [0x5a; WRITE];

/// A file, or some, that grow, are overwritten, or shrink.
pub(super) struct Growing<'t, T: Target> {
    place: WorkerPlace<'t, T>,
    workload: Workload,
    files: Vec<T::File>,
    /// Of each.
    size: u64,
}

impl<'t, T: Target> Growing<'t, T> {
    pub(super) fn new(place: WorkerPlace<'t, T>, workload: Workload) -> Result<Self, Error> {
        let many = match workload {
            Workload::Append | Workload::Fallocate => place.several,
            _ => 1,
        };
        let make = |number| place.target.create(&place.directory, &numbered(number));
        let files = (0..many).map(make).collect::<Result<Vec<_>, Error>>()?;
        let mut growing = Growing {
            place,
            workload,
            files,
            size: 0,
        };
        if workload == Workload::Overwrite {
            growing.write(MOST)?;
        }
        growing.between()?;
        Ok(growing)
    }

    /// Writes to each from its beginning, up to that size, by appending; says how often.
    fn write(&mut self, size: u64) -> Result<u64, Error> {
        for file in &self.files {
            for number in 0..size / WRITE as u64 {
                self.place
                    .target
                    .write(file, number * WRITE as u64, &BYTES)?;
            }
        }
        self.size = size;
        Ok(self.files.len() as u64 * (size / WRITE as u64))
    }

    /// Reserves blocks for each, step by step; says how often.
    fn reserve(&mut self) -> Result<u64, Error> {
        for file in &self.files {
            for number in 0..MOST / STEP {
                self.place.target.fallocate(file, number * STEP, STEP)?;
            }
        }
        self.size = MOST;
        Ok(self.files.len() as u64 * (MOST / STEP))
    }

    fn cut(&mut self) -> Result<u64, Error> {
        for _ in 0..CUTS {
            self.size -= 1;
            for file in &self.files {
                self.place.target.truncate(file, self.size)?;
            }
        }
        Ok(CUTS)
    }
}

impl<T: Target> WorkerJob for Growing<'_, T> {
    fn batch(&mut self) -> Result<u64, Error> {
        match self.workload {
            Workload::WriteTruncate => {
                let written = self.write((WRITES * WRITE) as u64)?;
                for file in &self.files {
                    self.place.target.truncate(file, 0)?;
                }
                Ok(written)
            }
            Workload::Fallocate => self.reserve(),
            Workload::ByteTruncate => self.cut(),
            // Append, and Overwrite over what is there.
            _ => self.write(MOST),
        }
    }

    fn pauses(&self) -> bool {
        let pauses = [
            Workload::ByteTruncate,
            Workload::Append,
            Workload::Fallocate,
        ];
        pauses.contains(&self.workload)
    }

    fn between(&mut self) -> Result<(), Error> {
        match self.workload {
            Workload::ByteTruncate if self.size == 0 => self.write(WRITE as u64).map(drop),
            Workload::Append | Workload::Fallocate if self.size > 0 => {
                self.size = 0;
                let mut files = self.files.iter();
                files.try_for_each(|file| self.place.target.truncate(file, 0))
            }
            _ => Ok(()),
        }
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        let Growing { place, files, .. } = *self;
        for (number, file) in files.into_iter().enumerate() {
            place.target.close(file)?;
            place.target.unlink(&place.directory, &numbered(number))?;
        }
        place.remove()
    }
}

/// Files with one block each, which are emptied.
pub(super) struct Emptying<'t, T: Target> {
    place: WorkerPlace<'t, T>,
    files: Vec<T::File>,
}

impl<'t, T: Target> Emptying<'t, T> {
    pub(super) fn new(place: WorkerPlace<'t, T>) -> Result<Self, Error> {
        let make = |number| place.target.create(&place.directory, &numbered(number));
        let files = (0..FILES).map(make).collect::<Result<Vec<_>, Error>>()?;
        let mut emptying = Emptying { place, files };
        emptying.between()?;
        Ok(emptying)
    }
}

impl<T: Target> WorkerJob for Emptying<'_, T> {
    fn batch(&mut self) -> Result<u64, Error> {
        for file in &self.files {
            self.place.target.truncate(file, 0)?;
        }
        Ok(FILES as u64)
    }

    fn pauses(&self) -> bool {
        true
    }

    fn between(&mut self) -> Result<(), Error> {
        for file in &self.files {
            self.place.target.fallocate(file, 0, WRITE as u64)?;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        let Emptying { place, files } = *self;
        for (number, file) in files.into_iter().enumerate() {
            place.target.close(file)?;
            place.target.unlink(&place.directory, &numbered(number))?;
        }
        place.remove()
    }
}

/// fallocate2 of will-it-scale: an unlinked file that grows by steps and is emptied.
pub(super) struct Reserving<'t, T: Target> {
    place: WorkerPlace<'t, T>,
    file: T::File,
}

impl<'t, T: Target> Reserving<'t, T> {
    pub(super) fn new(place: WorkerPlace<'t, T>) -> Result<Self, Error> {
        let file = place.target.creat(&place.directory, "file")?;
        place.target.unlink(&place.directory, "file")?;
        Ok(Reserving { place, file })
    }
}

impl<T: Target> WorkerJob for Reserving<'_, T> {
    fn batch(&mut self) -> Result<u64, Error> {
        for number in 0..MOST / STEP {
            self.place
                .target
                .fallocate(&self.file, number * STEP, STEP)?;
        }
        self.place.target.truncate(&self.file, 0)?;
        Ok(MOST / STEP)
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        let Reserving { place, file } = *self;
        place.target.close(file)?;
        place.remove()
    }
}
