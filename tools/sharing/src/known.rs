//! Lines that are known to be shared: the goal is none. An entry excuses lines that are written within its function
//! and go from one worker to the other no more often than it says, each and all of a pair together; an entry that
//! excuses nothing any more is a failure, so that the list shrinks. No locks.

use crate::watch::report::{SharedLine, WorkerUse};
use crate::watch::symbols::SourceFrame;

/// What is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// The end of the file's name.
    pub file: &'static str,
    /// A part of the function's name with its path.
    pub function: &'static str,
    /// Whether what the function calls is excused, too.
    pub is_beneath: bool,
    /// In how many rounds such a line may go to a worker.
    pub most: u32,
    /// How often all such lines of a pair together may go to a worker, for each step of its operation.
    pub together: u32,
    /// What is shared, and what will end it.
    pub why: &'static str,
}

/// All that is known.
pub const KNOWN: &[Known] = &[
    Known {
        file: "engine/src/space/group/inodes/bits.rs",
        function: "",
        is_beneath: false,
        most: 4,
        together: 16,
        why: "windows of both workers are filled from one group: more than 4 refills of 256 only beside mkdir",
    },
    Known {
        file: "engine/src/inode/table.rs",
        function: "insert",
        is_beneath: true,
        most: 2,
        together: 64,
        why: "there are fewer buckets than numbers, and a bucket is a line: where one range of numbers falls on \
              another, each such line goes over once",
    },
];

impl Known {
    fn is_at(&self, used: &WorkerUse) -> bool {
        let is_here = |frame: &SourceFrame| {
            frame.file.ends_with(self.file) && frame.function.contains(self.function)
        };
        let mut frames = used.frames.iter();
        let is_at = if self.is_beneath {
            frames.any(is_here)
        } else {
            frames.next().is_some_and(is_here)
        };
        used.kind.writes() && is_at
    }

    /// Whether it excuses the line: one who writes it does so in its function, and it goes over no more often.
    pub fn excuses(&self, line: &SharedLine) -> bool {
        let is_bounded = line.fetches().iter().all(|rounds| *rounds <= self.most);
        is_bounded && line.uses.iter().any(|used| self.is_at(used))
    }
}

/// The first entry that excuses the line.
pub fn excuse(line: &SharedLine) -> Option<usize> {
    KNOWN.iter().position(|known| known.excuses(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::record::{Kind, Rounds};

    #[test]
    fn every_entry_names_a_file_that_is_there() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
        for known in KNOWN {
            assert!(crates.join(known.file).is_file(), "{}", known.file);
        }
    }

    #[test]
    fn an_entry_excuses_what_its_own_function_writes_and_nothing_beneath_it() {
        let entry = Known {
            file: "engine/src/a.rs",
            function: "take",
            is_beneath: false,
            most: 2,
            together: 2,
            why: "",
        };
        let frame = |file: &str, function: &str| SourceFrame {
            file: format!("crates/{file}"),
            line: 1,
            function: function.to_owned(),
        };
        let line = |kind, frames: &[SourceFrame]| SharedLine {
            address: 0,
            written: [Rounds::default(); 2],
            fetched: [Rounds::default(); 2],
            is_false: false,
            uses: vec![WorkerUse {
                worker: 0,
                kind,
                bytes: (0, 8),
                rounds: 1,
                frames: frames.to_vec(),
                by: String::new(),
            }],
        };
        let (here, beneath) = (
            frame("engine/src/a.rs", "a::take"),
            frame("journal/src/b.rs", "b::give"),
        );
        assert!(entry.excuses(&line(Kind::Write, std::slice::from_ref(&here))));
        assert!(!entry.excuses(&line(Kind::Read, std::slice::from_ref(&here))));
        assert!(!entry.excuses(&line(Kind::Write, &[beneath, here.clone()])));
        let mut often = line(Kind::Write, &[here]);
        (0..2).for_each(|round| often.fetched[1].add(round));
        assert!(entry.excuses(&often));
        often.fetched[1].add(70);
        assert!(!entry.excuses(&often));
        assert!(!entry.excuses(&line(Kind::Write, &[frame("engine/src/a.rs", "a::give")])));
    }
}
