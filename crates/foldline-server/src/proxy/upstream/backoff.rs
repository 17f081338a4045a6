//! The wait before a hidden round that failed is sent again.
//!
//! The client waits meanwhile and cannot retry a hidden round itself, so the proxy does, as the providers' own
//! libraries do. It gives up early: then the client retries its whole request.

use std::time::{Duration, Instant};

use hyper::HeaderMap;

/// Requests for one round, the first one included.
const MAX_ATTEMPTS: u32 = 3;
/// Time from the first request of a round until the last one is sent.
const RETRY_TIME_LIMIT: Duration = Duration::from_secs(30);
/// Wait before the second request where the provider names none; it doubles with each request.
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// The attempts of one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryBudget {
    attempts: u32,
    began: Instant,
}

impl RetryBudget {
    pub(crate) fn new() -> Self {
        Self { attempts: 1, began: Instant::now() }
    }

    /// Returns the wait before the next attempt; `None` when the provider asks for none, or for a later one than the
    /// budget allows.
    pub(crate) fn next_wait(&mut self, headers: &HeaderMap) -> Option<Duration> {
        let forbidden = headers.get("x-should-retry").is_some_and(|it| it == "false");
        let wait = requested_wait(headers).unwrap_or(FIRST_WAIT * 2u32.pow(self.attempts - 1));
        let allowed = self.attempts < MAX_ATTEMPTS && self.began.elapsed() + wait <= RETRY_TIME_LIMIT && !forbidden;
        self.attempts += u32::from(allowed);
        allowed.then_some(wait)
    }
}

/// Returns the wait that the provider asks for, in seconds or milliseconds. A date is ignored.
fn requested_wait(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = number("retry-after-ms").map(|it| it / 1000.0).or_else(|| number("retry-after"))?;
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
