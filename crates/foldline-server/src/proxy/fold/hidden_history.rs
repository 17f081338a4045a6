//! The rounds that responses hid from the client: recorded when a response ends, and restored in the client's next
//! request, so that the model sees the conversation that it had.

use std::sync::Arc;

use foldline::wire::{HiddenRound, Request, RequestEdit};

use crate::proxy::fold::archive_writer::StoredHandles;
use crate::proxy::fold::prefix_id::PrefixHashes;
use crate::proxy::fold::session_facts::SessionFacts;

/// The facts and the prefix to which the hidden rounds of a response are recorded.
#[derive(Clone)]
pub(crate) struct HiddenRoundsLog {
    pub(crate) facts: Arc<SessionFacts>,
    pub(crate) prefix: u128,
}

impl HiddenRoundsLog {
    /// Records the hidden rounds of a response. They are on disk when this returns.
    pub(crate) fn record_rounds(&self, rounds: Vec<HiddenRound>) {
        self.facts.record_hidden_rounds(self.prefix, rounds);
    }

    /// Records the originals that a model may unfold after a response that the provider stores: a request that
    /// continues from it does not contain the markers.
    pub(crate) fn record_handles(&self, handles: &StoredHandles) {
        self.facts.record_handles(self.prefix, handles);
    }
}

/// Returns the client's body with the hidden rounds of earlier responses restored; none if there are none.
pub(crate) fn restored_body(client: &Request<'_>, facts: &SessionFacts, prefixes: &PrefixHashes) -> Option<Vec<u8>> {
    let mut edits: Vec<RequestEdit> = Vec::new();
    let is_continuation = client.previous_response_id().is_some();
    let restore = |at, rounds: &Arc<[HiddenRound]>| {
        if is_continuation { client.restore_hidden_results(rounds) } else { client.restore_hidden_calls(at, rounds) }
    };
    for (at, responses) in facts.hidden_rounds(prefixes) {
        edits.extend(responses.iter().rev().find_map(|rounds| restore(at, rounds)).into_iter().flatten());
    }
    if edits.is_empty() {
        return None;
    }
    let restored =
        client.splice(&edits).inspect_err(|error| tracing::warn!(%error, "cannot restore hidden rounds")).ok()?;
    Some(restored.into_owned())
}
