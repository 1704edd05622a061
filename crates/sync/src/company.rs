//! How long a leader waits for company: for other threads that want the same flush or commit.
//!
//! Threads that the last flush or commit released often come back at once, and a thread that comes too late waits for
//! another whole one. An eighth of the last one's time costs the waiting threads little, and is enough for a thread
//! that is on its way. Pure.

use crate::clock::Duration;

/// The part of the last one's time that a leader waits at most.
const PART: u32 = 8;
/// However long that took.
const LONGEST: Duration = Duration::from_millis(2);
/// What is too short to wait for: a switch to another thread takes as long.
const SHORTEST: Duration = Duration::from_micros(10);

/// How long a leader waits for expected threads, if the last flush or commit took `took`; `None` if it does not wait.
#[must_use]
pub fn patience(took: Duration) -> Option<Duration> {
    let patience = (took / PART).min(LONGEST);
    (patience >= SHORTEST).then_some(patience)
}

/// Whether waits are worth it. After a wait in which no other thread came, the next wait is left out. After each
/// further such wait, twice that number and one more are left out, because some threads never come in time.
#[derive(Default, Debug)]
pub struct Doubt {
    /// How many waits are left out before the next.
    left: u32,
    /// And were after the last.
    last: u32,
}

/// Waits that are left out one after the other, at most.
const LEFT_OUT: u32 = 15;

impl Doubt {
    /// Whether to wait this time.
    pub fn waits(&mut self) -> bool {
        let waits = self.left == 0;
        self.left = self.left.saturating_sub(1);
        waits
    }

    /// What came of a wait.
    pub fn came(&mut self, anybody: bool) {
        self.last = if anybody {
            0
        } else {
            (2 * self.last + 1).min(LEFT_OUT)
        };
        self.left = self.last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_each_wait_in_vain_more_are_left_out() {
        let mut doubt = Doubt::default();
        let mut left_out = |came| {
            let left_out = (0..).take_while(|_| !doubt.waits()).count();
            doubt.came(came);
            left_out
        };
        let waits = [
            false, false, false, false, false, false, true, true, false, true,
        ];
        let expected = [0, 1, 3, 7, 15, 15, 15, 0, 0, 1];
        assert_eq!(waits.map(&mut left_out), expected);
    }

    #[test]
    fn an_eighth_is_waited_between_the_bounds() {
        let micros = Duration::from_micros;
        let expected = [
            (0, None),
            (79, None),
            (80, Some(10)),
            (1000, Some(125)),
            (16_000, Some(2000)),
            (1_000_000, Some(2000)),
        ];
        for (took, waited) in expected {
            assert_eq!(patience(micros(took)), waited.map(micros), "{took}");
        }
    }
}
