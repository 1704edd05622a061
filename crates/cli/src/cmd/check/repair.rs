//! `lanefs check -p`, `-y` and `--undo-apply`.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use device::BlockDevice;
use lanefs::check::{Error, Options, Problem};
use lanefs::repair::{Outcome, RepairError, RepairScope};
use lanefs::undo::{self, Draft};
use serde_json::json;
use sync::Arc;

use super::{
    CANCELLED, CheckArgs, Fate, LEFT, OPERATIONAL, REPAIRED, Shown, USAGE, as_json, interrupt,
    list, summary,
};
use crate::context::Context;
use crate::epoch;
use crate::failure::Failure;
use crate::json;
use crate::open::{journal_for_writing, place_for_repair, place_for_writing};

/// The devices that a repair reads and writes.
struct Places {
    device: Arc<dyn BlockDevice>,
    /// The device of an external journal.
    journal: Option<Arc<dyn BlockDevice>>,
}

impl CheckArgs {
    /// Refuses options that only control how an image is read, for a command that writes.
    fn verify_for_writing(&self) -> Result<(), Failure> {
        let given = [
            ("--no-replay", self.place.no_replay),
            ("--in-use", self.place.in_use),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => {
                Err(Failure::usage(format!("{option} is for reading only")).status(USAGE))
            }
            None => Ok(()),
        }
    }

    /// Carries out -p or -y.
    pub(super) fn repair(&self, context: &Context) -> Result<(), Failure> {
        self.verify_for_writing()?;
        let failed = |failure: Failure| failure.status(OPERATIONAL);
        let is_backup = self.place.superblock.is_some() || self.backup.is_some();
        let device = if is_backup {
            place_for_repair(&self.image, &self.place.image).map_err(failed)?
        } else {
            place_for_writing(&self.image, &self.place.image).map_err(failed)?
        };
        if self.preen && !self.force && !is_backup {
            let is_marked_clean = lanefs::repair::is_marked_clean(&device);
            if is_marked_clean.map_err(|error| failed(Failure::new(error)))? {
                let mut out = context.stdout();
                writeln!(out, "{}: clean", self.image.display())?;
                return Ok(out.flush()?);
            }
        }
        let now = match epoch::source_date()? {
            Some(seconds) => u64::try_from(seconds).unwrap_or(0),
            None => u64::try_from(lanefs::now().seconds).unwrap_or(0),
        };
        let journal = self.place.journal.as_deref().map(journal_for_writing);
        let places = Places {
            device,
            journal: journal.transpose().map_err(failed)?,
        };
        if let Some(path) = &self.undo {
            self.save_undo(context, &places, path, now)?;
        }
        let device = Arc::clone(&places.device);
        let outcome = self.run_repair(context, places, now)?;
        self.print_outcome(context, &outcome)?;
        self.name_copies(context, &outcome.repaired.after, &device);
        let is_left = outcome.repaired.is_refused || !outcome.repaired.after.is_clean();
        let left = if is_left { LEFT } else { 0 };
        let mended = if outcome.has_written() { REPAIRED } else { 0 };
        match left | mended {
            0 => Ok(()),
            status => Err(Failure::told().status(status)),
        }
    }

    /// Runs the repair in memory only, and saves what it would overwrite in the undo file.
    fn save_undo(
        &self,
        context: &Context,
        places: &Places,
        path: &Path,
        now: u64,
    ) -> Result<(), Failure> {
        let failed = |failure: Failure| failure.status(OPERATIONAL);
        let draft = Arc::new(Draft::new(Arc::clone(&places.device)));
        let log = places.journal.clone().map(|it| Arc::new(Draft::new(it)));
        let drafts = Places {
            device: Arc::clone(&draft) as Arc<dyn BlockDevice>,
            journal: log.clone().map(|log| log as Arc<dyn BlockDevice>),
        };
        self.run_repair(context, drafts, now)?;
        if log.is_some_and(|log| log.has_changes()) {
            let failure =
                Failure::new("--undo can't keep what a replay changes on the journal's device");
            return Err(failed(
                failure.hint("copy the image and the journal, and leave out --undo"),
            ));
        }
        let saved = draft.save(path);
        saved.map_err(|error| failed(Failure::new(error).at(path.display())))
    }

    fn run_repair(&self, context: &Context, places: Places, now: u64) -> Result<Outcome, Failure> {
        let Places { device, journal } = places;
        // A signal ends the rounds; by then at most the replay has been written. The writing of the repair is not
        // interrupted.
        let cancelled = interrupt::flag()?;
        let progress = Shown::new(context, self.progress, &self.image)?;
        let superblock = match self.backup {
            Some(block) => Some(self.superblock_in(&*device, block)?),
            None => self.place.superblock,
        };
        let options = Options {
            threads: self.threads,
            memory: self.memory,
            superblock,
            is_replayed: false,
            cancelled: &cancelled,
            progress: &|it| progress.show(it),
            trace: None,
        };
        let extent = if self.preen {
            RepairScope::Preen
        } else {
            RepairScope::All
        };
        let outcome = lanefs::repair::repair(&device, journal, extent, &options, now);
        progress.finish();
        outcome.map_err(|error| {
            let failure = Failure::new(&error).at(self.image.display());
            match error {
                RepairError::Check(Error::Cancelled) => failure.status(CANCELLED),
                RepairError::Check(Error::Memory { needed }) => {
                    let hint = format!("--memory {}K is enough", needed.div_ceil(1024));
                    failure.status(OPERATIONAL).hint(hint)
                }
                RepairError::Check(_) => failure.status(OPERATIONAL),
                error if error.wants_journal_device() => failure.status(OPERATIONAL).hint(
                    "--journal FILE names the device of the journal, which must be replayed first",
                ),
                RepairError::Replay(_)
                | RepairError::FastCommits(_)
                | RepairError::Changed { .. } => failure.status(OPERATIONAL),
                _ => failure
                    .status(OPERATIONAL)
                    .hint("run the repair again: what is not whole is replayed or undone"),
            }
        })
    }

    fn print_outcome(&self, context: &Context, outcome: &Outcome) -> Result<(), Failure> {
        let mut out = context.stdout();
        let image = self.image.display();
        let (before, after) = (&outcome.repaired.before, &outcome.repaired.after);
        let fate = fates(outcome);
        if self.json {
            let mut value = as_json(after, false);
            value["found"] = as_json(before, false);
            if let Some(found) = value["found"]["problems"].as_array_mut() {
                for (object, problem) in found.iter_mut().zip(&before.problems) {
                    object["repaired"] = matches!(fate(problem), Fate::Repaired).into();
                }
            }
            value["repaired"] = json!(outcome.has_written());
            json::write(&mut out, "check", value)?;
            return Ok(out.flush()?);
        }
        list(&mut out, context, before, &fate)?;
        let is_refused = outcome.repaired.is_refused;
        if !after.is_clean() {
            if outcome.has_written() && !is_refused {
                writeln!(out, "{image}: what is left:")?;
                list(&mut out, context, after, |_| Fate::Left)?;
            }
            writeln!(out, "{image}: the file system has errors")?;
        }
        if is_refused {
            writeln!(
                out,
                "{image}: nothing is repaired: something needs a decision"
            )?;
        }
        if outcome.has_written() {
            writeln!(out, "{image}: the file system was changed")?;
        }
        if let Some(totals) = &after.totals {
            writeln!(out, "{image}: {}", summary(totals))?;
        }
        if self.preen && (is_refused || !after.is_clean()) {
            context.hint("-y repairs what needs a decision, too");
        }
        Ok(out.flush()?)
    }

    /// Carries out --undo-apply.
    pub(super) fn apply_undo(&self, context: &Context, path: &Path) -> Result<(), Failure> {
        self.verify_for_writing()?;
        let failed = |failure: Failure| failure.status(OPERATIONAL);
        let device = place_for_repair(&self.image, &self.place.image).map_err(failed)?;
        undo::apply(&*device, path)
            .map_err(|error| failed(Failure::new(error).at(path.display())))?;
        context.note(format_args!(
            "{}: as before the repair",
            self.image.display()
        ));
        Ok(())
    }
}

/// What became of each problem that was found.
fn fates(outcome: &Outcome) -> impl Fn(&Problem) -> Fate {
    let without_path = |problem: &Problem| Problem {
        path: None,
        ..problem.clone()
    };
    let is_done = outcome.has_written() && !outcome.repaired.is_refused;
    let left: BTreeSet<Problem> = (outcome.repaired.after.problems.iter())
        .map(without_path)
        .collect();
    move |problem| match is_done {
        true if left.contains(&without_path(problem)) => Fate::Left,
        true => Fate::Repaired,
        false => Fate::Found,
    }
}
