//! The counts that are kept: a page for people, which this program also writes and reads.

use std::collections::BTreeMap;
use std::fmt;

/// Instructions per call, by operation.
pub type InstructionCounts = BTreeMap<String, f64>;

/// How far a count may be above the baseline, as a fraction.
const ALLOWED: f64 = 0.02;

const HEAD: &str = "\
# Instructions an operation

Instructions a call of the engine in process, on a file system in memory, from one thread: the mean of 10,000 calls,
which includes the commits and checkpoints that the calls cause. `cargo xtask instructions --update` writes this page;
`cargo xtask ci` fails where a count is more than 2 % above it. A new baseline is a commit of its own that says why.
";
const COMMIT: &str = "- commit: ";
const TOOL: &str = "- made with: ";
const TABLE: &str = "\n| operation | instructions a call |\n|---|--:|\n";

/// The contents of the page.
pub struct Baseline {
    /// The commit that was counted.
    pub commit: String,
    /// The versions of everything besides the code that the counts depend on, the compiler's first.
    pub tools: Vec<String>,
    /// The counts.
    pub counts: InstructionCounts,
}

impl fmt::Display for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEAD}\n{COMMIT}{}", self.commit)?;
        for tool in &self.tools {
            writeln!(f, "{TOOL}{tool}")?;
        }
        f.write_str(TABLE)?;
        for (name, count) in &self.counts {
            writeln!(f, "| {name} | {count:.1} |")?;
        }
        Ok(())
    }
}

impl Baseline {
    /// Reads the page.
    pub fn parse(text: &str) -> Result<Baseline, String> {
        let mut baseline = Baseline {
            commit: String::new(),
            tools: Vec::new(),
            counts: InstructionCounts::new(),
        };
        for line in text.lines() {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            if let Some(commit) = line.strip_prefix(COMMIT) {
                commit.clone_into(&mut baseline.commit);
            } else if let Some(tool) = line.strip_prefix(TOOL) {
                baseline.tools.push(tool.to_owned());
            } else if let ["", name, count, ""] = cells.as_slice()
                && let Ok(count) = count.parse()
            {
                baseline.counts.insert((*name).to_owned(), count);
            }
        }
        if baseline.commit.is_empty() || baseline.tools.is_empty() || baseline.counts.is_empty() {
            return Err(
                "a commit, tools or counts are missing: write it again with --update".into(),
            );
        }
        Ok(baseline)
    }

    /// The tools of the baseline that differ from these.
    pub fn other_tools(&self, tools: &[String]) -> Vec<&str> {
        let differ = |tool: &&String| !tools.contains(tool);
        self.tools
            .iter()
            .filter(differ)
            .map(String::as_str)
            .collect()
    }

    /// A line for each count that is too high, or that is missing on one side.
    pub fn refused(&self, counts: &InstructionCounts) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, count) in counts {
            match self.counts.get(name) {
                None => lines.push(format!("{name}: the baseline has no count of it")),
                Some(kept) if *count > kept * (1.0 + ALLOWED) => lines.push(format!(
                    "{name}: {count:.1} instructions a call, {:.1} % above the baseline's {kept:.1}",
                    percent(*count, *kept)
                )),
                Some(_) => {}
            }
        }
        let gone = self
            .counts
            .keys()
            .filter(|name| !counts.contains_key(*name));
        lines.extend(gone.map(|name| format!("{name}: in the baseline, but not counted any more")));
        lines
    }

    /// A line for each count, with that of the baseline.
    pub fn compared(&self, counts: &InstructionCounts) -> String {
        let line = |(name, count): (&String, &f64)| match self.counts.get(name) {
            Some(kept) => {
                let change = percent(*count, *kept);
                format!("{name:>20} {count:>10.1}  {change:+.2} %\n")
            }
            None => format!("{name:>20} {count:>10.1}  new\n"),
        };
        counts.iter().map(line).collect()
    }
}

fn percent(count: f64, kept: f64) -> f64 {
    100.0 * (count / kept - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_as_it_was_written() {
        let counts = [("create", 1234.5), ("read", 99.0)];
        let page = Baseline {
            commit: "0123abc".to_owned(),
            tools: vec!["rustc 1.95.0".to_owned(), "valgrind-3.19.0".to_owned()],
            counts: counts.map(|(name, count)| (name.to_owned(), count)).into(),
        };
        let text = page.to_string();
        let read = Baseline::parse(&text).unwrap();
        assert_eq!(read.to_string(), text);
        assert_eq!((read.commit, read.tools), (page.commit, page.tools));
        assert_eq!(read.counts, page.counts);
    }

    #[test]
    fn a_page_without_counts_is_an_error() {
        let text = format!("{HEAD}\n{COMMIT}1\n{TOOL}rustc\n{TABLE}| create | many |\n");
        assert!(Baseline::parse(&text).is_err());
    }
}
