//! Token counts of Gemini.

use crate::wire::json::scan::JsonObject;
use crate::wire::response::Usage;

/// Reads the `usageMetadata` of a response or of a chunk. The prompt includes cached tokens; thoughts are counted apart
/// from the visible output.
pub(crate) fn parse_usage(response: &JsonObject<'_>) -> Option<Usage> {
    let usage = response.object("usageMetadata")?;
    let count = |key: &str| usage.u64(&[key]);
    let thoughts = count("thoughtsTokenCount");
    Some(Usage {
        input: count("promptTokenCount")?.saturating_add(count("toolUsePromptTokenCount").unwrap_or(0)),
        cache_read: count("cachedContentTokenCount"),
        output: count("candidatesTokenCount").unwrap_or(0).saturating_add(thoughts.unwrap_or(0)),
        reasoning: thoughts,
        ..Usage::default()
    })
}
