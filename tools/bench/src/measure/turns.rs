//! The order in which columns are measured, which is different in each round. No locks.
//!
//! A sample is affected by what ran before it (caches, the host's memory, writeback that is still running). A column
//! that followed the same other column in each round would always be affected by that one.

use model::Random;

/// The most orders that are drawn for a round; the one with the fewest repetitions is used.
const DRAWS: usize = 32;

/// Gives each round its order of columns.
#[derive(Debug)]
pub(crate) struct Turns {
    random: Random,
    /// How often a column followed another, by the column and the one before it; a first column counts as following
    /// itself.
    followed: Vec<Vec<usize>>,
}

impl Turns {
    /// The order of `columns` columns.
    pub(crate) fn new(columns: usize, seed: u64) -> Turns {
        Turns {
            random: Random::new(seed),
            followed: vec![vec![0; columns]; columns],
        }
    }

    /// The order of `columns` columns for each of `rows` rows.
    pub(crate) fn of_rows(rows: usize, columns: usize, seed: u64) -> Vec<Turns> {
        let mut random = Random::new(seed);
        let seeds = (0..rows).map(|_| random.bits());
        seeds.map(|seed| Turns::new(columns, seed)).collect()
    }

    /// The columns in the order of the next round: of the random orders drawn, the one that repeats neighbours least.
    pub(crate) fn next(&mut self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.followed.len()).collect();
        let mut best = (usize::MAX, Vec::new());
        for _ in 0..DRAWS {
            for place in (1..order.len()).rev() {
                order.swap(place, self.random.index(place + 1));
            }
            let repeated = self.repeated(&order);
            if repeated < best.0 {
                best = (repeated, order.clone());
            }
        }
        for (column, before) in neighbours(&best.1) {
            self.followed[column][before] += 1;
        }
        best.1
    }

    /// The cost of an order. A pair that occurred more often than others costs more than two that occurred less often.
    fn repeated(&self, order: &[usize]) -> usize {
        let of = |(column, before): (usize, usize)| self.followed[column][before].pow(2);
        neighbours(order).map(of).sum()
    }
}

/// Each column and the one before it; the first one counts as its own predecessor.
fn neighbours(order: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    let before = order.iter().take(1).chain(order);
    order.iter().copied().zip(before.copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders(columns: usize, rounds: usize, seed: u64) -> Vec<Vec<usize>> {
        let mut turns = Turns::new(columns, seed);
        (0..rounds).map(|_| turns.next()).collect()
    }

    #[test]
    fn each_column_has_one_turn_a_round_and_the_order_follows_from_the_seed() {
        for columns in [1, 2, 3, 5, 12] {
            for order in orders(columns, 8, 1) {
                let mut sorted = order;
                sorted.sort_unstable();
                assert_eq!(sorted, (0..columns).collect::<Vec<_>>());
            }
        }
        assert!(orders(0, 2, 1).iter().all(Vec::is_empty));
        assert_eq!(orders(6, 8, 1), orders(6, 8, 1));
        assert_ne!(orders(6, 8, 1), orders(6, 8, 2));
    }

    #[test]
    fn no_column_follows_the_same_one_in_most_rounds() {
        for (seed, columns) in (0..20).flat_map(|seed| [(seed, 3), (seed, 5), (seed, 12)]) {
            let rounds = 8;
            let orders = orders(columns, rounds, seed);
            for column in 0..columns {
                let mut before = vec![0; columns];
                for order in &orders {
                    let of = neighbours(order).find(|(this, _)| *this == column);
                    before[of.unwrap().1] += 1;
                }
                let most = before.iter().copied().max().unwrap();
                let different = before.iter().filter(|count| **count > 0).count();
                assert!(
                    most <= rounds / 2,
                    "{columns} columns, seed {seed}: {before:?}"
                );
                assert!(different >= 3, "{columns} columns, seed {seed}: {before:?}");
            }
        }
    }
}
