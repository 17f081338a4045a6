//! Bootstrap intervals over conversations.

use serde::Serialize;

/// A value with its 95 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct IntervalEstimate {
    /// The value over all conversations.
    pub value: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// Number of bootstrap samples.
const BOOTSTRAP_SAMPLES: usize = 1_000;

/// Computes the interval of a statistic over a sample of `count` conversations. Values that are
/// compared are paired by computing them from the same sample.
pub(crate) fn bootstrap(count: usize, statistic: impl Fn(&[usize]) -> f64) -> IntervalEstimate {
    let all: Vec<usize> = (0..count).collect();
    let value = statistic(&all);
    if count < 2 {
        return IntervalEstimate { value, low: value, high: value };
    }
    let mut random = SplitMix(0x5eed);
    let mut draw = all;
    let mut values: Vec<f64> = (0..BOOTSTRAP_SAMPLES)
        .map(|_| {
            draw.iter_mut().for_each(|at| *at = random.below(count));
            statistic(&draw)
        })
        .collect();
    values.sort_by(f64::total_cmp);
    IntervalEstimate {
        value,
        low: values[BOOTSTRAP_SAMPLES / 40],
        high: values[BOOTSTRAP_SAMPLES - 1 - BOOTSTRAP_SAMPLES / 40],
    }
}

/// SplitMix64: the same sequence on every machine.
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    pub(crate) fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.next()) * count as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The interval of a mean narrows with the square root of the count.
    #[test]
    fn interval_contains_value_and_narrows_with_count() {
        let width = |count: usize| {
            let estimate =
                bootstrap(count, |draw| draw.iter().map(|at| (at % 2) as f64).sum::<f64>() / draw.len() as f64);
            assert!(estimate.low < estimate.value && estimate.value < estimate.high);
            estimate.high - estimate.low
        };
        let ratio = width(20) / width(2_000);
        assert!((7.0..14.0).contains(&ratio), "{ratio}");
    }

    #[test]
    fn one_conversation_has_no_interval() {
        let estimate = bootstrap(1, |draw| draw.len() as f64);
        assert_eq!((estimate.low, estimate.high), (1.0, 1.0));
    }
}
