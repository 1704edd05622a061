//! Crash images of a mount: the server's disk records every write and flush, several processes work on the mount and
//! note when each call has returned, and the power is cut at places drawn from the whole record, the mount's beginning
//! and end included. Of what was not flushed then, writes are dropped, reordered and torn.
//!
//! * `work`: what a process does, from a seed; `client`: the process.
//! * `expect`: what each process was promised at a cut; `replay`: whether it is there, after a replay by lanefs, by the
//!   kernel and by e2fsck.

mod client;
mod expect;
mod replay;
mod tree;
mod work;

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;

use testkit::Random;
use testkit::{DiskEvent, FailingDisk, KernelMount, PowerCuts};

use crate::hand::Hand;
use crate::served::{Served, can_mount, image, lanefs};
use client::Mark;
use expect::Expect;
use replay::{Counts, Judge};
use work::{SHARED, Workload, home};

const CLIENTS: u64 = 3;
const IMAGE_BYTES: u64 = 24 << 20;
/// Cuts of the long run, and of CI.
const MANY: usize = 1000;
const FEW: usize = 24;
/// Cuts of one recording, in the long run, and the operations of each client.
const CUTS: usize = 50;
const OPERATIONS: u64 = 400;
/// In CI.
const FEW_OPERATIONS: u64 = 60;
/// The byte that fills free blocks at first.
const SOIL: u8 = 0xa5;

/// One kind of mount.
struct Setting {
    name: &'static str,
    features: &'static [&'static str],
    options: &'static str,
    /// Whether syncfs reaches the server.
    is_sync_a_promise: bool,
}

const LOGGED: &[&str] = &["-b", "4096", "-J", "size=8", "-O", "fast_commit"];
const PLAIN: &[&str] = &["-b", "4096", "-J", "size=4"];
const SETTINGS: [Setting; 8] = [
    Setting {
        name: "sync reaches it, fsync log",
        features: LOGGED,
        options: "fuseblk,log_use=always",
        is_sync_a_promise: true,
    },
    Setting {
        name: "fsync only, full commits",
        features: PLAIN,
        options: "nofuseblk",
        is_sync_a_promise: false,
    },
    Setting {
        name: "sync reaches it, full commits",
        features: PLAIN,
        options: "fuseblk,commit=1",
        is_sync_a_promise: true,
    },
    Setting {
        name: "fsync only, fsync log",
        features: LOGGED,
        options: "nofuseblk",
        is_sync_a_promise: false,
    },
    Setting {
        name: "sync reaches it, fsync log in blocks of 1 KiB",
        features: &[
            "-b",
            "1024",
            "-J",
            "size=4",
            "-O",
            "fast_commit,orphan_file",
        ],
        options: "fuseblk",
        is_sync_a_promise: true,
    },
    Setting {
        name: "sync reaches it, log switched off",
        features: LOGGED,
        options: "fuseblk,nofast_commit",
        is_sync_a_promise: true,
    },
    Setting {
        name: "writeback cache, fsync log",
        features: LOGGED,
        options: "fuseblk,writeback_cache,log_use=always",
        is_sync_a_promise: false,
    },
    Setting {
        name: "writeback cache, full commits",
        features: PLAIN,
        options: "nofuseblk,writeback_cache",
        is_sync_a_promise: false,
    },
];

/// Takes the marks of one client until it ends.
fn record_marks(listener: &UnixListener, disk: &FailingDisk) {
    let (mut client, _) = listener.accept().unwrap();
    let mut mark = [0; 8];
    while client.read_exact(&mut mark).is_ok() {
        disk.mark(u64::from_le_bytes(mark));
        // A client that has ended waits for no answer.
        let _ = client.write_all(&[0]);
    }
}

/// Fills all free blocks with a byte that no client writes. A block that a file shows before its data are written can
/// then be distinguished from a hole.
fn soil(root: &Path) {
    let path = root.join("soil");
    let mut file = std::fs::File::create(&path).unwrap();
    let bytes = [SOIL; 1 << 16];
    // Until the image is full.
    while file.write(&bytes).is_ok_and(|written| written > 0) {}
    // There may be no block left for the last pages.
    let _ = file.sync_all();
    drop(file);
    std::fs::remove_file(path).unwrap();
}

/// Has clients work on a mount of a recording disk, from mounting to unmounting. A server that is built with canaries
/// makes the mistake of this name.
fn record(setting: &Setting, seed: u64, operations: u64, canary: &str) -> PowerCuts {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "image", IMAGE_BYTES, setting.features);
    let mounted = KernelMount::with(&path, "loop").unwrap();
    for name in (0..CLIENTS).map(home).chain([SHARED.to_owned()]) {
        std::fs::create_dir(mounted.path().join(name)).unwrap();
    }
    soil(&mounted.path());
    drop(mounted);
    let disk = FailingDisk::recording(&path).unwrap();
    let mut command = lanefs();
    command.env("LANEFS_CANARY", canary);
    let served = Served::start_by(command, &disk.path(), setting.options);
    let socket = folder.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|number| client::start(&socket, served.path(), seed, number, operations))
        .collect();
    std::thread::scope(|scope| {
        for _ in &clients {
            scope.spawn(|| record_marks(&listener, &disk));
        }
        for client in &mut clients {
            assert!(client.wait().unwrap().success());
        }
    });
    served.unmount();
    disk.cuts()
}

/// What each client was promised, and may have done, before a cut.
fn promised(cuts: &PowerCuts, event: usize, seed: u64, setting: &Setting) -> Vec<Expect> {
    let expect = |client| {
        let mut work = Workload::new(seed, client);
        let mut expect = Expect::new(client, setting.is_sync_a_promise);
        let mut op = None;
        for mark in cuts.marks_before(event).map(Mark::decode) {
            match mark {
                mark if mark.client != client => {}
                Mark { is_done: false, .. } => {
                    let next = work.next();
                    expect.begin(&next);
                    op = Some(next);
                }
                Mark { is_done: true, .. } => expect.end(&op.take().unwrap()),
            }
        }
        expect
    };
    (0..CLIENTS).map(expect).collect()
}

/// Draws cuts of a recording, in ascending order: a third of them right before a flush, where most writes may be lost,
/// and a third right after a call has returned, when no later write can have made it durable.
fn draw(cuts: &PowerCuts, random: &mut Random, count: usize) -> Vec<(usize, u64)> {
    let events = cuts.events();
    let flushes: Vec<usize> = (0..events.len())
        .filter(|event| events[*event] == DiskEvent::Flush)
        .collect();
    let is_return = |event: &DiskEvent| match event {
        DiskEvent::Mark(mark) => Mark::decode(*mark).is_done,
        _ => false,
    };
    let returned: Vec<usize> = (1..=events.len())
        .filter(|after| is_return(&events[after - 1]))
        .collect();
    let mut drawn: Vec<(usize, u64)> = (0..count)
        .map(|_| {
            let event = match random.below(3) {
                0 => *random.pick(&flushes),
                1 => *random.pick(&returned),
                _ => random.below(events.len() as u64 + 1) as usize,
            };
            // All unflushed writes, none, the last one torn, or a drawn state.
            let choice = match random.below(8) {
                fixed @ 0..3 => fixed,
                _ => 3 + random.bits() / 2,
            };
            (event, choice)
        })
        .collect();
    drawn.sort_unstable();
    drawn
}

/// Cuts a recording at drawn places and has each state judged; the first one that is wrong is kept in a file.
///
/// # Errors
/// Which cut left what is wrong.
fn cut(
    mut cuts: PowerCuts,
    setting: &Setting,
    seed: u64,
    count: usize,
    mut judge: impl FnMut(&[u8], &[Expect]) -> Result<(), String>,
) -> Result<(), String> {
    for (event, choice) in draw(&cuts, &mut Random::new(seed), count) {
        let expects = promised(&cuts, event, seed, setting);
        let state = cuts.state(event, choice);
        if let Err(why) = judge(&state, &expects) {
            let (name, events) = (setting.name, cuts.events().len());
            let kept = std::env::temp_dir().join(format!("lanefs-crash-{}", std::process::id()));
            std::fs::write(&kept, &state).unwrap();
            let kept = kept.display();
            return Err(format!(
                "{name}, seed {seed}, cut after event {event} of {events} with seed {choice}: {why}; its image: {kept}"
            ));
        }
    }
    Ok(())
}

fn can_crash() -> bool {
    can_mount() && Hand::is_there()
}

fn say(what: &str, counts: &Counts) {
    println!(
        "{what}: {} states replayed by lanefs, {} by the kernel, {} by e2fsck; {} promised names found; {} with a torn \
         superblock, {} in which e2fsck gives up the journal",
        counts.states,
        counts.by_kernel,
        counts.by_e2fsck,
        counts.promised,
        counts.torn_superblock,
        counts.in_window
    );
}

#[test]
fn what_was_promised_on_a_mount_is_there_after_a_power_cut() {
    if !can_crash() {
        return;
    }
    let mut judge = Judge::new();
    for (seed, setting) in (1..).zip(SETTINGS[..2].iter().chain(&SETTINGS[6..])) {
        let cuts = record(setting, seed, FEW_OPERATIONS, "");
        let judged = cut(cuts, setting, seed, FEW / 2, |state, expects| {
            judge.judge(state, expects)
        });
        judged.unwrap();
    }
    say("power cuts", &judge.counts);
    assert!(judge.counts.promised > 0);
}

/// LANEFS_CRASH_SEED=N begins with another seed.
#[test]
#[ignore = "takes many minutes: cargo xtask suites crash"]
fn what_was_promised_on_a_mount_is_there_after_a_thousand_power_cuts() {
    if !can_crash() {
        return;
    }
    let first = std::env::var("LANEFS_CRASH_SEED").map_or(1000, |seed| seed.parse().unwrap());
    for (number, seed) in (first..).take(MANY / CUTS).enumerate() {
        let setting = &SETTINGS[number % SETTINGS.len()];
        let mut judge = Judge::new();
        let cuts = record(setting, seed, OPERATIONS, "");
        let judged = cut(cuts, setting, seed, CUTS, |state, expects| {
            judge.judge(state, expects)
        });
        judged.unwrap();
        say(&format!("{}, seed {seed}", setting.name), &judge.counts);
        assert!(judge.counts.promised > 0);
    }
}

/// Flushes that a server of a build for this test leaves out, and a mount on which that shows.
#[cfg(feature = "canaries")]
const CANARIES: [(&str, &Setting); 3] = [
    ("FlushLeftOut", &SETTINGS[2]),
    ("OverwrittenUnflushed", &SETTINGS[0]),
    ("TailBeforeData", &SETTINGS[0]),
];

/// Only lanefs looks at these states: what a flush that is left out loses, every replay loses.
#[cfg(feature = "canaries")]
#[test]
#[ignore = "takes minutes: cargo xtask suites crash"]
fn a_server_that_leaves_out_a_flush_is_found() {
    const RECORDINGS: u64 = 10;
    const CUTS: usize = 300;
    if !can_crash() {
        return;
    }
    for (canary, setting) in CANARIES {
        let judge = Judge::new();
        let mut states = 0;
        let found = (1..=RECORDINGS).find_map(|seed| {
            let cuts = record(setting, seed, 2 * FEW_OPERATIONS, canary);
            let judged = cut(cuts, setting, seed, CUTS, |state, expects| {
                states += 1;
                judge.read(state, expects)
            });
            judged.err()
        });
        let why = found.unwrap_or_else(|| panic!("{canary} was not found in {states} states"));
        println!("{canary}: found in state {states}: {why}");
    }
}
