//! The results of a run, for its report and its files.

use lanefs_bench::{Speed, Suite, Table};

/// What a run ran on.
pub struct Beneath {
    /// The names and figures of the machine.
    pub machine: Vec<(&'static str, String)>,
    /// The speed of each device.
    pub devices: Vec<Speed>,
}

/// The tables of one bench.
pub struct Measured {
    /// The bench.
    pub suite: Suite,
    /// Its tables.
    pub tables: Vec<Table>,
}
