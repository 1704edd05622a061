//! Journals that debugfs wrote: revokes, checksums of version 2, transactions without an end or with a wrong one.

use std::fs;
use std::path::{Path, PathBuf};

use lanefs_jbd2::recovery::ReplayReport;

use crate::bench::{
    Bench, assert_same_blocks, can_run, e2fsck_journal_only, journal_blocks, open, overlay,
};

/// The first block that the tests journal: free in every image here.
const FIRST: u64 = 4001;

/// An image whose journal debugfs writes.
struct Written {
    bench: Bench,
    image: PathBuf,
    block_size: usize,
}

impl Written {
    fn new(options: &[&str]) -> Written {
        let bench = Bench::new();
        let image = bench.mke2fs("image.img", 24, options);
        let block_size = open(&image).geometry.block_size().bytes();
        Written {
            bench,
            image,
            block_size,
        }
    }

    /// A file of `blocks` blocks to be journaled; the first of them must be escaped.
    fn contents(&self, byte: u8, blocks: usize) -> String {
        let path = self.bench.path(&format!("contents{byte}"));
        let mut bytes = vec![byte; self.block_size * blocks];
        bytes[..4].copy_from_slice(&0xC03B_3998_u32.to_be_bytes());
        testkit::write_image(&path, &bytes);
        path.to_str().unwrap().to_owned()
    }

    /// Runs journal commands in one session.
    fn debugfs(&self, open_options: &str, transactions: &[String]) {
        let script = self.bench.path("script");
        let writes: String = transactions
            .iter()
            .map(|transaction| format!("jw {transaction}\n"))
            .collect();
        fs::write(&script, format!("jo {open_options}\n{writes}jc\n")).unwrap();
        let image = self.image.to_str().unwrap();
        let output = testkit::debugfs(&["-w", "-f", script.to_str().unwrap(), image]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(errors.lines().nth(1), None, "{errors}");
    }

    /// Compares our view with what e2fsck makes of the image, and blocks from [`FIRST`] with the bytes they must hold.
    fn assert_replayed(&self, bytes: &[u8]) -> ReplayReport {
        let (view, report) = overlay(&self.image, None).unwrap();
        let by_e2fsck = self.bench.copy(&self.image, "e2fsck.img");
        e2fsck_journal_only(&by_e2fsck, None);
        let theirs = open(&by_e2fsck);
        let journal = journal_blocks(Path::new(&by_e2fsck));
        assert_same_blocks(&*view, &*theirs.device, &theirs.geometry, &journal);
        for (block, byte) in (FIRST..).zip(bytes) {
            let mut found = vec![9; self.block_size - 4];
            let offset = block * self.block_size as u64 + 4;
            view.read_at(offset, &mut found).unwrap();
            assert!(found.iter().all(|found| found == byte), "block {block}");
        }
        report
    }
}

#[test]
fn revokes_count_for_their_own_and_older_transactions() {
    if !can_run(false) {
        return;
    }
    for options in [
        ["-b", "1024", "-O", "^metadata_csum,^64bit"],
        ["-b", "4096", "-O", "^metadata_csum,64bit"],
    ] {
        let written = Written::new(&options);
        let (a, b, c) = (
            written.contents(1, 4),
            written.contents(2, 3),
            written.contents(3, 1),
        );
        // One session each: debugfs 1.47.0 forgets a commit block after revokes if more follows in the same session.
        for transaction in [
            format!("-b 4001,4002,4003,4004 {a}"),
            format!("-b 4003,4005,4006 -r 4001,4002 {b}"),
            format!("-b 4002 -r 4006 {c}"),
            format!("-b 4001 -c {c}"),
        ] {
            written.debugfs("", &[transaction]);
        }
        // 4001: revoked. 4002: revoked, then c. 4003: b. 4004: a. 4005: b. 4006: revoked.
        let report = written.assert_replayed(&[0, 3, 2, 1, 2, 0]);
        let counts = (report.transactions, report.blocks, report.revoked);
        assert_eq!(counts, (3, 4, 3));
    }
}

#[test]
fn checksums_of_every_version_are_those_of_debugfs() {
    if !can_run(false) {
        return;
    }
    // Without metadata_csum debugfs makes version 1, whatever its options are.
    for (block_size, features, open_options, feature) in [
        ("1024", "^metadata_csum,^64bit", "-c", "journal_checksum"),
        (
            "1024",
            "metadata_csum,^64bit",
            "-c -v 2",
            "journal_checksum_v2",
        ),
        (
            "4096",
            "metadata_csum,64bit",
            "-c -v 2",
            "journal_checksum_v2",
        ),
        (
            "1024",
            "metadata_csum,64bit",
            "-c -v 3",
            "journal_checksum_v3",
        ),
        (
            "4096",
            "metadata_csum,^64bit",
            "-c -v 3",
            "journal_checksum_v3",
        ),
    ] {
        let written = Written::new(&["-b", block_size, "-O", features]);
        let (a, b) = (written.contents(1, 4), written.contents(2, 3));
        let mut transactions = vec![
            format!("-b 4001,4002,4003,4004 {a}"),
            format!("-b 4003,4005,4006 {b}"),
        ];
        let mut expected = [1, 1, 2, 1, 2, 2];
        if features.starts_with('m') {
            // Revokes in the last transaction: debugfs 1.47.0 forgets their commit block if another one follows.
            transactions.push(format!("-b 4001,4002,4004 -r 4003,4001 {b}"));
            expected = [0, 2, 0, 2, 2, 2];
        }
        written.debugfs(open_options, &transactions);
        let journal = testkit::dumpe2fs(&["-h", written.image.to_str().unwrap()]);
        let journal = String::from_utf8_lossy(&journal.stdout).into_owned();
        let features = journal.split("Journal features:").nth(1).unwrap();
        let features = features.lines().next().unwrap();
        assert!(
            features.split_whitespace().any(|word| word == feature),
            "{features}"
        );
        let report = written.assert_replayed(&expected);
        assert_eq!(report.transactions as usize, transactions.len());
        assert_eq!(report.bad_transaction, None);
    }
}

#[test]
fn replay_stops_before_a_transaction_with_a_wrong_checksum_as_e2fsck_does() {
    if !can_run(false) {
        return;
    }
    for block_size in ["1024", "4096"] {
        let written = Written::new(&["-b", block_size, "-O", "^metadata_csum,^64bit"]);
        let (a, b) = (written.contents(1, 4), written.contents(2, 3));
        // Without metadata_csum debugfs 1.47.0 gives the commit block after a revoke block a wrong checksum.
        let transactions = [
            format!("-b 4001,4002,4003,4004 {a}"),
            format!("-b 4003,4005,4006 -r 4001,4002 {b}"),
        ];
        written.debugfs("-c", &transactions);
        let report = written.assert_replayed(&[1, 1, 1, 1, 0, 0]);
        assert_eq!(report.transactions, 1);
        assert_eq!(report.bad_transaction, Some(report.end));
        let message = report.to_string();
        assert!(
            message.contains("transaction 2 has a wrong checksum"),
            "{message}"
        );
    }
}
