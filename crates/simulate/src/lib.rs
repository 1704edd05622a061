//! Seed in, verdict out: what a power cut or a failing device leaves of everything that writes.
//!
//! * [`Recorder`]: a device that remembers each write and flush in order, and fails the n-th when told to.
//! * [`Cuts`]: every state in which the power may have been cut during what was recorded.
//! * [`CowDevice`]: such a state as a device of its own, cheap to make by the thousand.
//!
//! Everything follows from the events recorded and a [`Cut`]'s two numbers, which a failure prints.

mod cow;
mod cut;
mod recorder;

pub use cow::CowDevice;
pub use cut::{Cut, Cuts};
pub use recorder::{Event, Fault, Recorder};
