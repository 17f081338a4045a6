//! What a summary may cost, and what it has cost so far.
//!
//! Every call of a model is admitted here before it is made, with the most that it can cost, so that no limit is
//! passed and then noticed.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldline::wire::Usage;
use foldline::{Prices, Tokens};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// What a summary may cost at most.
#[derive(Clone, Debug, PartialEq)]
pub struct SummaryLimits {
    /// Turns of the root model.
    pub iterations: usize,
    /// Calls of the sub-model.
    pub sub_calls: usize,
    /// Tokens of all questions and answers together.
    pub tokens: Tokens,
    /// Dollars.
    pub dollars: f64,
    /// From the beginning to the end.
    pub total_time: Duration,
    /// For one call.
    pub call_time: Duration,
    /// Calls of the sub-model at the same time.
    pub concurrency: usize,
    /// How often a call is tried again when the server is busy or stumbles.
    pub retries: usize,
}

impl Default for SummaryLimits {
    /// 15 turns, 50 sub-calls, two million tokens, two dollars, five minutes, two for a call, 4 at once, 2 retries.
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
    /// The root model had no turn left.
    Iterations,
    /// The sub-model may not be asked again.
    SubCalls,
    /// No tokens are left.
    Tokens,
    /// No money is left.
    Dollars,
    /// No time is left.
    Time,
    /// What the model handed in was refused too often.
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

/// What was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelSpend {
    /// Turns of the root model.
    pub iterations: usize,
    /// Calls of the sub-model.
    pub sub_calls: usize,
    /// What the servers reported; where they did not, what we counted.
    pub usage: Usage,
    /// Dollars, by the prices of the models.
    pub dollars: f64,
}

impl ModelSpend {
    fn total_tokens(&self) -> Tokens {
        self.usage.input.saturating_add(self.usage.output)
    }

    /// The sum of two.
    pub fn plus(self, other: ModelSpend) -> ModelSpend {
        ModelSpend {
            iterations: self.iterations + other.iterations,
            sub_calls: self.sub_calls + other.sub_calls,
            usage: self.usage.combined_with(other.usage),
            dollars: self.dollars + other.dollars,
        }
    }
}

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelRole {
    Root,
    Sub,
}

/// What one call may cost at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallEstimate {
    pub(crate) input: Tokens,
    pub(crate) output: Tokens,
}

/// The account of one summary. Calls at the same time share it.
pub(crate) struct CallBudget<'l> {
    limits: &'l SummaryLimits,
    started_at: Instant,
    state: Mutex<BudgetState>,
}

#[derive(Default)]
struct BudgetState {
    spent: ModelSpend,
    /// Of calls that are under way.
    reserved_tokens: Tokens,
    reserved_dollars: f64,
}

impl<'l> CallBudget<'l> {
    pub(crate) fn new(limits: &'l SummaryLimits) -> Self {
        Self { limits, started_at: Instant::now(), state: Mutex::default() }
    }

    fn lock_state(&self) -> MutexGuard<'_, BudgetState> {
        // Nothing panics while it holds the lock; if it did, the numbers are still whole.
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

    /// Calls that are left.
    pub(crate) fn calls_left(&self, asked: ModelRole) -> usize {
        let spent = self.spent();
        match asked {
            ModelRole::Root => self.limits.iterations.saturating_sub(spent.iterations),
            ModelRole::Sub => self.limits.sub_calls.saturating_sub(spent.sub_calls),
        }
    }

    /// Whether another question of this size can be put after the next one.
    pub(crate) fn allows_two_more(&self, estimate: CallEstimate) -> bool {
        let book = self.lock_state();
        book.spent.total_tokens() + book.reserved_tokens + 2 * (estimate.input + estimate.output) <= self.limits.tokens
    }

    /// Admits a call, or tells which limit it would pass. What it may cost is set aside until the ticket is
    /// settled or dropped.
    pub(crate) fn admit<'a>(
        &'a self,
        asked: ModelRole,
        estimate: CallEstimate,
        prices: &'a Prices,
    ) -> Result<CallReservation<'a, 'l>, LimitKind> {
        if Instant::now() >= self.deadline() {
            return Err(LimitKind::Time);
        }
        let tokens = estimate.input.saturating_add(estimate.output);
        let dollars = cost_usd(prices, &estimated_usage(estimate));
        let mut book = self.lock_state();
        if book.spent.total_tokens().saturating_add(book.reserved_tokens).saturating_add(tokens) > self.limits.tokens {
            return Err(LimitKind::Tokens);
        }
        if book.spent.dollars + book.reserved_dollars + dollars > self.limits.dollars {
            return Err(LimitKind::Dollars);
        }
        let (count, most, limit) = match asked {
            ModelRole::Root => (&mut book.spent.iterations, self.limits.iterations, LimitKind::Iterations),
            ModelRole::Sub => (&mut book.spent.sub_calls, self.limits.sub_calls, LimitKind::SubCalls),
        };
        if *count >= most {
            return Err(limit);
        }
        *count += 1;
        book.reserved_tokens += tokens;
        book.reserved_dollars += dollars;
        Ok(CallReservation { account: self, prices, tokens, dollars })
    }
}

/// A call that was admitted. Dropping it gives back what was set aside, not the turn.
pub(crate) struct CallReservation<'a, 'l> {
    account: &'a CallBudget<'l>,
    prices: &'a Prices,
    tokens: Tokens,
    dollars: f64,
}

impl CallReservation<'_, '_> {
    /// Writes down what an answer cost.
    pub(crate) fn record_usage(&self, usage: Usage) {
        let mut book = self.account.lock_state();
        book.spent.usage = book.spent.usage.combined_with(usage);
        book.spent.dollars += cost_usd(self.prices, &usage);
    }
}

impl Drop for CallReservation<'_, '_> {
    fn drop(&mut self) {
        let mut book = self.account.lock_state();
        book.reserved_tokens = book.reserved_tokens.saturating_sub(self.tokens);
        book.reserved_dollars = (book.reserved_dollars - self.dollars).max(0.0);
    }
}

/// An estimate in the words of a server.
pub(crate) fn estimated_usage(estimate: CallEstimate) -> Usage {
    let mut usage = Usage::default();
    (usage.input, usage.output) = (estimate.input, estimate.output);
    usage
}

/// What a call costs, in dollars.
fn cost_usd(prices: &Prices, usage: &Usage) -> f64 {
    let read = usage.cache_read.unwrap_or(0).min(usage.input);
    let written = usage.cache_write.unwrap_or(0).min(usage.input - read);
    let plain = (usage.input - read - written) as f64;
    let input = plain + read as f64 * prices.read + written as f64 * prices.write;
    prices.dollars(input + usage.output as f64 * prices.output)
}
