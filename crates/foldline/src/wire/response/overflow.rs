//! Detects that a prompt was rejected because it exceeds the window, and extracts the limit.
//!
//! Every provider words this error differently. The checks run in this order: a structured code; errors that only
//! resemble an overflow (rate limits, output caps, bodies too large in bytes); sentences with numbers; sentences
//! without; an empty 400 or 413. A number counts only if a known sentence states its meaning, because a wrong window
//! learned from, say, an error code would break every later request.
//!
//! Servers echo request values in their errors, so a sentence inside a longer text may come from the client. It is
//! enough for a retry; [`OverflowEvidence::is_strict`] states which evidence is enough to learn a window from.

use std::sync::LazyLock;

use regex::{Captures, Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use crate::wire::response::ApiError;

/// The reason for a rejected request, as far as its size is concerned.
///
/// ```
/// use foldline::wire::{LearnedLimit, LimitScope, RequestRejection};
///
/// let body = br#"{"type":"error","error":{"type":"invalid_request_error",
///     "message":"prompt is too long: 215000 tokens > 200000 maximum"}}"#;
/// let RequestRejection::Overflow(overflow) = RequestRejection::from_body(400, body) else { panic!("not detected") };
/// assert_eq!(overflow.limit_tokens, Some(200_000));
/// let limit = LearnedLimit::Stated { tokens: 200_000, bounds: LimitScope::Window };
/// assert_eq!(overflow.learned_limit(216_000), limit);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestRejection {
    /// Too many tokens: fold more and retry.
    Overflow(ContextOverflow),
    /// Too many bytes: images and files must shrink. Contains no information about the window.
    PayloadTooLarge,
    /// Any other reason.
    Other,
}

/// A prompt that does not fit, with the numbers that the server reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ContextOverflow {
    /// The evidence for the overflow.
    pub evidence: OverflowEvidence,
    /// The maximum number of tokens that the server accepts.
    pub limit_tokens: Option<u64>,
    /// The tokens that the limit applies to.
    pub scope: LimitScope,
    /// The tokens of the prompt, counted by the server.
    pub prompt_tokens: Option<ReportedTokens>,
    /// The tokens reserved for the answer.
    pub output_tokens: Option<u64>,
    /// Prompt and answer together, if the server reports the sum.
    pub total_tokens: Option<u64>,
}

/// The evidence for an overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OverflowEvidence {
    /// An unambiguous code or type.
    Code,
    /// The whole message matches a known provider's form, with numbers.
    Message,
    /// A sentence with numbers inside a longer text, which may echo a value of the request.
    Numbers,
    /// A sentence without numbers.
    Pattern,
    /// A 400 or 413 without a body.
    EmptyBody,
    /// The answer was cut by the window limit.
    StopReason,
}

impl OverflowEvidence {
    /// Returns true if a client cannot cause this evidence by a value that the server echoes in its error.
    ///
    /// ```
    /// use foldline::wire::{OverflowEvidence, RequestRejection};
    ///
    /// let body = br#"{"error":{"message":"Invalid value: 'prompt is too long: 9000 tokens > 8192 maximum'"}}"#;
    /// let RequestRejection::Overflow(overflow) = RequestRejection::from_body(400, body) else { panic!("not detected") };
    /// assert_eq!((overflow.evidence, overflow.evidence.is_strict()), (OverflowEvidence::Numbers, false));
    /// ```
    pub fn is_strict(self) -> bool {
        matches!(self, OverflowEvidence::Code | OverflowEvidence::Message)
    }
}

/// The tokens that a limit applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitScope {
    /// Prompt and answer together.
    Window,
    /// The prompt alone.
    Input,
}

/// A token count and its reliability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportedTokens {
    /// An exact count, usable to calibrate an estimate.
    Exact(u64),
    /// A lower bound: the server stopped counting here.
    AtLeast(u64),
    /// The server's estimate.
    Estimated(u64),
}

/// The limit that an overflow reveals about this upstream and model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LearnedLimit {
    /// A limit that agrees with the other numbers of the error. Usable for a retry; stored only if the evidence [is
    /// strict](OverflowEvidence::is_strict).
    Stated {
        /// The maximum number of tokens.
        tokens: u64,
        /// The tokens that the limit applies to.
        bounds: LimitScope,
    },
    /// No stated limit: this many tokens, by foldline's own count, were too many. The count may be wrong, so this
    /// applies to the running session only and is never stored.
    BelowCount(u64),
}

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
        if status.is_some_and(|status| status == 429 || status >= 500) || errors.clone().any(is_excluded_error) {
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

impl ContextOverflow {
    pub(crate) fn without_numbers(evidence: OverflowEvidence) -> Self {
        ContextOverflow {
            evidence,
            limit_tokens: None,
            scope: LimitScope::Window,
            prompt_tokens: None,
            output_tokens: None,
            total_tokens: None,
        }
    }

    /// Returns the limit to learn, given foldline's own count of the prompt. A limit is trusted if its size is
    /// plausible and the server's own numbers exceed it.
    pub fn learned_limit(&self, counted: u64) -> LearnedLimit {
        let Some(limit) = self.limit_tokens.filter(|limit| (1024..=20_000_000).contains(limit)) else {
            return LearnedLimit::BelowCount(counted);
        };
        let sum = self.prompt_tokens.map(|sent| sent.tokens().saturating_add(self.output_tokens.unwrap_or(0)));
        match self.total_tokens.max(sum) {
            Some(total) if total < limit => LearnedLimit::BelowCount(counted),
            _ => LearnedLimit::Stated { tokens: limit, bounds: self.scope },
        }
    }
}

impl ReportedTokens {
    /// Returns the number.
    pub fn tokens(self) -> u64 {
        match self {
            ReportedTokens::Exact(tokens) | ReportedTokens::AtLeast(tokens) | ReportedTokens::Estimated(tokens) => {
                tokens
            }
        }
    }
}

/// Codes and types that always mean an overflow.
const OVERFLOW_CODES: [&str; 5] = [
    "context_length_exceeded",
    "model_context_window_exceeded",
    "model_max_prompt_tokens_exceeded",
    "exceed_context_size_error",
    "1261",
];

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

/// A sentence whose numbers have a known meaning.
struct ErrorPattern {
    /// One letter for each number, in order: `l`imit, `s`ent, `i`nput, `o`utput, `t`otal.
    groups: &'static str,
    bounds: LimitScope,
    /// Regular expression; `NUM` matches a number.
    pattern: &'static str,
}

impl ErrorPattern {
    fn to_overflow(&self, captures: &Captures<'_>) -> ContextOverflow {
        let number = |letter: char| {
            let group = self.groups.find(letter)? + 1;
            captures.get(group)?.as_str().replace(',', "").parse::<u64>().ok()
        };
        let (total, input) = (number('t'), number('i'));
        let output = match self.groups.contains('o') {
            true => number('o'),
            false => total.zip(input).map(|(total, input)| total.saturating_sub(input)),
        };
        let rest = total.zip(output).map(|(total, output)| total.saturating_sub(output));
        let matched = captures.get(0).map_or("", |matched| matched.as_str());
        let count = if matched.contains("at least") {
            ReportedTokens::AtLeast
        } else if matched.contains("about") {
            ReportedTokens::Estimated
        } else {
            ReportedTokens::Exact
        };
        ContextOverflow {
            evidence: OverflowEvidence::Numbers,
            limit_tokens: number('l'),
            scope: self.bounds,
            prompt_tokens: number('s').or(rest).or(input).map(count),
            output_tokens: output,
            total_tokens: total,
        }
    }
}

static COMPILED_PATTERNS: LazyLock<Vec<(Regex, &'static ErrorPattern)>> =
    LazyLock::new(|| ERROR_PATTERNS.iter().map(|sentence| (compile(sentence.pattern), sentence)).collect());

static EXCLUDED_REGEX: LazyLock<Regex> = LazyLock::new(|| {
    compile_any(&[
        r"rate.?limit",
        r"too many requests",
        r"tokens per (minute|hour|day)",
        r"\btpm\b",
        r"throttl",
        r"please wait before",
        r"insufficient_quota",
        r"string_above_max_length",
        r"invalid 'user'",
        r"max_tokens must be less than or equal to",
        r"maximum tokens you requested exceeds the model limit",
    ])
});

static PAYLOAD_SIZE_REGEX: LazyLock<Regex> = LazyLock::new(|| {
    compile_any(&[r"request_too_large", r"request entity too large", r"payload size exceeds", r"payload too large"])
});

static UNNUMBERED_REGEX: LazyLock<Regex> = LazyLock::new(|| {
    compile_any(&[
        r"exceeds? the context window",
        r"input is too long for (the )?(requested|selected) model",
        r"prompt is too long",
        r"reduce the length of the messages",
        r"(greater|longer) than the (model'?s )?context length",
        r"context window exceeds limit",
        r"context size has been exceeded",
        r"prompt exceeds max length",
        r"number of input tokens exceeds maximum length",
        r"exceeds maximum input length",
        r"tokens in request more than max tokens allowed",
        r"context[_ ]length[_ ]exceeded",
        r"model_context_window_exceeded",
        r"exceeded this model context window limit",
        r"too many (input )?tokens",
        r"token limit exceeded",
    ])
});

/// The text of known providers before a sentence with numbers.
static LEAD: LazyLock<Regex> = LazyLock::new(|| {
    let leads = [
        r"this (model|endpoint)'s ",
        r"the ((decoder|encoder) )?",
        r"input tokens exceed the ",
        r"input length and `max_tokens` ",
        r"please reduce the length of the messages or completion\. ",
        r"the prompt is too long: NUM, ",
        r"the number of tokens to keep from the initial prompt is greater than the context length \(",
        r"trying to ",
        r"(invalid request: )?your request ",
        r"requested (token count )?",
        r"(<\d+> )?internalerror\.algo\.invalidparameter: ",
    ];
    compile(&format!(r"^(the model returned the following errors: )?({})?$", leads.join("|")))
});

/// The text of known providers after a sentence with numbers: the rest of the sentence, then at most one piece of advice.
static TAIL: LazyLock<Regex> = LazyLock::new(|| {
    let rests = [
        r" \(NUM in the messages, NUM in the functions\)",
        r",? for a total of (at least )?NUM tokens",
        r" \(more than NUM characters, which is the upper bound for NUM input tokens\)",
        r" messages and NUM tokens for the completion",
        r" `?max_new_tokens`?",
        r",? decrease input length or `max_tokens` and try again",
        r",? try increasing it",
        r"\. skipping",
        r",? which is not enough",
    ];
    let advice = r#"( (please|try|use|make sure) [^'{}<>]{0,400})?( \(parameter=\w+, value=\w+\))?"#;
    compile(&format!(r"^({})?[).]*{advice}\s*$", rests.join("|")))
});

fn compile_any(patterns: &[&str]) -> Regex {
    compile(&patterns.join("|"))
}

fn compile(pattern: &str) -> Regex {
    RegexBuilder::new(&pattern.replace("NUM", r"(\d[\d,]*)"))
        .case_insensitive(true)
        .dot_matches_new_line(true)
        .build()
        .expect("the patterns are constants covered by tests")
}

use LimitScope::{Input, Window};

const fn error_pattern(groups: &'static str, bounds: LimitScope, pattern: &'static str) -> ErrorPattern {
    ErrorPattern { groups, bounds, pattern }
}

/// Tried in order: a sentence that splits a total comes before one with only the total.
#[rustfmt::skip]
const ERROR_PATTERNS: &[ErrorPattern] = &[
    error_pattern("sl", Window, r"prompt is too long:?\s*NUM tokens\s*>\s*NUM maximum"),
    error_pattern("iol", Window, r"exceed context limit:\s*NUM\s*\+\s*NUM\s*>\s*NUM"),
    error_pattern("ltio", Window, r"maximum context length is NUM tokens.{0,40}?requested (?:about )?NUM tokens \(NUM (?:in the messages|in your prompt|of text input)(?:[^)]{0,80}?\bNUM (?:in|for) the (?:completion|output))?"),
    error_pattern("loi", Window, r"maximum context length is NUM tokens\. However, you requested NUM output tokens and your prompt contains (?:at least )?NUM input tokens"),
    error_pattern("lo", Window, r"maximum context length is NUM tokens\. However, you requested NUM output tokens and your prompt contains [\d,]+ characters"),
    error_pattern("ls", Input, r"configured limit of NUM tokens.{0,60}?resulted in NUM tokens"),
    error_pattern("ls", Window, r"maximum context length is NUM tokens.{0,60}?resulted in NUM tokens"),
    error_pattern("lt", Window, r"maximum context length is NUM tokens.{0,40}?requested (?:about )?NUM tokens"),
    error_pattern("sl", Input, r"input token count \(?NUM\)? exceeds the maximum number of tokens allowed \(?NUM\)?"),
    error_pattern("ls", Input, r"maximum prompt length is NUM but the request contains NUM tokens"),
    error_pattern("sl", Input, r"prompt token count of NUM exceeds the limit of NUM"),
    error_pattern("sl", Window, r"current length is NUM while limit is NUM"),
    error_pattern("ls", Window, r"exceeded model token limit:\s*NUM(?: \(re\s?quested: NUM\))?"),
    error_pattern("sl", Window, r"prompt contains NUM tokens.{0,80}?too large for model with NUM maximum context length"),
    error_pattern("sl", Window, r"(?:request|input) \(NUM tokens\) (?:exceeds the available context size|is larger than the max context size) \(NUM tokens\)"),
    error_pattern("sl", Window, r"input \(NUM tokens\) is longer than the model'?s context length \(NUM tokens\)"),
    error_pattern("sl", Input, r"input length \(?NUM(?: tokens)?\)? exceeds (?:the )?maximum input length (?:of )?\(?NUM(?: tokens)?\)?"),
    error_pattern("sl", Window, r"input length \(?NUM(?: tokens)?\)? exceeds (?:the |model'?s )?maximum (?:allowed |context )?(?:input )?length (?:of )?\(?NUM(?: tokens)?\)?"),
    error_pattern("lti", Window, r"exceeds the model'?s maximum context length of NUM tokens\. You requested a total of NUM tokens: NUM tokens from the input"),
    error_pattern("sl", Window, r"prompt \(length NUM\) (?:is|plus .{0,60}? is) longer than the maximum model length of NUM"),
    error_pattern("lio", Window, r"`?inputs`? tokens \+ `?max_new_tokens`? must be <= NUM\. Given: NUM `?inputs`? tokens and NUM"),
    error_pattern("ls", Input, r"`?inputs`? must have less than NUM tokens\. Given: NUM"),
    error_pattern("sl", Window, r"n_keep: NUM\s*>=\s*n_ctx: NUM"),
    error_pattern("sl", Window, r"keep the first NUM tokens .{0,120}?context length of only NUM tokens"),
    error_pattern("l", Input, r"range of input length should be \[1, ?NUM\]"),
    error_pattern("l", Window, r"model max length exceeded, max length:\s*NUM"),
    error_pattern("sl", Window, r"prompt has NUM tokens?, but the configured context size is NUM tokens?"),
    error_pattern("l", Window, r"model maximum context length:\s*NUM"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn classify(status: u16, message: &str) -> RequestRejection {
        let body = serde_json::json!({ "error": { "message": message, "type": "invalid_request_error" } });
        RequestRejection::from_body(status, body.to_string().as_bytes())
    }

    /// Formats an overflow in one line: limit, scope, sent, output.
    fn describe(rejection: RequestRejection) -> String {
        let RequestRejection::Overflow(overflow) = rejection else { return format!("{rejection:?}") };
        let mut line = format!("{:?}", overflow.evidence);
        if let Some(limit) = overflow.limit_tokens {
            line += &format!(" limit {limit} {:?}", overflow.scope);
        }
        if let Some(sent) = overflow.prompt_tokens {
            line += &format!(" sent {sent:?}");
        }
        if let Some(output) = overflow.output_tokens {
            line += &format!(" output {output}");
        }
        line
    }

    #[test]
    fn overflow_errors_of_every_provider_are_detected() {
        for (message, expected) in [
            // OpenAI and Azure
            (
                "This model's maximum context length is 128000 tokens. However, your messages resulted in 130,204 tokens. Please reduce the length of the messages.",
                "Message limit 128000 Window sent Exact(130204)",
            ),
            (
                "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (8000 in the messages, 1000 in the completion). Please reduce the length of the messages or completion.",
                "Message limit 8192 Window sent Exact(8000) output 1000",
            ),
            (
                "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (7000 in the messages, 500 in the functions, and 1500 in the completion).",
                "Message limit 8192 Window sent Exact(7500) output 1500",
            ),
            (
                "This model's maximum context length is 4097 tokens, however you requested 5000 tokens (4500 in your prompt; 500 for the completion). Please reduce your prompt; or completion length.",
                "Message limit 4097 Window sent Exact(4500) output 500",
            ),
            (
                "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300001 tokens. Please reduce the length of the messages.",
                "Message limit 272000 Input sent Exact(300001)",
            ),
            ("Your input exceeds the context window of this model. Please adjust your input and try again.", "Pattern"),
            // Anthropic
            ("prompt is too long: 215000 tokens > 200000 maximum", "Message limit 200000 Window sent Exact(215000)"),
            (
                "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length or `max_tokens` and try again",
                "Message limit 200000 Window sent Exact(190000) output 20000",
            ),
            // Bedrock
            ("Input is too long for requested model.", "Pattern"),
            (
                "The model returned the following errors: prompt is too long: 201000 tokens > 200000 maximum",
                "Message limit 200000 Window sent Exact(201000)",
            ),
            ("Too many input tokens. Max input tokens: 300000, request input token count: 310000", "Pattern"),
            ("The number of input tokens exceeds maximum length", "Pattern"),
            // Gemini
            (
                "The input token count (1200000) exceeds the maximum number of tokens allowed (1048575).",
                "Message limit 1048575 Input sent Exact(1200000)",
            ),
            // Mistral
            (
                "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
                "Message limit 32768 Window sent Exact(40000)",
            ),
            // xAI
            (
                "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
                "Message limit 131072 Input sent Exact(140000)",
            ),
            // Groq
            ("Please reduce the length of the messages or completion.", "Pattern"),
            // Cerebras
            (
                "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
                "Message limit 8192 Window sent Exact(9000)",
            ),
            // OpenRouter
            (
                "This endpoint's maximum context length is 163840 tokens. However, you requested about 170000 tokens (150000 of text input, 10000 of tool input, 10000 in the output). Please reduce the length of either one.",
                "Message limit 163840 Window sent Estimated(160000) output 10000",
            ),
            // TGI and Together
            (
                "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 512 `max_new_tokens`",
                "Message limit 4096 Window sent Exact(4000) output 512",
            ),
            ("`inputs` must have less than 4095 tokens. Given: 5000", "Message limit 4095 Input sent Exact(5000)"),
            // Fireworks
            ("The prompt is too long: 140000, model maximum context length: 131071", "Message limit 131071 Window"),
            // Copilot
            (
                "prompt token count of 130000 exceeds the limit of 128000",
                "Message limit 128000 Input sent Exact(130000)",
            ),
            // vLLM
            (
                "This model's maximum context length is 4096 tokens. However, you requested 100 output tokens and your prompt contains 4050 input tokens, for a total of 4150 tokens.",
                "Message limit 4096 Window sent Exact(4050) output 100",
            ),
            (
                "This model's maximum context length is 4096 tokens. However, you requested 0 output tokens and your prompt contains at least 4097 input tokens, for a total of at least 4097 tokens.",
                "Message limit 4096 Window sent AtLeast(4097) output 0",
            ),
            (
                "This model's maximum context length is 4096 tokens. However, you requested 16 output tokens and your prompt contains 90000 characters (more than 65536 characters, which is the upper bound for 4096 input tokens).",
                "Message limit 4096 Window output 16",
            ),
            (
                "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that `max_model_len` is no smaller than the number of text tokens.",
                "Message limit 4096 Window sent Exact(5000)",
            ),
            (
                "Input length (5000) exceeds model's maximum context length (4096).",
                "Message limit 4096 Window sent Exact(5000)",
            ),
            // llama.cpp, as text only
            (
                "request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it",
                "Message limit 8192 Window sent Exact(9000)",
            ),
            (
                "input (9000 tokens) is larger than the max context size (8192 tokens). skipping",
                "Message limit 8192 Window sent Exact(9000)",
            ),
            // Ollama
            ("the prompt is longer than the context length currently available to the model", "Pattern"),
            // LM Studio
            (
                "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 9000>= n_ctx: 4096).",
                "Message limit 4096 Window sent Exact(9000)",
            ),
            (
                "Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough.",
                "Message limit 4096 Window sent Exact(9000)",
            ),
            ("Context size has been exceeded.", "Pattern"),
            // SGLang
            (
                "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
                "Message limit 8192 Window sent Exact(9000)",
            ),
            (
                "Requested token count exceeds the model's maximum context length of 8192 tokens. You requested a total of 9000 tokens: 8500 tokens from the input messages and 500 tokens for the completion.",
                "Message limit 8192 Window sent Exact(8500) output 500",
            ),
            (
                "Input length (9000 tokens) exceeds the maximum allowed length (7000 tokens). Use a shorter input or enable --allow-auto-truncate.",
                "Message limit 7000 Window sent Exact(9000)",
            ),
            // Kimi
            (
                "Invalid request: Your request exceeded model token limit: 262144 (requested: 270000)",
                "Message limit 262144 Window sent Exact(270000)",
            ),
            ("Your request exceeded model token limit: 8192", "Message limit 8192 Window"),
            ("model max length exceeded, max length:131072", "Message limit 131072 Window"),
            // GLM
            ("Prompt exceeds max length", "Pattern"),
            ("tokens in request more than max tokens allowed", "Pattern"),
            // MiniMax: the number is an error code
            ("invalid params, context window exceeds limit (2013)", "Pattern"),
            // DashScope
            ("Range of input length should be [1, 129024]", "Message limit 129024 Input"),
            // Novita, DeepInfra, Cloudflare
            ("input is longer than the model's context length", "Pattern"),
            (
                "requested input length 9000 exceeds maximum input length 8192",
                "Message limit 8192 Input sent Exact(9000)",
            ),
            ("This request exceeded this model context window limit", "Pattern"),
            // mlx and others
            (
                "prompt has 9000 tokens, but the configured context size is 8192 tokens",
                "Message limit 8192 Window sent Exact(9000)",
            ),
            (
                "This endpoint's maximum context length is 8192 tokens. However, you requested about 9000 tokens.",
                "Message limit 8192 Window",
            ),
            ("context length exceeded", "Pattern"),
            ("Token limit exceeded", "Pattern"),
        ] {
            assert_eq!(describe(classify(400, message)), expected, "{message}");
        }
    }

    #[test]
    fn lookalike_errors_are_not_overflows() {
        for message in [
            "Request too large for model `llama-3.3-70b` in organization `org` on tokens per minute (TPM): Limit 12000, Requested 15000, please reduce your message size and try again.",
            "Rate limit reached: too many tokens",
            "Too many requests",
            "Throttling: Too many tokens, please wait before trying again.",
            "You exceeded your current quota (insufficient_quota): context length exceeded",
            "Invalid 'user': string too long. Expected a string with maximum length 64, but got a string with length 65 instead.",
            "max_tokens must be less than or equal to 8192",
            "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens",
            "The maximum tokens you requested exceeds the model limit of 8192",
            "Invalid value: 'banana'",
            "",
        ] {
            assert_eq!(classify(400, message), RequestRejection::Other, "{message}");
        }
        for status in [429, 500, 503, 529] {
            assert_eq!(classify(status, "prompt is too long: 215000 tokens > 200000 maximum"), RequestRejection::Other);
        }
        let excluded = br#"{"error":{"message":"Invalid 'input': string too long. too many tokens","code":"string_above_max_length"}}"#;
        assert_eq!(RequestRejection::from_body(400, excluded), RequestRejection::Other);
        let throttled = br#"{"__type":"ThrottlingException","message":"Too many tokens"}"#;
        assert_eq!(RequestRejection::from_body(400, throttled), RequestRejection::Other);
    }

    #[test]
    fn payload_size_error_is_not_an_overflow() {
        for (status, body) in [
            (
                413,
                r#"{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}"#,
            ),
            (
                400,
                r#"{"error":{"code":400,"message":"Request payload size exceeds the limit: 20971520 bytes.","status":"INVALID_ARGUMENT"}}"#,
            ),
            (413, "<html><h1>413 Request Entity Too Large</h1></html>"),
            (413, r#"{"message":"no idea"}"#),
        ] {
            assert_eq!(
                RequestRejection::from_body(status, body.as_bytes()),
                RequestRejection::PayloadTooLarge,
                "{body}"
            );
        }
    }

    #[test]
    fn error_code_takes_precedence_and_numbers_are_kept() {
        for (body, expected) in [
            (r#"{"error":{"message":"no","type":"invalid_request_error","code":"context_length_exceeded"}}"#, "Code"),
            (r#"{"error":{"message":"no","code":"model_max_prompt_tokens_exceeded"}}"#, "Code"),
            (r#"{"error":{"code":"1261","message":"Prompt exceeds max length"}}"#, "Code"),
            (
                r#"{"error":{"code":400,"type":"exceed_context_size_error","message":"m","n_prompt_tokens":9000,"n_ctx":8192}}"#,
                "Code limit 8192 Window sent Exact(9000)",
            ),
            (
                r#"{"error":{"code":"context_length_exceeded","message":"Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 272100 tokens."}}"#,
                "Code limit 272000 Input sent Exact(272100)",
            ),
        ] {
            assert_eq!(describe(RequestRejection::from_body(400, body.as_bytes())), expected, "{body}");
        }
    }

    #[test]
    fn message_is_found_in_every_error_shape() {
        for body in [
            r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"prompt is too long: 215000 tokens \\u003e 200000 maximum\"}}"}}}"#,
            r#"{"error":"prompt is too long: 215000 tokens > 200000 maximum"}"#,
            r#"{"object":"error","message":"prompt is too long: 215000 tokens > 200000 maximum","code":400}"#,
            r#"{"detail":"prompt is too long: 215000 tokens > 200000 maximum"}"#,
            r#"{"message":"prompt is too long: 215000 tokens > 200000 maximum"}"#,
            "prompt is too long: 215000 tokens > 200000 maximum",
        ] {
            let line = describe(RequestRejection::from_body(400, body.as_bytes()));
            assert_eq!(line, "Message limit 200000 Window sent Exact(215000)", "{body}");
        }
    }

    /// A client can put any text into a value that the server echoes.
    #[test]
    fn sentence_inside_a_longer_text_is_not_strict() {
        const ECHO: &str =
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.";
        for text in [
            format!("Invalid value: '{ECHO}'. Supported values are: 'none', 'auto', and 'required'."),
            format!("Invalid value: {ECHO}"),
            format!("{ECHO} is not one of ['none', 'auto']"),
            format!("'{ECHO}' is not of type 'object'"),
            format!("tool {ECHO} not found"),
            format!("{ECHO}\n{ECHO}"),
            format!("[{{'loc': ('body', 'tool_choice'), 'input': '{ECHO}'}}]"),
            "the prompt is too long: 9000 tokens > 8192 maximum' is not a tool".to_owned(),
        ] {
            let line = describe(classify(400, &text));
            assert!(line.starts_with("Numbers limit 8192"), "{text}: {line}");
        }
        let listed =
            serde_json::json!({ "detail": [{ "type": "literal_error", "msg": "no", "input": ECHO }] }).to_string();
        assert!(describe(RequestRejection::from_body(422, listed.as_bytes())).starts_with("Numbers"), "{listed}");
    }

    #[test]
    fn empty_400_or_413_is_an_unnumbered_overflow() {
        assert_eq!(describe(RequestRejection::from_body(400, b"")), "EmptyBody");
        assert_eq!(describe(RequestRejection::from_body(413, b" \n")), "EmptyBody");
        assert_eq!(RequestRejection::from_body(401, b""), RequestRejection::Other);
        assert_eq!(RequestRejection::from_body(500, b""), RequestRejection::Other);
    }

    #[test]
    fn only_a_plausible_limit_is_learned() {
        let lesson = |message: &str| match classify(400, message) {
            RequestRejection::Overflow(overflow) => overflow.learned_limit(77),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            lesson("prompt is too long: 215000 tokens > 200000 maximum"),
            LearnedLimit::Stated { tokens: 200_000, bounds: LimitScope::Window }
        );
        assert_eq!(
            lesson("Range of input length should be [1, 129024]"),
            LearnedLimit::Stated { tokens: 129_024, bounds: LimitScope::Input }
        );
        assert_eq!(
            lesson("exceed context limit: 190000 + 20000 > 200000"),
            LearnedLimit::Stated { tokens: 200_000, bounds: LimitScope::Window },
            "the prompt alone would fit"
        );
        assert_eq!(
            lesson("context window exceeds limit (2013)"),
            LearnedLimit::BelowCount(77),
            "an error code is not a limit"
        );
        assert_eq!(
            lesson("prompt is too long: 300 tokens > 200 maximum"),
            LearnedLimit::BelowCount(77),
            "too small for a window"
        );
        assert_eq!(
            lesson("prompt is too long: 99000000 tokens > 88000000 maximum"),
            LearnedLimit::BelowCount(77),
            "too large"
        );
        assert_eq!(
            lesson("prompt is too long: 1000 tokens > 200000 maximum"),
            LearnedLimit::BelowCount(77),
            "it would have fit"
        );
        assert_eq!(
            lesson("prompt is too long: 215000 tokens > 99999999999999999999999 maximum"),
            LearnedLimit::BelowCount(77)
        );
        assert_eq!(
            ContextOverflow::without_numbers(OverflowEvidence::EmptyBody).learned_limit(77),
            LearnedLimit::BelowCount(77)
        );
    }
}
