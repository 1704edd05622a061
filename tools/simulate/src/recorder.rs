//! A device that remembers what was written and flushed in which order, and fails on request.
//!
//! Reads see all writes at once, as with a device's own cache. A write, flush or discard is recorded when it has been
//! carried out, all under one lock ([`Rank::DeviceOrder`]), so that the order of events is one that a device could
//! have seen.

use std::ops::Range;

use device::{BlockDevice, DeviceError};
use sync::atomic::{AtomicU64, Ordering};
use sync::gauge::{self, Reading};
use sync::{Arc, Mutex, Rank, schedule};

use crate::{Base, CowDevice, Cuts};

/// Bytes of a sector.
const SECTOR: u64 = 512;

/// Something that a device was asked to do, and did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// These bytes were written at this byte.
    Write {
        /// Where.
        offset: u64,
        /// What.
        bytes: Arc<[u8]>,
    },
    /// Everything written before is durable from here on.
    Flush,
    /// A range was given up. Its bytes are kept: they may read as anything, the old bytes included.
    Discard(Range<u64>),
    /// The test's own mark, for instance that an operation of this number has returned.
    Mark(u64),
}

/// What fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The n-th read from now on, counted from 0.
    Read(u64),
    /// The n-th write.
    Write(u64),
    /// The n-th flush.
    Flush(u64),
}

/// A recording device.
pub struct Recorder {
    start: CowDevice,
    live: CowDevice,
    /// What happened, and what was under way then. [device order]
    events: Mutex<(Vec<Event>, Vec<Reading>)>,
    /// Requests left until the next fault of each kind (read, write, flush); `u64::MAX` is never, 0 has failed and
    /// fails on. [atomic: Relaxed]
    left: [AtomicU64; 3],
    sticky: bool,
}

impl Recorder {
    /// A device with these contents, all durable.
    #[must_use]
    pub fn new(contents: &[u8]) -> Recorder {
        Recorder::over(&CowDevice::new(contents.into()))
    }

    /// A device with the contents of another, all durable.
    #[must_use]
    pub fn over(start: &CowDevice) -> Recorder {
        Recorder {
            live: start.clone(),
            start: start.clone(),
            events: Mutex::new(Rank::DeviceOrder, (Vec::new(), Vec::new())),
            left: [const { AtomicU64::new(u64::MAX) }; 3],
            sticky: false,
        }
    }

    /// As [`Recorder::new`], and fails at `fault`: once, or from then on if `sticky`.
    #[must_use]
    pub fn failing(contents: &[u8], fault: Fault, sticky: bool) -> Recorder {
        Recorder::over(&CowDevice::new(contents.into())).fails(fault, sticky)
    }

    /// The same device, which fails at `fault`: once, or from then on if `sticky`.
    #[must_use]
    pub fn fails(self, fault: Fault, sticky: bool) -> Recorder {
        let mut recorder = self;
        let (kind, n) = match fault {
            Fault::Read(n) => (0, n),
            Fault::Write(n) => (1, n),
            Fault::Flush(n) => (2, n),
        };
        recorder.left[kind] = AtomicU64::new(n.saturating_add(1));
        recorder.sticky = sticky;
        recorder
    }

    /// Whether the fault asked for has come up.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        // Relaxed: a test asks after joining its threads.
        self.left
            .iter()
            .any(|left| left.load(Ordering::Relaxed) == 0)
    }

    /// Adds a mark to the events.
    pub fn mark(&self, mark: u64) {
        note(&mut self.events.lock(), Event::Mark(mark));
    }

    /// The contents at the beginning, and what has happened since.
    #[must_use]
    pub fn recording(&self) -> (Base, Vec<Event>) {
        (self.start.bytes().into(), self.events.lock().0.clone())
    }

    /// The cuts of what has happened so far.
    #[must_use]
    pub fn cuts(&self) -> Cuts {
        Cuts::over(self.start.clone(), self.events.lock().0.clone())
    }

    /// How many events there were so far.
    #[must_use]
    pub fn events_so_far(&self) -> usize {
        self.events.lock().0.len()
    }

    /// What was under way at each event.
    #[must_use]
    pub fn readings(&self) -> Vec<Reading> {
        self.events.lock().1.clone()
    }

    /// The device as a reader sees it now.
    #[must_use]
    pub fn live(&self) -> CowDevice {
        self.live.clone()
    }

    /// The contents now, as a reader sees them.
    #[must_use]
    pub fn contents(&self) -> Vec<u8> {
        self.live.bytes()
    }

    /// What the device's sectors hold after a write of parts of them: a device writes whole sectors, and what is left
    /// of a sector is something that it held.
    fn whole_sectors(&self, offset: u64, bytes: &[u8]) -> Result<(u64, Arc<[u8]>), DeviceError> {
        let end = offset + bytes.len() as u64;
        let start = offset - offset % SECTOR;
        let stop = end.next_multiple_of(SECTOR).min(self.live.size());
        if (start, stop) == (offset, end) {
            return Ok((offset, bytes.into()));
        }
        // A few bytes longer than what is in memory.
        let mut whole = vec![0; (stop - start) as usize];
        self.live.read_at(start, &mut whole)?;
        Ok((start, whole.into()))
    }

    fn may_fail(
        &self,
        kind: usize,
        operation: &'static str,
        offset: u64,
        len: u64,
    ) -> Result<(), DeviceError> {
        let sticky = self.sticky;
        // Relaxed: a count; which of two requests at once fails does not matter.
        let before =
            self.left[kind].fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| match left {
                u64::MAX => None,
                0 => None,
                left => Some(left - 1),
            });
        match before {
            Ok(1) => {}
            Err(0) if sticky => {}
            _ => return Ok(()),
        }
        let source = std::io::Error::other("injected fault");
        Err(DeviceError::Io {
            operation,
            offset,
            len,
            source,
        })
    }
}

fn note(events: &mut (Vec<Event>, Vec<Reading>), event: Event) {
    events.0.push(event);
    events.1.push(gauge::read());
}

impl BlockDevice for Recorder {
    fn size(&self) -> u64 {
        self.live.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.may_fail(0, "read", offset, buf.len() as u64)?;
        self.live.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.may_fail(1, "write", offset, bytes.len() as u64)?;
        schedule::dwell();
        let mut events = self.events.lock();
        self.live.write_at(offset, bytes)?;
        let (offset, bytes) = self.whole_sectors(offset, bytes)?;
        note(&mut events, Event::Write { offset, bytes });
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.may_fail(2, "flush", 0, 0)?;
        schedule::dwell();
        note(&mut self.events.lock(), Event::Flush);
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        let mut events = self.events.lock();
        self.live.discard(range.clone())?;
        note(&mut events, Event::Discard(range));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_write_fails_once_or_from_then_on() {
        for sticky in [false, true] {
            let device = Recorder::failing(&[0; 1024], Fault::Write(1), sticky);
            assert!(device.write_at(0, &[1]).is_ok());
            assert!(!device.has_failed());
            assert!(device.write_at(1, &[1]).is_err());
            assert!(device.has_failed());
            assert_eq!(device.write_at(2, &[1]).is_err(), sticky);
            assert!(device.flush().is_ok());
            let writes = device.recording().1;
            assert_eq!(writes.len(), if sticky { 2 } else { 3 });
            assert_eq!(device.contents()[1], 0);
        }
    }
}
