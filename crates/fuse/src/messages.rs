//! How many requests of each kind the kernel has sent: counted on lines of the threads' own, without a lock.

use sync::Lanes;
use sync::atomic::{AtomicU64, Ordering};

use crate::abi::opcode;

/// The counts of one thread, by the numbers of requests; those of requests that are not known here are together at 0.
struct Counts([AtomicU64; opcode::END]);

impl Default for Counts {
    fn default() -> Counts {
        Counts([const { AtomicU64::new(0) }; opcode::END])
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Messages(Lanes<Counts>);

impl Messages {
    /// Counts one request.
    pub(crate) fn count(&self, opcode: u32) {
        let counts = &self.0.mine().0;
        let index = usize::try_from(opcode).unwrap_or(0);
        // Relaxed: a statistic.
        counts
            .get(index)
            .unwrap_or(&counts[0])
            .fetch_add(1, Ordering::Relaxed);
    }

    /// Each kind by name, and how many came.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let sum = |opcode: u32| {
            let counts = self.0.iter().filter_map(|lane| lane.0.get(opcode as usize));
            // Relaxed: a statistic.
            counts.map(|count| count.load(Ordering::Relaxed)).sum()
        };
        let known = opcode::ALL.into_iter();
        known
            .map(move |(opcode, name)| (name, sum(opcode)))
            .chain([("unknown", sum(0))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_by_its_name() {
        let messages = Messages::default();
        for opcode in [
            opcode::CREATE,
            opcode::CREATE,
            opcode::TMPFILE,
            4711,
            u32::MAX,
        ] {
            messages.count(opcode);
        }
        let counted: Vec<_> = messages.counted().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("create", 2), ("tmpfile", 1), ("unknown", 2)]);
    }
}
