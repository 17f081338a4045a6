//! The interface to a language model: one call, messages and tools in, a response out.
//!
//! Nothing here depends on a provider or a network; `HttpModel` (cargo feature `http`) does. A caller with a custom
//! client implements [`LanguageModel`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use foldline::conversation::ToolCall;
use foldline::tokens::Tokens;
use foldline::wire::{ContextOverflow, StopReason, ToolSpec, Usage};
use foldline::{Message, Meter, ModelTable, Prices};

/// The future of a model's response.
pub type ResponseFuture<'a> = Pin<Box<dyn Future<Output = Result<ModelResponse, ModelError>> + Send + 'a>>;

/// A language model. Each call is independent; the model keeps no conversation.
///
/// Dropping the future cancels the call. The summarizer limits time, retries, concurrency and cost; an implementation
/// need not.
pub trait LanguageModel: Send + Sync {
    /// Returns the properties of the model.
    fn info(&self) -> &ModelInfo;

    /// Answers a request.
    fn complete<'a>(&'a self, request: &'a ModelRequest<'a>) -> ResponseFuture<'a>;
}

/// Properties of a model.
#[derive(Clone)]
pub struct ModelInfo {
    /// Its name, for reports.
    pub name: String,
    /// The context window: tokens of request and response together.
    pub window: Tokens,
    /// The token meter.
    pub meter: Meter,
    /// The token prices.
    pub prices: Prices,
    /// The way it uses tools.
    pub tool_style: ToolStyle,
}

/// The way a model uses tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ToolStyle {
    /// Tools are declared, and the model calls them.
    Calls,
    /// The model has no tool support: commands and results are lines of text.
    Text,
}

impl ModelInfo {
    /// Returns the properties from the built-in model table.
    pub fn for_model(name: &str) -> Self {
        let table = ModelTable::builtin();
        let meter = Meter::for_model(table, Some(name));
        Self {
            name: name.to_owned(),
            window: meter.row().window,
            prices: Prices::for_model(table, Some(name)),
            meter,
            tool_style: ToolStyle::Calls,
        }
    }
}

impl fmt::Debug for ModelInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, window, tool_style, .. } = self;
        f.debug_struct("ModelInfo")
            .field("name", name)
            .field("window", window)
            .field("tool_style", tool_style)
            .finish_non_exhaustive()
    }
}

/// A request to a model.
#[derive(Clone, Copy, Debug)]
pub struct ModelRequest<'a> {
    /// The system prompt.
    pub system: &'a str,
    /// The conversation so far: texts, calls and results.
    pub messages: &'a [Message<'static>],
    /// The tools that it may call; empty for a model without tool support.
    pub tools: &'a [ToolSpec<'a>],
    /// Maximum number of output tokens.
    pub max_output: Tokens,
}

/// A response of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelResponse {
    /// The text.
    pub text: String,
    /// The tool calls.
    pub calls: Vec<ToolCall<'static>>,
    /// The usage, if the server reported it.
    pub usage: Option<Usage>,
    /// The stop reason, if the server reported it.
    pub stop: Option<StopReason>,
}

/// A failed model call.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelError {
    /// The kind of the failure.
    pub kind: ModelErrorKind,
    /// The message for people.
    pub message: String,
}

/// The kinds of failure, by the possible reaction.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ModelErrorKind {
    /// The request was too large: send less.
    Overflow(ContextOverflow),
    /// The server is busy or failed: retry, after this time if it was stated.
    Busy(Option<Duration>),
    /// The server rejects the request or the key: a retry changes nothing.
    Refused,
    /// The server cannot be reached.
    Unreachable,
    /// The response could not be parsed.
    InvalidResponse,
}

impl ModelError {
    /// Creates an error of this kind.
    pub fn new(kind: ModelErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Returns true if a retry may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, ModelErrorKind::Busy(_) | ModelErrorKind::Unreachable | ModelErrorKind::InvalidResponse)
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ModelError {}
