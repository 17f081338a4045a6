//! Calibration of our counts by the usage that providers report.
//!
//! A [`Calibration`] collects pairs of counts and returns a [`CalibrationFit`]: the reported count is about `ratio`
//! times ours plus `overhead`, and rarely more than `margin` above that. It keeps only the newest pairs and uses
//! medians, so that some absurd reports (a server that truncates, a proxy that sums up) have no effect.
//!
//! Learning and counting are separate on purpose: a count may depend only on what the caller passes in.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::tokens::{CountExactness, TokenCounter, Tokens};

/// Number of pairs that are kept.
const MAX_PAIRS: usize = 256;
/// Minimum number of pairs for a fit.
const MIN_PAIRS: usize = 3;
/// Range of plausible ratios; a report outside is about another text.
const PLAUSIBLE_RATIOS: std::ops::RangeInclusive<f64> = 0.1..=10.0;

/// Pairs of our counts and the reported counts.
///
/// ```
/// use foldline::tokens::Calibration;
///
/// let mut calibration = Calibration::default();
/// for ours in [1_000, 2_000, 5_000, 9_000] {
///     calibration.observe(ours, ours * 5 / 4 + 300);
/// }
/// let fit = calibration.fit().expect("four reports are enough");
/// assert!((fit.ratio - 1.25).abs() < 0.001);
/// assert_eq!(fit.scale(4_000) + fit.overhead, 5_300);
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Calibration {
    pairs: VecDeque<(Tokens, Tokens)>,
}

/// The relation between reported counts and ours.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalibrationFit {
    /// Reported tokens per token of our count.
    pub ratio: f64,
    /// Reported tokens per request that are not part of our count.
    pub overhead: Tokens,
    /// Relative amount by which 99 of 100 reports are at most above the fitted count.
    pub margin: f64,
}

impl Calibration {
    /// Records one request: the tokens we counted and the tokens that were reported.
    pub fn observe(&mut self, ours: Tokens, reported: Tokens) {
        let (x, y) = (ours as f64, reported as f64);
        if ours == 0 || !PLAUSIBLE_RATIOS.contains(&(y / x)) {
            return;
        }
        if self.pairs.len() == MAX_PAIRS {
            self.pairs.pop_front();
        }
        self.pairs.push_back((ours, reported));
    }

    /// Returns the line through the observed pairs, once there are enough.
    pub fn fit(&self) -> Option<CalibrationFit> {
        if self.pairs.len() < MIN_PAIRS {
            return None;
        }
        let pairs: Vec<(f64, f64)> = self.pairs.iter().map(|&(x, y)| (x as f64, y as f64)).collect();
        let (ratio, overhead) = fit_line(&pairs);
        let excess: Vec<f64> = pairs.iter().map(|(x, y)| y / (ratio * x + overhead).max(1.0) - 1.0).collect();
        // Reports far off the line are about another text and are excluded from the spread.
        let median = quantile(excess.iter().map(|share| share.abs()).collect(), 0.5);
        let near = excess.into_iter().filter(|share| share.abs() <= (median * 6.0).max(0.02)).collect();
        // Few reports give a wide margin.
        let min_margin = 0.3 / pairs.len() as f64;
        let margin = quantile(near, 0.99).max(min_margin);
        Some(CalibrationFit { ratio, overhead: overhead as Tokens, margin })
    }
}

/// Fits a line by the Theil-Sen estimator: the median of the slopes between pairs and the median of the residuals. Up
/// to a quarter of the pairs may be wrong. Without enough spread, or with a negative overhead, the line goes through
/// the origin.
fn fit_line(pairs: &[(f64, f64)]) -> (f64, f64) {
    let min = pairs.iter().map(|pair| pair.0).fold(f64::INFINITY, f64::min);
    let max = pairs.iter().map(|pair| pair.0).fold(0.0, f64::max);
    let through_origin = || (quantile(pairs.iter().map(|(x, y)| y / x).collect(), 0.5), 0.0);
    if max - min < max * 0.2 {
        return through_origin();
    }
    // Points close to each other do not determine the slope.
    let min_distance = (max - min) * 0.05;
    let slopes: Vec<f64> = pairs
        .iter()
        .enumerate()
        .flat_map(|(at, a)| pairs[at + 1..].iter().map(move |b| (b.0 - a.0, b.1 - a.1)))
        .filter(|(dx, _)| dx.abs() >= min_distance)
        .map(|(dx, dy)| dy / dx)
        .collect();
    let ratio = quantile(slopes, 0.5);
    let overhead = quantile(pairs.iter().map(|(x, y)| y - ratio * x).collect(), 0.5);
    match PLAUSIBLE_RATIOS.contains(&ratio) && overhead >= 0.0 {
        true => (ratio, overhead),
        false => through_origin(),
    }
}

/// Returns the value below which the fraction `q` of the values lies.
fn quantile(mut values: Vec<f64>, q: f64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * q).ceil() as usize]
}

impl CalibrationFit {
    /// Returns our count of a text as the provider would report it, without the overhead, which applies once per
    /// request.
    pub fn scale(&self, ours: Tokens) -> Tokens {
        (ours as f64 * self.ratio).ceil() as Tokens
    }
}

/// A counter whose counts are scaled to reported usage.
#[derive(Clone, Debug)]
pub struct CalibratedCounter<C> {
    counter: C,
    fit: CalibrationFit,
}

impl<C: TokenCounter> CalibratedCounter<C> {
    /// Scales `counter` by a fit of its own counts.
    pub fn new(counter: C, fit: CalibrationFit) -> Self {
        CalibratedCounter { counter, fit }
    }

    /// Returns the fit.
    pub fn fit(&self) -> CalibrationFit {
        self.fit
    }
}

impl<C: TokenCounter> TokenCounter for CalibratedCounter<C> {
    fn count(&self, text: &str) -> Tokens {
        self.fit.scale(self.counter.count(text))
    }

    fn exactness(&self) -> CountExactness {
        CountExactness::Calibrated
    }

    fn is_monotone(&self) -> bool {
        self.counter.is_monotone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::TokenEstimator;
    use proptest::prelude::*;

    /// Returns a growing conversation as a provider would report it: a ratio, an overhead, some noise.
    fn observed(ratio: f64, overhead: f64, reports: usize) -> Calibration {
        let mut calibration = Calibration::default();
        for step in 0..reports {
            let ours = 2_000 + step as Tokens * 900;
            let noise = 1.0 + [0.0, 0.004, -0.006, 0.01, -0.003][step % 5];
            calibration.observe(ours, (ours as f64 * ratio * noise + overhead) as Tokens);
        }
        calibration
    }

    #[test]
    fn ratio_and_overhead_are_found() {
        let fit = observed(1.35, 9_000.0, 40).fit().unwrap();
        assert!((fit.ratio - 1.35).abs() < 0.02, "{fit:?}");
        assert!(fit.overhead.abs_diff(9_000) < 400, "{fit:?}");
        assert!(fit.margin > 0.0 && fit.margin < 0.03, "{fit:?}");
    }

    /// Truncating servers, sums over several rounds, zeros: one report in six is wrong.
    #[test]
    fn outliers_do_not_change_the_fit() {
        let mut calibration = Calibration::default();
        for step in 0..60_u64 {
            let ours = 2_000 + step * 900;
            let sane = ours * 5 / 4;
            let reported = match step % 12 {
                3 => [0, Tokens::MAX, 2_050, sane * 3][step as usize / 12 % 4],
                9 => sane * 2,
                _ => sane,
            };
            calibration.observe(ours, reported);
        }
        let fit = calibration.fit().unwrap();
        assert!((fit.ratio - 1.25).abs() < 0.01, "{fit:?}");
        assert!(fit.overhead < 200 && fit.margin < 0.02, "{fit:?}");
    }

    #[test]
    fn few_reports_give_no_fit_or_a_wide_margin() {
        assert_eq!(observed(1.0, 0.0, 2).fit(), None);
        let few = observed(1.0, 0.0, 3).fit().unwrap();
        let many = observed(1.0, 0.0, 60).fit().unwrap();
        assert!(few.margin > many.margin, "{few:?} {many:?}");
    }

    /// Requests of about the same size do not determine the overhead.
    #[test]
    fn fit_without_spread_has_no_overhead() {
        let mut calibration = Calibration::default();
        for step in 0..20_u64 {
            calibration.observe(10_000 + step, 13_000);
        }
        let fit = calibration.fit().unwrap();
        assert!((fit.ratio - 1.3).abs() < 0.01 && fit.overhead == 0, "{fit:?}");
    }

    #[test]
    fn only_the_newest_reports_are_kept() {
        let mut calibration = observed(2.0, 0.0, 300);
        for step in 0..MAX_PAIRS as Tokens {
            calibration.observe(2_000 + step * 100, 2_000 + step * 100);
        }
        assert_eq!(calibration.pairs.len(), MAX_PAIRS);
        assert!((calibration.fit().unwrap().ratio - 1.0).abs() < 0.001);
    }

    #[test]
    fn calibrated_counter_scales_counts() {
        let fit = CalibrationFit { ratio: 1.5, overhead: 10, margin: 0.02 };
        let counter = CalibratedCounter::new(TokenEstimator, fit);
        assert_eq!(counter.count("some words in a row"), fit.scale(TokenEstimator.count("some words in a row")));
        assert_eq!((counter.exactness(), counter.is_monotone()), (CountExactness::Calibrated, true));
    }

    proptest! {
        #[test]
        fn arbitrary_reports_give_a_plausible_fit(pairs in prop::collection::vec((any::<Tokens>(), any::<Tokens>()), 0..40)) {
            let mut calibration = Calibration::default();
            for (ours, reported) in pairs {
                calibration.observe(ours, reported);
            }
            if let Some(fit) = calibration.fit() {
                prop_assert!(PLAUSIBLE_RATIOS.contains(&fit.ratio), "{fit:?}");
                prop_assert!(fit.margin.is_finite() && fit.margin >= 0.0, "{fit:?}");
                prop_assert!(fit.scale(Tokens::MAX) >= fit.scale(1));
            }
        }

        #[test]
        fn calibrated_estimates_are_monotone(text in any::<String>(), more in any::<String>(), ratio in 0.1..10.0) {
            let counter = CalibratedCounter::new(TokenEstimator, CalibrationFit { ratio, overhead: 0, margin: 0.0 });
            let whole = text.clone() + &more;
            prop_assert!(counter.count(&whole) >= counter.count(&text));
        }
    }
}
