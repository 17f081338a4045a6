//! Creases whenever they pay: the future calls are known, the schedule is not searched for.

use foldline::{Prices, crease_gain};

use super::Crease;
use super::cover::Cover;
use crate::case::{Case, RECENT};

pub(super) fn creases(case: &Case, cover: &Cover, prices: &Prices) -> Vec<Crease> {
    let mut sums = vec![0];
    for measured in &case.measured {
        sums.push(sums[sums.len() - 1] + measured.tokens);
    }
    let mut creases = Vec::new();
    // Up to where the rendering is folded, and the tokens of that.
    let (mut upto, mut folded) = (0, 0);
    for (index, call) in case.calls.iter().enumerate() {
        let crease = Crease { call: index, from: 0, to: call.at.saturating_sub(RECENT) };
        if crease.to <= upto {
            continue;
        }
        let before = folded + sums[call.at] - sums[upto];
        let anew = cover.tokens(crease);
        let saved = before.saturating_sub(anew + sums[call.at] - sums[crease.to]);
        let remaining = (case.calls.len() - index) as f64;
        if crease_gain(before, saved, remaining, prices, 0.0) > 0.0 {
            (upto, folded) = (crease.to, anew);
            creases.push(crease);
        }
    }
    creases
}
