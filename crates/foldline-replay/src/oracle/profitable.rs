//! Creases whenever they pay: the future calls are known, the schedule is not searched for.

use foldline::{Prices, crease_gain};

use crate::case::{RECENT_MESSAGES, ReplayCase};
use crate::oracle::OracleCrease;
use crate::oracle::cover::LineCover;

pub(crate) fn profitable_creases(case: &ReplayCase, cover: &LineCover, prices: &Prices) -> Vec<OracleCrease> {
    let mut sums = vec![0];
    for measured in &case.metrics {
        sums.push(sums[sums.len() - 1] + measured.tokens);
    }
    let mut creases = Vec::new();
    // Up to where the rendering is folded, and the tokens of that.
    let (mut upto, mut folded) = (0, 0);
    for (index, call) in case.calls.iter().enumerate() {
        let crease = OracleCrease { call: index, from: 0, to: call.start.saturating_sub(RECENT_MESSAGES) };
        if crease.to <= upto {
            continue;
        }
        let before = folded + sums[call.start] - sums[upto];
        let anew = cover.folded_tokens(crease);
        let saved = before.saturating_sub(anew + sums[call.start] - sums[crease.to]);
        let remaining = (case.calls.len() - index) as f64;
        if crease_gain(before, saved, remaining, prices, 0.0) > 0.0 {
            (upto, folded) = (crease.to, anew);
            creases.push(crease);
        }
    }
    creases
}
