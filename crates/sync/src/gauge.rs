//! What the threads of a simulation are in the middle of: open handles, epochs not durable yet. A recording device
//! writes this next to each request, so that a power cut can be chosen by it. In builds without the feature `simulate`,
//! and on threads that are not scheduled, nothing is counted and nothing costs anything.

/// Something that threads are in the middle of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gauge {
    /// A handle is open.
    Handle,
    /// An epoch is being sealed, or is sealed and not durable yet.
    Seal,
}

/// What is under way at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Reading {
    /// Handles open.
    pub handles: u32,
    /// Epochs sealed, or being sealed, and not durable.
    pub seals: u32,
    /// When: a number that grows with everything that happens in the schedule.
    pub at: u64,
}

/// Something begins on the calling thread, and ends when the value is dropped.
#[must_use = "it ends when this is dropped"]
pub fn begin(gauge: Gauge) -> Under {
    crate::turn::count(gauge, true);
    Under(gauge)
}

/// What is under way now in the caller's schedule; all zeros outside of one.
#[must_use]
pub fn read() -> Reading {
    crate::turn::reading()
}

/// Something is under way; see [`begin`].
#[derive(Debug)]
pub struct Under(Gauge);

impl Drop for Under {
    fn drop(&mut self) {
        crate::turn::count(self.0, false);
    }
}
