//! A rotating disk, as a model: a device in memory that adds up how long each request would take, and counts what part
//! of the file system it was for. The clock is virtual; nobody waits.
//!
//! Reads go to the medium at once, unless they follow the one before closely enough for the drive to have read on.
//! Writes collect in the queue and go to the medium in ascending order from the head's place on (then from the start),
//! merged where they touch: when there are [`QUEUE`] of them, and at each flush. One lock ([`Rank::DeviceOrder`]) for
//! all requests.

use std::collections::BTreeMap;
use std::ops::Range;

use device::{BlockDevice, DeviceError, MemoryDevice};
use sync::{Mutex, OnceLock, Rank};

use crate::regions::{REGIONS, Regions};

/// Requests that wait to be sorted: as Linux's default.
const QUEUE: usize = 128;
/// Seconds to the next track, and across all of the disk; in between it grows with the root of the distance: 8.6 ms in
/// the mean.
const SEEK: (f64, f64) = (0.0008, 0.0155);
/// Seconds of half a turn at 7200 a minute.
const HALF_TURN: f64 = 60.0 / 7200.0 / 2.0;
/// Bytes a second from and to the medium.
const RATE: f64 = 60e6;
/// Bytes that the drive reads on.
const READ_ON: u64 = 64 << 10;

/// The parameters of the model, to be printed beside its times.
pub const MODEL: &str = "Disk model: 7200 turns a minute, seeks of 0.8 to 15.5 ms growing with the root of the \
                         distance, 60 MB/s, 64 KiB read on, writes sorted 128 at a time and at each flush";

/// What was done, in requests to the medium and in seconds of the virtual clock.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Account {
    /// Seconds.
    pub(crate) seconds: f64,
    /// Blocks of 4 KiB read, by [`REGIONS`].
    pub(crate) read: [u64; REGIONS.len()],
    /// Blocks of 4 KiB written, by [`REGIONS`].
    pub(crate) written: [u64; REGIONS.len()],
    /// Times that the head moved.
    pub(crate) seeks: u64,
}

impl Account {
    /// What came since.
    pub(crate) fn since(&self, before: &Account) -> Account {
        let less = |now: [u64; REGIONS.len()], then: [u64; REGIONS.len()]| {
            std::array::from_fn(|index| now[index] - then[index])
        };
        Account {
            seconds: self.seconds - before.seconds,
            read: less(self.read, before.read),
            written: less(self.written, before.written),
            seeks: self.seeks - before.seeks,
        }
    }
}

#[derive(Default)]
struct State {
    /// The byte at which the head is.
    head: u64,
    /// Where the last read ended; the drive has what follows.
    last_read: u64,
    /// Writes that wait: where they begin and end.
    queue: BTreeMap<u64, u64>,
    account: Account,
}

/// The device.
pub(crate) struct Spindle {
    inner: MemoryDevice,
    regions: OnceLock<Regions>,
    /// [device order]
    state: Mutex<State>,
}

impl Spindle {
    pub(crate) fn new(size: u64) -> Spindle {
        Spindle {
            inner: MemoryDevice::new(size),
            regions: OnceLock::new(),
            state: Mutex::new(Rank::DeviceOrder, State::default()),
        }
    }

    /// Counts by these regions from now on; before this call all requests count as "other".
    pub(crate) fn set_regions(&self, regions: Regions) {
        // Told once; a second time changes nothing.
        let _ = self.regions.set(regions);
    }

    /// What was done so far, with all that waited written.
    pub(crate) fn account(&self) -> Account {
        let mut state = self.state.lock();
        self.drain(&mut state);
        state.account
    }

    /// The bytes beneath.
    pub(crate) fn memory(&self) -> &MemoryDevice {
        &self.inner
    }

    fn count(&self, range: &Range<u64>, counts: &mut [u64; REGIONS.len()]) {
        let mut at = range.start;
        while at < range.end {
            let region = self
                .regions
                .get()
                .map_or(REGIONS.len() - 1, |map| map.find(at));
            counts[region] += 1;
            at = (at / 4096 + 1) * 4096;
        }
    }

    /// Moves the head there and over the range.
    fn pass(&self, state: &mut State, range: &Range<u64>) {
        let ahead = range.start.checked_sub(state.head);
        let distance = range.start.abs_diff(state.head) as f64 / self.inner.size() as f64;
        let far = SEEK.0 + (SEEK.1 - SEEK.0) * distance.sqrt() + HALF_TURN;
        // A short gap passes under the head.
        let near = ahead.map_or(f64::INFINITY, |gap| gap as f64 / RATE);
        state.account.seeks += u64::from(far < near);
        state.account.seconds += far.min(near) + (range.end - range.start) as f64 / RATE;
        state.head = range.end;
    }

    /// Writes all that waits.
    fn drain(&self, state: &mut State) {
        let queue = std::mem::take(&mut state.queue);
        let head = state.head;
        let (ahead, behind) = (queue.range(head..), queue.range(..head));
        let mut run: Option<Range<u64>> = None;
        for (start, end) in ahead.chain(behind).map(|(start, end)| (*start, *end)) {
            match &mut run {
                Some(run) if run.start <= start && start <= run.end => run.end = run.end.max(end),
                other => {
                    let done = other.replace(start..end);
                    if let Some(done) = done {
                        self.pass(state, &done);
                    }
                }
            }
        }
        if let Some(done) = run {
            self.pass(state, &done);
        }
    }
}

impl BlockDevice for Spindle {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let range = offset..offset + buf.len() as u64;
        let mut state = self.state.lock();
        let waiting = state.queue.range(..=offset).next_back();
        if waiting.is_none_or(|(_, end)| *end < range.end) {
            self.count(&range, &mut state.account.read);
            if (state.last_read..=state.last_read + READ_ON).contains(&offset) {
                let bytes = range.end.saturating_sub(state.last_read);
                state.account.seconds += bytes as f64 / RATE;
                state.head = range.end;
            } else {
                self.pass(&mut state, &range);
            }
            state.last_read = range.end;
        }
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let range = offset..offset + bytes.len() as u64;
        let mut state = self.state.lock();
        self.count(&range, &mut state.account.written);
        let end = state.queue.entry(range.start).or_insert(range.end);
        *end = range.end.max(*end);
        if state.queue.len() >= QUEUE {
            self.drain(&mut state);
        }
        self.inner.write_at(offset, bytes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.drain(&mut self.state.lock());
        self.inner.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        self.inner.discard(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_requests_cost_less_than_far_ones_and_sorted_writes_less_than_single_ones() {
        let time = |requests: &dyn Fn(&Spindle)| {
            let disk = Spindle::new(1 << 30);
            requests(&disk);
            disk.account()
        };
        let block = [1; 4096];
        let places = (0..64_u64).map(|number| (number * 37 % 64) << 24);
        let places: Vec<u64> = places.collect();
        let one_by_one = time(&|disk| {
            for place in &places {
                disk.write_at(*place, &block).unwrap();
                disk.flush().unwrap();
            }
        });
        let at_once = time(&|disk| {
            for place in &places {
                disk.write_at(*place, &block).unwrap();
            }
        });
        let in_a_row = time(&|disk| {
            for number in 0..64 {
                disk.write_at(number * 4096, &block).unwrap();
            }
        });
        assert!(one_by_one.seconds > 1.2 * at_once.seconds);
        assert!(at_once.seconds > 50.0 * in_a_row.seconds);
        assert_eq!(
            (in_a_row.seeks, in_a_row.written.iter().sum::<u64>()),
            (0, 64)
        );
        let random_reads = time(&|disk| {
            for place in &places {
                disk.read_at(*place, &mut [0; 4096]).unwrap();
            }
        });
        // Seeks of some 8 ms and half a turn each.
        let each = random_reads.seconds / 64.0;
        assert!((0.008..0.017).contains(&each), "{each}");
    }
}
