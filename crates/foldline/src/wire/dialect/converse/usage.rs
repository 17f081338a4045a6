//! Token counts of Converse.

use crate::wire::json::scan::JsonObject;
use crate::wire::response::Usage;

/// Reads the `usage` of a response or of the last message of a stream. Cached tokens are not part of `inputTokens`.
pub(crate) fn parse_usage(response: &JsonObject<'_>) -> Option<Usage> {
    let usage = response.object("usage")?;
    let count = |key: &str| usage.u64(&[key]);
    let (read, written) = (count("cacheReadInputTokens"), count("cacheWriteInputTokens"));
    let details = usage.elements("cacheDetails");
    let long_lived = details.iter().find(|detail| detail.string("ttl").as_deref() == Some("1h"));
    Some(Usage {
        input: count("inputTokens")?.saturating_add(read.unwrap_or(0)).saturating_add(written.unwrap_or(0)),
        cache_read: read,
        cache_write: written,
        cache_write_1h: long_lived.and_then(|detail| detail.u64(&["inputTokens"])),
        output: count("outputTokens").unwrap_or(0),
        ..Usage::default()
    })
}
