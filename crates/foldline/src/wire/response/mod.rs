//! Responses in one shape: usage, tool calls, text, reasoning, stop reason and errors, from a JSON body or a stream.
//!
//! Responses are parsed while their bytes are forwarded unchanged. A missing, new or mistyped field is therefore
//! omitted, not an error; only a body that is not a response is. No input may cause a panic.

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

/// A parsed response.
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
    /// The id assigned by the provider.
    pub id: Option<Cow<'a, str>>,
    /// The model that generated the response.
    pub model: Option<Cow<'a, str>>,
    /// The generated parts in order. Of several choices, the first.
    pub message: Message<'a>,
    /// The stop reason; `None` if not reported.
    pub stop: Option<StopInfo>,
    /// The token counts; `None` if not reported.
    pub usage: Option<Usage>,
    /// The error in the body or in the stream.
    pub error: Option<ApiError>,
    /// The extent to which the response was read.
    pub extent: ResponseExtent,
}

/// The extent to which a response was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResponseExtent {
    /// The whole response.
    Complete,
    /// The stream ended before the response did.
    Interrupted,
    /// The response exceeds the reader's limit for kept bytes.
    Truncated,
}

/// The stop reason of a response.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StopInfo {
    /// The normalized reason.
    pub reason: StopReason,
    /// The provider's own value.
    pub raw: String,
}

/// Stop reasons, normalized across providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StopReason {
    /// The turn is complete.
    EndTurn,
    /// The model waits for the results of its calls.
    ToolUse,
    /// The output token limit was reached.
    MaxTokens,
    /// A stop sequence was generated.
    StopSequence,
    /// The model refused, or a filter stopped it.
    Refused,
    /// A round of server tools ended; the client must send the turn back.
    Paused,
    /// The context window was full.
    ContextFull,
    /// The provider compacted the conversation and stopped.
    Compacted,
    /// A reason unknown to this version.
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

    /// Corrects servers that report the end of the turn although calls are pending.
    pub(crate) fn corrected_for_calls(mut self, any: bool) -> Self {
        if any && self.reason == StopReason::EndTurn {
            self.reason = StopReason::ToolUse;
        }
        self
    }
}

impl<'a> Response<'a> {
    /// Parses a JSON body: a response, or an error in its place.
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
            let message = format!("not a {} response: neither field \"{content}\" nor an error found", format.name());
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

    /// Returns the concatenated texts.
    pub fn text(&self) -> String {
        self.message.parts.iter().filter_map(Part::as_text).collect()
    }

    /// Returns the calls in order.
    pub fn calls(&self) -> impl Iterator<Item = &ToolCall<'a>> {
        self.message.calls()
    }

    /// Returns the overflow if the response reports that the prompt did not fit. `status` is its HTTP status.
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

    /// Returns the same response with all text owned.
    pub fn into_owned(self) -> Response<'static> {
        Response {
            id: self.id.map(|text| Cow::Owned(text.into_owned())),
            model: self.model.map(|text| Cow::Owned(text.into_owned())),
            message: self.message.into_owned(),
            stop: self.stop,
            usage: self.usage,
            error: self.error,
            extent: self.extent,
        }
    }
}

/// Removes parts without content: an empty text next to calls, reasoning without text or signature.
pub(crate) fn without_empty_parts(mut parts: Vec<Part<'_>>) -> Vec<Part<'_>> {
    parts.retain(|part| match part {
        Part::Text { text } => !text.is_empty(),
        Part::Reasoning(reasoning) => {
            !reasoning.text.is_empty() || reasoning.seal.as_ref().is_some_and(|seal| !seal.is_empty())
        }
        _ => true,
    });
    parts
}
