//! The delay before a failed hidden round is sent again.
//!
//! The client cannot retry a hidden round itself, so the proxy does, as the providers' own libraries do. It gives up
//! early if nothing was shown to the client, which then retries its whole request. A client that was shown text ends
//! its turn at an error, so the proxy retries as long as clients do.

use std::time::{Duration, Instant};

use hyper::HeaderMap;

/// Wait before the second request if the provider names none; it doubles with each request.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Maximum wait if the provider names none.
const MAX_WAIT: Duration = Duration::from_secs(32);

/// The attempts of one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryBudget {
    attempts: u32,
    started_at: Instant,
    view: ClientView,
}

/// What the client has received of a response when one of its rounds fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientView {
    /// Nothing: it can retry its request.
    Nothing,
    /// Output: its own retry logic does not apply.
    Output,
}

impl RetryBudget {
    pub(crate) fn new(view: ClientView) -> Self {
        Self { attempts: 1, started_at: Instant::now(), view }
    }

    /// Returns the maximum requests for the round, including the first, and the maximum time from the first to the last.
    fn limits(&self) -> (u32, Duration) {
        match self.view {
            ClientView::Nothing => (3, Duration::from_secs(30)),
            // As many as Claude Code makes by itself.
            ClientView::Output => (11, Duration::from_secs(300)),
        }
    }

    /// Returns the wait before the next attempt; none if the provider forbids one or the budget is exhausted.
    pub(crate) fn next_wait(&mut self, headers: &HeaderMap) -> Option<Duration> {
        let forbidden = headers.get("x-should-retry").is_some_and(|value| value == "false");
        let own_wait = MAX_WAIT.min(FIRST_WAIT * 2u32.pow(self.attempts - 1));
        let wait = requested_wait(headers).unwrap_or(own_wait);
        let (max_attempts, time_limit) = self.limits();
        let is_in_time = self.started_at.elapsed() + wait <= time_limit;
        let allowed = self.attempts < max_attempts && is_in_time && !forbidden;
        self.attempts += u32::from(allowed);
        allowed.then_some(wait)
    }
}

/// Returns the wait that the provider requests, in seconds or milliseconds. Dates are ignored.
fn requested_wait(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = number("retry-after-ms").map(|millis| millis / 1000.0).or_else(|| number("retry-after"))?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn waits_double_and_attempts_are_limited() {
        let waits = |view| {
            let mut budget = RetryBudget::new(view);
            std::iter::from_fn(|| budget.next_wait(&HeaderMap::new())).collect::<Vec<_>>()
        };
        assert_eq!(waits(ClientView::Nothing), [Duration::from_millis(500), Duration::from_secs(1)]);
        let patient = waits(ClientView::Output);
        assert_eq!((patient.len(), patient.last()), (10, Some(&MAX_WAIT)));
    }

    #[test]
    fn providers_wait_is_honored_within_limit() {
        let wait = |list: &[(&'static str, &str)]| RetryBudget::new(ClientView::Nothing).next_wait(&headers(list));
        assert_eq!(wait(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
        assert_eq!(wait(&[("retry-after", "7"), ("retry-after-ms", "1500")]), Some(Duration::from_millis(1500)));
        assert_eq!(wait(&[("retry-after", "3600")]), None);
        assert_eq!(wait(&[("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT")]), Some(FIRST_WAIT));
        assert_eq!(wait(&[("retry-after", "-1")]), Some(FIRST_WAIT));
        assert_eq!(wait(&[("x-should-retry", "false")]), None);
    }
}
