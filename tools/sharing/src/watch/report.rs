//! From two threads' records to the lines that one wrote and the other touched. Nothing is locked, nothing survives.

use std::collections::BTreeMap;

use super::record::{Kind, LINE, ROUNDS, Rounds, ThreadRecord};
use super::symbols::{SourceFrame, Symbols};

/// Calls kept of a place.
const CALLS: usize = 6;
/// Operations in which a shared line may be written once: what leases are refilled at.
const OPERATIONS_A_REFILL: u32 = 64;
/// Rounds of a pair in which each worker may write shared lines.
pub const REFILLS_MOST: u32 = ROUNDS as u32 / OPERATIONS_A_REFILL;

/// What one worker did to a line, at one place.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct WorkerUse {
    /// 0 or 1.
    pub worker: usize,
    /// What was done.
    pub kind: Kind,
    /// Bytes of the line: the first and the one behind the last.
    pub bytes: (u32, u32),
    /// In how many rounds.
    pub rounds: u32,
    /// The calls that led there, innermost first; of ours only.
    pub frames: Vec<SourceFrame>,
    /// What was called there, if that is not ours: a lock, a reference count.
    pub by: String,
}

/// A line that one worker wrote and the other touched.
#[derive(Clone, Debug)]
pub struct SharedLine {
    /// Its address.
    pub address: usize,
    /// The rounds in which each worker wrote it.
    pub written: [Rounds; 2],
    /// The rounds in which it went to each worker: read what the other wrote, or wrote what the other had.
    pub fetched: [Rounds; 2],
    /// Whether no byte is touched by both: another layout would part them.
    pub is_false: bool,
    /// The places, most often used first.
    pub uses: Vec<WorkerUse>,
}

impl SharedLine {
    /// Whether it goes from one to the other no more often than leases may be refilled.
    pub fn is_rare(&self) -> bool {
        self.fetches().iter().all(|rounds| *rounds <= REFILLS_MOST)
    }

    /// In how many rounds each worker wrote it.
    pub fn writes(&self) -> [u32; 2] {
        self.written.map(|rounds| rounds.count())
    }

    /// In how many rounds it went to each worker.
    pub fn fetches(&self) -> [u32; 2] {
        self.fetched.map(|rounds| rounds.count())
    }
}

/// What was found about a pair.
#[derive(Default, Debug)]
pub struct PairFindings {
    /// The lines, those written most often first.
    pub lines: Vec<SharedLine>,
    /// Lines that each worker touched.
    pub touched: [usize; 2],
}

struct Side {
    /// For each place: kind, chain, bytes, rounds.
    uses: Vec<(Kind, usize, u128, Rounds)>,
    written: Rounds,
    touched: Rounds,
    bytes: u128,
}

/// Lines of `line_bytes` (64 or 128) that both records have and one of them writes.
pub fn compare(
    records: &[ThreadRecord; 2],
    line_bytes: usize,
    symbols: &mut Symbols,
) -> PairFindings {
    let sides = [
        by_line(&records[0], line_bytes),
        by_line(&records[1], line_bytes),
    ];
    let mut found = PairFindings {
        touched: [sides[0].len(), sides[1].len()],
        ..PairFindings::default()
    };
    for (line, one) in &sides[0] {
        let Some(other) = sides[1].get(line) else {
            continue;
        };
        if one.written.count() + other.written.count() == 0 {
            continue;
        }
        found.lines.push(SharedLine {
            address: line * line_bytes,
            written: [one.written, other.written],
            fetched: fetched([one, other]),
            is_false: one.bytes & other.bytes == 0,
            uses: uses([one, other], records, symbols),
        });
    }
    found.lines.sort_by_key(|line| {
        let writes = line.writes();
        std::cmp::Reverse((writes[0] + writes[1], line.address))
    });
    found
}

/// The rounds in which a line moves to a worker, if caches keep every line until the other worker writes it. Worker 0
/// runs first in each round. The first access to a line is not counted: it takes the line from no worker, so nothing is
/// shared.
fn fetched(sides: [&Side; 2]) -> [Rounds; 2] {
    let mut fetched = [Rounds::default(); 2];
    let mut has = [false; 2];
    for round in 0..ROUNDS {
        for worker in 0..2 {
            let (mine, other) = (sides[worker], 1 - worker);
            if !mine.touched.has(round) {
                continue;
            }
            let writes = mine.written.has(round);
            let others_newer = has[other] && !has[worker] && sides[other].written.count() > 0;
            if others_newer || writes && has[other] {
                fetched[worker].add(round);
            }
            has[worker] = true;
            has[other] &= !writes;
        }
    }
    fetched
}

fn by_line(record: &ThreadRecord, line_bytes: usize) -> BTreeMap<usize, Side> {
    let parts = line_bytes / LINE;
    let mut lines = BTreeMap::new();
    for (place, touch) in &record.touches {
        let side = lines.entry(place.line / parts).or_insert_with(|| Side {
            uses: Vec::new(),
            written: Rounds::default(),
            touched: Rounds::default(),
            bytes: 0,
        });
        let bytes = u128::from(touch.bytes) << (place.line % parts * LINE);
        side.bytes |= bytes;
        side.touched.join(&touch.rounds);
        if place.kind.writes() {
            side.written.join(&touch.rounds);
        }
        side.uses
            .push((place.kind, place.chain, bytes, touch.rounds));
    }
    lines
}

/// The worker, what it did, and the calls of ours.
type Where = (usize, Kind, Vec<SourceFrame>);
/// The bytes, the rounds, and what was called.
type What = (u128, Rounds, String);

/// The places of both sides; chains that differ in others' code only, or in the callers of the calls that are kept, are
/// one place.
fn uses(sides: [&Side; 2], records: &[ThreadRecord; 2], symbols: &mut Symbols) -> Vec<WorkerUse> {
    let mut all: BTreeMap<Where, What> = BTreeMap::new();
    for (worker, side) in sides.iter().enumerate() {
        for (kind, chain, bytes, rounds) in &side.uses {
            let frames = symbols.frames(&records[worker].chains[*chain]);
            let first = frames.iter().position(SourceFrame::is_ours).unwrap_or(0);
            let by = match first.checked_sub(1) {
                Some(before) => frames[before].function.clone(),
                None => String::new(),
            };
            let ours: Vec<SourceFrame> = frames
                .into_iter()
                .filter(SourceFrame::is_ours)
                .take(CALLS)
                .collect();
            let place = all.entry((worker, *kind, ours));
            let place = place.or_insert_with(|| (0, Rounds::default(), by));
            place.0 |= bytes;
            place.1.join(rounds);
        }
    }
    let used = |((worker, kind, frames), (bytes, rounds, by)): (Where, What)| WorkerUse {
        worker,
        kind,
        bytes: (bytes.trailing_zeros(), 128 - bytes.leading_zeros()),
        rounds: rounds.count(),
        frames,
        by,
    };
    let mut all: Vec<WorkerUse> = all.into_iter().map(used).collect();
    all.sort_by_key(|used| std::cmp::Reverse((used.kind.writes(), used.rounds)));
    all
}

#[cfg(test)]
mod tests {
    use super::super::record::{LineTouch, TouchPlace};
    use super::*;

    fn record(touches: &[(usize, Kind, u64, usize)]) -> ThreadRecord {
        let mut record = ThreadRecord::default();
        record.chains.push(vec![0]);
        for (line, kind, bytes, count) in touches {
            let mut rounds = Rounds::default();
            (0..*count).for_each(|round| rounds.add(round));
            let place = TouchPlace {
                line: *line,
                kind: *kind,
                chain: 0,
            };
            let bytes = *bytes;
            record.touches.insert(place, LineTouch { bytes, rounds });
        }
        record
    }

    #[test]
    fn a_line_is_shared_if_one_writes_and_the_other_touches_it() {
        let one = record(&[
            (1, Kind::Read, 1, 9),
            (2, Kind::Read, 1, 9),
            (3, Kind::Write, 1, 9),
        ]);
        let other = record(&[
            (1, Kind::Read, 1, 9),
            (2, Kind::ReadModifyWrite, 1, 9),
            (4, Kind::Write, 1, 9),
        ]);
        let found = compare(&[one, other], 64, &mut Symbols::default());
        let lines: Vec<usize> = found.lines.iter().map(|line| line.address / 64).collect();
        assert_eq!(lines, [2]);
        assert_eq!(found.lines[0].writes(), [0, 9]);
        assert!(!found.lines[0].is_false && !found.lines[0].is_rare());
    }

    #[test]
    fn neighbours_share_a_line_falsely_and_pairs_of_lines_when_asked() {
        let one = record(&[(2, Kind::Write, 0x0f, 1), (4, Kind::Write, 1, 200)]);
        let other = record(&[(2, Kind::Write, 0xf0, 1), (5, Kind::Write, 1, 200)]);
        let records = [one, other];
        let found = compare(&records, 64, &mut Symbols::default());
        assert_eq!(found.lines.len(), 1);
        assert!(found.lines[0].is_false && found.lines[0].is_rare());
        let found = compare(&records, 128, &mut Symbols::default());
        assert_eq!(found.lines.len(), 2);
        assert!(found.lines.iter().all(|line| line.is_false));
    }

    #[test]
    fn a_line_that_goes_to_and_fro_more_than_once_in_64_rounds_is_no_refill() {
        let most = REFILLS_MOST as usize;
        for (rounds, is_rare) in [(most, true), (most + 1, false)] {
            let one = record(&[(1, Kind::AtomicWrite, 1, rounds)]);
            let other = record(&[(1, Kind::AtomicRead, 1, rounds)]);
            let found = compare(&[one, other], 64, &mut Symbols::default());
            assert_eq!(found.lines[0].is_rare(), is_rare, "{rounds}");
            // Worker 0 has it first, and takes it back each time.
            let rounds = u32::try_from(rounds).unwrap();
            assert_eq!(found.lines[0].fetches(), [rounds - 1, rounds]);
        }
    }

    #[test]
    fn a_line_that_the_other_touched_once_goes_once() {
        let one = record(&[(1, Kind::AtomicWrite, 1, 200)]);
        let other = record(&[(1, Kind::AtomicWrite, 1, 1)]);
        let found = compare(&[one, other], 64, &mut Symbols::default());
        assert_eq!(found.lines[0].fetches(), [1, 1]);
    }
}
