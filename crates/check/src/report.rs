//! What a check found, and how each thread notes it down.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use ondisk::Ino;
use sync::{Mutex, Rank};

use crate::limits;
use crate::problem::{Code, Kind, Severity};

/// One problem: its kind and particulars.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Problem {
    /// The kind.
    pub code: Code,
    /// The inode it is about.
    pub ino: Option<u32>,
    /// The group it is about.
    pub group: Option<u32>,
    /// The block of the device.
    pub block: Option<u64>,
    /// The block of the file.
    pub lblk: Option<u64>,
    /// What is there.
    pub found: Option<u64>,
    /// What should be there.
    pub expected: Option<u64>,
    /// A name, or the reason in words.
    pub name: Option<Vec<u8>>,
    /// A path of the inode, where one is known.
    pub path: Option<Vec<u8>>,
}

impl Problem {
    /// A problem of this kind, without particulars.
    #[must_use]
    pub fn new(code: Code) -> Problem {
        Problem {
            code,
            ino: None,
            group: None,
            block: None,
            lblk: None,
            found: None,
            expected: None,
            name: None,
            path: None,
        }
    }

    pub(crate) fn ino(mut self, ino: Ino) -> Problem {
        self.ino = Some(ino.0);
        self
    }

    pub(crate) fn group(mut self, group: u32) -> Problem {
        self.group = Some(group);
        self
    }

    pub(crate) fn block(mut self, block: u64) -> Problem {
        self.block = Some(block);
        self
    }

    pub(crate) fn lblk(mut self, lblk: u64) -> Problem {
        self.lblk = Some(lblk);
        self
    }

    pub(crate) fn found(mut self, found: impl Into<u64>) -> Problem {
        self.found = Some(found.into());
        self
    }

    pub(crate) fn expected(mut self, expected: impl Into<u64>) -> Problem {
        self.expected = Some(expected.into());
        self
    }

    pub(crate) fn name(mut self, name: impl AsRef<[u8]>) -> Problem {
        self.name = Some(name.as_ref().to_vec());
        self
    }

    /// The table's line for its kind.
    #[must_use]
    pub fn kind(&self) -> &'static Kind {
        self.code.kind()
    }

    /// What a repair of everything does about it, as a clause: "the count is set to 2". `None` if a repair leaves it.
    #[must_use]
    pub fn repair(&self) -> Option<String> {
        let clause = self.kind().repair;
        (!clause.is_empty()).then(|| self.filled(clause))
    }

    /// A sentence of the table with this problem's particulars.
    fn filled(&self, sentence: &str) -> String {
        let number = |value: Option<u64>| value.map_or("?".to_owned(), |value| value.to_string());
        let mut text = String::new();
        let mut rest = sentence;
        while let Some((before, tail)) = rest.split_once('{') {
            text.push_str(before);
            let (field, tail) = tail.split_once('}').unwrap_or((tail, ""));
            let value = match field {
                "found" => number(self.found),
                "expected" | "other" => number(self.expected),
                "block" => number(self.block),
                "lblk" => number(self.lblk),
                "group" => number(self.group.map(u64::from)),
                _ => self
                    .name
                    .as_deref()
                    .unwrap_or(b"?")
                    .escape_ascii()
                    .to_string(),
            };
            text.push_str(&value);
            rest = tail;
        }
        text + rest
    }
}

/// The problem as one sentence: where, then what.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(ino) = self.ino {
            write!(f, "inode {ino}")?;
            if let Some(path) = &self.path {
                write!(f, " ({})", path.escape_ascii())?;
            }
            f.write_str(": ")?;
        } else if let Some(group) = self.group {
            write!(f, "group {group}: ")?;
        }
        f.write_str(&self.filled(self.kind().sentence))
    }
}

/// Sums over the file system, as found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Inodes in use, reserved ones included.
    pub files: u64,
    /// All inodes.
    pub inodes: u64,
    /// Files whose blocks are not in one piece. Those with at least a group's number of blocks do not count.
    pub fragmented: u64,
    /// Blocks in use.
    pub used_blocks: u64,
    /// All blocks.
    pub blocks: u64,
    /// Directories.
    pub directories: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The problems in the order of the passes; at most [`limits::PROBLEMS`].
    pub problems: Vec<Problem>,
    /// How many there are of each kind.
    pub counts: BTreeMap<Code, u64>,
    /// Sums; none where the geometry can't be known.
    pub totals: Option<Totals>,
}

impl Report {
    /// Adds a problem that the caller found, with its reason.
    pub fn add(&mut self, code: Code, reason: &str) {
        *self.counts.entry(code).or_default() += 1;
        self.problems.push(Problem::new(code).name(reason));
    }

    /// Adds problems of the superblock, before all others, to the report of a check that could not see them.
    pub fn put_first(&mut self, problems: Vec<Problem>) {
        for problem in &problems {
            *self.counts.entry(problem.code).or_default() += 1;
        }
        self.problems.splice(0..0, problems);
    }

    /// Removes the problems with this code, for a caller that found out what the check could not.
    pub fn forget(&mut self, code: Code) {
        self.counts.remove(&code);
        self.problems.retain(|problem| problem.code != code);
    }

    /// Whether nothing was found that is worse than a note.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.counts
            .keys()
            .all(|code| code.kind().severity == Severity::Note)
    }
}

/// Where threads put what they find.
#[derive(Debug)]
pub struct Findings {
    /// [job]
    inner: Mutex<(Vec<Problem>, BTreeMap<Code, u64>)>,
}

impl Findings {
    pub(crate) fn new() -> Findings {
        Findings {
            inner: Mutex::new(Rank::Output, (Vec::new(), BTreeMap::new())),
        }
    }

    pub(crate) fn add(&self, problem: Problem) {
        let (problems, counts) = &mut *self.inner.lock();
        *counts.entry(problem.code).or_default() += 1;
        if problems.len() < limits::PROBLEMS {
            problems.push(problem);
        }
    }

    pub(crate) fn has(&self, code: Code) -> bool {
        self.inner.lock().1.contains_key(&code)
    }

    /// The first `most` inodes that problems are about.
    pub(crate) fn inodes(&self, most: usize) -> BTreeSet<u32> {
        let inner = self.inner.lock();
        let mut inodes: BTreeSet<u32> = inner.0.iter().filter_map(|problem| problem.ino).collect();
        if let Some(end) = inodes.iter().nth(most).copied() {
            inodes.split_off(&end);
        }
        inodes
    }

    /// Gives problems the paths of their inodes.
    pub(crate) fn set_paths(&self, paths: &HashMap<u32, Vec<u8>>) {
        for problem in &mut self.inner.lock().0 {
            problem.path = problem.ino.and_then(|ino| paths.get(&ino).cloned());
        }
    }

    pub(crate) fn into_report(self, totals: Option<Totals>) -> Report {
        let (mut problems, counts) = self.inner.into_inner();
        problems.sort();
        problems.dedup();
        Report {
            problems,
            counts,
            totals,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_names_place_and_particulars_and_what_a_repair_does() {
        let mut problem = Problem::new(Code::InodeSize).ino(Ino(12)).found(7_u64);
        problem.path = Some(b"/a\xff".to_vec());
        assert_eq!(
            problem.to_string(),
            "inode 12 (/a\\xff): the size is 7, but the blocks say ?"
        );
        let problem = Problem::new(Code::Links).expected(2_u64);
        assert_eq!(problem.repair().as_deref(), Some("the count is set to 2"));
        assert_eq!(Problem::new(Code::ClaimsTooMany).repair(), None);
    }
}
