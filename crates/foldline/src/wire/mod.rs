//! Request bodies and responses of the provider APIs: parsing, editing and streaming.
//!
//! Only this module knows a provider's JSON. A body is parsed into a [`Conversation`] that borrows from it, together
//! with the byte positions of everything that may be edited. [`Request::splice`] writes the edits and copies every
//! other byte: unknown fields, key order, number spelling, duplicate keys and white space are preserved, and without
//! edits the result is identical to the input. A body is never re-serialized.
//!
//! A [`Response`] is parsed from a body, or by a [`StreamReader`] while the stream is forwarded; a [`RequestRejection`]
//! states whether a prompt was too large; a [`StreamSplicer`] answers calls of an injected tool inside the client's
//! stream. What differs between providers is in one table: [`Format::dialect`] returns a row of it.
//!
//! [`Conversation`]: crate::Conversation

mod client_stream;
pub(crate) mod compaction;
mod compose;
mod conversation_scan;
pub(crate) mod diagnostics;
pub(crate) mod dialect;
pub(crate) mod endpoint;
pub(crate) mod event_stream;
pub(crate) mod format;
pub(crate) mod intercept;
pub(crate) mod json;
pub(crate) mod json_array;
pub(crate) mod messages;
pub(crate) mod request;
mod response;
pub(crate) mod result;
pub(crate) mod rows;
pub(crate) mod rules;
mod sse;
#[cfg(test)]
mod tests;

pub use compose::{OutgoingRequest, ToolSpec};
pub use conversation_scan::ConversationScan;
pub use diagnostics::{CacheVerdict, DiagnosticsFilter, request_cache_diagnostics};
pub use dialect::anthropic::thread_not_found_body;
pub use dialect::row::Dialect;
pub use endpoint::{ApiFamily, ConversationEndpoint, EndpointPurpose, encode_path_segment};
pub use format::Format;
pub use intercept::{
    AnswerEnd, BodyOutcome, BodySplicer, FinishedAnswer, HiddenCall, HiddenRound, InjectedTool, InterceptedCalls,
    InterruptedRound, ReportedId, RoundOutcome, StreamSplicer,
};
pub(crate) use json::lexer::ByteSpan;
pub use json::lexer::MAX_JSON_DEPTH;
pub(crate) use json::scan::{JsonField, JsonObject, JsonValue, parse_document, string_values};
pub use json::splice::RequestEdit;
pub(crate) use json::string::encode;
pub use messages::MessageWriter;
pub use request::Request;
pub(crate) use request::{parse_message, parse_tool};
pub use response::overflow::{
    ContextOverflow, LearnedLimit, LimitScope, OverflowEvidence, ReportedTokens, RequestRejection,
};
pub use response::{
    ApiError, OutputPosition, PromptAndWindow, Response, ResponseExtent, StopInfo, StopReason, StreamEvent,
    StreamLimits, StreamReader, StreamStep, UnreadableFrame, Usage,
};
pub use rows::MessageRows;
pub use sse::{FrameEnd, MAX_EVENT_BYTES, SseFrame, SseFramer};
