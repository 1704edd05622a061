//! What fsync and fdatasync promised is there after a cut at any write: data written in place, data that were appended,
//! by one thread and by several that share commits and flushes.

use lanefs_engine::{DataMode, InodeFs, MountOptions};
use model::Random;
use simulate::Recorder;

use crate::files::{contents, with_files};
use crate::image::{record_with, sweep};

/// Bytes of each file.
const LEN: usize = 9000;
const NAMES: [&str; 3] = ["one", "two", "three"];

/// A thread's rounds: its file is overwritten with the round's number and made durable; sometimes a file grows by that,
/// too. Marks the recording with thread and round.
fn rounds(device: &Recorder, fs: &InodeFs, thread: usize) {
    let ino = fs.resolve(NAMES[thread].as_bytes(), true).unwrap();
    let mut random = Random::new(thread as u64);
    for round in 1..=12_u8 {
        fs.write(ino, 0, &[round; LEN]).unwrap();
        if random.one_in(4) {
            fs.write(ino, LEN as u64, &vec![round; usize::from(round) * 100])
                .unwrap();
        }
        if random.one_in(3) {
            fs.fsync(ino).unwrap()
        } else {
            fs.fdatasync(ino).unwrap()
        }
        device.mark((thread as u64) << 8 | u64::from(round));
    }
}

fn promises_are_kept(mkfs: &[&str], options: &MountOptions) {
    let Some(image) = with_files(mkfs, 8 << 20, &NAMES) else {
        return;
    };
    let cuts = record_with(&image, options, |device, fs| {
        sync::thread::workers(NAMES.len(), |thread| rounds(device, &fs, thread));
        fs.close().unwrap();
    });
    // What each thread had been promised when an event happened.
    let mut promised = vec![[0_u8; NAMES.len()]];
    for event in cuts.events() {
        let mut now = *promised.last().unwrap();
        if let simulate::Event::Mark(mark) = event {
            now[(mark >> 8) as usize] = *mark as u8;
        }
        promised.push(now);
    }
    let states = sweep(cuts, 3, |cut, _, fs| {
        for (name, promised) in NAMES.iter().zip(promised[cut.event]) {
            if promised == 0 {
                continue;
            }
            let found = contents(fs, fs.resolve(name.as_bytes(), true).unwrap());
            assert!(found.len() >= LEN, "{cut}: {name}: {} bytes", found.len());
            let old = found[..LEN].iter().find(|byte| **byte < promised);
            assert_eq!(old, None, "{cut}: {name}: round {promised} was promised");
        }
    });
    assert!(states > 100, "{states}");
}

#[test]
fn what_threads_synced_is_there_after_any_cut() {
    promises_are_kept(&["-b", "1024"], &MountOptions::default());
}

#[test]
fn what_threads_synced_with_one_flush_is_there_after_any_cut() {
    let options = MountOptions {
        async_commit: true,
        data: DataMode::Ordered,
        ..MountOptions::default()
    };
    promises_are_kept(&["-b", "4096", "-O", "^metadata_csum"], &options);
}
