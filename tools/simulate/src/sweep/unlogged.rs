//! Cuts of images without a journal: what a crash leaves of those is e2fsck's to repair. It always can, it never finds
//! a block that two files claim (what is freed is durable before it is used again), and lanefs refuses to write to the
//! image before.

use device::BlockDevice;
use engine::{Error, InodeFs, MountOptions};
use sync::Arc;
use sync::gauge::Reading;

use super::{Explains, Sweep, caught, read};
use crate::executor::{tree, tree_of_repaired};
use crate::image::open;
use crate::{CowDevice, Cuts};

/// e2fsck repairs one in this number of the states.
const REPAIRED_ONE_IN: u64 = 50;

impl Sweep<'_> {
    /// Cuts a recording everywhere up to an event.
    ///
    /// # Errors
    /// The first cut that leaves what must not be, and why.
    pub fn run_unlogged(
        &mut self,
        mut cuts: Cuts,
        readings: &[Reading],
        explains: &mut dyn Explains,
        end: usize,
        seed: u64,
    ) -> Result<(), String> {
        self.counts.runs += 1;
        self.random = model::Random::new(seed);
        let mut number = seed;
        for cut in self.wanted(&cuts, end) {
            let state = cuts.state(cut);
            let position = explains.position(cut.event);
            self.count(readings.get(cut.event).or(readings.last()));
            number += 1;
            let repairs = number.is_multiple_of(REPAIRED_ONE_IN);
            let checked = caught(|| self.judge_unlogged(&state, position, explains, repairs));
            checked.map_err(|why| format!("{cut}: {why}"))?;
        }
        self.count_readings();
        Ok(())
    }

    /// What a cut left. One that was closed or frozen is judged as any other.
    fn judge_unlogged(
        &mut self,
        state: &CowDevice,
        position: usize,
        explains: &mut dyn Explains,
        repairs: bool,
    ) -> Result<(), String> {
        let copy: Arc<dyn BlockDevice> = Arc::new(state.clone());
        match open(&copy) {
            Ok(fs) => {
                drop(fs);
                return explains.check(position, &read(state)?);
            }
            Err(Error::Unwritable(_)) => {}
            Err(error) => return Err(format!("opening: {error}")),
        }
        if repairs {
            return self.repair_unlogged(state);
        }
        // Whatever can be read of it: without a panic, and with an end.
        if let Ok(fs) = InodeFs::open(copy, &MountOptions::default()) {
            let _ = tree(&fs);
        }
        Ok(())
    }

    /// Has e2fsck repair what a crash left; lanefs takes it from there.
    ///
    /// # Errors
    /// What can't be repaired, or what says that blocks were used again too early.
    pub fn repair_unlogged(&mut self, state: &CowDevice) -> Result<(), String> {
        let repaired = self.judge.repair(state)?;
        let shared: Arc<dyn BlockDevice> = Arc::new(repaired);
        let fs = open(&shared).map_err(|error| format!("opening what was repaired: {error}"))?;
        tree_of_repaired(&fs)?;
        fs.close()
            .map_err(|error| format!("closing what was repaired: {error}"))
    }
}
