//! Creases whenever they pay: the future calls are known, but the schedule is not optimized.

use foldline::Prices;
use foldline::models::crease_gain;

use crate::case::{RECENT_MESSAGES, ReplayCase};
use crate::oracle::cover::LineCover;
use crate::oracle::crease::OracleCrease;

pub(crate) fn profitable_creases(case: &ReplayCase, cover: &LineCover, prices: &Prices) -> Vec<OracleCrease> {
    let mut sums = vec![0];
    for metrics in &case.metrics {
        sums.push(sums[sums.len() - 1] + metrics.tokens);
    }
    let mut creases = Vec::new();
    // The end of the folded part of the rendering, and its tokens.
    let (mut fold_end, mut folded) = (0, 0);
    for (index, call) in case.calls.iter().enumerate() {
        let crease = OracleCrease { call: index, from: 0, to: call.start.saturating_sub(RECENT_MESSAGES) };
        if crease.to <= fold_end {
            continue;
        }
        let before = folded + sums[call.start] - sums[fold_end];
        let refolded = cover.folded_tokens(crease);
        let saved = before.saturating_sub(refolded + sums[call.start] - sums[crease.to]);
        let remaining = (case.calls.len() - index) as f64;
        if crease_gain(before, saved, remaining, prices, 0.0) > 0.0 {
            (fold_end, folded) = (crease.to, refolded);
            creases.push(crease);
        }
    }
    creases
}
