//! Counts the requests of each kind that the kernel has sent, those that are answered and the time that took, bytes
//! read and written, polls, and renames that held commits back. Each thread counts on cache lines of its own, without a
//! lock.

use std::fmt::Write;

use sync::clock::{self, Duration, Instant};
use sync::{CachePadded, Lanes, Statistic};

use crate::abi::opcode;

/// Classes of latencies. Class n has the latencies below 2^n microseconds that are in no earlier class, the last class
/// all others.
const CLASSES: usize = 24;

/// What one thread has counted of one kind.
#[derive(Default)]
struct KindCounts {
    begun: Statistic,
    answered: Statistic,
    nanoseconds: Statistic,
    bytes: Statistic,
    classes: [Statistic; CLASSES],
}

/// The counts of one thread, indexed by the kind's number; unknown kinds are counted together at 0.
struct Counts([KindCounts; opcode::END]);

impl Default for Counts {
    fn default() -> Counts {
        Counts(std::array::from_fn(|_| KindCounts::default()))
    }
}

impl Counts {
    fn of(&self, opcode: u32) -> &KindCounts {
        let index = usize::try_from(opcode).unwrap_or(0);
        self.0.get(index).unwrap_or(&self.0[0])
    }
}

fn add(count: &Statistic, amount: u64) {
    count.add(amount);
}

/// A request that is timed until its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedRequest {
    opcode: u32,
    since: Instant,
    /// How many bytes it asks to write.
    bytes: u64,
}

impl TimedRequest {
    /// Counts a request of this kind that asks to write this number of bytes.
    pub(crate) fn begin(opcode: u32, bytes: u64) -> TimedRequest {
        let since = clock::now();
        TimedRequest {
            opcode,
            since,
            bytes,
        }
    }
}

/// Counts of polls of `/dev/fuse`. Only the sole reader polls, so they are not per lane.
#[derive(Default)]
struct PollCounts {
    polls: Statistic,
    hits: Statistic,
    nanoseconds: Statistic,
}

/// The counts of a mount; see the module.
#[derive(Default)]
pub(crate) struct Messages {
    /// Renames that held commits back. [atomic: Relaxed, statistics]
    held: CachePadded<Statistic>,
    /// [atomic: Relaxed, statistics; each lane written by its thread]
    lanes: Lanes<Counts>,
    /// [atomic: Relaxed, statistics; written by the sole reader]
    polls: CachePadded<PollCounts>,
}

impl Messages {
    /// Counts a poll of `/dev/fuse`: whether it found a request, and how long it took.
    pub(crate) fn polled(&self, is_hit: bool, time: Duration) {
        add(&self.polls.polls, 1);
        add(&self.polls.hits, is_hit.into());
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        add(&self.polls.nanoseconds, nanoseconds);
    }

    /// All counts as lines: one for each kind of request, and one for polls.
    pub(crate) fn counter_lines(&self) -> impl Iterator<Item = String> {
        let requests = self.counted();
        let requests = requests.map(|(name, value)| format!("messages.{name} {value}\n"));
        let of = |count: &Statistic| count.get();
        let polls = [
            ("polls", of(&self.polls.polls)),
            ("hits", of(&self.polls.hits)),
            ("microseconds", of(&self.polls.nanoseconds) / 1000),
        ];
        let polls = polls.map(|(name, value)| format!("polling.{name} {value}\n"));
        let held = format!("writeback.renames_held {}\n", of(&self.held));
        requests.chain(polls).chain([held])
    }

    /// Counts a rename that holds commits back.
    pub(crate) fn held(&self) {
        add(&self.held, 1);
    }

    /// Counts one request.
    pub(crate) fn count(&self, opcode: u32) {
        add(&self.lanes.mine().of(opcode).begun, 1);
    }

    /// Counts the answer to a request, which has this number of bytes.
    pub(crate) fn answered(&self, request: TimedRequest, bytes: u64) {
        let counts = self.lanes.mine().of(request.opcode);
        let time = clock::now().saturating_duration_since(request.since);
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let class = (u64::BITS - (nanoseconds / 1000).leading_zeros()) as usize;
        add(&counts.answered, 1);
        add(&counts.nanoseconds, nanoseconds);
        add(&counts.classes[class.min(CLASSES - 1)], 1);
        let bytes = match request.opcode {
            opcode::READ => bytes,
            _ => request.bytes,
        };
        add(&counts.bytes, bytes);
    }

    fn sum(&self, opcode: u32, of: impl Fn(&KindCounts) -> &Statistic) -> u64 {
        let lanes = self.lanes.iter();
        lanes
            .map(|lane| of(lane.of(opcode)).get())
            .fold(0, u64::wrapping_add)
    }

    /// The name of each kind, and the number of its requests.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (&'static str, u64)> {
        kinds().map(move |(opcode, name)| (name, self.sum(opcode, |counts| &counts.begun)))
    }

    /// A line for each kind that was counted: its name, requests begun and answered, nanoseconds, bytes, and the
    /// classes of latencies, separated by commas.
    pub(crate) fn lines(&self) -> String {
        let mut lines = String::new();
        for (opcode, name) in kinds() {
            // Summed first, so that the answers never seem to be more than the requests.
            let answered = self.sum(opcode, |counts| &counts.answered);
            let begun = self.sum(opcode, |counts| &counts.begun);
            if begun == 0 {
                continue;
            }
            let nanoseconds = self.sum(opcode, |counts| &counts.nanoseconds);
            let bytes = self.sum(opcode, |counts| &counts.bytes);
            let classes = (0..CLASSES).map(|class| {
                self.sum(opcode, |counts| &counts.classes[class])
                    .to_string()
            });
            let classes = classes.collect::<Vec<String>>().join(",");
            // Writing to a string does not fail.
            let _ = writeln!(
                lines,
                "{name} {begun} {answered} {nanoseconds} {bytes} {classes}"
            );
        }
        lines
    }
}

/// The numbers and names of all kinds.
fn kinds() -> impl Iterator<Item = (u32, &'static str)> {
    opcode::ALL.into_iter().chain([(0, "unknown")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_by_its_name() {
        let messages = Messages::default();
        for opcode in [
            opcode::CREATE,
            opcode::CREATE,
            opcode::TMPFILE,
            4711,
            u32::MAX,
        ] {
            messages.count(opcode);
        }
        let counted: Vec<_> = messages.counted().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("create", 2), ("tmpfile", 1), ("unknown", 2)]);
    }

    #[test]
    fn requests_are_timed_when_they_are_answered() {
        let messages = Messages::default();
        for opcode in [opcode::READ, opcode::SYNCFS] {
            messages.count(opcode);
        }
        messages.answered(TimedRequest::begin(opcode::READ, 0), 4096);
        let lines = messages.lines();
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        let words: Vec<&str> = lines[0].split(' ').collect();
        assert_eq!(words[..3], ["read", "1", "1"]);
        assert_eq!(words[4], "4096");
        let classes = words[5].split(',').map(|word| word.parse::<u64>().unwrap());
        assert_eq!(classes.sum::<u64>(), 1);
        assert!(lines[1].starts_with("syncfs 1 0 0 0 0,"), "{lines:?}");
    }
}
