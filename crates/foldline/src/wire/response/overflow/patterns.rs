//! Tables of the words with which servers reject a prompt.
//!
//! A new server is a row here and its sentence in the tests. A row with numbers states the meaning of each number.

use std::sync::LazyLock;

use regex::{Captures, Regex, RegexBuilder};

use crate::wire::response::overflow::rejection::LimitScope::{self, Input, Window};
use crate::wire::response::overflow::rejection::{ContextOverflow, OverflowEvidence, ReportedTokens};

/// Codes and types that always mean an overflow.
pub(crate) const OVERFLOW_CODES: [&str; 5] = [
    "context_length_exceeded",
    "model_context_window_exceeded",
    "model_max_prompt_tokens_exceeded",
    "exceed_context_size_error",
    "1261",
];

/// A sentence whose numbers have a known meaning.
pub(crate) struct ErrorPattern {
    /// One letter for each number, in order: `l`imit, `s`ent, `i`nput, `o`utput, `t`otal.
    groups: &'static str,
    bounds: LimitScope,
    /// Regular expression; `NUM` matches a number.
    pattern: &'static str,
}

impl ErrorPattern {
    pub(crate) fn to_overflow(&self, captures: &Captures<'_>) -> ContextOverflow {
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

pub(crate) static COMPILED_PATTERNS: LazyLock<Vec<(Regex, &'static ErrorPattern)>> =
    LazyLock::new(|| ERROR_PATTERNS.iter().map(|sentence| (compile(sentence.pattern), sentence)).collect());

pub(crate) static EXCLUDED_REGEX: LazyLock<Regex> = LazyLock::new(|| {
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
        r"限流|流控|频率|每分钟",
    ])
});

pub(crate) static PAYLOAD_SIZE_REGEX: LazyLock<Regex> = LazyLock::new(|| {
    compile_any(&[r"request_too_large", r"request entity too large", r"payload size exceeds", r"payload too large"])
});

pub(crate) static UNNUMBERED_REGEX: LazyLock<Regex> = LazyLock::new(|| {
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
        r"exceeds the maximum number of (input )?tokens",
        r"too many total text bytes",
        // Bedrock's limits in characters; shorter ones are those of names.
        r"expected maxlength: \d{5,}",
        r"prompt: length: 1\.\.\d{4,}",
        r"exceeds?( the)?( customer)? model maximum",
        r"exceeds the max_model_len",
        r"input and output tokens exceed your context limit",
        r"input length exceeds (the )?context (length|window)",
        r"exceeds the available context size",
        r"tokens exceed context window",
        r"prompt\s*超长",
        r"超过最大长度",
        r"(上下文|输入)长度超(过|出|限)",
        r"token\s*数量?超(过|出)(上限|限制)",
    ])
});

/// Whole messages with which local servers reject a prompt although they report a failure of their own (500).
pub(crate) static SERVER_ERROR_REGEX: LazyLock<Regex> = LazyLock::new(|| {
    let messages = [
        r"the request exceeds the available context size\. try increasing (the )?context size or enable context shift",
        r"context size has been exceeded",
        r"requested tokens \(NUM\) exceed context window of NUM",
        r"(the )?input length exceeds (the )?context (length|window)",
    ];
    compile(&format!(r"^({})\.?\s*$", messages.join("|")))
});

/// The text of known providers before a sentence with numbers.
pub(crate) static LEAD: LazyLock<Regex> = LazyLock::new(|| {
    let leads = [
        r"this (model|endpoint)'s ",
        r"the ((decoder|encoder|engine) )?",
        r"the request exceeds the available context size\. try increasing (the )?context size or enable context shift: ",
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
pub(crate) static TAIL: LazyLock<Regex> = LazyLock::new(|| {
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
    error_pattern("l", Input, r"input token count exceeds the maximum number of tokens allowed:? \(?NUM\)?"),
    error_pattern("sl", Window, r"prompt tokens \(?NUM\)? exceeds? (?:the )?(?:customer )?model maximum \(?NUM\)?"),
    error_pattern("sl", Window, r"prompt length NUM exceeds the max_model_len NUM"),
    error_pattern("sl", Window, r"requested tokens \(NUM\) exceed context window of NUM"),
    error_pattern("ls", Window, r"n_ctx = NUM, n_keep = \d+, n_prompt_tokens = NUM"),
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
