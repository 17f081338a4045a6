//! Recognises that a prompt was refused because it does not fit the window, and what that teaches.
//!
//! No two providers say it alike. In this order: a structured code; what only looks like an
//! overflow (rate limits, output caps, bodies too large in bytes); sentences with numbers; sentences
//! without; an empty 400 or 413. A number is believed only where a sentence says what it is, because
//! a wrong window that was learned from an error code poisons every later request.

use std::sync::LazyLock;

use regex::{Captures, Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use super::response::ApiError;

/// Why a request was refused, as far as its size is concerned.
///
/// ```
/// use foldline::wire::{Bounds, Lesson, Refusal};
///
/// let body = br#"{"type":"error","error":{"type":"invalid_request_error",
///     "message":"prompt is too long: 215000 tokens > 200000 maximum"}}"#;
/// let Refusal::Overflow(overflow) = Refusal::of_body(400, body) else { panic!("not recognised") };
/// assert_eq!(overflow.limit, Some(200_000));
/// assert_eq!(overflow.lesson(216_000), Lesson::Limit { tokens: 200_000, bounds: Bounds::Window });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// Too many tokens: fold more and ask again.
    Overflow(Overflow),
    /// Too many bytes: images and files must shrink. It says nothing about the window.
    Payload,
    /// Something else.
    Other,
}

/// A prompt that does not fit, with the numbers that the server gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Overflow {
    /// By what it was recognised.
    pub evidence: Evidence,
    /// The most tokens that the server takes.
    pub limit: Option<u64>,
    /// What the limit bounds.
    pub bounds: Bounds,
    /// The tokens of the prompt, by the server's own count.
    pub sent: Option<Count>,
    /// The tokens that were reserved for the answer.
    pub output: Option<u64>,
    /// Prompt and answer together, where the server says so.
    pub total: Option<u64>,
}

/// By what an overflow was recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Evidence {
    /// A code or type that means nothing else.
    Code,
    /// A sentence with numbers.
    Numbers,
    /// A sentence without.
    Phrase,
    /// A 400 or 413 without a body.
    EmptyBody,
    /// The answer was cut by the window.
    StopReason,
}

/// What a limit bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bounds {
    /// Prompt and answer together.
    Window,
    /// The prompt alone.
    Input,
}

/// A count of tokens, with how far it may be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Count {
    /// Counted: it may calibrate an estimate.
    Exactly(u64),
    /// Counting stopped here.
    AtLeast(u64),
    /// The server estimated it.
    About(u64),
}

/// What an overflow teaches about the window of this upstream and model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lesson {
    /// The server named its limit, believably; worth storing.
    Limit {
        /// The most tokens that it takes.
        tokens: u64,
        /// What they bound.
        bounds: Bounds,
    },
    /// All that is known is that this many tokens, by our own count, were too many. Our count may be
    /// wrong, so this is for the running session and never to be stored.
    Below(u64),
}

impl Refusal {
    /// Judges an error response by its status and body.
    pub fn of_body(status: u16, body: &[u8]) -> Self {
        if body.trim_ascii().is_empty() {
            return match status {
                400 | 413 => Refusal::Overflow(Overflow::unnumbered(Evidence::EmptyBody)),
                _ => Refusal::Other,
            };
        }
        Self::of(Some(status), &ApiError::parse(body))
    }

    /// Judges an error; one that came inside a stream has no status of its own.
    pub fn of(status: Option<u16>, error: &ApiError) -> Self {
        let voices = [Some(error), error.behind.as_deref()];
        let voices = voices.into_iter().flatten();
        if voices.clone().any(has_overflow_code) {
            let overflow = voices.clone().find_map(numbers).unwrap_or(Overflow::unnumbered(Evidence::Code));
            return Refusal::Overflow(Overflow { evidence: Evidence::Code, ..overflow });
        }
        if status.is_some_and(|status| status == 429 || status >= 500) || voices.clone().any(is_excluded) {
            return Refusal::Other;
        }
        if voices.clone().any(is_about_bytes) {
            return Refusal::Payload;
        }
        if let Some(overflow) = voices.clone().find_map(numbers) {
            return Refusal::Overflow(overflow);
        }
        if voices.clone().any(|error| BARE.is_match(scanned(&error.message))) {
            return Refusal::Overflow(Overflow::unnumbered(Evidence::Phrase));
        }
        if status == Some(413) { Refusal::Payload } else { Refusal::Other }
    }
}

impl Overflow {
    pub(crate) fn unnumbered(evidence: Evidence) -> Self {
        Overflow { evidence, limit: None, bounds: Bounds::Window, sent: None, output: None, total: None }
    }

    /// What this teaches, given our own count of the prompt. A limit is believed when it is of a
    /// plausible size and the server's own numbers are really above it.
    pub fn lesson(&self, counted: u64) -> Lesson {
        let Some(limit) = self.limit.filter(|limit| (1024..=20_000_000).contains(limit)) else {
            return Lesson::Below(counted);
        };
        let sum = self.sent.map(|sent| sent.tokens().saturating_add(self.output.unwrap_or(0)));
        match self.total.max(sum) {
            Some(total) if total < limit => Lesson::Below(counted),
            _ => Lesson::Limit { tokens: limit, bounds: self.bounds },
        }
    }
}

impl Count {
    /// The number alone.
    pub fn tokens(self) -> u64 {
        match self {
            Count::Exactly(tokens) | Count::AtLeast(tokens) | Count::About(tokens) => tokens,
        }
    }
}

/// Codes and types that mean an overflow and nothing else.
const CODES: [&str; 5] = [
    "context_length_exceeded",
    "model_context_window_exceeded",
    "model_max_prompt_tokens_exceeded",
    "exceed_context_size_error",
    "1261",
];

fn has_overflow_code(error: &ApiError) -> bool {
    [&error.code, &error.kind].into_iter().flatten().any(|name| CODES.contains(&name.as_str()))
}

fn is_excluded(error: &ApiError) -> bool {
    names_and_text(error).any(|text| EXCLUDED.is_match(text))
}

fn is_about_bytes(error: &ApiError) -> bool {
    names_and_text(error).any(|text| BYTES.is_match(text))
}

fn names_and_text(error: &ApiError) -> impl Iterator<Item = &str> {
    [error.code.as_deref(), error.kind.as_deref(), Some(scanned(&error.message))].into_iter().flatten()
}

/// The part of a text that is searched: what it is about stands at its beginning.
fn scanned(text: &str) -> &str {
    &text[..text.floor_char_boundary(4 << 10)]
}

/// The numbers in an error, told as fields or by the first sentence that fits.
fn numbers(error: &ApiError) -> Option<Overflow> {
    if let Some(tokens) = error.tokens {
        return Some(Overflow {
            limit: Some(tokens.window),
            sent: Some(Count::Exactly(tokens.prompt)),
            ..Overflow::unnumbered(Evidence::Numbers)
        });
    }
    let text = scanned(&error.message);
    PATTERNS.iter().find_map(|(pattern, sentence)| Some(sentence.overflow(&pattern.captures(text)?)))
}

/// A sentence that says what its numbers are.
struct Sentence {
    /// One letter for each number, in order: `l`imit, `s`ent, `i`nput, `o`utput, `t`otal.
    groups: &'static str,
    bounds: Bounds,
    /// `NUM` stands for a number.
    pattern: &'static str,
}

impl Sentence {
    fn overflow(&self, captures: &Captures<'_>) -> Overflow {
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
        let said = captures.get(0).map_or("", |said| said.as_str());
        let count = if said.contains("at least") {
            Count::AtLeast
        } else if said.contains("about") {
            Count::About
        } else {
            Count::Exactly
        };
        Overflow {
            evidence: Evidence::Numbers,
            limit: number('l'),
            bounds: self.bounds,
            sent: number('s').or(rest).or(input).map(count),
            output,
            total,
        }
    }
}

static PATTERNS: LazyLock<Vec<(Regex, &'static Sentence)>> =
    LazyLock::new(|| SENTENCES.iter().map(|sentence| (compile(sentence.pattern), sentence)).collect());

static EXCLUDED: LazyLock<Regex> = LazyLock::new(|| {
    any_of(&[
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

static BYTES: LazyLock<Regex> = LazyLock::new(|| {
    any_of(&[r"request_too_large", r"request entity too large", r"payload size exceeds", r"payload too large"])
});

static BARE: LazyLock<Regex> = LazyLock::new(|| {
    any_of(&[
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

fn any_of(patterns: &[&str]) -> Regex {
    compile(&patterns.join("|"))
}

fn compile(pattern: &str) -> Regex {
    RegexBuilder::new(&pattern.replace("NUM", r"(\d[\d,]*)"))
        .case_insensitive(true)
        .dot_matches_new_line(true)
        .build()
        .expect("the patterns of this file are tested")
}

use Bounds::{Input, Window};

const fn says(groups: &'static str, bounds: Bounds, pattern: &'static str) -> Sentence {
    Sentence { groups, bounds, pattern }
}

/// Tried in order: a sentence that splits a total stands before the one that has only the total.
#[rustfmt::skip]
const SENTENCES: &[Sentence] = &[
    says("sl", Window, r"prompt is too long:?\s*NUM tokens\s*>\s*NUM maximum"),
    says("iol", Window, r"exceed context limit:\s*NUM\s*\+\s*NUM\s*>\s*NUM"),
    says("ltio", Window, r"maximum context length is NUM tokens.{0,40}?requested (?:about )?NUM tokens \(NUM (?:in the messages|in your prompt|of text input)(?:[^)]{0,80}?\bNUM (?:in|for) the (?:completion|output))?"),
    says("loi", Window, r"maximum context length is NUM tokens\. However, you requested NUM output tokens and your prompt contains (?:at least )?NUM input tokens"),
    says("lo", Window, r"maximum context length is NUM tokens\. However, you requested NUM output tokens and your prompt contains [\d,]+ characters"),
    says("ls", Input, r"configured limit of NUM tokens.{0,60}?resulted in NUM tokens"),
    says("ls", Window, r"maximum context length is NUM tokens.{0,60}?resulted in NUM tokens"),
    says("lt", Window, r"maximum context length is NUM tokens.{0,40}?requested (?:about )?NUM tokens"),
    says("sl", Input, r"input token count \(?NUM\)? exceeds the maximum number of tokens allowed \(?NUM\)?"),
    says("ls", Input, r"maximum prompt length is NUM but the request contains NUM tokens"),
    says("sl", Input, r"prompt token count of NUM exceeds the limit of NUM"),
    says("sl", Window, r"current length is NUM while limit is NUM"),
    says("ls", Window, r"exceeded model token limit:\s*NUM(?: \(re\s?quested: NUM\))?"),
    says("sl", Window, r"prompt contains NUM tokens.{0,80}?too large for model with NUM maximum context length"),
    says("sl", Window, r"(?:request|input) \(NUM tokens\) (?:exceeds the available context size|is larger than the max context size) \(NUM tokens\)"),
    says("sl", Window, r"input \(NUM tokens\) is longer than the model'?s context length \(NUM tokens\)"),
    says("sl", Input, r"input length \(?NUM(?: tokens)?\)? exceeds (?:the )?maximum input length (?:of )?\(?NUM(?: tokens)?\)?"),
    says("sl", Window, r"input length \(?NUM(?: tokens)?\)? exceeds (?:the |model'?s )?maximum (?:allowed |context )?(?:input )?length (?:of )?\(?NUM(?: tokens)?\)?"),
    says("lti", Window, r"exceeds the model'?s maximum context length of NUM tokens\. You requested a total of NUM tokens: NUM tokens from the input"),
    says("sl", Window, r"prompt \(length NUM\) (?:is|plus .{0,60}? is) longer than the maximum model length of NUM"),
    says("lio", Window, r"`?inputs`? tokens \+ `?max_new_tokens`? must be <= NUM\. Given: NUM `?inputs`? tokens and NUM"),
    says("ls", Input, r"`?inputs`? must have less than NUM tokens\. Given: NUM"),
    says("sl", Window, r"n_keep: NUM\s*>=\s*n_ctx: NUM"),
    says("sl", Window, r"keep the first NUM tokens .{0,120}?context length of only NUM tokens"),
    says("l", Input, r"range of input length should be \[1, ?NUM\]"),
    says("l", Window, r"model max length exceeded, max length:\s*NUM"),
    says("sl", Window, r"prompt has NUM tokens?, but the configured context size is NUM tokens?"),
    says("l", Window, r"model maximum context length:\s*NUM"),
];
