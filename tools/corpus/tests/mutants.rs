//! Seeds are read without an error; mutants without a panic, and soon.

use lanefs_corpus::{PatchedBytes, Structures, exercise, mutant, print_structure, seeds};
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
        let image = PatchedBytes::new(seed.bytes);
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

/// Asserts that neither memory in use nor memory asked for ever was more than an image may cost.
fn check_memory() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    for (field, most_kib) in [("VmHWM:", 300 << 10), ("VmPeak:", 1500 << 10)] {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        let kib: u64 = kib.unwrap_or(0);
        eprintln!("{field} {} MiB", kib >> 10);
        assert!(kib < most_kib, "{field} {kib} KiB");
    }
}

#[test]
fn mutants_neither_panic_nor_hang_nor_take_much_memory() {
    let (first, count) = (asked("LANEFS_FIRST", 0), asked("LANEFS_MUTANTS", MUTANTS));
    let mut slowest = Duration::ZERO;
    let (mut mutants, mut opened, mut broken) = (0_u32, 0_u32, 0_u32);
    for seed in seeds() {
        let structures = Structures::of(&PatchedBytes::new(seed.bytes.clone()));
        for number in first..first + count {
            let began = clock::now();
            let run = || {
                let (image, changed) = mutant(&seed.bytes, &structures, number);
                for structure in changed {
                    let bytes = image.get(structure.offset, structure.len);
                    let _ = print_structure(&structure, &bytes, &structures.geometry);
                }
                exercise(&image)
            };
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            let Ok(summary) = outcome else {
                panic!("mutant {number} of {} panics", seed.name);
            };
            mutants += 1;
            opened += u32::from(summary.opened > 0);
            broken += u32::from(summary.opened > 0 && summary.errors > 0);
            let took = began.elapsed();
            assert!(
                took < TIME_MAX,
                "mutant {number} of {} took {took:?}",
                seed.name
            );
            slowest = slowest.max(took);
        }
    }
    eprintln!(
        "{mutants} mutants, {opened} open, {broken} of them with errors; slowest {slowest:?}"
    );
    // Most must get past the superblock, and enough must be wrong further down, or this tests little.
    assert!(opened > mutants / 2 && broken > mutants / 5);
    check_memory();
}
