//! The 19 workloads of FxMark (Min et al., USENIX ATC 2016).
//!
//! The name of each says what it does: D for data or M for names; R or W; what is done; and how much workers share:
//! L nothing, M a file or directory, H a block or name. The shared directory is made by the first worker and removed by
//! the last. Workers are made and finished one after the other, by one thread.

use lanefs::Error;

use super::{WorkerJob, WorkerPlace, Workload, numbered};
use crate::leavings;
use crate::target::Target;

/// Bytes of a read or write.
const BLOCK: usize = 4096;
/// Reads or writes in a batch, of a file with this number of blocks for each worker.
const BLOCKS: u64 = 256;
/// Files of a batch, and of a directory that is listed or looked into.
const FILES: usize = 512;
/// Directories above a file whose path is walked.
const DEPTH: [&str; 4] = ["a", "b", "c", "d"];
const FILE: &str = "file";

/// One worker's part.
pub(super) struct FxMark<'t, T: Target> {
    place: WorkerPlace<'t, T>,
    workload: Workload,
    number: usize,
    workers: usize,
    /// The directory that all workers share, and its name.
    shared: T::Dir,
    /// The file that is read or written.
    file: Option<T::File>,
    /// Files of a batch that are there now, under their new names if the batch gives them those.
    made: bool,
    moved: bool,
    /// Blocks of `file`, where that grows or shrinks.
    blocks: u64,
}

/// The name of the shared directory.
fn shared_name() -> String {
    leavings::name("shared")
}

/// The directories above a file whose path is walked, as one path.
fn path_to(name: &str) -> String {
    format!("{}/{name}", DEPTH.join("/"))
}

impl<'t, T: Target> FxMark<'t, T> {
    pub(super) fn new(
        place: WorkerPlace<'t, T>,
        workload: Workload,
        number: usize,
        workers: usize,
    ) -> Result<Self, Error> {
        let target = place.target;
        let shared = match number {
            0 => target.mkdir(target.root(), &shared_name())?,
            _ => target.open_dir(target.root(), &shared_name())?,
        };
        let mut fxmark = FxMark {
            place,
            workload,
            number,
            workers,
            shared,
            file: None,
            made: false,
            moved: false,
            blocks: 0,
        };
        fxmark.prepare()?;
        fxmark.between()?;
        Ok(fxmark)
    }

    fn is_first(&self) -> bool {
        self.number == 0
    }

    /// Makes what is there before the first batch.
    fn prepare(&mut self) -> Result<(), Error> {
        use Workload as Work;
        let target = self.place.target;
        match self.workload {
            Work::FxDrbl | Work::FxDwol | Work::FxDwsl => {
                let file = target.create(&self.place.directory, FILE)?;
                self.fill(&file, 0..BLOCKS)?;
                self.file = Some(file);
            }
            Work::FxDwal | Work::FxDwtl => {
                self.file = Some(target.create(&self.place.directory, FILE)?);
            }
            Work::FxDrbm | Work::FxDrbh | Work::FxDwom => {
                let file = if self.is_first() {
                    target.create(&self.shared, FILE)?
                } else {
                    target.open(&self.shared, FILE)?
                };
                self.fill(&file, self.own_blocks())?;
                self.file = Some(file);
            }
            Work::FxMrpl => self.make_path(&self.place.directory, 1)?,
            Work::FxMrpm | Work::FxMrph if self.is_first() => {
                self.make_path(&self.shared, FILES)?
            }
            Work::FxMrdl => self.make_files(&self.place.directory)?,
            Work::FxMrdm if self.is_first() => self.make_files(&self.shared)?,
            Work::FxMwrl | Work::FxMwrm => self.make_files(&self.place.directory)?,
            _ => {}
        }
        Ok(())
    }

    fn own_blocks(&self) -> std::ops::Range<u64> {
        let first = self.number as u64 * BLOCKS;
        first..first + BLOCKS
    }

    fn fill(&self, file: &T::File, blocks: std::ops::Range<u64>) -> Result<(), Error> {
        for block in blocks {
            self.write(file, block)?;
        }
        Ok(())
    }

    fn write(&self, file: &T::File, block: u64) -> Result<(), Error> {
        let bytes = [0x5a; BLOCK];
        self.place.target.write(file, block * BLOCK as u64, &bytes)
    }

    fn make_path(&self, above: &T::Dir, files: usize) -> Result<(), Error> {
        let target = self.place.target;
        let mut directory = target.mkdir(above, DEPTH[0])?;
        for name in &DEPTH[1..] {
            directory = target.mkdir(&directory, name)?;
        }
        for number in 0..files {
            target.create(&directory, &numbered(number))?;
        }
        Ok(())
    }

    fn remove_path(&self, above: &T::Dir, files: usize) -> Result<(), Error> {
        let target = self.place.target;
        let mut parents = vec![target.open_dir(above, DEPTH[0])?];
        for name in &DEPTH[1..] {
            parents.push(target.open_dir(&parents[parents.len() - 1], name)?);
        }
        let mut directory = parents.pop();
        if let Some(last) = &directory {
            for number in 0..files {
                target.unlink(last, &numbered(number))?;
            }
        }
        for name in DEPTH.iter().rev() {
            drop(directory);
            directory = parents.pop();
            target.rmdir(directory.as_ref().unwrap_or(above), name)?;
        }
        Ok(())
    }

    /// The name of one of this worker's files, in whichever directory.
    fn name(&self, number: usize) -> String {
        format!("w{}-{}", self.number, numbered(number))
    }

    fn new_name(&self, number: usize) -> String {
        format!("n{}-{}", self.number, numbered(number))
    }

    fn make_files(&self, directory: &T::Dir) -> Result<(), Error> {
        for number in 0..FILES {
            self.place.target.create(directory, &self.name(number))?;
        }
        Ok(())
    }

    fn remove_files(&self, directory: &T::Dir) -> Result<(), Error> {
        for number in 0..FILES {
            self.place.target.unlink(directory, &self.name(number))?;
        }
        Ok(())
    }

    /// Where names are made and removed.
    fn directory(&self) -> &T::Dir {
        match self.workload {
            Workload::FxMwcm | Workload::FxMwum | Workload::FxMrdm => &self.shared,
            _ => &self.place.directory,
        }
    }

    /// Renames all files within the private directory, or moves them to the shared one; or back.
    fn rename(&mut self) -> Result<(), Error> {
        let target = self.place.target;
        let own = &self.place.directory;
        let other = match self.workload {
            Workload::FxMwrm => &self.shared,
            _ => own,
        };
        for number in 0..FILES {
            let (old, new) = (self.name(number), self.new_name(number));
            if self.moved {
                target.move_file(other, &new, own, &old)?
            } else {
                target.move_file(own, &old, other, &new)?
            }
        }
        self.moved = !self.moved;
        Ok(())
    }

    /// Works on the blocks of the file.
    fn data(&mut self) -> Result<u64, Error> {
        use Workload as Work;
        let Some(file) = self.file.take() else {
            return Ok(0);
        };
        let target = self.place.target;
        let own = self.own_blocks();
        for step in 0..BLOCKS {
            let (private, shared) = (step, own.start + step);
            let mut bytes = [0; BLOCK];
            let mut read = |block: u64| target.read(&file, block * BLOCK as u64, &mut bytes);
            match self.workload {
                Work::FxDrbl => drop(read(private)?),
                Work::FxDrbm => drop(read(shared)?),
                Work::FxDrbh => drop(read(0)?),
                Work::FxDwom => self.write(&file, shared)?,
                Work::FxDwtl => target.truncate(&file, (BLOCKS - step - 1) * BLOCK as u64)?,
                Work::FxDwsl => {
                    self.write(&file, private)?;
                    self.place.fsync(&file)?;
                }
                // Overwritten, or appended.
                _ => self.write(&file, private)?,
            }
        }
        self.blocks = match self.workload {
            Work::FxDwtl => 0,
            _ => BLOCKS,
        };
        self.file = Some(file);
        Ok(BLOCKS)
    }
}

impl<T: Target> WorkerJob for FxMark<'_, T> {
    fn batch(&mut self) -> Result<u64, Error> {
        use Workload as Work;
        let target = self.place.target;
        match self.workload {
            Work::FxMrpl | Work::FxMrpm | Work::FxMrph => {
                let (above, files) = match self.workload {
                    Work::FxMrpl => (&self.place.directory, 1),
                    Work::FxMrpm => (&self.shared, FILES),
                    _ => (&self.shared, 1),
                };
                for _ in 0..FILES {
                    let number = self.place.random.index(files);
                    let file = target.open_path(above, &path_to(&numbered(number)))?;
                    target.close(file)?;
                }
            }
            Work::FxMrdl | Work::FxMrdm => {
                let mut names = 0;
                target.read_dir(self.directory(), &mut |_, _| names += 1)?;
                return Ok(names);
            }
            Work::FxMwcl | Work::FxMwcm => {
                self.make_files(self.directory())?;
                self.made = true;
            }
            Work::FxMwul | Work::FxMwum => {
                self.remove_files(self.directory())?;
                self.made = false;
            }
            Work::FxMwrl | Work::FxMwrm => self.rename()?,
            _ => return self.data(),
        }
        Ok(FILES as u64)
    }

    fn pauses(&self) -> bool {
        use Workload as Work;
        matches!(
            self.workload,
            Work::FxDwal
                | Work::FxDwtl
                | Work::FxMwcl
                | Work::FxMwcm
                | Work::FxMwul
                | Work::FxMwum
                | Work::FxMwrm
        )
    }

    fn between(&mut self) -> Result<(), Error> {
        use Workload as Work;
        match (self.workload, &self.file) {
            (Work::FxDwal, Some(file)) if self.blocks > 0 => {
                self.place.target.truncate(file, 0)?;
                self.blocks = 0;
            }
            (Work::FxDwtl, Some(file)) if self.blocks == 0 => {
                self.fill(file, 0..BLOCKS)?;
                self.blocks = BLOCKS;
            }
            (Work::FxMwcl | Work::FxMwcm, _) if self.made => {
                self.remove_files(self.directory())?;
                self.made = false;
            }
            (Work::FxMwul | Work::FxMwum, _) if !self.made => {
                self.make_files(self.directory())?;
                self.made = true;
            }
            (Work::FxMwrm, _) if self.moved => self.rename()?,
            _ => {}
        }
        Ok(())
    }

    fn waits(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.place.waits)
    }

    fn finish(mut self: Box<Self>) -> Result<(), Error> {
        use Workload as Work;
        let target = self.place.target;
        let is_last = self.number + 1 == self.workers;
        if self.moved {
            self.rename()?;
        }
        if self.made {
            self.remove_files(self.directory())?;
        }
        if let Some(file) = self.file.take() {
            target.close(file)?;
            match self.workload {
                Work::FxDrbm | Work::FxDrbh | Work::FxDwom if !is_last => {}
                Work::FxDrbm | Work::FxDrbh | Work::FxDwom => target.unlink(&self.shared, FILE)?,
                _ => target.unlink(&self.place.directory, FILE)?,
            }
        }
        match self.workload {
            Work::FxMrpl => self.remove_path(&self.place.directory, 1)?,
            Work::FxMrpm | Work::FxMrph if is_last => self.remove_path(&self.shared, FILES)?,
            Work::FxMrdl | Work::FxMwrl | Work::FxMwrm => {
                self.remove_files(&self.place.directory)?;
            }
            Work::FxMrdm if is_last => {
                // The first worker made them.
                self.number = 0;
                self.remove_files(&self.shared)?;
            }
            _ => {}
        }
        let FxMark { place, shared, .. } = *self;
        drop(shared);
        if is_last {
            target.rmdir(target.root(), &shared_name())?;
        }
        place.remove()
    }
}
