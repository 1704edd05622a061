//! Each rule of the history, with the state that it allows and the one that it forbids.

use super::*;
use crate::{FallocateMode, OpTarget, RenameMode};

fn create(path: &str) -> Op {
    Op::Create {
        path: ModelPath::new(path),
        mode: 0o644,
    }
}

fn write(path: &str, offset: u64, fill: u8, len: usize) -> Op {
    Op::Write {
        file: OpTarget::Path(ModelPath::new(path)),
        offset,
        bytes: vec![fill; len],
    }
}

fn truncate(path: &str, size: u64) -> Op {
    Op::Truncate {
        file: OpTarget::Path(ModelPath::new(path)),
        size,
    }
}

fn fsync(path: &str) -> Op {
    Op::Fsync {
        file: OpTarget::Path(ModelPath::new(path)),
    }
}

fn fdatasync(path: &str) -> Op {
    Op::Fdatasync {
        file: OpTarget::Path(ModelPath::new(path)),
    }
}

fn rename(from: &str, to: &str) -> Op {
    Op::Rename {
        from: ModelPath::new(from),
        to: ModelPath::new(to),
        flag: RenameMode::Replace,
    }
}

fn history(ops: &[Op]) -> History {
    let mut history = History::new(ModelTree::new());
    for op in ops {
        history.complete(op).unwrap();
    }
    history
}

fn tree(ops: &[Op]) -> ModelTree {
    history(ops).last().clone()
}

#[test]
fn any_prefix_is_allowed_until_something_is_promised() {
    let ops = [create("a"), create("b"), rename("a", "c")];
    let mut run = history(&ops);
    for end in 0..=3 {
        assert_eq!(run.check(&tree(&ops[..end])), Ok(end));
    }
    run.complete(&Op::Sync).unwrap();
    assert!(run.check(&tree(&ops)).is_ok());
    let mismatch = run.check(&tree(&ops[..2])).unwrap_err();
    assert!(
        mismatch.to_string().contains("is missing") || mismatch.to_string().contains("should not")
    );
}

#[test]
fn operations_do_not_show_without_those_before_them() {
    let run = history(&[create("a"), create("b")]);
    assert!(run.check(&tree(&[create("b")])).is_err());
}

#[test]
fn fsync_promises_the_new_name_and_fdatasync_does_not() {
    let ops = [create("a"), Op::Sync, rename("a", "b")];
    let mut with_fsync = history(&ops);
    with_fsync.complete(&fsync("b")).unwrap();
    assert!(with_fsync.check(&tree(&ops[..1])).is_err());
    let mut with_fdatasync = history(&ops);
    with_fdatasync.complete(&fdatasync("b")).unwrap();
    assert!(with_fdatasync.check(&tree(&ops[..1])).is_ok());
}

#[test]
fn fdatasync_promises_the_size() {
    let ops = [create("a"), Op::Sync, write("a", 0, 1, 100)];
    let mut run = history(&ops);
    run.complete(&fdatasync("a")).unwrap();
    assert!(run.check(&tree(&ops[..1])).is_err());
    assert!(run.check(&tree(&ops)).is_ok());
}

#[test]
fn an_overwrite_shows_or_not_a_sector_at_a_time_until_it_is_synced() {
    let base = [create("a"), write("a", 0, 1, 4096), Op::Sync];
    let mut run = history(&base);
    run.complete(&write("a", 0, 2, 4096)).unwrap();
    let torn = tree(&[create("a"), write("a", 0, 1, 4096), write("a", 512, 2, 512)]);
    let half_sector = tree(&[create("a"), write("a", 0, 1, 4096), write("a", 512, 2, 100)]);
    assert!(run.check(&torn).is_ok());
    assert!(run.check(&half_sector).is_err());
    run.complete(&fdatasync("a")).unwrap();
    assert!(run.check(&torn).is_err());
    assert!(
        run.check(&tree(&[create("a"), write("a", 0, 2, 4096)]))
            .is_ok()
    );
}

#[test]
fn appended_bytes_are_never_what_was_there_before() {
    let run = history(&[create("a"), Op::Sync, write("a", 0, 1, 4096)]);
    let stale = tree(&[create("a"), write("a", 0, 9, 4096)]);
    let zeros = tree(&[create("a"), truncate("a", 4096)]);
    assert!(run.check(&stale).is_err());
    assert!(run.check(&zeros).is_err());
}

#[test]
fn zeros_of_a_zeroed_tail_may_show_under_the_old_size() {
    let base = [create("a"), write("a", 0, 1, 4096), Op::Sync];
    let mut run = history(&base);
    run.complete(&truncate("a", 1024)).unwrap();
    let zeroed = tree(&[create("a"), write("a", 0, 1, 1024), truncate("a", 4096)]);
    assert!(run.check(&zeroed).is_ok());
    let also_before = tree(&[create("a"), write("a", 512, 1, 512), truncate("a", 4096)]);
    assert!(run.check(&also_before).is_err());
}

#[test]
fn a_hole_reads_as_zeros_whatever_is_written_into_it_later() {
    let base = [create("a"), truncate("a", 8192), Op::Sync];
    let mut run = history(&base);
    run.complete(&write("a", 0, 5, 4096)).unwrap();
    run.complete(&rename("a", "b")).unwrap();
    let before = tree(&base);
    assert_eq!(run.check(&before).unwrap(), 3);
    let leaked = tree(&[create("a"), truncate("a", 8192), write("a", 4096, 5, 512)]);
    assert!(run.check(&leaked).is_err());
}

#[test]
fn data_written_after_a_collapse_may_show_at_the_old_place() {
    let base = [
        create("a"),
        write("a", 0, 1, 4096),
        write("a", 4096, 2, 4096),
        write("a", 8192, 3, 4096),
        Op::Sync,
    ];
    let mut run = history(&base);
    let collapse = Op::Fallocate {
        file: OpTarget::Path(ModelPath::new("a")),
        mode: FallocateMode::Collapse,
        offset: 0,
        len: 4096,
    };
    run.complete(&collapse).unwrap();
    run.complete(&write("a", 0, 7, 4096)).unwrap();
    let mut found = base.to_vec();
    found.push(write("a", 4096, 7, 4096));
    assert!(run.check(&tree(&found)).is_ok());
    let mut foreign = base.to_vec();
    foreign.push(write("a", 4096, 8, 4096));
    assert!(run.check(&tree(&foreign)).is_err());
}

fn link(from: &str, to: &str) -> Op {
    Op::Link {
        from: OpTarget::Path(ModelPath::new(from)),
        to: ModelPath::new(to),
    }
}

fn unlink(path: &str) -> Op {
    Op::Unlink {
        path: ModelPath::new(path),
    }
}

#[test]
fn where_each_fsync_is_for_itself_files_may_be_of_different_states_and_promises_hold() {
    let before = [create("a"), create("b"), Op::Sync];
    let of_each = |ops: &[Op]| {
        let mut history = History::new_of_each(tree(&before));
        for op in ops {
            history.complete(op).unwrap();
        }
        history
    };
    let found = |ops: &[Op]| tree(&[&before[..], ops].concat());
    let history = of_each(&[write("a", 0, 1, 10), write("b", 0, 2, 10), fsync("b")]);
    assert!(history.check(&found(&[write("b", 0, 2, 10)])).is_ok());
    assert!(history.check(&found(&[write("a", 0, 1, 10)])).is_err());
    assert!(History::new(tree(&before)).check(&found(&[])).is_ok());
    // Names: a promise about the new file is one about what its name was before.
    let ops = [link("a", "c"), unlink("a"), create("a"), fsync("a")];
    let history = of_each(&ops);
    assert!(history.check(&found(&ops[..3])).is_ok());
    assert!(history.check(&found(&ops[..1])).is_err());
    assert!(history.check(&found(&ops[..2])).is_err());
    // As many links as names.
    let mut two = found(&ops[..1]);
    two.apply(&unlink("a")).unwrap();
    assert!(of_each(&ops[..2]).check(&two).is_ok());
    // A name that nobody promised may be there or not; one that never was may not.
    let history = of_each(&[create("d"), write("a", 0, 1, 10), fsync("a")]);
    let with_a = write("a", 0, 1, 10);
    assert!(history.check(&found(std::slice::from_ref(&with_a))).is_ok());
    assert!(
        history
            .check(&found(&[with_a.clone(), create("d")]))
            .is_ok()
    );
    assert!(history.check(&found(&[with_a, create("e")])).is_err());
}

#[test]
fn an_fsync_during_which_a_file_loses_its_last_name_promises_nothing() {
    let mut history = History::new_of_each(ModelTree::new());
    history.complete(&create("a")).unwrap();
    history.promise(&Op::Sync);
    let old = history.last().clone();
    history.complete(&write("a", 0, 7, 100)).unwrap();
    let (called, mut kept) = (history.len() - 1, history.clone());
    kept.promise_called(&fsync("a"), called);
    assert!(kept.check(&old).is_err());
    // Whose name is there again has what the last full commit had.
    let unlink = Op::Unlink {
        path: ModelPath::new("a"),
    };
    history.complete(&unlink).unwrap();
    history.promise_called(&fsync("a"), called);
    history.check(&old).unwrap();
    history.check(&ModelTree::new()).unwrap();
}

#[test]
fn where_times_are_kept_an_fsync_of_data_in_place_promises_them_and_nothing_of_others() {
    let start = tree(&[create("a"), write("a", 0, b'1', 2000)]);
    let ops = [create("b"), write("a", 0, b'2', 2000), fsync("a")];
    let run = |mut history: History| {
        for op in &ops {
            history.complete(op).unwrap();
        }
        history
    };
    let mut without_b = start.clone();
    without_b.apply(&ops[1]).unwrap();
    assert!(run(History::new(start.clone())).check(&without_b).is_err());
    let kept = run(History::new(start.clone()).with_times_kept());
    kept.check(&without_b).unwrap();
    kept.check(kept.last()).unwrap();
    assert!(kept.check(&start).is_err(), "the data were promised");
    let grown = [create("b"), write("a", 0, b'2', 3000), fsync("a")];
    let mut kept = History::new(start).with_times_kept();
    for op in &grown {
        kept.complete(op).unwrap();
    }
    assert!(kept.check(&without_b).is_err(), "the size, too");
}

#[test]
fn an_fsync_is_of_the_file_that_is_in_its_slot_whatever_was_there_when_others_were_last_seen() {
    let open = |path| Op::Open {
        path: ModelPath::new(path),
        slot: 6,
    };
    let mut history = History::new_of_each(ModelTree::new());
    let first = [create("/old"), open("/old"), create("/new")];
    for op in first.iter().chain([&open("/new")]) {
        let mut state = history.last().clone();
        state.apply(op).unwrap();
        history.push_of(op, state);
    }
    // Called when the second state was the last that is known to have been there: the slot had another file in it.
    history.promise_called(
        &Op::Fsync {
            file: OpTarget::Slot(6),
        },
        2,
    );
    history.check(&tree(&[create("/new")])).unwrap();
    history.check(&ModelTree::new()).unwrap();
}
