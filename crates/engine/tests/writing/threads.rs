//! Several threads on one file system.

use lanefs_engine::{Allocate, Ino, InodeFs};
use model::Random;
use sync::atomic::{AtomicBool, Ordering};

use crate::files::{contents, first_difference, judge, opened, with_files};

/// Files whose bytes are all their writer's, or 0, whatever is read while they are written, cut and punched.
#[test]
fn nobody_reads_another_files_bytes() {
    for options in [
        &["-b", "1024"][..],
        &["-b", "1024", "-O", "^extents,^64bit,^metadata_csum"],
    ] {
        let names = ["one", "two"];
        let Some(image) = with_files(options, 8 << 20, &names) else {
            return;
        };
        let with_extents = options.len() == 2;
        let (device, fs) = opened(&image);
        let files: Vec<(Ino, u8)> = names
            .iter()
            .zip([0xa1, 0xb2])
            .map(|(name, byte)| (fs.resolve(name.as_bytes(), true).unwrap(), byte))
            .collect();
        let is_over = AtomicBool::new(false);
        sync::thread::scope(|scope| {
            let (fs, is_over) = (&fs, &is_over);
            let writers: Vec<_> = files
                .iter()
                .map(|&(ino, byte)| scope.spawn(move || write_and_cut(fs, ino, byte, with_extents)))
                .collect();
            for &(ino, byte) in &files {
                scope.spawn(move || {
                    let mut buf = vec![0; 300_000];
                    // Relaxed: a flag without data behind it.
                    while !is_over.load(Ordering::Relaxed) {
                        let len = fs.read(ino, 0, &mut buf).unwrap();
                        let foreign = buf[..len].iter().position(|at| *at != 0 && *at != byte);
                        assert_eq!(foreign, None);
                    }
                });
            }
            writers
                .into_iter()
                .for_each(|writer| writer.join().unwrap());
            // Relaxed: a flag without data behind it.
            is_over.store(true, Ordering::Relaxed);
        });
        let expected: Vec<(&str, Vec<u8>)> = names
            .iter()
            .zip(&files)
            .map(|(name, (ino, _))| (*name, contents(&fs, *ino)))
            .collect();
        fs.close().unwrap();
        judge(&device, &expected);
    }
}

fn write_and_cut(fs: &InodeFs, ino: Ino, byte: u8, with_extents: bool) {
    let mut random = Random::new(byte.into());
    let bytes = vec![byte; 200_000];
    for step in 0..150 {
        let (offset, len) = (random.below(250_000), random.below(100_000) as usize);
        match random.below(6) {
            0..=2 => assert_eq!(fs.write(ino, offset, &bytes[..len]).unwrap(), len),
            3 => fs.truncate(ino, offset / 2).unwrap(),
            4 => fs.allocate(ino, Allocate::Punch, offset, 50_000).unwrap(),
            _ if with_extents => fs
                .allocate(ino, Allocate::KeepSize, offset, 50_000)
                .unwrap(),
            _ => fs.truncate(ino, offset).unwrap(),
        }
        if step % 5 == 0 {
            // What was freed becomes available again, to the other file.
            fs.fsync(ino).unwrap();
        }
    }
}

#[test]
fn two_threads_write_parts_of_one_file() {
    let Some(image) = with_files(&["-b", "1024"], 16 << 20, &["one"]) else {
        return;
    };
    let (device, fs) = opened(&image);
    let ino = fs.resolve(b"one", true).unwrap();
    let (pieces, len) = (400, 3000);
    sync::thread::scope(|scope| {
        for thread in 0..2 {
            let fs = &fs;
            scope.spawn(move || {
                for piece in (thread..pieces).step_by(2) {
                    let bytes = vec![1 + (piece % 200) as u8; len];
                    assert_eq!(fs.write(ino, (piece * len) as u64, &bytes).unwrap(), len);
                }
            });
        }
    });
    let expected: Vec<u8> = (0..pieces)
        .flat_map(|piece| vec![1 + (piece % 200) as u8; len])
        .collect();
    assert_eq!(first_difference(&contents(&fs, ino), &expected), None);
    fs.close().unwrap();
    judge(&device, &[("one", expected)]);
}
