//! Damaged journals judged by e2fsck: where both of us replay, both must show the same blocks; where one of us refuses,
//! the other must at least complain.

use std::collections::BTreeMap;

use device::{BlockDevice, MemoryDevice};
use lanefs_jbd2::recovery::scan_and_overlay;
use ondisk::jbd2::{BlockHeader, BlockKind, JournalSuperblock};
use sync::Arc;

use testkit::Random;

use crate::bench::{Bench, can_run, journal_blocks, opened, without_counters};
use crate::kernel::dirty;
use crate::written::seal_block;

/// The first blocks of the journal, where the log of these images is.
const DAMAGED: usize = 160;

/// What e2fsck did with the journal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Verdict {
    Replayed,
    /// Replayed what it could, with a complaint about the rest.
    Complained,
    /// Replayed up to a transaction that it found corrupt.
    Aborted,
    /// Found no use for it.
    Refused,
}

#[test]
fn damaged_journals_are_replayed_as_e2fsck_replays_them() {
    if !can_run(true) {
        return;
    }
    // More on demand: ROUNDS=1000.
    let rounds = std::env::var("ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok());
    let mut seen = BTreeMap::new();
    for (options, mount) in [
        (&["-b", "1024", "-J", "size=4"][..], "rw"),
        (
            &["-b", "1024", "-O", "^metadata_csum,^64bit", "-J", "size=4"],
            "rw",
        ),
        (
            &["-b", "1024", "-O", "^metadata_csum", "-J", "size=4"],
            "journal_checksum",
        ),
        (
            &["-b", "1024", "-J", "size=4"],
            "journal_async_commit,data=writeback",
        ),
    ] {
        compare(options, mount, rounds.unwrap_or(6), &mut seen);
    }
    println!("{seen:#?}");
}

fn compare(options: &[&str], mount: &str, rounds: u64, seen: &mut BTreeMap<String, u32>) {
    let bench = Bench::new();
    let image = dirty(&bench, options, mount, 4);
    let journal = journal_blocks(&image);
    let original = testkit::read_image(&image);
    let at = usize::try_from(*journal.first().unwrap()).unwrap() * 1024;
    for seed in 0..rounds {
        let mut bytes = original.clone();
        damage(&mut bytes[at..at + DAMAGED * 1024], &mut Random::new(seed));
        let ours = opened(Arc::new(MemoryDevice::from_bytes(&bytes)));
        let ours = scan_and_overlay(ours.device, &ours.sb, &ours.geometry, None)
            .map(|scanned| (scanned.device, scanned.report));
        let path = bench.path("damaged.img");
        testkit::write_image(&path, &bytes);
        let output = testkit::e2fsck_with(&["-y", "-E", "journal_only"], &path);
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        let theirs = verdict(&text);
        let context = format!("{options:?} {mount} seed {seed}\n{text}");
        let what = match &ours {
            Ok((_, report)) if report.bad_transaction.is_some() => "bad transaction".to_owned(),
            Ok(_) => "replayed".to_owned(),
            Err(error) => error.to_string().split(" (").next().unwrap().to_owned(),
        };
        *seen
            .entry(format!("e2fsck {theirs:?}, we: {what}"))
            .or_insert(0) += 1;
        let Ok((view, report)) = ours else {
            // e2fsck makes the file longer where a transaction names a block beyond its end.
            let is_outside = what.contains("beyond the end");
            assert!(
                theirs != Verdict::Replayed || is_outside,
                "{what}: {context}"
            );
            continue;
        };
        if theirs == Verdict::Refused {
            continue;
        }
        assert_eq!(
            report.bad_transaction.is_some(),
            theirs == Verdict::Aborted,
            "{context}"
        );
        let mut a = vec![0; bytes.len()];
        view.read_at(0, &mut a).unwrap();
        let mut b = testkit::read_image(&path);
        without_counters(&mut a[..2048], 0);
        without_counters(&mut b[..2048], 0);
        let blocks = a.chunks(1024).zip(b.chunks(1024)).zip(0..);
        let different: Vec<u64> = blocks
            .filter(|((a, b), block)| a != b && !journal.contains(block))
            .map(|(_, block)| block)
            .collect();
        assert!(different.is_empty(), "{different:?} {context}");
    }
}

fn verdict(text: &str) -> Verdict {
    if text.contains("replay was aborted") {
        Verdict::Aborted
    } else if text.contains("checksum error") || text.contains("Error writing block") {
        Verdict::Complained
    } else if text.contains("recovering journal")
        && !text.contains("corrupt")
        && !text.contains("invalid")
    {
        Verdict::Replayed
    } else {
        Verdict::Refused
    }
}

/// Changes a word or two of blocks that have a meaning, and makes their checksums fit again most of the time.
fn damage(journal: &mut [u8], random: &mut Random) {
    let sb = JournalSuperblock::read(journal).unwrap();
    let format = sb.verify(ondisk::BlockSize::K1, 1 << 20).unwrap();
    let is_log = |block: &&mut [u8]| BlockHeader::of(block).is_some();
    for _ in 0..1 + random.index(2) {
        let mut blocks: Vec<&mut [u8]> = journal.chunks_mut(1024).skip(1).collect();
        let mut blocks: Vec<&mut [u8]> = if random.one_in(5) {
            blocks
        } else {
            blocks.drain(..).filter(is_log).collect()
        };
        let chosen = random.index(blocks.len());
        let block = &mut *blocks[chosen];
        // What follows the structure of a commit block does not count for Linux since 6.12, but does for e2fsck 1.47.
        let kind = BlockHeader::of(block).and_then(|header| header.kind());
        let near = match kind {
            Some(BlockKind::Commit) => 56,
            _ => [16, 60, 300, 1020][random.index(4)],
        };
        let at = random.index(near);
        let word = match random.index(5) {
            0 => 0,
            1 => 1,
            2 => 10_000 + u32::try_from(random.index(5000)).unwrap(),
            3 => u32::from_be_bytes(block[at..at + 4].try_into().unwrap()).wrapping_add(1),
            _ => u32::try_from(random.index(1 << 31)).unwrap(),
        };
        block[at..at + 4].copy_from_slice(&word.to_be_bytes());
        if !random.one_in(4) {
            seal_block(&format, block);
        }
    }
}
