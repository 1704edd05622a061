//! Mutants of the corpus are walked, written as a tar and extracted without a panic, soon, and to nowhere else.

use std::fs;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corpus::{PatchedBytes, Structures, mutant, seeds};
use lanefs::{Fs, Ino, MountOptions, extract};

/// Mutants of each seed that are walked and written as a tar; one in five of them is extracted.
const MUTANTS: u64 = 10;
/// Steps of a walk.
const STEPS: usize = 50_000;
const TIME_MAX: Duration = Duration::from_secs(10);

/// Takes this number of bytes, and then fails: a hostile file may claim any size.
struct Limited(usize);

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self
            .0
            .checked_sub(bytes.len())
            .ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn read(image: PatchedBytes, extracted: bool) {
    let Ok(fs) = Fs::open_with(Arc::new(image), &MountOptions::default()) else {
        return;
    };
    if let Ok(walk) = fs.walk("/") {
        for step in walk.take(STEPS) {
            if let Err((_, error)) = step {
                assert!(!error.to_string().is_empty());
            }
        }
    }
    let options = extract::Options::default();
    let mut sink = Limited(64 << 20);
    // The error of a full sink is expected.
    let _ = extract::to_tar(&fs, Ino::ROOT, b"root", &mut sink, &options);
    if extracted {
        let folder = tempfile::tempdir().expect("a folder");
        let destination = folder.path().join("here");
        let canary = folder.path().join("canary");
        fs::write(&canary, b"alive").expect("a file");
        let _ = extract::to_directory(&fs, Ino::ROOT, &destination, &options);
        let beside = fs::read_dir(folder.path()).expect("a folder").count();
        assert!(beside <= 2, "something was made outside the destination");
        assert_eq!(fs::read(&canary).expect("a file"), b"alive");
    }
}

#[test]
fn mutants_are_extracted_without_a_panic_and_to_nowhere_else() {
    for seed in seeds() {
        let structures = Structures::of(&PatchedBytes::new(seed.bytes.clone()));
        for number in 0..MUTANTS {
            // Other numbers than the corpus's own test takes.
            let number = 1_000_000 + number;
            let began = Instant::now();
            let (image, _) = mutant(&seed.bytes, &structures, number);
            let run = || read(image, number % 5 == 0);
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            assert!(outcome.is_ok(), "mutant {number} of {} panics", seed.name);
            let took = began.elapsed();
            assert!(
                took < TIME_MAX,
                "mutant {number} of {} took {took:?}",
                seed.name
            );
        }
    }
}
