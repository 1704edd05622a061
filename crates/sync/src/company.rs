//! How long a leader waits for company: for others to ask for what it is about to do for all who asked.
//!
//! Whom the last flush or commit let go often comes back at once, and who comes too late waits for a whole one more.
//! An eighth of what that takes is little to those who are there, and enough for who is on the way. Pure.

use crate::clock::Duration;

/// The part of the last one's time that a leader waits at most.
const PART: u32 = 8;
/// However long that took.
const LONGEST: Duration = Duration::from_millis(2);
/// What is too short to wait for: a switch to another thread takes as long.
const SHORTEST: Duration = Duration::from_micros(10);

/// How long a leader waits for others who are expected, if the last flush or commit took so long; `None` if it does
/// not.
#[must_use]
pub fn patience(took: Duration) -> Option<Duration> {
    let patience = (took / PART).min(LONGEST);
    (patience >= SHORTEST).then_some(patience)
}

#[cfg(test)]
mod tests {
    use super::*;

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
