//! Mistakes made on purpose, one at a time, and the seed that finds each: what shows that the crash tests see.

pub use engine::canary::Canary;

use engine::canary;

use crate::image::{self, Image};
use crate::seeds;
use crate::sweep::{Depth, Sweep, caught};

/// Seeds after which a mistake counts as not found.
const SEEDS: u64 = 2000;

/// Makes each mistake until a seed finds it.
///
/// # Errors
/// The mistakes that were not found.
pub fn run(mut tell: impl FnMut(Canary, u64, &str)) -> Result<(), String> {
    let profile = image::PROFILES[1];
    let image = image::make(profile, &seeds::setup())?;
    let mut missed = Vec::new();
    for canary in Canary::ALL {
        canary::make(Some(canary));
        let found = find(&image);
        canary::make(None);
        match found? {
            Some((seed, why)) => tell(canary, seed, &why),
            None => missed.push(canary),
        }
    }
    match missed.is_empty() {
        true => Ok(()),
        false => Err(format!("not found in {SEEDS} seeds: {missed:?}")),
    }
}

fn find(image: &Image) -> Result<Option<(u64, String)>, String> {
    let depth = Depth {
        drawn: 6,
        percent: 100,
        judge_one_in: 50,
    };
    for seed in 0..SEEDS {
        let mut sweep = Sweep::new(image, depth)?;
        if let Err(why) = caught(|| seeds::run(&mut sweep, seed)) {
            return Ok(Some((seed, why)));
        }
    }
    Ok(None)
}
