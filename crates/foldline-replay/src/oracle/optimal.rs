//! The cheapest schedule of creases for the cover, by dynamic programming.
//!
//! A crease either folds the messages since the previous one and leaves the rest frozen, or folds
//! everything again and starts an epoch. Inside an epoch costs add up over pairs of neighboring
//! creases: the messages a crease folded are written once and read at every later call of its epoch. Epochs
//! add up as well, so two nested shortest paths find the best of all schedules over the candidate
//! calls: all of them, or evenly sampled in a long conversation.

use foldline::Prices;

use crate::case::{RECENT_MESSAGES, ReplayCase};
use crate::oracle::cover::LineCover;
use crate::oracle::crease::OracleCrease;

/// Maximum candidate calls for creases; the search cost grows with the number of pairs.
const MAX_CANDIDATES: usize = 64;

pub(crate) fn cheapest_schedule(case: &ReplayCase, cover: &LineCover, prices: &Prices) -> Vec<OracleCrease> {
    let calls = case.calls.len();
    if calls == 0 {
        return Vec::new();
    }
    let costs = ScheduleCosts::new(case, cover, prices);
    let last = costs.calls.len() - 1;
    // The lowest cost up to the epoch that ends at each candidate, and the start of that epoch.
    let mut best = vec![(f64::INFINITY, 0); last + 1];
    best[0].0 = 0.0;
    for end in 1..=last {
        let (inner, _) = costs.epoch_costs(end);
        for start in 0..end {
            let cost = best[start].0 + costs.epoch_start_cost(start, end) + inner[start];
            if cost < best[end].0 {
                best[end] = (cost, start);
            }
        }
    }
    let mut epochs = Vec::new();
    let mut end = last;
    while end > 0 {
        let start = best[end].1;
        epochs.push((start, end));
        end = start;
    }
    let mut creases = Vec::new();
    for (start, end) in epochs.into_iter().rev() {
        let (_, next) = costs.epoch_costs(end);
        if start > 0 {
            creases.push(costs.crease_between(0, start));
        }
        let mut at = start;
        while let Some(to) = next[at] {
            creases.push(costs.crease_between(at, to));
            at = to;
        }
    }
    creases
}

struct ScheduleCosts {
    /// The candidates: indices of calls. The first is the beginning and not a crease, the last is after
    /// the last call.
    calls: Vec<usize>,
    /// The end of the messages that a crease at each candidate folds.
    fold_ends: Vec<usize>,
    /// Tokens between the fold and the end of the request at each candidate.
    tail_tokens: Vec<f64>,
    /// Tokens after folding, at the second candidate, the messages since the first.
    folded_tokens: Vec<Vec<f64>>,
    /// Cost of the unfolded messages at the calls strictly between two candidates.
    interval_costs: Vec<Vec<f64>>,
    read_price: f64,
    write_price: f64,
}

impl ScheduleCosts {
    fn new(case: &ReplayCase, cover: &LineCover, prices: &Prices) -> Self {
        let total = case.calls.len();
        let step = total.div_ceil(MAX_CANDIDATES).max(1);
        let mut calls: Vec<usize> = (0..total).step_by(step).collect();
        calls.push(total);
        let mut sums = vec![0.0];
        for metrics in &case.metrics {
            sums.push(sums[sums.len() - 1] + metrics.tokens as f64);
        }
        let end_of = |call: usize| case.calls.get(call).map_or(case.messages.len(), |call| call.start);
        let ends: Vec<usize> = calls.iter().map(|&call| end_of(call)).collect();
        let mut fold_ends: Vec<usize> = ends.iter().map(|end| end.saturating_sub(RECENT_MESSAGES)).collect();
        fold_ends[0] = 0;
        let tail_tokens = fold_ends.iter().zip(&ends).map(|(&from, &to)| sums[to] - sums[from]).collect();
        let mut costs = Self {
            calls,
            fold_ends,
            tail_tokens,
            folded_tokens: Vec::new(),
            interval_costs: Vec::new(),
            read_price: prices.read,
            write_price: prices.write,
        };
        let count = costs.calls.len();
        for from in 0..count {
            let mut folded = vec![0.0; count];
            let mut between = vec![0.0; count];
            let mut so_far = 0.0;
            let mut call = costs.calls[from] + 1;
            for to in from + 1..count {
                if to + 1 < count {
                    folded[to] = cover.folded_tokens(costs.crease_between(from, to)) as f64;
                }
                while call < costs.calls[to] {
                    let (before, now) = (end_of(call - 1), end_of(call));
                    so_far += prices.read * (sums[before] - sums[costs.fold_ends[from]])
                        + prices.write * (sums[now] - sums[before]);
                    call += 1;
                }
                between[to] = so_far;
                // The candidate's own call, for the case that it has no crease.
                if to + 1 < count {
                    let (before, now) = (end_of(call - 1), end_of(call));
                    so_far += prices.read * (sums[before] - sums[costs.fold_ends[from]])
                        + prices.write * (sums[now] - sums[before]);
                    call += 1;
                }
            }
            costs.folded_tokens.push(folded);
            costs.interval_costs.push(between);
        }
        costs
    }

    fn crease_between(&self, from: usize, to: usize) -> OracleCrease {
        OracleCrease {
            call: self.calls[to],
            from: self.fold_ends[from],
            to: self.fold_ends[to].max(self.fold_ends[from]),
        }
    }

    /// Returns the cost of starting an epoch at `start` by folding everything again, read until `end`.
    fn epoch_start_cost(&self, start: usize, end: usize) -> f64 {
        if start == 0 {
            // The first request of the conversation is written unchanged.
            return self.write_price * self.tail_tokens[0];
        }
        self.crease_cost(0, start, end)
    }

    fn crease_cost(&self, from: usize, to: usize, end: usize) -> f64 {
        let later = (self.calls[end] - 1).saturating_sub(self.calls[to]) as f64;
        self.write_price * (self.folded_tokens[from][to] + self.tail_tokens[to])
            + self.read_price * self.folded_tokens[from][to] * later
    }

    /// Returns for each candidate the lowest cost from a crease there to the end of its epoch, and the next
    /// crease on that path.
    fn epoch_costs(&self, end: usize) -> (Vec<f64>, Vec<Option<usize>>) {
        let mut cost: Vec<f64> = (0..end).map(|from| self.interval_costs[from][end]).collect();
        let mut next = vec![None; end];
        for from in (0..end).rev() {
            for to in from + 1..end {
                let path_cost = self.interval_costs[from][to] + self.crease_cost(from, to, end) + cost[to];
                if path_cost < cost[from] {
                    cost[from] = path_cost;
                    next[from] = Some(to);
                }
            }
        }
        (cost, next)
    }
}
