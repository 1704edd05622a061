//! A long walk: random operations of every kind on one file system in memory, each compared with the model as it is
//! done, files read back after each write. After every 100,000 steps everything is compared, and both judges read the
//! image.

use device::BlockDevice;
use engine::{Ino, InodeFs};
use model::{FallocateMode, Generator, Kind, ModelTree, Op, OpTarget, Random, SizeProfile};
use sync::Arc;

use crate::CowDevice;
use crate::executor::{Executor, OpRefusal, brief, tree};
use crate::image::{Image, open};
use crate::judge::ImageJudge;

/// Steps between two reads by the judges.
pub const STRETCH: u64 = 100_000;
/// Steps between two comparisons of everything.
const COMPARED: u64 = 10_000;

/// A walk under way.
pub struct StepWalk {
    device: Arc<CowDevice>,
    tree: ModelTree,
    seed: u64,
    /// Steps done.
    pub steps: u64,
    /// Steps that the engine refused as the model did.
    pub refused: u64,
    /// Steps that the engine refused as unsupported.
    pub unsupported: u64,
}

impl StepWalk {
    /// At the beginning, on an image.
    #[must_use]
    pub fn new(image: &Image, seed: u64) -> StepWalk {
        StepWalk {
            device: Arc::new(image.device.clone()),
            tree: image.tree.clone(),
            seed,
            steps: 0,
            refused: 0,
            unsupported: 0,
        }
    }

    /// Goes on for `steps` steps: opens the image, works, closes it, and has it judged.
    ///
    /// # Errors
    /// The first step at which the engine and the model differ, or what e2fsck or the checker found.
    pub fn stretch(
        &mut self,
        image: &Image,
        judge: &mut ImageJudge,
        steps: u64,
    ) -> Result<(), String> {
        let shared: Arc<dyn BlockDevice> = Arc::clone(&self.device) as _;
        let fs = open(&shared).map_err(|error| error.to_string())?;
        let mut executor = Executor::new(&fs);
        let seed = self.seed.wrapping_add(self.steps);
        let mut random = Random::new(seed);
        let mut generators = [
            // Many names, small files; few files, much data.
            Generator::new(seed, SizeProfile::default()),
            Generator::new(
                seed ^ 1,
                SizeProfile {
                    names: 3,
                    depth: 1,
                    blocks: 24,
                    slots: 3,
                },
            ),
        ];
        let end = self.steps + steps;
        while self.steps < end {
            let op = generators[usize::from(random.one_in(3))].next(&self.tree);
            self.step(image, &fs, &mut executor, &op)
                .map_err(|why| format!("step {}: {}: {why}", self.steps, brief(&op)))?;
            self.steps += 1;
            if self.steps.is_multiple_of(COMPARED) {
                self.compare(&fs)?;
            }
        }
        for slot in 0..3 {
            self.step(image, &fs, &mut executor, &Op::Close { slot })?;
        }
        self.compare(&fs)?;
        drop(executor);
        fs.close().map_err(|error| error.to_string())?;
        let closed = (*self.device).clone();
        judge.judge(&closed, closed.digest(&image.journal))
    }

    fn compare(&self, fs: &InodeFs) -> Result<(), String> {
        let named = self.tree.recovered();
        named
            .compare(&tree(fs)?)
            .map_err(|difference| format!("step {}: {difference}", self.steps))
    }

    fn step(
        &mut self,
        image: &Image,
        fs: &InodeFs,
        executor: &mut Executor<'_>,
        op: &Op,
    ) -> Result<(), String> {
        if !image.profile.has_extents
            && matches!(op, Op::Fallocate { mode, .. } if *mode != FallocateMode::Punch)
        {
            return Ok(());
        }
        match executor.apply(op) {
            Ok(()) => self
                .tree
                .apply(op)
                .map_err(|errno| format!("it was done; the model: {errno:?}"))?,
            Err(OpRefusal::Errno(errno)) => {
                self.refused += 1;
                return match self.tree.clone().apply(op) {
                    Err(other) if other == errno => Ok(()),
                    other => Err(format!("{errno:?}; the model: {other:?}")),
                };
            }
            Err(OpRefusal::Unsupported(_)) => {
                self.unsupported += 1;
                return Ok(());
            }
            Err(OpRefusal::Broken(why)) => return Err(why),
        }
        match op {
            Op::Write { file, .. } | Op::Truncate { file, .. } | Op::Fallocate { file, .. } => {
                self.read_back(fs, executor, file)
            }
            _ => Ok(()),
        }
    }

    /// The file holds what the model says.
    fn read_back(
        &self,
        fs: &InodeFs,
        executor: &Executor<'_>,
        file: &OpTarget,
    ) -> Result<(), String> {
        let ino: Ino = match file {
            OpTarget::Slot(slot) => executor.slot(*slot).ok_or("an empty slot")?,
            OpTarget::Path(path) => executor
                .lookup(path)
                .map_err(|refusal| format!("{refusal:?}"))?,
        };
        let id = self.tree.find(file).map_err(|errno| format!("{errno:?}"))?;
        let Kind::File(content) = &self.tree.node(id).kind else {
            return Ok(());
        };
        let expected = content.bytes();
        let mut bytes = vec![0xee; expected.len() + 1];
        let read = fs
            .read(ino, 0, &mut bytes)
            .map_err(|error| error.to_string())?;
        if bytes[..read] == expected[..] {
            return Ok(());
        }
        let at = bytes[..read]
            .iter()
            .zip(&expected)
            .position(|(found, wanted)| found != wanted);
        Err(format!(
            "{read} bytes, {} expected; they differ at {at:?}",
            expected.len()
        ))
    }
}
