//! The requests of a conversation whose facts are in memory, so that a proxy knows when another one served a turn.

use std::collections::VecDeque;
use std::time::Duration;

use crate::activity::now_millis;
use crate::proxy::fold::prefix_id::PrefixHashes;

/// Requests that are remembered. Conversations with the same begin share their facts.
const MAX_KNOWN_REQUESTS: usize = 64;

/// The newest requests of a conversation whose facts are in memory.
#[derive(Debug, Default)]
pub(crate) struct KnownRequests {
    newest: VecDeque<KnownRequest>,
    /// True if the ledger was read, or no other proxy writes it.
    pub(crate) is_read: bool,
}

#[derive(Debug)]
struct KnownRequest {
    /// Hash of its conversation.
    prefix: u128,
    /// Time at which it was sent, in milliseconds since 1970.
    sent_at: Option<i64>,
    /// True if the facts of its response are known, too.
    is_answered: bool,
}

impl KnownRequests {
    /// Returns true if the facts that a request depends on are in memory: those of the request before it and its response.
    pub(crate) fn has_predecessor(&self, prefixes: &PrefixHashes) -> bool {
        match prefixes.previous_request() {
            Some(previous) => self.find(previous).is_some_and(|request| request.is_answered),
            None => self.is_read,
        }
    }

    /// Returns the time since the provider received the conversation; `None` if it is not known.
    pub(crate) fn idle_time(&self, prefixes: &PrefixHashes) -> Option<Duration> {
        let mut before = [Some(prefixes.full()), prefixes.previous_request()].into_iter().flatten();
        let sent_at = before.find_map(|prefix| self.find(prefix))?.sent_at?;
        Some(Duration::from_millis(u64::try_from(now_millis() - sent_at).unwrap_or(0)))
    }

    /// Adds a request, or replaces it.
    pub(crate) fn add(&mut self, prefix: u128, sent_at: Option<i64>, is_answered: bool) {
        self.newest.retain(|request| request.prefix != prefix);
        self.newest.push_front(KnownRequest { prefix, sent_at, is_answered });
        self.newest.truncate(MAX_KNOWN_REQUESTS);
    }

    /// Records that the facts of the response to a request are known.
    pub(crate) fn set_answered(&mut self, prefix: u128) {
        let request = self.newest.iter_mut().find(|request| request.prefix == prefix);
        request.into_iter().for_each(|request| request.is_answered = true);
    }

    fn find(&self, prefix: u128) -> Option<&KnownRequest> {
        self.newest.iter().find(|request| request.prefix == prefix)
    }
}
