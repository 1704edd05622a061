//! Handles that a seal waited for too long, counted by the place in the code that began them.
//!
//! Each thread has a table of its own, under a lock of its own ([`Rank::Leaf`]). Nothing here is on disk.

use std::collections::BTreeMap;
use std::panic::Location;

use sync::{Lanes, Mutex, Rank};

/// A file, a line, and how often.
type Places = BTreeMap<(&'static str, u32), u64>;

/// Which places in the code had handles open for long, and how often: a step that does too much, or a thread that lost
/// its core. A table a thread, touched by its long handles only. [leaf]
pub(crate) struct LongHandles(Lanes<Table>);

impl Default for LongHandles {
    fn default() -> LongHandles {
        let tables: Lanes<Table> = Lanes::new();
        // Makes the first threads' tables at once, not while handles are long.
        tables.mine();
        LongHandles(tables)
    }
}

impl LongHandles {
    /// Counts a handle that was long.
    pub(crate) fn count(&self, site: &'static Location<'static>) {
        let place = (site.file(), site.line());
        let table = &self.0.mine().0;
        *table.lock().entry(place).or_insert(0) += 1;
    }

    /// The places (file, line), and how many long handles each began.
    pub(crate) fn all(&self) -> Vec<(String, u64)> {
        let mut all = Places::new();
        for table in self.0.iter() {
            for (place, count) in table.0.lock().iter() {
                *all.entry(*place).or_insert(0) += count;
            }
        }
        let places = all.into_iter();
        places
            .map(|((file, line), count)| (format!("{file}:{line}"), count))
            .collect()
    }
}

struct Table(Mutex<Places>);

impl Default for Table {
    fn default() -> Table {
        Table(Mutex::new(Rank::Leaf, Places::new()))
    }
}
