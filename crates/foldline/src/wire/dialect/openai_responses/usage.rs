//! Token counts of the Responses API.

use crate::wire::json::scan::JsonObject;
use crate::wire::response::Usage;

/// Reads the `usage` of a Responses response.
pub(crate) fn parse_usage(response: &JsonObject<'_>) -> Option<Usage> {
    let usage = response.object("usage")?;
    Some(Usage {
        input: usage.u64(&["input_tokens"])?,
        cache_read: usage.u64(&["input_tokens_details", "cached_tokens"]),
        cache_write: usage.u64(&["input_tokens_details", "cache_write_tokens"]),
        output: usage.u64(&["output_tokens"]).unwrap_or(0),
        reasoning: usage.u64(&["output_tokens_details", "reasoning_tokens"]),
        ..Usage::default()
    })
}
