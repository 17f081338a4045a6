//! Token counts of Chat Completions.

use crate::wire::json::scan::JsonObject;
use crate::wire::response::Usage;

/// Reads Chat Completions counts from a chunk or a body: `usage`, Moonshot's usage inside the first choice, or
/// llama.cpp's `timings`.
pub(crate) fn parse_usage(body: &JsonObject<'_>) -> Option<Usage> {
    let cached = body.u64(&["timings", "cache_n"]);
    let in_choice = || body.elements("choices").first().and_then(|choice| choice.object("usage"));
    let counts = body.object("usage").or_else(in_choice).and_then(|usage| parse_counts(&usage, cached));
    let timed = || {
        Some(Usage {
            input: body.u64(&["timings", "prompt_n"])?.saturating_add(cached.unwrap_or(0)),
            cache_read: cached,
            output: body.u64(&["timings", "predicted_n"]).unwrap_or(0),
            ..Usage::default()
        })
    };
    counts.or_else(timed)
}

fn parse_counts(usage: &JsonObject<'_>, cached: Option<u64>) -> Option<Usage> {
    let either = |paths: &[&[&str]]| paths.iter().find_map(|path| usage.u64(path));
    let missed_and_hit =
        || Some(usage.u64(&["prompt_cache_miss_tokens"])?.saturating_add(usage.u64(&["prompt_cache_hit_tokens"])?));
    let input = either(&[&["prompt_tokens"], &["input_tokens"]]).or_else(missed_and_hit)?;
    let reasoning = usage.u64(&["completion_tokens_details", "reasoning_tokens"]);
    let output = either(&[&["completion_tokens"], &["output_tokens"]]).unwrap_or(0);
    // xAI excludes reasoning from the completion count, but not from the total.
    let with_reasoning = output.saturating_add(reasoning.unwrap_or(0));
    let apart = usage.u64(&["total_tokens"]) == Some(input.saturating_add(with_reasoning));
    Some(Usage {
        input,
        cache_read: either(&[
            &["prompt_tokens_details", "cached_tokens"],
            &["prompt_cache_hit_tokens"],
            &["cached_tokens"],
            &["cache_read_input_tokens"],
        ])
        .or(cached),
        cache_write: either(&[
            &["prompt_tokens_details", "cache_write_tokens"],
            &["prompt_tokens_details", "created_cache_tokens"],
            &["cache_creation_input_tokens"],
        ]),
        output: if apart { with_reasoning } else { output },
        reasoning,
        ..Usage::default()
    })
}
