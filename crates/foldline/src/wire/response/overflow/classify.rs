//! Classifies an error response by its status, its codes and its message.

use crate::wire::response::api_error::ApiError;
use crate::wire::response::overflow::patterns::{
    COMPILED_PATTERNS, EXCLUDED_REGEX, LEAD, OVERFLOW_CODES, PAYLOAD_SIZE_REGEX, SERVER_ERROR_REGEX, TAIL,
    UNNUMBERED_REGEX,
};
use crate::wire::response::overflow::rejection::{ContextOverflow, OverflowEvidence, ReportedTokens, RequestRejection};

impl RequestRejection {
    /// Classifies an error response by its status and body.
    pub fn from_body(status: u16, body: &[u8]) -> Self {
        if body.trim_ascii().is_empty() {
            return match status {
                400 | 413 => RequestRejection::Overflow(ContextOverflow::without_numbers(OverflowEvidence::EmptyBody)),
                _ => RequestRejection::Other,
            };
        }
        Self::from_error(Some(status), &ApiError::parse(body))
    }

    /// Classifies an error; an error inside a stream has no status.
    pub fn from_error(status: Option<u16>, error: &ApiError) -> Self {
        let errors = [Some(error), error.upstream.as_deref()];
        let errors = errors.into_iter().flatten();
        if errors.clone().any(has_overflow_code) {
            let overflow = errors
                .clone()
                .find_map(parse_numbers)
                .unwrap_or(ContextOverflow::without_numbers(OverflowEvidence::Code));
            return RequestRejection::Overflow(ContextOverflow { evidence: OverflowEvidence::Code, ..overflow });
        }
        if status == Some(429) || errors.clone().any(is_excluded_error) {
            return RequestRejection::Other;
        }
        let is_server_overflow = |error: &ApiError| SERVER_ERROR_REGEX.is_match(searched_prefix(&error.message));
        if status.is_some_and(|status| status >= 500) && !errors.clone().any(is_server_overflow) {
            return RequestRejection::Other;
        }
        if errors.clone().any(is_payload_size_error) {
            return RequestRejection::PayloadTooLarge;
        }
        if let Some(overflow) = errors.clone().find_map(parse_numbers) {
            return RequestRejection::Overflow(overflow);
        }
        if errors.clone().any(|error| UNNUMBERED_REGEX.is_match(searched_prefix(&error.message))) {
            return RequestRejection::Overflow(ContextOverflow::without_numbers(OverflowEvidence::Pattern));
        }
        if status == Some(413) { RequestRejection::PayloadTooLarge } else { RequestRejection::Other }
    }
}

fn has_overflow_code(error: &ApiError) -> bool {
    [&error.code, &error.kind].into_iter().flatten().any(|name| OVERFLOW_CODES.contains(&name.as_str()))
}

fn is_excluded_error(error: &ApiError) -> bool {
    searched_texts(error).any(|text| EXCLUDED_REGEX.is_match(text))
}

fn is_payload_size_error(error: &ApiError) -> bool {
    searched_texts(error).any(|text| PAYLOAD_SIZE_REGEX.is_match(text))
}

fn searched_texts(error: &ApiError) -> impl Iterator<Item = &str> {
    [error.code.as_deref(), error.kind.as_deref(), Some(searched_prefix(&error.message))].into_iter().flatten()
}

/// Returns the prefix of a text that is searched; the relevant sentence is at the start.
fn searched_prefix(text: &str) -> &str {
    &text[..text.floor_char_boundary(4 << 10)]
}

/// Returns the numbers in an error, from its fields or from the first matching sentence.
fn parse_numbers(error: &ApiError) -> Option<ContextOverflow> {
    if let Some(tokens) = error.tokens {
        return Some(ContextOverflow {
            limit_tokens: Some(tokens.window),
            prompt_tokens: Some(ReportedTokens::Exact(tokens.prompt)),
            ..ContextOverflow::without_numbers(OverflowEvidence::Numbers)
        });
    }
    let text = searched_prefix(&error.message);
    let (captures, sentence) =
        COMPILED_PATTERNS.iter().find_map(|(pattern, sentence)| Some((pattern.captures(text)?, sentence)))?;
    let found = captures.get(0)?;
    let is_full_match = LEAD.is_match(&text[..found.start()]) && TAIL.is_match(&text[found.end()..]);
    let evidence = if is_full_match { OverflowEvidence::Message } else { OverflowEvidence::Numbers };
    Some(ContextOverflow { evidence, ..sentence.to_overflow(&captures) })
}
