//! Seeds are read without an error; mutants without a panic, and soon.

use lanefs_corpus::{Overlay, Structures, exercise, mutant, print_structure, seeds};
use sync::clock::{self, Duration};

/// Mutants of each seed; `LANEFS_MUTANTS` asks for more, `LANEFS_FIRST` for others.
const MUTANTS: u64 = 25;
/// No mutant may take longer, also in a debug build on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(10);

fn asked(variable: &str, usual: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value.and_then(|value| value.parse().ok()).unwrap_or(usual)
}

#[test]
fn seeds_are_read_whole() {
    let seeds = seeds();
    assert!(seeds.len() > 20);
    for seed in seeds {
        let image = Overlay::new(seed.bytes);
        let summary = exercise(&image);
        let structures = Structures::of(&image);
        eprintln!(
            "{}: {summary:?}, {} classes",
            seed.name,
            structures.classes.len()
        );
        assert_eq!(summary.opened, 2, "{}", seed.name);
        assert!(
            summary.entries > 100 && summary.bytes > 10_000,
            "{}",
            seed.name
        );
        if !seed.name.starts_with("dirty")
            && seed.name != "encrypted"
            && seed.name != "quota-verity"
        {
            assert_eq!(summary.first_error, None, "{}", seed.name);
        }
    }
}

#[test]
fn mutants_neither_panic_nor_hang() {
    let (first, count) = (asked("LANEFS_FIRST", 0), asked("LANEFS_MUTANTS", MUTANTS));
    let mut slowest = Duration::ZERO;
    for seed in seeds() {
        let structures = Structures::of(&Overlay::new(seed.bytes.clone()));
        for number in first..first + count {
            let began = clock::now();
            let run = || {
                let (image, changed) = mutant(&seed.bytes, &structures, number);
                for structure in changed {
                    let bytes = image.get(structure.offset, structure.len);
                    let _ = print_structure(&structure, &bytes, &structures.geometry);
                }
                let _ = exercise(&image);
            };
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            assert!(outcome.is_ok(), "mutant {number} of {} panics", seed.name);
            let took = began.elapsed();
            assert!(
                took < TIME_MAX,
                "mutant {number} of {} took {took:?}",
                seed.name
            );
            slowest = slowest.max(took);
        }
    }
    eprintln!("slowest: {slowest:?}");
}
