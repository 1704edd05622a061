//! How a run of random work is set up, all of it from its seed: which form of each mechanism it begins with, which it
//! switches to meanwhile, how its journal commits, how long flushes take, and how time goes in it.

use std::fmt;

use engine::{LogUse, MountOptions, Variants};
use model::Random;

use crate::image::Profile;
use crate::times::RunTimes;

/// Combinations of forms that are drawn once for all, besides the defaults and each twin alone.
pub const COMBINATIONS: u64 = 20;
/// The numbers that the combinations are drawn from.
const DRAWN_FROM: u64 = 0x6c61_6e65;
/// Settings follow from other numbers than the work.
const SETTINGS: u64 = 0x5e77_1465;
/// Of eight runs on an image whose journal can tell a torn commit, those that commit with one flush.
const ASYNC_OF_EIGHT: u64 = 2;
/// Of four runs, those that switch forms while they work.
const SWITCHING_OF_FOUR: u64 = 3;

/// Of four runs, those whose flushes take so long that leaders wait for others and fsyncs of data join the log's steps.
const SLOW_OF_FOUR: u64 = 1;

/// What the first of four threads mostly does to its file, while the others fsync and sync it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Focus {
    /// It gets longer, so that each state needs blocks that the one before had not.
    Grows,
    /// Its bytes are written again in place, which may change nothing else.
    IsWrittenOver,
}

/// How a run is set up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunSetting {
    /// The seed that all of it follows from.
    pub seed: u64,
    /// The forms at the beginning.
    pub variants: Variants,
    /// Whether forms are switched while threads work.
    pub is_switching: bool,
    /// Whether commits take one flush where that is enough.
    pub async_commit: bool,
    /// Whether four threads mostly change their files and fsync them and each other's.
    pub is_syncing: bool,
    /// What becomes of the one file that all of them are about, if they are.
    pub focus: Option<Focus>,
    /// Whether flushes take their time.
    pub has_slow_flushes: bool,
    /// How its clock runs, and whether the times of files are read.
    pub times: RunTimes,
}

impl RunSetting {
    /// That of a seed on a kind of image.
    #[must_use]
    pub fn of(profile: Profile, seed: u64) -> RunSetting {
        let mut random = Random::new(seed ^ SETTINGS);
        let all = all();
        let mut variants = match random.below(3) {
            0 => Variants::default(),
            // They are few.
            _ => all[random.below(all.len() as u64) as usize],
        };
        if profile.has_fast_commits && !seed.is_multiple_of(4) {
            // Else full commits would take the log's place in most of them.
            variants.log_use = LogUse::Always;
        }
        RunSetting {
            seed,
            variants,
            is_switching: random.below(4) < SWITCHING_OF_FOUR,
            async_commit: random.below(8) < ASYNC_OF_EIGHT
                && profile.has_checksums
                && profile.has_log,
            is_syncing: false,
            focus: None,
            has_slow_flushes: random.below(4) < SLOW_OF_FOUR,
            times: RunTimes::of(seed),
        }
    }

    /// That of a seed whose threads mostly fsync.
    #[must_use]
    pub fn syncing(profile: Profile, seed: u64) -> RunSetting {
        RunSetting {
            is_syncing: true,
            focus: match seed % 4 {
                1 => Some(Focus::Grows),
                3 => Some(Focus::IsWrittenOver),
                _ => None,
            },
            ..RunSetting::of(profile, seed)
        }
    }

    /// As options of the engine.
    #[must_use]
    pub fn options(&self) -> MountOptions {
        MountOptions {
            variants: self.variants,
            async_commit: self.async_commit,
            ..MountOptions::default()
        }
    }
}

impl fmt::Display for RunSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "forms {}", self.variants)?;
        if self.is_switching {
            f.write_str(", switched meanwhile")?;
        }
        if self.async_commit {
            f.write_str(", async commits")?;
        }
        if self.is_syncing {
            f.write_str(match self.focus {
                None => ", fsyncs",
                Some(Focus::Grows) => ", fsyncs of a file that grows",
                Some(Focus::IsWrittenOver) => ", fsyncs of a file that is written over",
            })?;
        }
        if self.has_slow_flushes {
            f.write_str(", slow flushes")?;
        }
        write!(f, ", {}", self.times)
    }
}

/// The forms that runs are given: the defaults, each twin alone, and the drawn combinations.
#[must_use]
pub fn all() -> Vec<Variants> {
    let mut all = vec![Variants::default()];
    let choices: Vec<_> = Variants::choices().collect();
    for (name, values) in &choices {
        for value in &values[1..] {
            all.push(with(Variants::default(), name, value));
        }
    }
    let mut random = Random::new(DRAWN_FROM);
    for _ in 0..COMBINATIONS {
        let mut drawn = Variants::default();
        for (name, values) in &choices {
            drawn = with(drawn, name, random.pick::<&str>(values));
        }
        all.push(drawn);
    }
    all
}

/// A switch to any form of any mechanism, as [`engine::InodeFs::choose`] takes it.
#[must_use]
pub fn switch(random: &mut Random) -> String {
    let choices: Vec<_> = Variants::choices().collect();
    let (name, values) = random.pick(&choices);
    format!("{name}={}", random.pick::<&str>(values))
}

fn with(variants: Variants, name: &str, value: &str) -> Variants {
    let mut changed = variants;
    let known = changed.set(&format!("{name}={value}"));
    debug_assert!(known.is_ok(), "a choice is a form that is there");
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::PROFILES;

    #[test]
    fn seeds_get_the_defaults_every_twin_alone_and_every_combination() {
        let wanted = all();
        assert!(wanted.len() as u64 > COMBINATIONS);
        let settings: Vec<RunSetting> = (0..4000)
            .map(|seed| RunSetting::of(PROFILES[(seed % 4) as usize], seed))
            .collect();
        for variants in wanted {
            assert!(
                settings.iter().any(|setting| setting.variants == variants),
                "{variants}"
            );
        }
        let count = |is: fn(&RunSetting) -> bool| settings.iter().filter(|one| is(one)).count();
        assert!(count(|one| one.variants == Variants::default()) > 1000);
        assert!(count(|one| one.async_commit) > 200);
    }
}
