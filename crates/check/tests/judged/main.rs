//! Verdicts beside e2fsck's: on the images of tests/corpus and on mutants of them.

use std::collections::{BTreeMap, BTreeSet};

use corpus::{PatchedBytes, Structures};
use device::{BlockDevice, MemoryDevice};
use lanefs_check::problem::Code;
use lanefs_check::{Options, Preen, Report, Severity};
use sync::Arc;
use sync::atomic::AtomicBool;

mod ahead;
mod classes;
mod disagreed;
mod found;
mod half;
mod hostile;
mod left;
mod made;
mod mended;
mod mixed;
mod numbers;
mod overwritten;
mod own_files;
mod preen;
mod preen_images;
mod repair;
mod rescued;
mod resize;
mod single;

fn check(bytes: &[u8], threads: usize) -> Result<Report, lanefs_check::Error> {
    check_device(&MemoryDevice::from_bytes(bytes), threads)
}

fn check_device(device: &dyn BlockDevice, threads: usize) -> Result<Report, lanefs_check::Error> {
    let cancelled = AtomicBool::new(false);
    let options = Options {
        threads,
        memory: None,
        superblock: None,
        is_replayed: false,
        cancelled: &cancelled,
        progress: &|_| {},
        trace: None,
    };
    lanefs_check::check(device, &options)
}

/// What e2fsck -fn says of an image.
struct Verdict {
    /// The exit status; -1 when it was killed.
    status: i32,
    /// The output.
    text: String,
    /// The numbers of its problem log.
    numbers: BTreeSet<u32>,
}

impl Verdict {
    /// Whether it was killed or gave up, so that it says less than there is.
    fn is_without(&self) -> bool {
        self.status < 0 || self.status & 8 != 0
    }

    /// Whether e2fsck found damage. It exits with 0 where descriptor checksums alone are wrong (with which the kernel
    /// does not mount) or where a copy of the superblock serves; it logs both.
    fn is_damage(&self) -> bool {
        const NAMED: [u32; 2] = [0x3E, 0x44];
        self.status != 0 || NAMED.iter().any(|number| self.numbers.contains(number))
    }
}

/// Runs e2fsck -fn. None where it is missing.
fn e2fsck(bytes: &[u8]) -> Option<Verdict> {
    let folder = tempfile::tempdir().unwrap();
    let [path, config, log] = ["image", "config", "log"].map(|name| folder.path().join(name));
    testkit::write_image(&path, bytes);
    let options = format!("[options]\nproblem_log_filename = {}\n", log.display());
    std::fs::write(&config, options).unwrap();
    let output = testkit::e2fsck_within(10, &["-fn"], &path, Some(&config))?;
    let log = std::fs::read_to_string(log).unwrap_or_default();
    let numbers = log.lines().filter(|line| line.starts_with("<problem "));
    let numbers = numbers.filter_map(|line| {
        let (number, _) = line.split_once("code=\"0x")?.1.split_once('"')?;
        u32::from_str_radix(number, 16).ok()
    });
    Some(Verdict {
        status: output.status.code().unwrap_or(-1),
        text: String::from_utf8_lossy(&output.stdout).into_owned(),
        numbers: numbers.collect(),
    })
}

fn shown(report: &Report) -> String {
    let lines = report.problems.iter().take(12);
    lines.map(|problem| format!("    {problem}\n")).collect()
}

#[test]
fn a_check_in_little_memory_has_the_same_verdict() {
    for seed in corpus::seeds() {
        let structures = Structures::of(&PatchedBytes::new(Arc::clone(&seed.bytes)));
        let (mutant, _) = corpus::mutant(&seed.bytes, &structures, 7);
        for bytes in [seed.bytes.to_vec(), mutant.get(0, mutant.len())] {
            let cancelled = AtomicBool::new(false);
            let verdict = |memory| {
                let options = Options {
                    threads: 2,
                    memory,
                    superblock: None,
                    is_replayed: false,
                    cancelled: &cancelled,
                    progress: &|_| {},
                    trace: None,
                };
                let report = lanefs_check::check(&MemoryDevice::from_bytes(&bytes), &options);
                report.map(|report| (report.is_clean(), report.totals))
            };
            // One group at a time.
            assert_eq!(verdict(Some(1)), verdict(None), "{}", seed.name);
        }
    }
}

#[test]
fn every_image_of_the_corpus_is_judged_as_by_e2fsck() {
    for seed in corpus::seeds().filter(|seed| !seed.name.starts_with("dirty")) {
        let Some(Verdict { status, text, .. }) = e2fsck(&seed.bytes) else {
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
        let line = files_line(&totals);
        assert!(text.contains(&line), "{}: {line}\n{text}", seed.name);
        let line = format!("{}/{} blocks", totals.used_blocks, totals.blocks);
        assert!(text.contains(&line), "{}: {line}\n{text}", seed.name);
    }
}

/// The part of e2fsck's last line that counts files.
fn files_line(totals: &lanefs_check::Totals) -> String {
    let halves = 1000 * totals.fragmented + totals.files / 2;
    let tenths = halves.checked_div(totals.files).unwrap_or(0);
    let (percent, tenth) = (tenths / 10, tenths % 10);
    let (files, inodes) = (totals.files, totals.inodes);
    format!("{files}/{inodes} files ({percent}.{tenth}% non-contiguous)")
}

/// Whether all that was found is what e2fsck does not look for.
fn is_beyond(report: &Report) -> bool {
    let mut codes = report.counts.keys();
    codes.all(|code| code.kind().severity == Severity::Note || code.is_beyond_e2fsck())
}

/// The sums of a run over mutants.
#[derive(Default)]
struct Sums {
    runs: u32,
    missed: u32,
    false_alarms: u32,
    /// Damage that the kernel refuses and e2fsck does not look for: no false alarms.
    beyond: u32,
    /// e2fsck reached no verdict.
    without: u32,
    classes: classes::Classes,
    /// For each kind that was reported: in how many mutants, and which numbers e2fsck logged for how many of those.
    numbers: BTreeMap<Code, (u32, BTreeMap<u32, u32>)>,
}

impl Sums {
    /// Compares the verdicts of one mutant; the disagreement in words, where there is one.
    fn judge(&mut self, bytes: &[u8], verdict: &Verdict) -> Option<String> {
        let ours = check(bytes, 2);
        let is_clean = ours.as_ref().is_ok_and(Report::is_clean);
        if verdict.status < 0 || verdict.text.contains("Can't find external journal") {
            // Killed after ten seconds, or without a look at the file system: there is nothing to compare with.
            self.without += 1;
            return None;
        }
        self.runs += 1;
        for code in ours.iter().flat_map(|report| report.counts.keys()) {
            let (runs, numbers) = self.numbers.entry(*code).or_default();
            *runs += 1;
            for number in &verdict.numbers {
                *numbers.entry(*number).or_default() += 1;
            }
        }
        if let Ok(report) = &ours {
            self.classes.add(report, verdict);
        }
        if !is_clean && !verdict.is_damage() && ours.as_ref().is_ok_and(is_beyond) {
            self.beyond += 1;
            return None;
        }
        if is_clean != verdict.is_damage() {
            return None;
        }
        let what = if is_clean { "missed" } else { "false alarm" };
        self.missed += u32::from(is_clean);
        self.false_alarms += u32::from(!is_clean);
        let ours = ours.map_or_else(|error| error.to_string(), |report| shown(&report));
        let theirs = verdict
            .text
            .lines()
            .filter(|line| !line.starts_with("Pass"));
        let theirs: String = theirs.take(8).map(|line| format!("    {line}\n")).collect();
        let status = verdict.status;
        Some(format!(
            "{what}:\n  ours:\n{ours}  e2fsck ({status}):\n{theirs}"
        ))
    }

    /// Prints which numbers e2fsck logged beside each kind.
    fn print_numbers(&self) {
        for (code, (runs, numbers)) in &self.numbers {
            let mut numbers: Vec<_> = numbers
                .iter()
                .map(|(number, runs)| (*runs, *number))
                .collect();
            numbers.sort_unstable_by(|a, b| b.cmp(a));
            let numbers: Vec<_> = numbers
                .iter()
                .take(4)
                .map(|(runs, number)| format!("{number:#08x} {runs}"))
                .collect();
            println!(
                "{code:?} {:#08x}, in {runs}: {}",
                code.kind().number,
                numbers.join(", ")
            );
        }
    }
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The images of the corpus that need no replay: all, or those that the variable names, with commas between.
fn seeds_from(variable: &str) -> Vec<corpus::Seed> {
    let asked = std::env::var(variable).ok();
    let is_asked = |seed: &corpus::Seed| {
        let mut names = asked.iter().flat_map(|names| names.split(','));
        asked.is_none() || names.any(|name| name == seed.name)
    };
    let seeds = corpus::seeds().filter(|seed| !seed.name.starts_with("dirty"));
    seeds.filter(is_asked).collect()
}

/// Mutants of every profile, with right checksums and with stale ones. LANEFS_CHECK_MUTANTS sets how many of each,
/// LANEFS_CHECK_SEED names the images, LANEFS_CHECK_SAVE the folder for those that are judged differently.
#[test]
fn mutants_are_judged_as_by_e2fsck() {
    let asked = number_from("LANEFS_CHECK_MUTANTS");
    let first = number_from("LANEFS_CHECK_FIRST").unwrap_or(0);
    let mut sums = [Sums::default(), Sums::default()];
    for seed in seeds_from("LANEFS_CHECK_SEED") {
        let structures = Structures::of(&PatchedBytes::new(Arc::clone(&seed.bytes)));
        for (sums, mutate) in sums
            .iter_mut()
            .zip([corpus::mutant, corpus::unsealed_mutant])
        {
            for number in first..first + asked.unwrap_or(3) {
                let (mutant, changed) = mutate(&seed.bytes, &structures, number);
                let bytes = mutant.get(0, mutant.len());
                let Some(verdict) = e2fsck(&bytes) else {
                    return testkit::skip("e2fsck is missing");
                };
                if let Some(words) = sums.judge(&bytes, &verdict)
                    && asked.is_some()
                {
                    let kinds: Vec<_> = changed.iter().map(|it| (it.kind, it.offset)).collect();
                    if let Some(folder) = std::env::var_os("LANEFS_CHECK_SAVE") {
                        let name = format!("{}-{number}-{}.img", seed.name, sums.runs);
                        std::fs::write(std::path::Path::new(&folder).join(name), &bytes).unwrap();
                    }
                    println!("{} {number} {kinds:?} {words}", seed.name);
                }
            }
        }
    }
    for (sums, seals) in sums.iter().zip(["right", "stale"]) {
        let (missed, false_alarms, beyond) = (sums.missed, sums.false_alarms, sums.beyond);
        let counts =
            format!("{missed} missed, {false_alarms} false alarms, {beyond} beyond e2fsck");
        let (runs, without) = (sums.runs, sums.without);
        println!("{runs} mutants with {seals} checksums, {counts}, {without} without a verdict");
        if asked.is_some() {
            sums.print_numbers();
            sums.classes
                .print(&format!("classes with {seals} checksums"));
        }
    }
    for sums in sums {
        // In 1840 mutants each none was missed, and none was a false alarm; the rest is a margin.
        let most = 1 + sums.runs / 200;
        let is_bounded = sums.missed <= most && sums.false_alarms <= most;
        assert!(is_bounded, "see LANEFS_CHECK_MUTANTS");
    }
}

const HEAD: &str = "# Problems that `lanefs check` reports

Generated from the table in `crates/check/src/problem/kinds.rs` and tested: after a change, run
`LANEFS_UPDATE=1 cargo test -p lanefs-check --test judged the_page`.

A number below 0x80000000 is e2fsck's own for the same problem: each one was observed in the problem log of e2fsck
1.47.0 (`problem_log_filename` in e2fsck.conf) beside the message that means the same. Numbers from 0x80000000 on are
this checker's. A *note* leaves the file system clean; *fatal* means that what depends on it is not judged. The next
column says what a repair does about it (nothing where it is empty). A careful repair (`-p`) *mends* it, *leaves* it, or
*refuses* to mend anything.

| number | class | severity | sentence | a repair | -p |
|---|---|---|---|---|---|
";

#[test]
fn the_page_of_problems_is_what_the_table_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/check-problems.md");
    let lines = lanefs_check::problem::TABLE.iter().map(|kind| {
        let preen = match kind.preen {
            Preen::Mends => "mends",
            Preen::Leaves => "leaves",
            Preen::Refuses => "refuses",
        };
        let (class, severity) = (kind.class.name(), kind.severity.name());
        format!(
            "| {:#08x} | {class} | {severity} | {} | {} | {preen} |\n",
            kind.number, kind.sentence, kind.repair
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
