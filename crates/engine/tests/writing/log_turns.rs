//! Threads that fsync while the log begins anew at its start (before an area for fast commits it does not wrap, F14 in
//! docs/logtree.md): after any cut, what each of them was promised is there, by lanefs's replay and e2fsck's.

use std::collections::BTreeMap;

use lanefs_engine::{Ino, InodeFs};
use simulate::{CowDevice, Cut, Cuts, Event, JournalPlace, Recorder, SlowFlush};
use sync::Arc;
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::clock::Duration;

use crate::files::contents;
use crate::fsync_log::{NEW, count, shared};
use crate::image::{has_torn_superblock, make, open};

const THREADS: usize = 3;
/// Bytes that a step appends to the thread's own file.
const STEP: usize = 700;
/// Turns of the log that end the work, and steps that a thread may take until then: 1,300 to 2,600 did in eight runs.
const TURNS: u64 = 1;
const STEPS: u64 = 8000;

/// Flushes take so long that others commit meanwhile: else each checkpoint leaves an empty log, which begins anew by
/// itself.
const FLUSH: Duration = Duration::from_micros(300);

/// What a step makes durable beside the thread's own file, and how.
enum Kind {
    InFull,
    WithFile,
    Alone,
}

fn kind(step: u64) -> Kind {
    match step % 60 {
        0..40 => Kind::InFull,
        rest if rest % 3 == 0 => Kind::WithFile,
        _ => Kind::Alone,
    }
}

/// The contents of a thread's own file after `steps` steps.
fn own(thread: usize, steps: u64) -> Vec<u8> {
    let step = |step: u64| [thread as u8 + 1, step as u8].repeat(STEP / 2);
    (1..=steps).flat_map(step).collect()
}

fn directory(thread: usize) -> String {
    format!("thread{thread}")
}

/// One thread's work until the log has turned often enough: its file grows by each step, and a new file or directory
/// comes with most. Each step is promised by an fsync or a sync, and noted with the turns until then.
fn work(fs: &InodeFs, device: &Recorder, thread: usize, turns: &AtomicU64, is_over: &AtomicBool) {
    let dir = fs.resolve(directory(thread).as_bytes(), true).unwrap();
    let file = fs.create(dir, b"own", NEW).unwrap();
    // Relaxed: a flag without data behind it.
    for step in (1..STEPS).take_while(|_| !is_over.load(Ordering::Relaxed)) {
        let bytes = [thread as u8 + 1, step as u8].repeat(STEP / 2);
        fs.write(file, (step - 1) * STEP as u64, &bytes).unwrap();
        let name = step.to_string();
        match kind(step) {
            // Full commits, which leave the log as full as they make it.
            Kind::InFull => {
                fs.mkdir(dir, name.as_bytes(), NEW).unwrap();
                fs.sync().unwrap();
            }
            Kind::WithFile => {
                let new = fs.create(dir, name.as_bytes(), NEW).unwrap();
                fs.write(new, 0, name.as_bytes()).unwrap();
                fs.fsync(file).unwrap();
                fs.fsync(new).unwrap();
            }
            Kind::Alone => fs.fsync(file).unwrap(),
        }
        let turned = count(fs, "journal.log_turns");
        // Relaxed: a hint of where to cut, and the end.
        turns.fetch_max(turned, Ordering::Relaxed);
        device.mark(turned << 48 | (thread as u64) << 32 | step);
        if turned >= TURNS {
            // Relaxed: a flag to end the test.
            is_over.store(true, Ordering::Relaxed);
        }
    }
}

/// The last step that each thread was promised.
fn promised(events: &[Event]) -> [u64; THREADS] {
    let mut promised = [0; THREADS];
    for event in events {
        if let Event::Mark(mark) = event {
            promised[(mark >> 32) as usize & 0xffff] = mark & 0xffff_ffff;
        }
    }
    promised
}

/// Cuts around the turns of the log, each twelfth or each `LANEFS_NEAR_TURNS`th, and some of all others.
fn chosen(cuts: &Cuts) -> Vec<usize> {
    let mut turned = BTreeMap::new();
    for (number, event) in cuts.events().iter().enumerate() {
        if let Event::Mark(mark) = event {
            turned.entry(mark >> 48).or_insert(number);
        }
    }
    let points: Vec<usize> = cuts.points().collect();
    let near = testkit::number_in("LANEFS_NEAR_TURNS", 12) as usize;
    let every = (points.len() / 12).max(1);
    let is_near = |point: &usize| turned.values().any(|at| (*at).abs_diff(*point) < 24);
    let some = points.iter().enumerate();
    some.filter(|(number, point)| number % every == 0 || is_near(point) && number % near == 0)
        .map(|(_, point)| *point)
        .collect()
}

/// What each thread was promised is there, and each file holds what was written to it.
fn check(state: &CowDevice, promised: [u64; THREADS], whose: &str) {
    let device = Arc::new(state.clone());
    let fs = open(shared(&device));
    for (thread, steps) in promised.into_iter().enumerate() {
        let path = |name: &str| format!("{}/{name}", directory(thread)).into_bytes();
        let Ok(file) = fs.resolve(&path("own"), true) else {
            assert_eq!(steps, 0, "{whose}");
            continue;
        };
        let there = contents(&fs, file);
        assert!(
            there.len() as u64 >= steps * STEP as u64,
            "{whose}: {thread}"
        );
        // What no fsync promised may be there in part: it reads as it was written.
        let expected = own(thread, steps);
        assert!(there.starts_with(&expected), "{whose}: {thread} {steps}");
        for step in 1..=steps {
            let name = step.to_string();
            let found = || fs.resolve(&path(&name), true).unwrap();
            match kind(step) {
                Kind::InFull => assert!(fs.lookup(found(), b".").is_ok(), "{whose}"),
                Kind::WithFile => assert_eq!(contents(&fs, found()), name.as_bytes(), "{whose}"),
                Kind::Alone => {}
            }
        }
    }
    fs.close().unwrap();
    let bytes = device.bytes();
    let output = e2fsck(bytes, "-fn").0;
    assert!(testkit::found_nothing(&output), "{whose}: {output:?}");
}

fn e2fsck(bytes: Vec<u8>, option: &str) -> (std::process::Output, Vec<u8>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, &bytes);
    let output = testkit::e2fsck_with(&[option], &path);
    (output, testkit::read_image(&path))
}

/// Where the journal's blocks are.
fn area(fs: &InodeFs) -> JournalPlace {
    let block_bytes = fs.geometry().block_size().bytes();
    let runs = fs.mappings(Ino::JOURNAL).unwrap().map(Result::unwrap);
    let blocks = runs.flat_map(|run| {
        let start = run.physical.unwrap().0;
        start..start + run.len
    });
    JournalPlace {
        blocks: blocks.map(|at| at * block_bytes as u64).collect(),
        block_bytes,
        inode_bytes: fs.geometry().inode_size(),
    }
}

#[test]
fn what_threads_fsync_while_the_log_turns_is_there_after_every_cut() {
    let options = ["-b", "1024", "-O", "fast_commit", "-J", "size=2"];
    let Some(image) = make(&options, 64 << 20) else {
        return;
    };
    let device = Arc::new(Recorder::new(&image));
    let fs = open(Arc::new(SlowFlush::new(Arc::clone(&device), FLUSH)));
    for thread in 0..THREADS {
        let name = directory(thread);
        fs.mkdir(Ino::ROOT, name.as_bytes(), NEW).unwrap();
    }
    fs.sync().unwrap();
    let (turns, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    sync::thread::workers(THREADS, |thread| {
        work(&fs, &device, thread, &turns, &is_over);
    });
    // Relaxed: the threads are gone.
    let turns = turns.load(Ordering::Relaxed);
    assert!(turns >= TURNS, "{turns} turns");
    assert!(count(&fs, "fsync.log_commits") > 0);
    eprintln!(
        "{turns} turns, {} log commits",
        count(&fs, "fsync.log_commits")
    );
    let area = area(&fs);
    let (start, events) = device.recording();
    drop(fs);
    let mut cuts = Cuts::new(start, events);
    let (mut states, mut stale, mut seen) = (0, 0, [0; THREADS]);
    for event in chosen(&cuts) {
        let promised = promised(&cuts.events()[..event]);
        seen = promised;
        let seed = event as u64 % 2;
        let cut = Cut { event, seed };
        let state = cuts.state(cut);
        check(&state, promised, &format!("lanefs at {cut}"));
        states += 1;
        // The window between a full commit's record and the wipe of what it made void, which e2fsck gives up at.
        if area.is_stale(&state).unwrap() || has_torn_superblock(&state) {
            stale += 1;
            continue;
        }
        for option in ["-p", "-fy"] {
            let (output, bytes) = e2fsck(state.bytes(), option);
            let code = output.status.code();
            assert!(code.is_some_and(|code| code <= 1), "{cut}: {output:?}");
            let state = CowDevice::new(bytes.into());
            check(&state, promised, &format!("e2fsck {option} at {cut}"));
        }
    }
    eprintln!("{states} states, {stale} of them not for e2fsck; {seen:?}");
    assert!(states > 12 && 2 * stale < states, "{states} {stale}");
}
