//! Changes of a file's data cut at every write: what is found is a state that the model allows, and e2fsck agrees.

use lanefs_engine::{Allocate, InodeFs};
use model::{FallocateMode, FileBytes, History, ModelPath, ModelTree, Op, OpTarget, Random};

use crate::files::{self, Change, contents, with_files};
use crate::image::{record, sweep};

fn file() -> OpTarget {
    OpTarget::Path(ModelPath::new("one"))
}

fn empty() -> ModelTree {
    let mut tree = ModelTree::new();
    let path = ModelPath::new("one");
    tree.apply(&Op::Create { path, mode: 0o644 }).unwrap();
    tree
}

pub fn op(change: &Change) -> Op {
    let file = file();
    match change.clone() {
        Change::Write(offset, bytes) => Op::Write {
            file,
            offset,
            bytes,
        },
        Change::Truncate(size) => Op::Truncate { file, size },
        Change::Allocate(how, offset, len) => {
            let mode = match how {
                Allocate::Grow => FallocateMode::Allocate,
                Allocate::KeepSize => FallocateMode::KeepSize,
                Allocate::Punch => FallocateMode::Punch,
                Allocate::Zero => FallocateMode::Zero,
                Allocate::ZeroKeepSize => FallocateMode::ZeroKeepSize,
                Allocate::Collapse => FallocateMode::Collapse,
                Allocate::Insert => FallocateMode::Insert,
            };
            Op::Fallocate {
                file,
                mode,
                offset,
                len,
            }
        }
    }
}

/// What a change may have done before it returns: a prefix of the range; holes where a collapsed range was.
pub fn parts(change: &Change) -> Vec<Change> {
    let ends = |offset: u64, len: u64| {
        let first = offset / 4096 + 1;
        (first..(offset + len).div_ceil(4096)).map(move |block| block * 4096 - offset)
    };
    match change {
        Change::Write(offset, bytes) => ends(*offset, bytes.len() as u64)
            .map(|len| Change::Write(*offset, bytes[..len as usize].to_vec()))
            .collect(),
        Change::Allocate(Allocate::Collapse, offset, len) => {
            vec![Change::Allocate(Allocate::Punch, *offset, *len)]
        }
        Change::Allocate(Allocate::Zero, offset, len) => {
            vec![Change::Allocate(Allocate::ZeroKeepSize, *offset, *len)]
        }
        Change::Allocate(Allocate::Grow, offset, len) => ends(*offset, *len)
            .map(|len| Change::Allocate(Allocate::Grow, *offset, len))
            .collect(),
        _ => Vec::new(),
    }
}

/// The states that may be found when `done` changes have returned and the next one was under way. Each third was
/// synced.
pub fn history(changes: &[Change], done: usize) -> History {
    let mut history = History::new(empty());
    for (index, change) in changes.iter().take(done + 1).enumerate() {
        let mut after = history.last().clone();
        // What is refused does nothing.
        if after.apply(&op(change)).is_ok() {
            for part in parts(change) {
                let mut state = history.last().clone();
                state.apply(&op(&part)).unwrap();
                history.push(state);
            }
            history.push(after);
        }
        if index < done && index % 3 == 2 {
            history.promise(&Op::Fsync { file: file() });
        }
    }
    history
}

pub fn found(fs: &InodeFs) -> ModelTree {
    let ino = fs.resolve(b"one", true).unwrap();
    let bytes = contents(fs, ino);
    let mut tree = empty();
    let size = bytes.len() as u64;
    let (file, offset) = (file(), 0);
    tree.apply(&Op::Write {
        file,
        offset,
        bytes,
    })
    .unwrap();
    tree.apply(&Op::Truncate {
        file: self::file(),
        size,
    })
    .unwrap();
    tree
}

fn cut_everywhere(options: &[&str], seed: u64, count: usize) {
    let Some(image) = with_files(options, 8 << 20, &["one"]) else {
        return;
    };
    let with_extents = !options.iter().any(|option| option.contains("^extents"));
    let mut random = Random::new(seed);
    let mut changes = Vec::new();
    let mut content = FileBytes::default();
    for _ in 0..count {
        let next = files::random(&mut random, content.size(), 200_000, with_extents);
        files::apply(&mut content, &next);
        changes.push(next);
    }
    let cuts = record(&image, |device, fs| {
        let ino = fs.resolve(b"one", true).unwrap();
        let mut content = FileBytes::default();
        for (index, change) in changes.iter().enumerate() {
            files::change(&fs, ino, &mut content, change);
            if index % 3 == 2 {
                fs.fsync(ino).unwrap();
            }
            device.mark(index as u64 + 1);
        }
        fs.close().unwrap();
    });
    let states = sweep(cuts, 2, |cut, mark, fs| {
        let done = mark.unwrap_or(0) as usize;
        let history = history(&changes, done);
        if let Err(mismatch) = history.check(&found(fs)) {
            panic!(
                "seed {seed}, {cut}, {done} done: {mismatch}\n{:?}",
                &changes[..changes.len().min(done + 1)]
            );
        }
    });
    assert!(states > 50, "{states}");
}

#[test]
fn a_cut_leaves_a_state_that_the_model_allows() {
    for seed in 0..3 {
        cut_everywhere(&["-b", "4096"], seed, 10);
    }
    cut_everywhere(&["-b", "4096", "-O", "^metadata_csum,^64bit"], 7, 10);
}

#[test]
fn a_cut_leaves_a_state_that_the_model_allows_in_mapped_files() {
    for seed in 0..2 {
        cut_everywhere(&["-b", "4096", "-O", "^extents,^64bit"], seed, 8);
    }
}

#[test]
#[ignore = "minutes: cargo xtask suites long"]
fn many_cuts_leave_states_that_the_model_allows() {
    for seed in 100..130 {
        cut_everywhere(&["-b", "4096"], seed, 12);
        cut_everywhere(&["-b", "4096", "-O", "^extents,^64bit"], seed, 12);
    }
}
