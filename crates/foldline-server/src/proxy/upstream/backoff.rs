//! The delay before a failed hidden round is sent again.
//!
//! The client cannot retry a hidden round itself, so the proxy does, as the providers' own libraries do. It gives up
//! early; then the client retries its whole request.

use std::time::{Duration, Instant};

use hyper::HeaderMap;

/// Maximum requests for one round, including the first.
const MAX_ATTEMPTS: u32 = 3;
/// Maximum time from the first to the last request of a round.
const RETRY_TIME_LIMIT: Duration = Duration::from_secs(30);
/// Wait before the second request if the provider names none; it doubles with each request.
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// The attempts of one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryBudget {
    attempts: u32,
    started_at: Instant,
}

impl RetryBudget {
    pub(crate) fn new() -> Self {
        Self { attempts: 1, started_at: Instant::now() }
    }

    /// Returns the wait before the next attempt; none if the provider forbids one or the budget is exhausted.
    pub(crate) fn next_wait(&mut self, headers: &HeaderMap) -> Option<Duration> {
        let forbidden = headers.get("x-should-retry").is_some_and(|value| value == "false");
        let wait = requested_wait(headers).unwrap_or(FIRST_WAIT * 2u32.pow(self.attempts - 1));
        let allowed =
            self.attempts < MAX_ATTEMPTS && self.started_at.elapsed() + wait <= RETRY_TIME_LIMIT && !forbidden;
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
        let mut budget = RetryBudget::new();
        let waits: Vec<_> = std::iter::from_fn(|| budget.next_wait(&HeaderMap::new())).collect();
        assert_eq!(waits, [Duration::from_millis(500), Duration::from_secs(1)]);
    }

    #[test]
    fn providers_wait_is_honored_within_limit() {
        let wait = |list: &[(&'static str, &str)]| RetryBudget::new().next_wait(&headers(list));
        assert_eq!(wait(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
        assert_eq!(wait(&[("retry-after", "7"), ("retry-after-ms", "1500")]), Some(Duration::from_millis(1500)));
        assert_eq!(wait(&[("retry-after", "3600")]), None);
        assert_eq!(wait(&[("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT")]), Some(FIRST_WAIT));
        assert_eq!(wait(&[("retry-after", "-1")]), Some(FIRST_WAIT));
        assert_eq!(wait(&[("x-should-retry", "false")]), None);
    }
}
