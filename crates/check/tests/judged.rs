//! Verdicts beside e2fsck's: on the images of tests/corpus and on mutants of them.

use std::process::Command;

use corpus::{Overlay, Structures};
use device::MemoryDevice;
use lanefs_check::{Options, Report};
use sync::Arc;
use sync::atomic::AtomicBool;

fn check(bytes: &[u8], threads: usize) -> Result<Report, lanefs_check::Error> {
    let cancelled = AtomicBool::new(false);
    let options = Options {
        threads,
        superblock: None,
        is_replayed: false,
        cancelled: &cancelled,
        stage: &|_| {},
    };
    lanefs_check::check(&MemoryDevice::from_bytes(bytes), &options)
}

/// What e2fsck says of an image: its exit status and output. None where it is missing.
fn e2fsck(bytes: &[u8]) -> Option<(i32, String)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::write(&path, bytes).unwrap();
    let mut command = Command::new("timeout");
    let output = command
        .args(["10", "e2fsck", "-fn"])
        .arg(&path)
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some((output.status.code().unwrap_or(-1), text))
}

fn shown(report: &Report) -> String {
    let lines = report.problems.iter().take(12);
    lines.map(|problem| format!("    {problem}\n")).collect()
}

#[test]
fn every_image_of_the_corpus_is_judged_as_by_e2fsck() {
    for seed in corpus::seeds().filter(|seed| !seed.name.starts_with("dirty")) {
        let Some((status, text)) = e2fsck(&seed.bytes) else {
            return testkit::skip("e2fsck is missing");
        };
        let report = check(&seed.bytes, 2).unwrap();
        assert_eq!(
            report.is_clean(),
            status == 0,
            "{}:\n{}{text}",
            seed.name,
            shown(&report)
        );
        let totals = report.totals.unwrap();
        let line = format!("{}/{} files", totals.files, totals.inodes);
        assert!(text.contains(&line), "{}: {line}\n{text}", seed.name);
        let line = format!("{}/{} blocks", totals.used_blocks, totals.blocks);
        assert!(text.contains(&line), "{}: {line}\n{text}", seed.name);
    }
}

/// Mutants of every profile, most with right checksums. LANEFS_CHECK_MUTANTS sets how many of each.
#[test]
fn mutants_are_judged_as_by_e2fsck() {
    let asked = std::env::var("LANEFS_CHECK_MUTANTS")
        .ok()
        .and_then(|n| n.parse().ok());
    let first: u64 = std::env::var("LANEFS_CHECK_FIRST")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    let (mut runs, mut missed, mut false_alarms) = (0, 0, 0);
    for seed in corpus::seeds().filter(|seed| !seed.name.starts_with("dirty")) {
        let structures = Structures::of(&Overlay::new(Arc::clone(&seed.bytes)));
        for number in first..first + asked.unwrap_or(3) {
            let (mutant, changed) = corpus::mutant(&seed.bytes, &structures, number);
            let bytes = mutant.get(0, mutant.len());
            let Some((status, text)) = e2fsck(&bytes) else {
                return testkit::skip("e2fsck is missing");
            };
            let verdict = check(&bytes, 2);
            let is_clean = verdict.as_ref().is_ok_and(Report::is_clean);
            runs += 1;
            if is_clean == (status == 0) {
                continue;
            }
            let what = if is_clean { "missed" } else { "false alarm" };
            missed += u32::from(is_clean);
            false_alarms += u32::from(!is_clean);
            if asked.is_some() {
                let ours = verdict.map_or_else(|error| error.to_string(), |report| shown(&report));
                let theirs: String = text
                    .lines()
                    .filter(|l| !l.starts_with("Pass"))
                    .take(8)
                    .map(|l| format!("    {l}\n"))
                    .collect();
                let kinds: Vec<_> = changed.iter().map(|it| (it.kind, it.offset)).collect();
                println!(
                    "{what}: {} {number} {kinds:?}\n  ours:\n{ours}  e2fsck ({status}):\n{theirs}",
                    seed.name
                );
            }
        }
    }
    println!("{runs} mutants, {missed} missed, {false_alarms} false alarms");
    assert!(asked.is_some() || false_alarms <= runs / 20 && missed <= runs / 4);
}

const HEAD: &str = "# Problems that `lanefs check` reports

Generated from the table in `crates/check/src/problem.rs` and tested: after a change, run
`LANEFS_UPDATE=1 cargo test -p lanefs-check --test judged the_page`.

A number is e2fsck's own where the problem is the same; numbers from 0x4c0000 on are this checker's. A *note* leaves the
file system clean; *fatal* means that what depends on it is not judged. The last column says whether a careful repair
(`-p`, not available yet) would mend it.

| number | class | severity | sentence | -p |
|---|---|---|---|---|
";

#[test]
fn the_page_of_problems_is_what_the_table_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/check-problems.md");
    let lines = lanefs_check::problem::TABLE.iter().map(|kind| {
        let preen = if kind.preen { "yes" } else { "no" };
        let (class, severity) = (kind.class.name(), kind.severity.name());
        format!(
            "| {:#08x} | {class} | {severity} | {} | {preen} |\n",
            kind.number, kind.sentence
        )
    });
    let page = HEAD.to_owned() + &lines.collect::<String>();
    if std::env::var_os("LANEFS_UPDATE").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page,
        "docs/check-problems.md is out of date; LANEFS_UPDATE=1 writes it anew"
    );
}
