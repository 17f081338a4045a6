//! The hidden tool with which a model restores originals, answered inside the proxy.
//!
//! The model sees one more tool; the client never does. Results are bounded, and errors are returned in words that the
//! model can act on. A model gets only originals that were folded in its own conversation, by their full handles.

use foldline::Handle;
use foldline::wire::HiddenCall;
use foldline_archive::{TenantArchive, answer_unfold};
pub(crate) use foldline_archive::{UNFOLD_TOOL, truncate_answer};

use crate::proxy::admin::metrics::{KindLabels, ProxyMetrics};
use crate::proxy::fold::archive_writer::StoredHandles;

/// The answer to a call.
pub(crate) struct CallAnswer {
    pub(crate) text: String,
    /// Original that the model receives; none if the call failed.
    pub(crate) unfolded: Option<Handle>,
}

/// Answers a call. Only originals in `stored` are returned.
pub(crate) fn answer_call(
    call: &HiddenCall,
    archive: Option<&TenantArchive>,
    stored: &StoredHandles,
    metrics: &ProxyMetrics,
) -> CallAnswer {
    let result = read_original(call, archive, stored);
    let kind = if result.is_ok() { "served" } else { "refused" };
    metrics.unfolds.get_or_create(&KindLabels { kind }).inc();
    match result {
        Ok((handle, text)) => CallAnswer { text, unfolded: Some(handle) },
        Err(text) => CallAnswer { text, unfolded: None },
    }
}

/// Tool result after too many calls or rounds in one response.
pub(crate) const SERVE_LIMIT_TEXT: &str = "No more can be unfolded in this turn. Go on with what you have; you can unfold again in \
    the next turn.";

fn read_original(
    call: &HiddenCall,
    archive: Option<&TenantArchive>,
    stored: &StoredHandles,
) -> Result<(Handle, String), String> {
    let archive = archive.ok_or("There is no archive; run the tool again instead.")?;
    // An original of another conversation is reported as unknown.
    let read = |handle: Handle| match stored.contains(handle) {
        true => archive.unfold(handle.as_str()).map(|unfolded| Some(unfolded.bytes)),
        false => Ok(None),
    };
    answer_unfold(&call.arguments, read)
}
