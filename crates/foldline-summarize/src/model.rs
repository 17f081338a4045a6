//! What a model is to the summariser: one call, messages and tools in, an answer out.
//!
//! Nothing here knows a provider or a network; [`HttpModel`](crate::HttpModel) does. Whoever has a client of their own
//! implements [`Model`] with it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use foldline::wire::{ContextOverflow, StopReason, ToolSpec, Usage};
use foldline::{Message, Meter, ModelTable, Prices, Tokens, ToolCall};

/// The answer that a model is about to give.
pub type ResponseFuture<'a> = Pin<Box<dyn Future<Output = Result<ModelResponse, ModelError>> + Send + 'a>>;

/// Something that answers. One method is one call; it keeps no conversation.
///
/// Dropping the future ends the call. The summariser bounds how long it waits, how often and how many at once it
/// asks, and how much; an implementation need not.
pub trait LanguageModel: Send + Sync {
    /// What is known of the model.
    fn info(&self) -> &ModelInfo;

    /// Answers a question.
    fn complete<'a>(&'a self, question: &'a ModelRequest<'a>) -> ResponseFuture<'a>;
}

/// What is known of a model.
#[derive(Clone)]
pub struct ModelInfo {
    /// Its name, for reports.
    pub name: String,
    /// Tokens of question and answer together.
    pub window: Tokens,
    /// Counts its tokens.
    pub meter: Meter,
    /// What its tokens cost.
    pub prices: Prices,
    /// How it is asked to use tools.
    pub tool_style: ToolStyle,
}

/// How a model uses tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ToolStyle {
    /// Tools are declared, and it calls them.
    Calls,
    /// It knows no tools: commands and what they give back are lines of text.
    Text,
}

impl ModelInfo {
    /// What the table of models knows of a name.
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
        let Self { name, window, tool_style: speech, .. } = self;
        f.debug_struct("Traits").field("name", name).field("window", window).field("speech", speech).finish()
    }
}

/// What a model is asked.
#[derive(Clone, Copy, Debug)]
pub struct ModelRequest<'a> {
    /// Its instructions.
    pub system: &'a str,
    /// The conversation so far: texts, calls and results.
    pub messages: &'a [Message<'static>],
    /// The tools that it may call; none for a model that knows none.
    pub tools: &'a [ToolSpec<'a>],
    /// Tokens that it may answer with.
    pub max_output: Tokens,
}

/// What a model answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelResponse {
    /// What it said.
    pub text: String,
    /// The tools that it calls.
    pub calls: Vec<ToolCall<'static>>,
    /// What that cost, when the server told.
    pub usage: Option<Usage>,
    /// Why it stopped, when the server told.
    pub stop: Option<StopReason>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelError {
    /// What kind of failure it is.
    pub kind: ModelErrorKind,
    /// What happened, for people.
    pub message: String,
}

/// The kinds of failure, by what can be done about them.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ModelErrorKind {
    /// The question was too large: ask less.
    Overflow(ContextOverflow),
    /// The server is busy or stumbled: ask again later, after this long when it says so.
    Busy(Option<Duration>),
    /// The server does not take such a question or such a key: asking again changes nothing.
    Refused,
    /// There is no way to the server.
    Unreachable,
    /// What came back is no answer.
    InvalidResponse,
}

impl ModelError {
    /// An error of this kind.
    pub fn new(kind: ModelErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Whether the same question may be answered a little later.
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
