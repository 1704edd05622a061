//! Ratios of pairs, with an interval that says how sure they are.

use model::Random;

/// Draws from which an interval is taken.
const DRAWS: usize = 4000;

/// A ratio, and the interval that holds the true one 95 times of 100.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ratio {
    /// The geometric mean of the pairs' ratios.
    pub mean: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// How many pairs.
    pub pairs: usize,
}

/// The ratio of pairs `(a, b)`, as `a / b`; the interval is a bootstrap's over the logarithms. `None` without pairs, or
/// where a value is not above zero.
#[must_use]
pub fn ratio(pairs: &[(f64, f64)], seed: u64) -> Option<Ratio> {
    let logs: Vec<f64> = pairs.iter().map(|(a, b)| (a / b).ln()).collect();
    if logs.is_empty() || logs.iter().any(|log| !log.is_finite()) {
        return None;
    }
    let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / logs.len() as f64;
    let mut random = Random::new(seed);
    let mut means: Vec<f64> = (0..DRAWS)
        .map(|_| mean(&mut (0..logs.len()).map(|_| logs[random.index(logs.len())])))
        .collect();
    means.sort_by(f64::total_cmp);
    Some(Ratio {
        mean: mean(&mut logs.iter().copied()).exp(),
        low: means[DRAWS / 40].exp(),
        high: means[DRAWS - 1 - DRAWS / 40].exp(),
        pairs: logs.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_holds_the_ratio_and_narrows_with_more_pairs() {
        let mut random = Random::new(2);
        let mut pairs = |count: usize| -> Vec<(f64, f64)> {
            let mut noise = || 1.0 + random.index(1000) as f64 / 10_000.0;
            (0..count).map(|_| (1.2 * noise(), noise())).collect()
        };
        let few = ratio(&pairs(10), 7).unwrap();
        let many = ratio(&pairs(300), 7).unwrap();
        for found in [few, many] {
            assert!(found.low < 1.2 && 1.2 < found.high, "{found:?}");
            assert!(found.low <= found.mean && found.mean <= found.high);
        }
        assert!(many.high - many.low < few.high - few.low);
        assert_eq!(ratio(&[], 1), None);
        assert_eq!(ratio(&[(0.0, 1.0)], 1), None);
    }
}
