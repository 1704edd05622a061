//! Operations on names beside the model, with the power cut at every write.

use lanefs_engine::InodeFs;
use model::{Generator, ModelPath, ModelTree, Op, OpTarget, RenameMode, SizeProfile};
use simulate::Recorder;

use crate::executor::{Executor, tree};
use crate::image::{finish, make, record, sweep};

const FORMS: [&[&str]; 4] = [
    &["-b", "1024"],
    &["-b", "4096", "-O", "^metadata_csum,^64bit"],
    &["-b", "1024", "-O", "^orphan_file,^dir_index"],
    &[
        "-b",
        "1024",
        "-O",
        "^extents,^filetype,^metadata_csum,^64bit,^extra_isize,^dir_nlink,^flex_bg,^huge_file,\
         ^metadata_csum_seed,^orphan_file",
        "-I",
        "128",
    ],
];

fn random_ops(seed: u64, steps: usize) -> Vec<Op> {
    let mut generator = Generator::new(seed, SizeProfile::default());
    let mut tree = ModelTree::new();
    let mut ops = Vec::new();
    while ops.len() < steps {
        let op = generator.next(&tree);
        if Executor::knows(&op) {
            let _ = tree.apply(&op);
            ops.push(op);
        }
    }
    ops
}

fn assert_same(model: &ModelTree, fs: &InodeFs, what: &str) {
    if let Err(difference) = model.compare(&tree(fs)) {
        panic!("{what}: {difference}");
    }
}

#[test]
fn random_operations_do_what_the_model_does() {
    for (number, form) in FORMS.into_iter().enumerate() {
        let Some(image) = make(form, 16 << 20) else {
            return;
        };
        for seed in 0..4 {
            let ops = random_ops(seed * 10 + number as u64, 600);
            finish(&image, |fs| {
                let (mut model, mut executor) = (ModelTree::new(), Executor::new(&fs));
                for (step, op) in ops.iter().enumerate() {
                    let expected = model.apply(op);
                    let found = executor.apply(op);
                    assert_eq!(
                        found, expected,
                        "form {number} seed {seed} step {step}: {op:?}"
                    );
                    if step % 50 == 0 {
                        assert_same(
                            &model,
                            &fs,
                            &format!("form {number} seed {seed} step {step}"),
                        );
                    }
                }
                for slot in 0..=255 {
                    executor.apply(&Op::Close { slot }).unwrap();
                    model.apply(&Op::Close { slot }).unwrap();
                }
                assert_same(&model, &fs, &format!("form {number} seed {seed}"));
                fs.close().unwrap();
            });
        }
    }
}

/// Does `ops`, with a sync after every third; each cut leaves the state after some operation since the last sync.
fn cut_everywhere(image: &[u8], ops: &[Op], what: &str) {
    let mut states = vec![ModelTree::new()];
    for op in ops {
        let mut next = states.last().unwrap().clone();
        let _ = next.apply(op);
        states.push(next);
    }
    let work = |device: &Recorder, fs: InodeFs| {
        let mut executor = Executor::new(&fs);
        for (step, op) in ops.iter().enumerate() {
            let _ = executor.apply(op);
            if step % 3 == 2 {
                fs.sync().unwrap();
                device.mark(step as u64 + 1);
            }
        }
        fs.sync().unwrap();
        device.mark(ops.len() as u64);
        drop(executor);
        fs.close().unwrap();
    };
    let count = sweep(record(image, work), 2, |cut, promised, fs| {
        let found = tree(fs);
        let from = promised.unwrap_or(0) as usize;
        let is_known = states[from..]
            .iter()
            .any(|state| state.recovered().compare(&found).is_ok());
        assert!(
            is_known,
            "{what}: {cut}: nothing from {promised:?} on looks like this"
        );
    });
    assert!(count > 20, "{what}: {count} states");
}

#[test]
fn every_operation_survives_any_cut_whole_or_not_at_all() {
    let path = ModelPath::new;
    let create = |name| Op::Create {
        path: path(name),
        mode: 0o644,
    };
    let mkdir = |name| Op::Mkdir {
        path: path(name),
        mode: 0o755,
    };
    let rename = |from, to, flag| Op::Rename {
        from: path(from),
        to: path(to),
        flag,
    };
    let ops = vec![
        mkdir("a"),
        mkdir("b"),
        create("a/x"),
        create("b/x"),
        Op::Symlink {
            path: path("a/fast"),
            target: b"target".to_vec(),
        },
        Op::Symlink {
            path: path("a/slow"),
            target: vec![b't'; 200],
        },
        Op::Mknod {
            path: path("b/pipe"),
            mode: 0o600,
            device: model::Device::Fifo,
        },
        Op::Link {
            from: OpTarget::Path(path("a/x")),
            to: path("b/y"),
        },
        rename("a/x", "a/z", RenameMode::Replace),
        rename("a/z", "b/x", RenameMode::Replace),
        mkdir("a/d"),
        rename("a/d", "b/d", RenameMode::Replace),
        rename("b/d", "b/pipe", RenameMode::Exchange),
        rename("b/pipe", "a/slow", RenameMode::Exchange),
        rename("b/y", "b/white", RenameMode::Whiteout),
        rename("b/white", "b/y", RenameMode::Whiteout),
        mkdir("a/moves"),
        rename("a/moves", "b/moves", RenameMode::Whiteout),
        Op::Unlink { path: path("b/y") },
        Op::Unlink { path: path("b/x") },
        Op::Rmdir {
            path: path("a/slow"),
        },
        mkdir("a/e"),
        mkdir("b/e"),
        rename("a/e", "b/e", RenameMode::Replace),
        Op::Unlink {
            path: path("b/pipe"),
        },
    ];
    for (number, form) in FORMS.into_iter().enumerate() {
        let Some(image) = make(form, 8 << 20) else {
            return;
        };
        cut_everywhere(&image, &ops, &format!("form {number}"));
    }
}

#[test]
fn random_operations_survive_any_cut_whole_or_not_at_all() {
    for (seed, form) in (100..).zip(FORMS) {
        let Some(image) = make(form, 8 << 20) else {
            return;
        };
        let mut ops = random_ops(seed, 60);
        // Data is written in several steps and in place: that has its own tests.
        ops.retain(|op| !matches!(op, Op::Write { .. } | Op::Truncate { .. }));
        // What is held at the end of a run is not modelled here.
        ops.retain(|op| !matches!(op, Op::Open { .. } | Op::OpenTemp { .. }));
        ops.retain(|op| !format!("{op:?}").contains("Slot"));
        cut_everywhere(&image, &ops, &format!("seed {seed}"));
    }
}
