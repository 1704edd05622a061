//! `cargo xtask crash --full`: every part of a full run, two at a time, each in a process of its own whose output stays
//! in `target/crash/<commit>/`. The commit is the last that changes what is simulated, so that a run goes on where it
//! was stopped although other crates have changed since: a part that was finished there is not run again. In the end
//! one table for `results/crash.md` has all finished parts.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Parts at a time.
const PROCESSES: usize = 2;
/// What is simulated, and the simulation.
const SIMULATED: [&str; 8] = [
    "crates/buffer/src",
    "crates/engine/src",
    "crates/jbd2/src",
    "crates/journal/src",
    "crates/ondisk/src",
    "crates/sync/src",
    "tools/model/src",
    "tools/simulate/src",
];
/// Kinds of images of sequences and the walk.
const IMAGES: [&str; 5] = ["4k", "1k", "1k-plain", "1k-ext3", FAST];
/// The kind of image whose fsyncs are fast commits.
const FAST: &str = "4k-fast";
const SEEDS: u64 = 20_000;
const SEEDS_A_PART: u64 = 2000;
/// More sequences of two than there are; a run fails if it is not.
const PAIRS: u64 = 36_000;
const PAIRS_A_PART: u64 = 3000;
/// Sequences of three, sampled.
const TRIPLES: u64 = 100_000;
const TRIPLES_A_PART: u64 = 5000;
/// Seeds that mostly fsync.
const FSYNCS: u64 = 2000;
const FSYNCS_A_PART: u64 = 500;
/// The same, on each kind of image without fast commits.
const FULL_FSYNCS: u64 = 500;
/// Runs of which the kernel and e2fsck replay some four cuts each.
const REPLAYS: u64 = 600;
const HISTORIES: u64 = 2000;
/// Steps of the walk on each kind of image.
const STEPS: u64 = 2_000_000;

const SINGLES: &str = "sequences of 1, five kinds of images";
const ALL_PAIRS: &str = "sequences of 2, 1 KiB blocks and fast commits, all";
const SOME_PAIRS: &str = "sequences of 2, the others, one in seven";
const SAMPLED: &str = "sequences of 3, fast commits, sampled";
const MOSTLY_FSYNCS: &str = "fsyncs of four threads, fast commits";
const FULL_COMMITS: &str = "fsyncs of four threads, full commits";
const FAULTS: &str = "faults in sequences of 1";
const RANDOM: &str = "seeds 0 to 19,999";
/// The rows of the table.
const ROWS: [&str; 8] = [
    RANDOM,
    MOSTLY_FSYNCS,
    FULL_COMMITS,
    SINGLES,
    FAULTS,
    ALL_PAIRS,
    SOME_PAIRS,
    SAMPLED,
];
const COMPARED: &str = "replays";
const CALLS: &str = "histories";
const WALK: &str = "walk";
const CANARIES: &str = "canaries";

/// One process's part.
struct Part {
    row: &'static str,
    name: String,
    words: Vec<String>,
}

/// What parts counted, by name.
type Sums = BTreeMap<String, u64>;

/// Runs the parts that are not done yet; with `--minutes N` none begins later than that.
pub fn run(root: &Path, options: &[&str]) -> Result<String, String> {
    let minutes = match options {
        [] => None,
        ["--minutes", text] => Some(text.parse().map_err(|_| format!("not a number: {text}"))?),
        other => return Err(format!("unknown: {}", other.join(" "))),
    };
    let commit = commit(root)?;
    let program = super::build(root)?;
    let folder = root.join("target/crash").join(&commit);
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let parts = parts();
    let end = minutes.map(|minutes: u64| Instant::now() + Duration::from_secs(60 * minutes));
    let rest = Mutex::new(
        parts
            .iter()
            .filter(|part| sums(&folder, part).is_none())
            .collect::<Vec<_>>()
            .into_iter(),
    );
    let next = || {
        let is_over = end.is_some_and(|end| Instant::now() > end);
        // A thread that panicked with the lock held said so.
        let mut rest = rest.lock().ok()?;
        rest.next().filter(|_| !is_over)
    };
    std::thread::scope(|scope| {
        for _ in 0..PROCESSES {
            scope.spawn(|| {
                while let Some(part) = next() {
                    println!("{}", run_part(&program, &folder, part));
                }
            });
        }
    });
    if !has_all_pairs(&folder, &parts) {
        return Err(format!("there are {PAIRS} or more sequences of two"));
    }
    table(&commit, &folder, &parts)
}

/// The last commit that changed code that is simulated, and whether that has changed since. A commit that changes
/// nothing but lines of comments and empty lines simulates the same.
fn commit(root: &Path) -> Result<String, String> {
    let git = |words: &[&str]| {
        let mut command = Command::new("git");
        command.current_dir(root).args(words).arg("--");
        let output = command.args(SIMULATED).output();
        let output = output.map_err(|error| format!("git does not start: {error}"))?;
        Ok::<String, String>(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let options = ["--unified=0", "--no-renames", "--no-ext-diff", "--no-color"];
    let commits = git(&["log", "--abbrev=7", "--format=%h"])?;
    for commit in commits.lines() {
        let show = ["show", "--format=", "-m", "--first-parent", commit];
        if changes_code(&git(&[&show[..], &options[..]].concat())?) {
            let since = git(&[&["diff", "HEAD"], &options[..]].concat())?;
            let suffix = if changes_code(&since) { "-changed" } else { "" };
            return Ok(format!("{commit}{suffix}"));
        }
    }
    Err("no commit of git says what is simulated".into())
}

/// Whether a difference, as git shows it without lines around it, has a line that is neither empty nor a comment. Git
/// shows no lines of a binary file, so a change of one counts as code.
fn changes_code(difference: &str) -> bool {
    difference.lines().any(|line| {
        if line.starts_with("Binary files ") {
            return true;
        }
        let is_header = ["+++ b/", "--- a/", "+++ /dev/null", "--- /dev/null"]
            .iter()
            .any(|start| line.starts_with(start));
        let changed = line.strip_prefix(['+', '-']).filter(|_| !is_header);
        changed.is_some_and(|text| {
            let text = text.trim_start();
            !text.is_empty() && !text.starts_with("//")
        })
    })
}

/// All parts, those that find most first, the longest last.
fn parts() -> Vec<Part> {
    let mut parts = Vec::new();
    let mut add = |row, name: String, words: &str| {
        let words = words.split(' ').map(str::to_owned).collect();
        parts.push(Part { row, name, words });
    };
    add(CANARIES, "canaries".into(), "--canaries");
    for start in (0..SEEDS).step_by(SEEDS_A_PART as usize) {
        let end = start + SEEDS_A_PART;
        add(
            RANDOM,
            format!("seeds-{start}"),
            &format!("--seeds {start}..{end}"),
        );
    }
    for image in IMAGES {
        let words = format!("--image {image}");
        add(
            SINGLES,
            format!("singles-{image}"),
            &format!("{words} --singles"),
        );
        add(
            FAULTS,
            format!("faults-{image}"),
            &format!("{words} --faults 0..1000"),
        );
    }
    add(
        COMPARED,
        "replays".into(),
        &format!("--replays 0..{REPLAYS}"),
    );
    add(
        CALLS,
        "histories".into(),
        &format!("--histories 0..{HISTORIES}"),
    );
    for image in ["1k", FAST] {
        for start in (0..PAIRS).step_by(PAIRS_A_PART as usize) {
            let end = start + PAIRS_A_PART;
            let words = format!("--image {image} --pairs {start}..{end}");
            add(ALL_PAIRS, format!("pairs-{image}-{start}"), &words);
        }
    }
    for start in (0..FSYNCS).step_by(FSYNCS_A_PART as usize) {
        let words = format!("--fsyncs {start}..{}", start + FSYNCS_A_PART);
        add(MOSTLY_FSYNCS, format!("fsyncs-{start}"), &words);
    }
    for image in IMAGES.into_iter().filter(|image| *image != FAST) {
        let words = format!("--image {image} --fsyncs 0..{FULL_FSYNCS}");
        add(FULL_COMMITS, format!("fsyncs-{image}"), &words);
    }
    for (first, image) in [(0, "4k"), (2, "1k-plain"), (3, "1k-ext3")] {
        let words = format!("--image {image} --every 7 --pairs {first}..{PAIRS}");
        add(SOME_PAIRS, format!("pairs-{image}"), &words);
    }
    for image in IMAGES {
        let words = format!("--image {image} --steps {STEPS}");
        add(WALK, format!("walk-{image}"), &words);
    }
    for start in (0..TRIPLES).step_by(TRIPLES_A_PART as usize) {
        let words = format!(
            "--image {FAST} --triples {start}..{}",
            start + TRIPLES_A_PART
        );
        add(SAMPLED, format!("triples-{start}"), &words);
    }
    parts
}

fn log(folder: &Path, part: &Part) -> PathBuf {
    folder.join(format!("{}.txt", part.name))
}

/// Runs a part; one line about it.
fn run_part(program: &Path, folder: &Path, part: &Part) -> String {
    let (path, begun) = (log(folder, part), Instant::now());
    let run = || {
        let file = File::create(&path)?;
        let mut command = crate::apart::command(program);
        command.args(&part.words).stdout(file).status()
    };
    let said = match run() {
        Err(error) => error.to_string(),
        Ok(status) => match sums(folder, part) {
            Some(sums) if status.success() => format!("{} cut states", sum(&sums, "states")),
            Some(sums) => format!("{} FAILED: {}", sum(&sums, "failures"), path.display()),
            None => format!("FAILED: {}", path.display()),
        },
    };
    let seconds = begun.elapsed().as_secs();
    format!("{}: {said}, {seconds} s", part.name)
}

/// What a part counted; `None` where it did not come to its end.
fn sums(folder: &Path, part: &Part) -> Option<Sums> {
    let text = fs::read_to_string(log(folder, part)).ok()?;
    let counted = text.lines().last()?.strip_prefix("counted: ")?;
    let words: Vec<&str> = counted.split(' ').collect();
    let pairs = words.chunks_exact(2);
    pairs
        .map(|pair| Some((pair[0].to_owned(), pair[1].parse().ok()?)))
        .collect()
}

fn sum(sums: &Sums, name: &str) -> u64 {
    sums.get(name).copied().unwrap_or(0)
}

/// A number with commas.
fn commas(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The sums of all parts of a row that are done, and how many are not.
fn row(folder: &Path, parts: &[Part], wanted: &str) -> (Sums, usize) {
    let (mut total, mut missing) = (Sums::new(), 0);
    for part in parts.iter().filter(|part| part.row == wanted) {
        match sums(folder, part) {
            Some(found) => found.into_iter().for_each(|(name, count)| {
                *total.entry(name).or_default() += count;
            }),
            None => missing += 1,
        }
    }
    (total, missing)
}

/// Whether the sequences of two came to their end on each kind of image: the last part had fewer than it may have.
fn has_all_pairs(folder: &Path, parts: &[Part]) -> bool {
    let last = format!("-{}", PAIRS - PAIRS_A_PART);
    let mut ends = parts
        .iter()
        .filter(|part| part.row == ALL_PAIRS && part.name.ends_with(&last));
    ends.all(|part| sums(folder, part).is_none_or(|sums| sum(&sums, "runs") < PAIRS_A_PART))
}

/// The table for the documentation.
fn table(commit: &str, folder: &Path, parts: &[Part]) -> Result<String, String> {
    let date = Command::new("date").arg("+%Y-%m-%d").output();
    let date = date.map_err(|error| format!("date does not start: {error}"))?;
    let date = String::from_utf8_lossy(&date.stdout).trim().to_owned();
    println!("\nOn {date}, commit {commit}, {PROCESSES} processes:\n");
    println!(
        "| part | runs | cut states | cut again | faults | read by check | by e2fsck, too | failures |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let (mut all, mut missing) = (Sums::new(), 0);
    let print = |name: &str, sums: &Sums| {
        let columns = [
            "runs", "states", "again", "faults", "checked", "judged", "failures",
        ];
        let columns = columns.map(|column| commas(sum(sums, column)));
        println!("| {name} | {} |", columns.join(" | "));
    };
    for name in ROWS {
        let (sums, left) = row(folder, parts, name);
        print(name, &sums);
        missing += left;
        for (column, count) in sums {
            *all.entry(column).or_default() += count;
        }
    }
    print("in all", &all);
    let (random, _) = row(folder, parts, RANDOM);
    let share = |name| 100.0 * sum(&random, name) as f64 / sum(&random, "states").max(1) as f64;
    let (busy, sealing) = (share("busy"), share("sealing"));
    println!(
        "\nOf the seeds' cut states {busy:.1} % had two or more handles open and {sealing:.1} % a seal in flight."
    );
    let mut failures = sum(&all, "failures");
    let (calls, calls_missing) = row(folder, parts, CALLS);
    let (walk, walk_missing) = row(folder, parts, WALK);
    let (compared, compared_missing) = row(folder, parts, COMPARED);
    let (_, canaries_missing) = row(folder, parts, CANARIES);
    missing += calls_missing + walk_missing + compared_missing + canaries_missing;
    for sums in [&calls, &walk, &compared] {
        failures += sum(sums, "failures");
    }
    let counted = |name| commas(sum(&compared, name));
    println!(
        "Replays: {} states alike by the kernel and lanefs, {} by e2fsck, too; {} in e2fsck's window, {} of them alike \
         all the same; {} with a torn commit record, {} with a torn superblock.",
        counted("by_kernel"),
        counted("by_e2fsck"),
        counted("in_window"),
        counted("in_window_agreed"),
        counted("torn_commit"),
        counted("torn_superblock")
    );
    println!(
        "Histories: {} runs, {} calls that have an order. The walk: {} steps, {} of them refused as the model refuses \
         them, e2fsck and check clean {} times.",
        commas(sum(&calls, "runs")),
        commas(sum(&calls, "calls")),
        commas(sum(&walk, "steps")),
        commas(sum(&walk, "refused")),
        commas(sum(&walk, "judged"))
    );
    match (failures, missing) {
        (0, 0) => Ok(String::new()),
        (0, missing) => Err(format!(
            "{missing} parts are not done: run it again to go on"
        )),
        (failures, _) => Err(format!("{failures} failures: see {}", folder.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::changes_code;

    #[test]
    fn a_commit_that_changes_only_comments_keeps_what_was_simulated() {
        let header = "diff --git a/x.rs b/x.rs\n--- a/x.rs\n+++ b/x.rs\n@@ -1 +1,2 @@ fn x() {\n";
        for kept in ["-    // a\n+    /// b\n+//! c\n+\n", ""] {
            assert!(!changes_code(&format!("{header}{kept}")), "{kept}");
        }
        for changed in [
            "-    a();\n",
            "+    a(); // b\n",
            "-// a\n+a\n",
            "---a\n",
            "+++a;\n",
        ] {
            assert!(changes_code(&format!("{header}{changed}")), "{changed}");
        }
        let made = "diff --git a/x.rs b/x.rs\n--- /dev/null\n+++ b/x.rs\n@@ -0,0 +1 @@\n+a\n";
        assert!(changes_code(made));
        let binary = "diff --git a/x.bin b/x.bin\nindex 18baa06a..4fdec70b 100644\n\
                      Binary files a/x.bin and b/x.bin differ\n";
        assert!(changes_code(binary));
    }
}
