//! Attribution of cache breaks: why a provider did not read a prompt from its cache.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The cause of a cache break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BreakCause {
    /// Our crease, decided and priced.
    Crease,
    /// The session went on with another model.
    ModelSwitch,
    /// The request does not begin with the previous one.
    ClientChanged,
    /// More time passed than the provider keeps a cache.
    Expired,
    /// None of these.
    Unknown,
}

impl BreakCause {
    /// All causes, in the order in which they are checked.
    pub const ALL: [BreakCause; 5] = [
        BreakCause::Crease,
        BreakCause::ModelSwitch,
        BreakCause::ClientChanged,
        BreakCause::Expired,
        BreakCause::Unknown,
    ];

    /// Returns the name in the API.
    pub fn name(self) -> &'static str {
        match self {
            BreakCause::Crease => "crease",
            BreakCause::ModelSwitch => "model_switch",
            BreakCause::ClientChanged => "client_changed",
            BreakCause::Expired => "expired",
            BreakCause::Unknown => "unknown",
        }
    }

    /// Returns the position in [`BreakCause::ALL`].
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// The facts about a request from which a cache break is found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheFacts {
    /// Prompt tokens that the provider read from its cache.
    pub(crate) read_tokens: u64,
    /// Tokens of the session's previous prompt that were cached.
    pub(crate) cached_before: u64,
    pub(crate) has_crease: bool,
    pub(crate) is_same_model: bool,
    /// True if the request begins with the previous one.
    pub(crate) extends_previous: bool,
    /// Time since the previous request, and time that the provider keeps a cache.
    pub(crate) elapsed: Duration,
    pub(crate) cache_ttl: Option<Duration>,
}

/// Shortest prompt whose absence from the cache is a break; providers do not cache shorter ones.
const MIN_CACHED_TOKENS: u64 = 1_024;

impl CacheFacts {
    /// Returns the cause if the provider read less than half of what was cached.
    pub(crate) fn break_cause(&self) -> Option<BreakCause> {
        if self.cached_before < MIN_CACHED_TOKENS || self.read_tokens * 2 >= self.cached_before {
            return None;
        }
        Some(match self {
            Self { has_crease: true, .. } => BreakCause::Crease,
            Self { is_same_model: false, .. } => BreakCause::ModelSwitch,
            Self { extends_previous: false, .. } => BreakCause::ClientChanged,
            Self { cache_ttl: Some(ttl), elapsed, .. } if elapsed > ttl => BreakCause::Expired,
            _ => BreakCause::Unknown,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WARM: CacheFacts = CacheFacts {
        read_tokens: 9_000,
        cached_before: 10_000,
        has_crease: false,
        is_same_model: true,
        extends_previous: true,
        elapsed: Duration::from_secs(10),
        cache_ttl: Some(Duration::from_secs(300)),
    };

    #[test]
    fn cache_that_held_is_no_break() {
        assert_eq!(WARM.break_cause(), None);
        assert_eq!(CacheFacts { cached_before: 900, read_tokens: 0, ..WARM }.break_cause(), None, "too short");
        assert_eq!(CacheFacts { has_crease: true, ..WARM }.break_cause(), None, "the crease was at the end");
    }

    #[test]
    fn each_break_has_the_first_cause_that_applies() {
        let lost = CacheFacts { read_tokens: 0, ..WARM };
        let expired = CacheFacts { elapsed: Duration::from_secs(301), ..lost };
        let changed = CacheFacts { extends_previous: false, ..expired };
        let switched = CacheFacts { is_same_model: false, ..changed };
        let creased = CacheFacts { has_crease: true, ..switched };
        let causes = [lost, expired, changed, switched, creased].map(|facts| facts.break_cause().unwrap());
        let mut all = BreakCause::ALL;
        all.reverse();
        assert_eq!(causes, all);
        assert!(BreakCause::ALL.iter().enumerate().all(|(at, cause)| cause.index() == at));
    }
}
