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
pub struct Limits {
    /// Turns of the root model.
    pub iterations: usize,
    /// Calls of the sub-model.
    pub sub_calls: usize,
    /// Tokens of all questions and answers together.
    pub tokens: Tokens,
    /// Dollars.
    pub dollars: f64,
    /// From the beginning to the end.
    pub time: Duration,
    /// For one call.
    pub call_time: Duration,
    /// Calls of the sub-model at the same time.
    pub at_once: usize,
    /// How often a call is tried again when the server is busy or stumbles.
    pub retries: usize,
}

impl Default for Limits {
    /// 15 turns, 50 sub-calls, two million tokens, two dollars, five minutes, two for a call, 4 at once, 2 retries.
    fn default() -> Self {
        Self {
            iterations: 15,
            sub_calls: 50,
            tokens: 2_000_000,
            dollars: 2.0,
            time: Duration::from_secs(300),
            call_time: Duration::from_secs(120),
            at_once: 4,
            retries: 2,
        }
    }
}

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Limit {
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

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Iterations => "no turn is left",
            Limit::SubCalls => "no sub-call is left",
            Limit::Tokens => "no tokens are left",
            Limit::Dollars => "no money is left",
            Limit::Time => "no time is left",
            Limit::Refusals => "what it handed in was refused too often",
        })
    }
}

/// What was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// Turns of the root model.
    pub iterations: usize,
    /// Calls of the sub-model.
    pub sub_calls: usize,
    /// What the servers reported; where they did not, what we counted.
    pub usage: Usage,
    /// Dollars, by the prices of the models.
    pub dollars: f64,
}

impl Spent {
    fn tokens(&self) -> Tokens {
        self.usage.input.saturating_add(self.usage.output)
    }

    /// The sum of two.
    pub fn and(self, other: Spent) -> Spent {
        Spent {
            iterations: self.iterations + other.iterations,
            sub_calls: self.sub_calls + other.sub_calls,
            usage: self.usage.combined_with(other.usage),
            dollars: self.dollars + other.dollars,
        }
    }
}

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Root,
    Sub,
}

/// What one call may cost at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Estimate {
    pub(crate) input: Tokens,
    pub(crate) output: Tokens,
}

/// The account of one summary. Calls at the same time share it.
pub(crate) struct Account<'l> {
    limits: &'l Limits,
    began: Instant,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    spent: Spent,
    /// Of calls that are under way.
    reserved_tokens: Tokens,
    reserved_dollars: f64,
}

impl<'l> Account<'l> {
    pub(crate) fn open(limits: &'l Limits) -> Self {
        Self { limits, began: Instant::now(), book: Mutex::default() }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Nothing panics while it holds the lock; if it did, the numbers are still whole.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn spent(&self) -> Spent {
        self.book().spent
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.began + self.limits.time
    }

    /// Calls that are left.
    pub(crate) fn left(&self, asked: Asked) -> usize {
        let spent = self.spent();
        match asked {
            Asked::Root => self.limits.iterations.saturating_sub(spent.iterations),
            Asked::Sub => self.limits.sub_calls.saturating_sub(spent.sub_calls),
        }
    }

    /// Whether another question of this size can be put after the next one.
    pub(crate) fn has_room_for_two(&self, estimate: Estimate) -> bool {
        let book = self.book();
        book.spent.tokens() + book.reserved_tokens + 2 * (estimate.input + estimate.output) <= self.limits.tokens
    }

    /// Admits a call, or tells which limit it would pass. What it may cost is set aside until the ticket is
    /// settled or dropped.
    pub(crate) fn admit<'a>(
        &'a self,
        asked: Asked,
        estimate: Estimate,
        prices: &'a Prices,
    ) -> Result<Ticket<'a, 'l>, Limit> {
        if Instant::now() >= self.deadline() {
            return Err(Limit::Time);
        }
        let tokens = estimate.input.saturating_add(estimate.output);
        let dollars = cost(prices, &usage(estimate));
        let mut book = self.book();
        if book.spent.tokens().saturating_add(book.reserved_tokens).saturating_add(tokens) > self.limits.tokens {
            return Err(Limit::Tokens);
        }
        if book.spent.dollars + book.reserved_dollars + dollars > self.limits.dollars {
            return Err(Limit::Dollars);
        }
        let (count, most, limit) = match asked {
            Asked::Root => (&mut book.spent.iterations, self.limits.iterations, Limit::Iterations),
            Asked::Sub => (&mut book.spent.sub_calls, self.limits.sub_calls, Limit::SubCalls),
        };
        if *count >= most {
            return Err(limit);
        }
        *count += 1;
        book.reserved_tokens += tokens;
        book.reserved_dollars += dollars;
        Ok(Ticket { account: self, prices, tokens, dollars })
    }
}

/// A call that was admitted. Dropping it gives back what was set aside, not the turn.
pub(crate) struct Ticket<'a, 'l> {
    account: &'a Account<'l>,
    prices: &'a Prices,
    tokens: Tokens,
    dollars: f64,
}

impl Ticket<'_, '_> {
    /// Writes down what an answer cost.
    pub(crate) fn settle(&self, usage: Usage) {
        let mut book = self.account.book();
        book.spent.usage = book.spent.usage.combined_with(usage);
        book.spent.dollars += cost(self.prices, &usage);
    }
}

impl Drop for Ticket<'_, '_> {
    fn drop(&mut self) {
        let mut book = self.account.book();
        book.reserved_tokens = book.reserved_tokens.saturating_sub(self.tokens);
        book.reserved_dollars = (book.reserved_dollars - self.dollars).max(0.0);
    }
}

/// An estimate in the words of a server.
pub(crate) fn usage(estimate: Estimate) -> Usage {
    let mut usage = Usage::default();
    (usage.input, usage.output) = (estimate.input, estimate.output);
    usage
}

/// What a call costs, in dollars.
fn cost(prices: &Prices, usage: &Usage) -> f64 {
    let read = usage.cache_read.unwrap_or(0).min(usage.input);
    let written = usage.cache_write.unwrap_or(0).min(usage.input - read);
    let plain = (usage.input - read - written) as f64;
    let input = plain + read as f64 * prices.read + written as f64 * prices.write;
    prices.dollars(input + usage.output as f64 * prices.output)
}
