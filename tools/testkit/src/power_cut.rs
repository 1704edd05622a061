//! Power cuts: what a device was asked to do, in order, and which of its states a cut may leave.
//!
//! At a cut after event k, everything written before the last flush among the first k events is on the device. Of the
//! writes since then, any subset is, in any order where they overlap, and any of them may be torn: some of its 512-byte
//! sectors written, others not. A cut is named by k and a seed: seed 0 keeps all unflushed writes, seed 1 none, seed 2
//! all with the last one torn, and every other seed draws a subset, an order and the torn sectors.

use std::sync::Arc;

use model::Random;

/// Bytes that a device writes as a whole or not at all.
const SECTOR: u64 = 512;

/// One request that a device has carried out, or a mark of the test between two requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskEvent {
    /// A write of whole sectors.
    Write {
        /// The first byte.
        offset: u64,
        /// The sectors' bytes.
        bytes: Arc<[u8]>,
    },
    /// Every earlier write is durable.
    Flush,
    /// A mark with a meaning of the test's own.
    Mark(u64),
}

/// The writes that survive a cut, in the order in which they reach the medium; torn ones as several pieces.
///
/// `pending` are the unflushed writes in the order of the requests, each with its first byte; `event` is the number of
/// events before the cut, and `seed` chooses among the states (see the module).
#[must_use]
pub fn surviving_writes(
    mut pending: Vec<(u64, &[u8])>,
    event: usize,
    seed: u64,
) -> Vec<(u64, &[u8])> {
    let mut random = Random::new(seed ^ (event as u64).rotate_left(40));
    match seed {
        0 => pending,
        1 => Vec::new(),
        2 => {
            let torn = pending.pop();
            if let Some(write) = torn {
                tear(write, &mut random, &mut pending);
            }
            pending
        }
        _ => scatter(pending, &mut random),
    }
}

/// Any subset of the writes, in any order, each whole or torn.
fn scatter<'a>(mut pending: Vec<(u64, &'a [u8])>, random: &mut Random) -> Vec<(u64, &'a [u8])> {
    for end in (1..pending.len()).rev() {
        let other = random.below(end as u64 + 1);
        pending.swap(end, usize::try_from(other).unwrap_or(0));
    }
    // The share that survives differs between cuts, so that rare combinations occur.
    let survive = random.below(5);
    let mut surviving = Vec::new();
    for write in pending {
        match random.below(5) {
            lucky if lucky >= survive => surviving.push(write),
            _ if random.one_in(4) => tear(write, random, &mut surviving),
            _ => {}
        }
    }
    surviving
}

/// Adds some of the sectors that a write touches: the first few, the last few, or any.
fn tear<'a>(
    (offset, bytes): (u64, &'a [u8]),
    random: &mut Random,
    surviving: &mut Vec<(u64, &'a [u8])>,
) {
    let first = offset / SECTOR;
    let sectors = (offset + bytes.len() as u64).div_ceil(SECTOR) - first;
    let (kind, at) = (random.below(3), random.below(sectors + 1));
    for index in 0..sectors {
        let survives = match kind {
            0 => index < at,
            1 => index >= at,
            _ => random.one_in(2),
        };
        if survives {
            let start = ((first + index) * SECTOR).max(offset);
            let end = ((first + index + 1) * SECTOR).min(offset + bytes.len() as u64);
            // Both are within the write, whose bytes are in memory.
            let part = (start - offset) as usize..(end - offset) as usize;
            surviving.push((start, &bytes[part]));
        }
    }
}

/// A recording, and the states that cuts leave of it. Ascending cuts are cheapest.
#[derive(Clone, Debug)]
pub struct PowerCuts {
    start: Arc<[u8]>,
    events: Vec<DiskEvent>,
    /// The device's bytes after the first `flushed` events, all of them durable.
    durable: Vec<u8>,
    flushed: usize,
}

impl PowerCuts {
    /// The cuts of a device that held `start`, all of it durable, when these events began.
    #[must_use]
    pub fn new(start: Arc<[u8]>, events: Vec<DiskEvent>) -> PowerCuts {
        PowerCuts {
            durable: start.to_vec(),
            start,
            events,
            flushed: 0,
        }
    }

    /// The events recorded.
    #[must_use]
    pub fn events(&self) -> &[DiskEvent] {
        &self.events
    }

    /// The marks before a cut after this number of events, in order.
    pub fn marks_before(&self, event: usize) -> impl Iterator<Item = u64> {
        self.events[..event].iter().filter_map(|event| match event {
            DiskEvent::Mark(mark) => Some(*mark),
            _ => None,
        })
    }

    /// How many writes before this cut may be lost.
    #[must_use]
    pub fn unflushed(&self, event: usize) -> usize {
        self.pending(event).len()
    }

    /// The device's bytes after a cut.
    ///
    /// # Panics
    /// When there are fewer events.
    #[must_use]
    pub fn state(&mut self, event: usize, seed: u64) -> Vec<u8> {
        let since = self.last_flush(event);
        if since < self.flushed {
            self.durable.copy_from_slice(&self.start);
            self.flushed = 0;
        }
        for event in &self.events[self.flushed..since] {
            if let DiskEvent::Write { offset, bytes } = event {
                write(&mut self.durable, *offset, bytes);
            }
        }
        self.flushed = since;
        let mut state = self.durable.clone();
        for (offset, bytes) in surviving_writes(self.pending(event), event, seed) {
            write(&mut state, offset, bytes);
        }
        state
    }

    fn pending(&self, event: usize) -> Vec<(u64, &[u8])> {
        let events = &self.events[self.last_flush(event)..event];
        let writes = events.iter().filter_map(|event| match event {
            DiskEvent::Write { offset, bytes } => Some((*offset, &bytes[..])),
            _ => None,
        });
        writes.collect()
    }

    /// Index after the last flush among the first `event` events; 0 without a flush.
    fn last_flush(&self, event: usize) -> usize {
        let flush = |event: &DiskEvent| *event == DiskEvent::Flush;
        let last = self.events[..event].iter().rposition(flush);
        last.map_or(0, |index| index + 1)
    }
}

fn write(device: &mut [u8], offset: u64, bytes: &[u8]) {
    // The recorded device has this size and took this write.
    let start = offset as usize;
    device[start..start + bytes.len()].copy_from_slice(bytes);
}

/// Makes a write one of whole sectors of a device that holds `device` now: a device keeps or loses a sector as a whole.
#[must_use]
pub(crate) fn whole_sectors(device: &[u8], start: usize, end: usize) -> DiskEvent {
    let sector = SECTOR as usize;
    let from = start - start % sector;
    let to = end.next_multiple_of(sector).min(device.len());
    DiskEvent::Write {
        offset: from as u64,
        bytes: device[from..to].into(),
    }
}
