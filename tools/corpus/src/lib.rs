//! What tests of hostile images share: small images of every profile, a mutator that knows their structures and seals
//! what it changed, and a read of everything that there is to read.
//!
//! The images lie in tests/corpus, made by mke2fs, debugfs and the kernel (`make_seeds`). A mutant is a seed and a
//! number; both together make the same bytes on every machine.

mod exercise;
mod mutate;
mod overlay;
mod seeds;
mod structures;
pub mod targets;

pub use exercise::{ExerciseSummary, exercise, exercise_with, print_structure};
pub use model::Random;
pub use mutate::{mutant, unsealed_mutant};
pub use overlay::PatchedBytes;
pub use seeds::{Seed, seed, seeds};
pub use structures::{Kind, Structure, Structures};
