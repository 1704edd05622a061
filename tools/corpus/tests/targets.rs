//! The fuzzer's targets, run over real structures, their mutants, and what the fuzzer found before.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use lanefs_corpus::targets::{self, TARGETS};
use lanefs_corpus::{Kind, PatchedBytes, Random, Structures, seeds};
use sync::clock::{self, Duration};

/// Mutants of each structure.
const MUTANTS: usize = 20;
/// Structures of one class of one image.
const STRUCTURES: usize = 6;

/// No input may take longer, also in a debug build on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(10);

type Function = fn(&[u8]) -> bool;

/// Which target reads such a structure, if any, and the first byte that chooses the fitting form.
fn target_of(kind: Kind) -> Option<(Function, Option<u8>)> {
    match kind {
        Kind::Superblock => Some((targets::superblock, None)),
        Kind::Directory(..) | Kind::Index(..) => Some((targets::directory, Some(0))),
        Kind::Extents(_) => Some((targets::extents, Some(0))),
        Kind::Xattrs(_) => Some((targets::xattrs, None)),
        Kind::JournalSuperblock | Kind::Log(_) | Kind::LogData => Some((targets::journal, Some(6))),
        _ => None,
    }
}

#[test]
fn targets_bear_real_structures_and_their_mutants() {
    let mut random = Random::new(5);
    let mut runs = 0;
    for seed in seeds() {
        let image = PatchedBytes::new(seed.bytes);
        let structures = Structures::of(&image);
        for class in &structures.classes {
            let Some((target, choice)) = target_of(class[0].kind) else {
                continue;
            };
            for structure in class.iter().take(STRUCTURES) {
                let mut bytes: Vec<u8> = choice.into_iter().collect();
                bytes.extend(image.get(structure.offset, structure.len));
                target(&bytes);
                for _ in 0..MUTANTS {
                    let mut bytes = bytes.clone();
                    for _ in 0..random.index(4) + 1 {
                        let end = if random.one_in(2) {
                            bytes.len()
                        } else {
                            bytes.len().min(64)
                        };
                        let at = random.index(end);
                        bytes[at] = random.bits() as u8;
                    }
                    if random.one_in(10) {
                        bytes.truncate(random.index(bytes.len()));
                    }
                    target(&bytes);
                    runs += 1;
                }
            }
        }
    }
    assert!(runs > 5_000, "{runs}");
}

/// Where the fuzzer's inputs are kept: `<target>.gz` holds many, each with its length (four bytes, little-endian)
/// before it; a folder `<target>` holds single ones.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus/fuzz")
}

/// The kept inputs of one target.
fn inputs(target: &str) -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    if let Ok(packed) = File::open(folder().join(format!("{target}.gz"))) {
        let mut bytes = Vec::new();
        GzDecoder::new(packed)
            .read_to_end(&mut bytes)
            .expect("an archive");
        let mut rest = &bytes[..];
        while let Some((len, after)) = rest.split_first_chunk::<4>() {
            let (input, next) = after.split_at(u32::from_le_bytes(*len) as usize);
            inputs.push(input.to_vec());
            rest = next;
        }
    }
    for entry in fs::read_dir(folder().join(target)).into_iter().flatten() {
        inputs.push(fs::read(entry.expect("an entry").path()).expect("an input"));
    }
    inputs
}

/// The stack of a program's first thread, in which the fuzzer runs a target. Code without optimisation needs more of it
/// than the thread of a test has.
const FUZZER_STACK: usize = 8 << 20;

#[test]
fn targets_bear_what_the_fuzzer_thought_up() {
    let builder = std::thread::Builder::new().stack_size(FUZZER_STACK);
    let all = builder.spawn(bear_what_the_fuzzer_thought_up).unwrap();
    if let Err(panic) = all.join() {
        std::panic::resume_unwind(panic);
    }
}

fn bear_what_the_fuzzer_thought_up() {
    for (name, target) in TARGETS {
        let inputs = inputs(name);
        assert!(inputs.len() > 20, "{name} has too few inputs");
        let mut sound = 0;
        for (number, input) in inputs.iter().enumerate() {
            let began = clock::now();
            let outcome = std::panic::catch_unwind(|| target(input));
            let Ok(is_sound) = outcome else {
                panic!("input {number} of {name} panics: {input:?}");
            };
            assert!(
                began.elapsed() < TIME_MAX,
                "input {number} of {name} is slow"
            );
            sound += usize::from(is_sound);
        }
        eprintln!("{name}: {} inputs, {sound} of them sound", inputs.len());
        // Or the inputs get no further than the first check.
        assert!(sound > 5, "{name}: only {sound} are sound");
    }
}

/// Changes bytes of kept inputs of the targets that check and repair. LANEFS_FUZZ_SECONDS sets for how long each
/// target is tried.
#[test]
fn mutated_inputs_are_checked_and_repaired() {
    let seconds = std::env::var("LANEFS_FUZZ_SECONDS").ok();
    let seconds: Option<u64> = seconds.and_then(|it| it.parse().ok());
    let first = std::env::var("LANEFS_FUZZ_FIRST").ok();
    let first = first.and_then(|it| it.parse().ok()).unwrap_or(1);
    for (name, target) in TARGETS {
        if !matches!(*name, "check" | "repair") {
            continue;
        }
        let inputs = inputs(name);
        let began = clock::now();
        let mut random = Random::new(first);
        let (mut runs, mut sound) = (0, 0);
        let may_go_on = |runs: u64| match seconds {
            Some(seconds) => began.elapsed() < Duration::from_secs(seconds),
            None => runs < 10,
        };
        while may_go_on(runs) {
            let mut input = inputs[random.index(inputs.len())].clone();
            // The first byte chooses the image.
            input.resize(13.max(input.len()), 0);
            for _ in 0..random.index(12) + 1 {
                let at = random.index(input.len());
                input[at] = random.bits() as u8;
            }
            let started = clock::now();
            let outcome = std::panic::catch_unwind(|| target(&input));
            assert!(outcome.is_ok(), "{name} panics: {input:?}");
            assert!(started.elapsed() < TIME_MAX, "{name} is slow: {input:?}");
            runs += 1;
            sound += u64::from(matches!(outcome, Ok(true)));
        }
        eprintln!("{name}: {runs} mutated inputs, {sound} of them sound");
    }
}

#[test]
#[ignore = "packs a fuzzer's corpus, which LANEFS_FUZZ_CORPUS names, into tests/corpus/fuzz"]
fn inputs_of_the_fuzzer_are_packed() {
    let source =
        std::env::var("LANEFS_FUZZ_CORPUS").expect("a folder with a folder for each target");
    fs::create_dir_all(folder()).expect("a folder");
    for (name, _) in TARGETS {
        // A target that was not run keeps what it has.
        let Ok(entries) = fs::read_dir(Path::new(&source).join(name)) else {
            continue;
        };
        let mut inputs: Vec<Vec<u8>> = entries
            .map(|entry| fs::read(entry.expect("an entry").path()).expect("an input"))
            .collect();
        inputs.sort();
        let packed = File::create(folder().join(format!("{name}.gz"))).expect("an archive");
        let mut encoder = GzEncoder::new(packed, Compression::best());
        for input in inputs {
            let len = u32::try_from(input.len()).expect("a small input");
            encoder.write_all(&len.to_le_bytes()).expect("written");
            encoder.write_all(&input).expect("written");
        }
        encoder.finish().expect("written");
    }
}
