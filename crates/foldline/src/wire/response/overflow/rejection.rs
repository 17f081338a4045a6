//! The reason for a rejected request, and the limit that it reveals.

use serde::{Deserialize, Serialize};

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
