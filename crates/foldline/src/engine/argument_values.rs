//! The string values in the arguments of tool calls: visiting them, and replacing them inside the same JSON.

use crate::conversation::CallArguments;
use crate::wire;

/// Minimum length of a string value that is folded.
pub(crate) const MIN_ARGUMENT_BYTES: usize = 400;

/// Calls `each` with every string value in arguments that have the same format as `original`: JSON or text.
pub(crate) fn for_each_value(arguments: &str, original: &CallArguments<'_>, mut each: impl FnMut(&str)) {
    match original {
        CallArguments::Text(_) => each(arguments),
        CallArguments::Json(_) => for_each_string(arguments, each),
    }
}

/// Calls `each` with every decoded string in JSON text, or with the text itself if it contains none.
fn for_each_string(json: &str, mut each: impl FnMut(&str)) {
    let strings = wire::string_values(json);
    if strings.is_empty() {
        return each(json);
    }
    strings.into_iter().filter_map(wire::JsonValue::string).for_each(|text| each(&text));
}

/// Returns the JSON text with its long strings replaced and every other byte unchanged.
pub(crate) fn replace_long_strings(json: &str, mut fold: impl FnMut(&str) -> Option<String>) -> Option<String> {
    let long = wire::string_values(json)
        .into_iter()
        .map(|string| string.span)
        .filter(|span| span.end - span.start >= MIN_ARGUMENT_BYTES);
    replace_strings(json, long, |_, text| fold(text))
}

/// Returns the JSON text with some of its strings replaced and every other byte unchanged.
pub(crate) fn replace_strings(
    json: &str,
    spans: impl Iterator<Item = wire::ByteSpan>,
    mut fold: impl FnMut(usize, &str) -> Option<String>,
) -> Option<String> {
    let mut out = String::new();
    let mut at = 0;
    for (index, span) in spans.enumerate() {
        let string = wire::JsonValue { body: json, span };
        let Some(folded) = string.string().and_then(|text| fold(index, &text)) else { continue };
        out.push_str(&json[at..span.start]);
        out.push_str(&wire::encode(&folded));
        at = span.end;
    }
    if at == 0 {
        return None;
    }
    out.push_str(&json[at..]);
    Some(out)
}
