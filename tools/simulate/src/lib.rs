//! Seed in, verdict out: everything that writes, run on devices that forget and fail, by threads that a seed schedules,
//! and judged by the model, e2fsck and our own checker.
//!
//! * [`Recorder`], [`Cuts`], [`CowDevice`]: a device that remembers its requests, and the states that a power cut may
//!   leave of them.
//! * [`Executor`]: the model's operations on the engine; [`Trace`]: what several threads did, and what may be left.
//! * [`Sweep`]: cut, recover, compare, check. [`sequences`], [`seeds`], [`faults`], [`steps`] and [`histories`] say
//!   what is run; [`canaries`] shows that what is wrong is found.
//!
//! Nothing here is part of what is shipped. One line of `cargo xtask crash` repeats any failure.

mod area;
pub mod canaries;
mod cow;
mod cut;
mod executor;
pub mod faults;
pub mod histories;
pub mod image;
mod judge;
mod others;
mod recorder;
pub mod seeds;
pub mod sequences;
pub mod setting;
mod slow;
pub mod steps;
mod sweep;
mod times;
mod trace;
mod verdict;

pub use area::JournalPlace;
pub use cow::{Base, CowDevice};
pub use cut::{Cut, Cuts};
pub use executor::{Executor, OpRefusal, brief, parts, tree};
pub use judge::ImageJudge;
pub use others::{Compared, Others};
pub use recorder::{Event, Fault, Recorder};
pub use setting::RunSetting;
pub use slow::SlowFlush;
pub use sweep::{Depth, Explains, Sweep, SweepCounts, caught, read, recover};
pub use times::{RunTimes, SimulatedClock};
pub use trace::{Call, Trace};
