//! A response in one shape, whatever its dialect.

use std::borrow::Cow;

use crate::conversation::{Message, Part, Role, ToolCall};
use crate::error::{Error, ErrorKind};
use crate::wire::format::Format;
use crate::wire::json::scan;
use crate::wire::response::api_error::ApiError;
use crate::wire::response::overflow::{ContextOverflow, OverflowEvidence, RequestRejection};
use crate::wire::response::stop::{StopInfo, StopReason};
use crate::wire::response::usage::Usage;

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

impl<'a> Response<'a> {
    /// Parses a JSON body: a response, or an error in its place.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotJson`] or [`ErrorKind::TooDeep`] if the body is not valid JSON, [`ErrorKind::NotAResponse`] if it is
    /// neither a response of this format nor an error.
    pub fn parse(format: Format, body: &'a [u8]) -> Result<Self, Error> {
        let text = std::str::from_utf8(body)
            .map_err(|error| Error::not_json(error.valid_up_to(), "text that is not UTF-8"))?;
        let document = scan::parse_document(text)?;
        let syntax = &format.dialect().response;
        let object = syntax.without_envelope(document.object());
        let content = syntax.content_key;
        if object.get_non_null(content).is_some() {
            let response = (syntax.parse_body)(&object);
            return Ok(Response { usage: response.usage.map(Usage::bounded), ..response });
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
