//! The fuzzer's targets, run over real structures, their mutants, and what the fuzzer found before.

use std::fs;
use std::path::Path;

use lanefs_corpus::targets::{self, TARGETS};
use lanefs_corpus::{Kind, Overlay, Random, Structures, seeds};

/// Mutants of each structure.
const MUTANTS: usize = 20;
/// Structures of one class of one image.
const STRUCTURES: usize = 6;

type Function = fn(&[u8]);

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
        let image = Overlay::new(seed.bytes);
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
                    for _ in 0..random.below(4) + 1 {
                        let end = if random.one_in(2) {
                            bytes.len()
                        } else {
                            bytes.len().min(64)
                        };
                        let at = random.below(end);
                        bytes[at] = random.bits() as u8;
                    }
                    if random.one_in(10) {
                        bytes.truncate(random.below(bytes.len()));
                    }
                    target(&bytes);
                    runs += 1;
                }
            }
        }
    }
    assert!(runs > 5_000, "{runs}");
}

#[test]
fn targets_bear_what_the_fuzzer_found() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus/fuzz");
    for (name, target) in TARGETS {
        let Ok(inputs) = fs::read_dir(folder.join(name)) else {
            continue;
        };
        for input in inputs {
            let path = input.expect("an entry").path();
            let bytes = fs::read(&path).expect("an input");
            let outcome = std::panic::catch_unwind(|| target(&bytes));
            assert!(outcome.is_ok(), "{} panics", path.display());
        }
    }
}
