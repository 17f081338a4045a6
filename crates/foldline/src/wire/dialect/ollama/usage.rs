//! Token counts of Ollama.

use crate::wire::json::scan::JsonObject;
use crate::wire::response::Usage;

/// Reads the counts of a response or of the last line of a stream. The prompt is counted after the server truncated it;
/// some versions leave out a prompt that was cached as a whole.
pub(crate) fn parse_usage(response: &JsonObject<'_>) -> Option<Usage> {
    let (input, output) = (response.u64(&["prompt_eval_count"]), response.u64(&["eval_count"]));
    (input.is_some() || output.is_some()).then(|| Usage {
        input: input.unwrap_or(0),
        output: output.unwrap_or(0),
        ..Usage::default()
    })
}
