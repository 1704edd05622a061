//! Mistakes made on purpose, one at a time, and the seed that finds each: what shows that the crash tests see.

pub use engine::canary::Canary;

use engine::canary;
use model::{ModelPath, Op, OpTarget};

use crate::image::{self, Image};
use crate::setting::RunSetting;
use crate::sweep::{Depth, Sweep, caught};
use crate::{seeds, sequences};

/// Seeds after which a mistake counts as not found.
const SEEDS: u64 = 2000;
/// Mistakes that the first seeds don't find, each with a seed that found it. That seed is run first, which saves time;
/// where a change of the work makes another one find the mistake, the search goes through all seeds.
const FOUND_BY: [(Canary, u64); 4] = [
    (Canary::CancelledAtFree, 520),
    (Canary::NextEpochInSealedImage, 445),
    (Canary::NextEpochInLog, 57),
    (Canary::OverwrittenUnflushed, 7),
];

const DEPTH: Depth = Depth {
    drawn: 6,
    percent: 100,
    judge_one_in: 50,
};

/// For what many runs find sooner than many cuts of one.
const SHALLOW: Depth = Depth {
    drawn: 1,
    percent: 30,
    judge_one_in: 50,
};

/// Makes each mistake, or the one of this name, until a scenario or a seed finds it; `tell` gets the mistake, what
/// found it, and what it said.
///
/// # Errors
/// The mistakes that were not found.
pub fn run(only: &str, mut tell: impl FnMut(Canary, &str, &str)) -> Result<(), String> {
    let image = image::make(image::PROFILES[1], &seeds::setup())?;
    let fast = Fast::new()?;
    // What finds a mistake finds nothing where none is made; of the seeds, the other parts of a run say that.
    let mut sweep = Sweep::new(&image, DEPTH)?;
    sequences::run(&mut sweep, &reuse(), 0, true)?;
    let mut sweep = Sweep::new(&fast.for_sequences, DEPTH)?;
    sequences::run(&mut sweep, &replaced(), 0, true)?;
    let mut missed = Vec::new();
    let is_wanted = |canary: &Canary| only.is_empty() || format!("{canary:?}") == only;
    for canary in Canary::ALL.into_iter().filter(is_wanted) {
        canary::make(Some(canary));
        let found = if canary.is_of_fast_commits() {
            fast.find(canary)
        } else {
            find(canary, &image)
        };
        canary::make(None);
        match found? {
            Some((by, why)) => tell(canary, &by, &why),
            None => missed.push(canary),
        }
    }
    if missed.is_empty() {
        Ok(())
    } else {
        Err(format!("not found in {SEEDS} seeds: {missed:?}"))
    }
}

/// A directory's block is freed and becomes a file's, while the log holds the directory's.
fn reuse() -> Vec<Op> {
    let path = |name: &str| ModelPath::new("d0").join(name.as_bytes());
    let file = OpTarget::Path(path("file"));
    vec![
        Op::Mkdir {
            path: path("gone"),
            mode: 0o755,
        },
        Op::Sync,
        Op::Rmdir { path: path("gone") },
        Op::Sync,
        Op::Create {
            path: path("file"),
            mode: 0o644,
        },
        Op::Write {
            file: file.clone(),
            offset: 0,
            bytes: vec![b'w'; 1000],
        },
        Op::Fsync { file },
    ]
}

/// The seeds in the order in which they are run for this mistake.
fn seeds_for(canary: Canary) -> impl Iterator<Item = u64> {
    let of_this = FOUND_BY.iter().find(|(known, _)| *known == canary);
    of_this.map(|(_, seed)| *seed).into_iter().chain(0..SEEDS)
}

fn find(canary: Canary, image: &Image) -> Result<Option<(String, String)>, String> {
    let mut sweep = Sweep::new(image, DEPTH)?;
    if let Err(why) = caught(|| sequences::run(&mut sweep, &reuse(), 0, true)) {
        return Ok(Some(("a block reused".into(), why)));
    }
    for seed in seeds_for(canary) {
        let mut sweep = Sweep::new(image, DEPTH)?;
        let setting = RunSetting::of(image.profile, seed);
        if let Err(why) = caught(|| seeds::run(&mut sweep, &setting)) {
            return Ok(Some((format!("seed {seed}"), why)));
        }
    }
    Ok(None)
}

/// Images whose fsyncs are fast commits.
struct Fast {
    for_sequences: Image,
    for_seeds: Image,
}

impl Fast {
    fn new() -> Result<Fast, String> {
        Ok(Fast {
            for_sequences: image::make(image::FAST, &image::two_directories())?,
            for_seeds: image::make(image::FAST, &seeds::setup())?,
        })
    }

    /// Sequences find what one thread shows, the fsyncs of several threads the rest.
    fn find(&self, canary: Canary) -> Result<Option<(String, String)>, String> {
        let mut sweep = Sweep::new(&self.for_sequences, DEPTH)?;
        if let Err(why) = caught(|| sequences::run(&mut sweep, &replaced(), 0, true)) {
            return Ok(Some(("an open file replaced".into(), why)));
        }
        if canary != Canary::NextEpochInLog {
            let alphabet = sequences::alphabet(image::FAST.has_extents);
            for (number, ops) in alphabet.iter().enumerate() {
                let is_fast = matches!(ops[..], [_, Op::Fsync { .. } | Op::Fdatasync { .. }]);
                let run = || sequences::run(&mut sweep, ops, number as u64, true);
                if is_fast && let Err(why) = caught(run) {
                    return Ok(Some((format!("sequence 1:{number}"), why)));
                }
            }
        }
        let mut sweep = Sweep::new(&self.for_seeds, SHALLOW)?;
        for seed in seeds_for(canary) {
            let setting = RunSetting::syncing(image::FAST, seed);
            if let Err(why) = caught(|| seeds::run(&mut sweep, &setting)) {
                return Ok(Some((format!("fsyncs of seed {seed}"), why)));
            }
        }
        Ok(None)
    }
}

/// A file that is open loses its name to another one, which is fsynced.
fn replaced() -> Vec<Op> {
    let path = |name: &str| ModelPath::new(name);
    vec![
        Op::Open {
            path: path("d0/f0"),
            slot: 0,
        },
        Op::Rename {
            from: path("d1/f0"),
            to: path("d0/f0"),
            flag: model::RenameMode::Replace,
        },
        Op::Fsync {
            file: OpTarget::Path(path("d0/f0")),
        },
        Op::Close { slot: 0 },
    ]
}
