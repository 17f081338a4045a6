//! Limits and spending of a summary.
//!
//! Every model call is admitted here before it is made, with its maximum cost, so that no limit is exceeded first and
//! noticed later.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldline::Prices;
use foldline::tokens::Tokens;
use foldline::wire::Usage;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// The limits of a summary.
#[derive(Clone, Debug, PartialEq)]
pub struct SummaryLimits {
    /// Turns of the root model.
    pub iterations: usize,
    /// Calls of the sub-model.
    pub sub_calls: usize,
    /// Tokens of all requests and responses together.
    pub tokens: Tokens,
    /// Cost in dollars.
    pub dollars: f64,
    /// Time for the whole summary.
    pub total_time: Duration,
    /// Time for one call.
    pub call_time: Duration,
    /// Concurrent calls of the sub-model.
    pub concurrency: usize,
    /// Retries of a call if the server is busy or fails.
    pub retries: usize,
}

impl Default for SummaryLimits {
    /// Returns 15 turns, 50 sub-calls, two million tokens, two dollars, five minutes, two per call, 4 at once, 2
    /// retries.
    fn default() -> Self {
        Self {
            iterations: 15,
            sub_calls: 50,
            tokens: 2_000_000,
            dollars: 2.0,
            total_time: Duration::from_secs(300),
            call_time: Duration::from_secs(120),
            concurrency: 4,
            retries: 2,
        }
    }
}

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LimitKind {
    /// The root model has no turn left.
    Iterations,
    /// No sub-call is left.
    SubCalls,
    /// No tokens are left.
    Tokens,
    /// No money is left.
    Dollars,
    /// No time is left.
    Time,
    /// Too many submissions were rejected.
    Refusals,
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LimitKind::Iterations => "no turn is left",
            LimitKind::SubCalls => "no sub-call is left",
            LimitKind::Tokens => "no tokens are left",
            LimitKind::Dollars => "no money is left",
            LimitKind::Time => "no time is left",
            LimitKind::Refusals => "what it handed in was refused too often",
        })
    }
}

/// The spending of a summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelSpend {
    /// Turns of the root model.
    pub iterations: usize,
    /// Calls of the sub-model.
    pub sub_calls: usize,
    /// The usage that the servers reported, or else an estimate.
    pub usage: Usage,
    /// Cost in dollars, by the prices of the models.
    pub dollars: f64,
}

impl ModelSpend {
    fn total_tokens(&self) -> Tokens {
        self.usage.input.saturating_add(self.usage.output)
    }

    /// Returns the sum of two.
    pub fn plus(self, other: ModelSpend) -> ModelSpend {
        ModelSpend {
            iterations: self.iterations + other.iterations,
            sub_calls: self.sub_calls + other.sub_calls,
            usage: self.usage.combined_with(other.usage),
            dollars: self.dollars + other.dollars,
        }
    }
}

/// The role of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelRole {
    Root,
    Sub,
}

/// The maximum cost of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallEstimate {
    pub(crate) input: Tokens,
    pub(crate) output: Tokens,
}

/// The budget of one summary, shared by concurrent calls.
pub(crate) struct CallBudget<'l> {
    limits: &'l SummaryLimits,
    started_at: Instant,
    state: Mutex<BudgetState>,
}

#[derive(Default)]
struct BudgetState {
    spent: ModelSpend,
    /// Reserved by calls in progress.
    reserved_tokens: Tokens,
    reserved_dollars: f64,
}

impl<'l> CallBudget<'l> {
    pub(crate) fn new(limits: &'l SummaryLimits) -> Self {
        Self { limits, started_at: Instant::now(), state: Mutex::default() }
    }

    fn lock_state(&self) -> MutexGuard<'_, BudgetState> {
        // No code panics while holding the lock; if it did, the numbers would still be consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn spent(&self) -> ModelSpend {
        self.lock_state().spent
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started_at.elapsed()
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.started_at + self.limits.total_time
    }

    /// Returns the number of calls left.
    pub(crate) fn calls_left(&self, role: ModelRole) -> usize {
        let spent = self.spent();
        match role {
            ModelRole::Root => self.limits.iterations.saturating_sub(spent.iterations),
            ModelRole::Sub => self.limits.sub_calls.saturating_sub(spent.sub_calls),
        }
    }

    /// Returns true if the budget allows two more calls of this size.
    pub(crate) fn allows_two_more(&self, estimate: CallEstimate) -> bool {
        let state = self.lock_state();
        state.spent.total_tokens() + state.reserved_tokens + 2 * (estimate.input + estimate.output)
            <= self.limits.tokens
    }

    /// Admits a call, or returns the limit that it would exceed. Its maximum cost is reserved until the reservation is
    /// dropped.
    pub(crate) fn admit<'a>(
        &'a self,
        role: ModelRole,
        estimate: CallEstimate,
        prices: &'a Prices,
    ) -> Result<CallReservation<'a, 'l>, LimitKind> {
        if Instant::now() >= self.deadline() {
            return Err(LimitKind::Time);
        }
        let tokens = estimate.input.saturating_add(estimate.output);
        let dollars = cost_usd(prices, &estimated_usage(estimate));
        let mut state = self.lock_state();
        if state.spent.total_tokens().saturating_add(state.reserved_tokens).saturating_add(tokens) > self.limits.tokens
        {
            return Err(LimitKind::Tokens);
        }
        if state.spent.dollars + state.reserved_dollars + dollars > self.limits.dollars {
            return Err(LimitKind::Dollars);
        }
        let (count, max, limit) = match role {
            ModelRole::Root => (&mut state.spent.iterations, self.limits.iterations, LimitKind::Iterations),
            ModelRole::Sub => (&mut state.spent.sub_calls, self.limits.sub_calls, LimitKind::SubCalls),
        };
        if *count >= max {
            return Err(limit);
        }
        *count += 1;
        state.reserved_tokens += tokens;
        state.reserved_dollars += dollars;
        Ok(CallReservation { account: self, prices, tokens, dollars })
    }
}

/// An admitted call. Dropping it releases the reserved cost, not the turn.
pub(crate) struct CallReservation<'a, 'l> {
    account: &'a CallBudget<'l>,
    prices: &'a Prices,
    tokens: Tokens,
    dollars: f64,
}

impl CallReservation<'_, '_> {
    /// Records the usage of a response.
    pub(crate) fn record_usage(&self, usage: Usage) {
        let mut state = self.account.lock_state();
        state.spent.usage = state.spent.usage.combined_with(usage);
        state.spent.dollars += cost_usd(self.prices, &usage);
    }
}

impl Drop for CallReservation<'_, '_> {
    fn drop(&mut self) {
        let mut state = self.account.lock_state();
        state.reserved_tokens = state.reserved_tokens.saturating_sub(self.tokens);
        state.reserved_dollars = (state.reserved_dollars - self.dollars).max(0.0);
    }
}

/// Converts an estimate to a usage.
pub(crate) fn estimated_usage(estimate: CallEstimate) -> Usage {
    let mut usage = Usage::default();
    (usage.input, usage.output) = (estimate.input, estimate.output);
    usage
}

/// Returns the cost of a call in dollars.
fn cost_usd(prices: &Prices, usage: &Usage) -> f64 {
    let read = usage.cache_read.unwrap_or(0).min(usage.input);
    let written = usage.cache_write.unwrap_or(0).min(usage.input - read);
    let plain = (usage.input - read - written) as f64;
    let input = plain + read as f64 * prices.read + written as f64 * prices.write;
    prices.dollars(input + usage.output as f64 * prices.output)
}
