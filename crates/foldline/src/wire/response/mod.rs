//! What came back: usage, tool calls, text, reasoning, the reason to stop, errors; from a JSON body
//! or from a stream, in one shape.
//!
//! Responses are read on the side while their bytes go to the client untouched, so nothing here
//! fails for a field that is missing, new or of another type: it is left out. Only a body that is
//! no response at all is an error, and no bytes whatsoever make a panic.

pub(crate) mod api_error;
pub(crate) mod overflow;
pub(crate) mod stream;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod usage;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::Format;
use crate::conversation::{Message, Part, Role, ToolCall};
use crate::error::{Error, ErrorKind};
use crate::wire::json::scan;
use crate::wire::json::scan::JsonObject;
use crate::wire::response::overflow::{ContextOverflow, OverflowEvidence, RequestRejection};

pub(crate) use crate::wire::dialect::openai_chat::call_tracker::{CallDelta, CallShape, CallTracker};
pub(crate) use crate::wire::dialect::openai_responses::item_tracker::ItemTracker;
pub use api_error::{ApiError, PromptAndWindow};
pub use stream::{OutputPosition, StreamEvent, StreamLimits, StreamReader, StreamStep, UnreadableFrame};
pub use usage::Usage;

/// A response, read.
///
/// ```
/// use foldline::wire::{Format, Response, StopReason};
///
/// let body = br#"{"id":"msg_1","type":"message","role":"assistant","model":"claude-opus-4-6",
///     "content":[{"type":"text","text":"Let me look."},
///                {"type":"tool_use","id":"t1","name":"read","input":{"path":"a.rs"}}],
///     "stop_reason":"tool_use","usage":{"input_tokens":10,"cache_read_input_tokens":90,"output_tokens":7}}"#;
/// let response = Response::parse(Format::Anthropic, body)?;
/// assert_eq!(response.text(), "Let me look.");
/// assert_eq!(response.calls().next().unwrap().arguments.as_str(), r#"{"path":"a.rs"}"#);
/// assert_eq!(response.stop.unwrap().reason, StopReason::ToolUse);
/// assert_eq!(response.usage.unwrap().input, 100);
/// # Ok::<(), foldline::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Response<'a> {
    /// The id that the provider gave it.
    pub id: Option<Cow<'a, str>>,
    /// The model that answered.
    pub model: Option<Cow<'a, str>>,
    /// What it said, as parts in order. Of several choices, the first.
    pub message: Message<'a>,
    /// Why it stopped; `None` when it did not say.
    pub stop: Option<StopInfo>,
    /// What it cost; `None` when it did not say.
    pub usage: Option<Usage>,
    /// What went wrong, in the body or in the stream.
    pub error: Option<ApiError>,
    /// How much of it there is.
    pub extent: ResponseExtent,
}

/// How much of a response was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResponseExtent {
    /// All of it.
    Complete,
    /// The stream ended before the response did.
    Interrupted,
    /// The response is longer than the reader was told to keep.
    Truncated,
}

/// Why the model stopped.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StopInfo {
    /// In our words.
    pub reason: StopReason,
    /// In the provider's.
    pub raw: String,
}

/// Why a model stops, in one vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StopReason {
    /// It has said what it had to say.
    EndTurn,
    /// It waits for the results of its calls.
    ToolUse,
    /// It reached the most tokens that it may answer with.
    MaxTokens,
    /// It wrote a text at which it was told to stop.
    StopSequence,
    /// It refused, or a filter stopped it.
    Refused,
    /// A round of server tools ended; the client is to send the turn back.
    Paused,
    /// The window was full.
    ContextFull,
    /// The provider compacted the conversation and stopped there.
    Compacted,
    /// A reason that this version does not know.
    Other,
}

impl StopReason {
    fn from_raw(raw: &str) -> Self {
        match raw {
            "end_turn" | "stop" | "completed" | "eos_token" | "eos" => StopReason::EndTurn,
            "tool_use" | "tool_calls" | "function_call" => StopReason::ToolUse,
            "max_tokens" | "length" | "max_output_tokens" => StopReason::MaxTokens,
            "stop_sequence" => StopReason::StopSequence,
            "refusal" | "content_filter" | "sensitive" => StopReason::Refused,
            "pause_turn" => StopReason::Paused,
            "model_context_window_exceeded" | "model_length" => StopReason::ContextFull,
            "compaction" => StopReason::Compacted,
            _ => StopReason::Other,
        }
    }
}

impl StopInfo {
    pub(crate) fn from_raw(raw: &str) -> Self {
        StopInfo { reason: StopReason::from_raw(raw), raw: raw.to_owned() }
    }

    /// Some servers say that the turn ended although calls are waiting.
    pub(crate) fn corrected_for_calls(mut self, any: bool) -> Self {
        if any && self.reason == StopReason::EndTurn {
            self.reason = StopReason::ToolUse;
        }
        self
    }
}

impl<'a> Response<'a> {
    /// Reads a JSON body: a response, or an error in the place of one.
    pub fn parse(format: Format, body: &'a [u8]) -> Result<Self, Error> {
        let text = std::str::from_utf8(body)
            .map_err(|error| Error::not_json(error.valid_up_to(), "text that is not UTF-8"))?;
        let document = scan::parse_document(text)?;
        let object = document.object();
        let (content, read): (_, fn(&JsonObject<'a>) -> Self) = match format {
            Format::OpenAiChat => ("choices", crate::wire::dialect::openai_chat::response::parse_response),
            Format::OpenAiResponses => ("output", crate::wire::dialect::openai_responses::response::parse_response),
            Format::Anthropic => ("content", crate::wire::dialect::anthropic::response::parse_response),
        };
        if object.get_non_null(content).is_some() {
            return Ok(read(&object));
        }
        let error = ApiError::find(document).ok_or_else(|| {
            let message = format!("not a response of {}: neither \"{content}\" nor an error in it", format.name());
            Error::new(ErrorKind::NotAResponse, message)
        })?;
        Ok(Response { error: Some(error), ..Response::empty() })
    }

    pub(crate) fn empty() -> Self {
        Response {
            id: None,
            model: None,
            message: Message::new(Role::Assistant, Vec::new()),
            stop: None,
            usage: None,
            error: None,
            extent: ResponseExtent::Complete,
        }
    }

    /// Its texts, joined.
    pub fn text(&self) -> String {
        self.message.parts.iter().filter_map(Part::as_text).collect()
    }

    /// Its calls, in order.
    pub fn calls(&self) -> impl Iterator<Item = &ToolCall<'a>> {
        self.message.calls()
    }

    /// Whether it says that the prompt did not fit. `status` is the HTTP status it came with.
    pub fn overflow(&self, status: u16) -> Option<ContextOverflow> {
        let status = (status >= 400).then_some(status);
        match self.error.as_ref().map(|error| RequestRejection::from_error(status, error)) {
            Some(RequestRejection::Overflow(overflow)) => Some(overflow),
            _ if self.stop.as_ref().is_some_and(|stop| stop.reason == StopReason::ContextFull) => {
                Some(ContextOverflow::without_numbers(OverflowEvidence::StopReason))
            }
            _ => None,
        }
    }

    /// The same response with all its text owned.
    pub fn into_owned(self) -> Response<'static> {
        Response {
            id: self.id.map(|it| Cow::Owned(it.into_owned())),
            model: self.model.map(|it| Cow::Owned(it.into_owned())),
            message: self.message.into_owned(),
            stop: self.stop,
            usage: self.usage,
            error: self.error,
            extent: self.extent,
        }
    }
}

/// The parts without those that say nothing: an empty text beside calls, a thought that was not told.
pub(crate) fn without_empty_parts(mut parts: Vec<Part<'_>>) -> Vec<Part<'_>> {
    parts.retain(|part| match part {
        Part::Text { text } => !text.is_empty(),
        Part::Reasoning(it) => !it.text.is_empty() || it.seal.as_ref().is_some_and(|seal| !seal.is_empty()),
        _ => true,
    });
    parts
}
