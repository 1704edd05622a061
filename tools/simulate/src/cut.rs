//! Power cuts: the states in which a cut may leave a device whose requests were recorded.
//!
//! A cut after event k keeps everything that was written before the last flush among the first k events. Of the writes
//! since that flush, it keeps any subset; where they overlap, they may reach the medium in any order; and any of them
//! may be torn, so that some of its 512-byte sectors are written and others are not.
//!
//! A [`Cut`] names one such state by k and a seed. Seed 0 keeps all writes, seed 1 none of the unflushed ones, seed 2
//! all with the last one torn; for every other seed, the state is drawn.

use std::fmt;

use testkit::surviving_writes;

use crate::recorder::Event;
use crate::{Base, CowDevice};
use device::BlockDevice;

/// One state that a power cut may leave.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cut {
    /// The number of events before the cut.
    pub event: usize,
    /// Decides which of the unflushed writes survive: see the module.
    pub seed: u64,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cut after event {} with seed {}", self.event, self.seed)
    }
}

/// Makes the states that cuts of a recording leave. It is fastest for cuts in ascending order of events.
pub struct Cuts {
    start: CowDevice,
    events: Vec<Event>,
    /// The device with the first `flushed` events applied. The last of them is a flush, so all of it is durable.
    durable: CowDevice,
    flushed: usize,
}

impl Cuts {
    /// Cuts a recording (see [`crate::Recorder::recording`]) that began with `start`.
    #[must_use]
    pub fn new(start: Base, events: Vec<Event>) -> Cuts {
        Cuts::over(CowDevice::new(start), events)
    }

    /// Cuts the events of a device that began with the contents of `start`, all of them durable.
    #[must_use]
    pub fn over(start: CowDevice, events: Vec<Event>) -> Cuts {
        let durable = start.clone();
        Cuts {
            start,
            events,
            durable,
            flushed: 0,
        }
    }

    /// The recorded events.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The numbers of events after which a cut can leave another state than the one before: 0, and the number of each
    /// event that writes or flushes, counted from 1.
    pub fn points(&self) -> impl Iterator<Item = usize> {
        let interesting = |event: &Event| matches!(event, Event::Write { .. } | Event::Flush);
        std::iter::once(0).chain(
            self.events
                .iter()
                .enumerate()
                .filter(move |(_, event)| interesting(event))
                .map(|(index, _)| index + 1),
        )
    }

    /// The newest mark before a cut, if any.
    #[must_use]
    pub fn mark_before(&self, event: usize) -> Option<u64> {
        self.events[..event]
            .iter()
            .rev()
            .find_map(|event| match event {
                Event::Mark(mark) => Some(*mark),
                _ => None,
            })
    }

    /// The number of writes before this cut that no flush has made durable.
    #[must_use]
    pub fn unflushed(&self, event: usize) -> usize {
        let since = self.last_flush(event);
        self.events[since..event]
            .iter()
            .filter(|event| matches!(event, Event::Write { .. }))
            .count()
    }

    /// The state that a cut leaves.
    ///
    /// # Panics
    /// If there are fewer events than `cut.event`.
    pub fn state(&mut self, cut: Cut) -> CowDevice {
        let since = self.last_flush(cut.event);
        if since < self.flushed {
            self.durable = self.start.clone();
            self.flushed = 0;
        }
        for event in &self.events[self.flushed..since] {
            if let Event::Write { offset, bytes } = event {
                write(&self.durable, *offset, bytes);
            }
        }
        self.flushed = since;
        let state = self.durable.clone();
        let pending = self.events[since..cut.event]
            .iter()
            .filter_map(|event| match event {
                Event::Write { offset, bytes } => Some((*offset, &bytes[..])),
                _ => None,
            });
        for (offset, bytes) in surviving_writes(pending.collect(), cut.event, cut.seed) {
            write(&state, offset, bytes);
        }
        state
    }

    /// Index after the last flush among the first `event` events; 0 if none of them is a flush.
    fn last_flush(&self, event: usize) -> usize {
        self.events[..event]
            .iter()
            .rposition(|event| *event == Event::Flush)
            .map_or(0, |index| index + 1)
    }
}

fn write(state: &CowDevice, offset: u64, bytes: &[u8]) {
    // The recording device has the same size and carried out this write.
    state
        .write_at(offset, bytes)
        .expect("a recorded write fits the device");
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::Recorder;

    fn recording() -> Cuts {
        let device = Recorder::new(&[0; 4096]);
        device.write_at(0, &[1; 512]).unwrap();
        device.flush().unwrap();
        device.write_at(512, &[2; 512]).unwrap();
        device.mark(7);
        device.write_at(1024, &[3; 1024]).unwrap();
        device.flush().unwrap();
        device.write_at(0, &[4; 512]).unwrap();
        let (start, events) = device.recording();
        Cuts::new(start, events)
    }

    /// The first bytes of the first four sectors.
    fn sectors(cuts: &mut Cuts, event: usize, seed: u64) -> [u8; 4] {
        let bytes = cuts.state(Cut { event, seed }).bytes();
        [bytes[0], bytes[512], bytes[1024], bytes[1536]]
    }

    #[test]
    fn what_was_flushed_stays_and_what_was_not_may_go() {
        let mut cuts = recording();
        assert_eq!(cuts.points().collect::<Vec<_>>(), [0, 1, 2, 3, 5, 6, 7]);
        assert_eq!(sectors(&mut cuts, 5, 0), [1, 2, 3, 3]);
        assert_eq!(sectors(&mut cuts, 5, 1), [1, 0, 0, 0]);
        assert_eq!(sectors(&mut cuts, 7, 1), [1, 2, 3, 3]);
        assert_eq!(sectors(&mut cuts, 7, 0), [4, 2, 3, 3]);
        // Going back works too.
        assert_eq!(sectors(&mut cuts, 1, 1), [0, 0, 0, 0]);
        assert_eq!((cuts.mark_before(3), cuts.mark_before(4)), (None, Some(7)));
        assert_eq!(cuts.unflushed(5), 2);
    }

    #[test]
    fn drawn_states_reach_every_subset_and_every_tear() {
        let mut cuts = recording();
        let seen: HashSet<[u8; 4]> = (3..400).map(|seed| sectors(&mut cuts, 5, seed)).collect();
        let expected: HashSet<[u8; 4]> = [0, 2]
            .into_iter()
            .flat_map(|first| [[0, 0], [3, 0], [0, 3], [3, 3]].map(|[a, b]| [1, first, a, b]))
            .collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn overlapping_writes_may_change_places() {
        let device = Recorder::new(&[0; 512]);
        device.write_at(0, &[1; 512]).unwrap();
        device.write_at(0, &[2; 512]).unwrap();
        let (start, events) = device.recording();
        let mut cuts = Cuts::new(start, events);
        let seen: HashSet<u8> = (3..100)
            .map(|seed| cuts.state(Cut { event: 2, seed }).bytes()[0])
            .collect();
        assert_eq!(seen, HashSet::from([0, 1, 2]));
    }

    #[test]
    fn the_same_cut_is_the_same_state() {
        let (mut one, mut two) = (recording(), recording());
        for seed in 0..50 {
            let cut = Cut { event: 7, seed };
            assert_eq!(one.state(cut).bytes(), two.state(cut).bytes());
        }
    }
}
