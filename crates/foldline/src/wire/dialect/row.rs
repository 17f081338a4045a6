//! A row of the table of dialects: everything that distinguishes a dialect from the others.

use crate::wire::compose::ComposeSyntax;
use crate::wire::diagnostics::DiagnosticsSyntax;
use crate::wire::endpoint::{ApiFamily, ConversationEndpoint, EndpointPurpose, encode_path_segment};
use crate::wire::format::Format;
use crate::wire::intercept::syntax::InterceptSyntax;
use crate::wire::json::preview::ObjectPreview;
use crate::wire::json::scan::JsonObject;
use crate::wire::json::splice::EditSyntax;
use crate::wire::messages::MessageSyntax;
use crate::wire::request::RequestSyntax;
use crate::wire::response::stream::ResponseSyntax;
use crate::wire::result::ResultSyntax;
use crate::wire::rules::DialectRules;

/// A provider's wire format, as data and functions. [`Format::dialect`] returns the row of a format.
///
/// ```
/// use foldline::wire::{Dialect, EndpointPurpose, Format};
///
/// let (dialect, endpoint) = Dialect::for_path("/v1/messages/count_tokens").expect("a known path");
/// assert_eq!((dialect.format, endpoint.purpose), (Format::Anthropic, EndpointPurpose::CountTokens));
/// assert_eq!(dialect.family.name, "anthropic");
/// assert_eq!(dialect.error_body(413, "too large"), r#"{"type":"error","error":{"type":"request_too_large","message":"too large"}}"#);
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Dialect {
    /// The identifier.
    pub format: Format,
    /// The name in flags, settings and metrics.
    pub name: &'static str,
    /// The name in documentation.
    pub title: &'static str,
    /// The API that the dialect belongs to.
    pub family: &'static ApiFamily,
    /// True if an error event ends a stream; false if clients take a stream that ends after one for complete.
    pub error_ends_stream: bool,
    /// True if clients keep the items of a response that failed and continue after them, so that the next request needs
    /// its hidden calls.
    pub keeps_failed_items: bool,
    /// Returns the facts that a path, without its query, states about a request; `None` if it carries no conversation
    /// of this dialect.
    pub(crate) endpoint: for<'p> fn(&'p str) -> Option<ConversationEndpoint<'p>>,
    /// The usual paths of requests with conversations, for reference pages; `...` are segments that vary.
    pub documented_paths: &'static [(&'static str, EndpointPurpose)],
    pub(crate) marks: DialectMarks,
    pub(crate) request: RequestSyntax,
    pub(crate) edits: EditSyntax,
    pub(crate) results: ResultSyntax,
    pub(crate) response: ResponseSyntax,
    pub(crate) intercept: InterceptSyntax,
    pub(crate) compose: ComposeSyntax,
    pub(crate) messages: MessageSyntax,
    pub(crate) errors: ErrorSyntax,
    pub(crate) rules: DialectRules,
    /// The fields of cache diagnostics; `None` if the API has none.
    pub(crate) diagnostics: Option<DiagnosticsSyntax>,
}

/// Distinctive features of a dialect's bodies, for detection.
#[derive(Debug)]
pub(crate) struct DialectMarks {
    /// Returns true if a body with these fields can only be of this dialect.
    pub(crate) in_body: fn(&JsonObject<'_>) -> bool,
    /// Returns true if a message with these fields can only be of this dialect.
    pub(crate) in_message: fn(&JsonObject<'_>) -> bool,
    /// Types of content blocks that only this dialect has.
    pub(crate) block_types: &'static [&'static str],
    /// Returns true if a tool declared like this can only be of this dialect.
    pub(crate) in_tool: fn(&JsonObject<'_>) -> bool,
    /// Returns true if a recorded object with these keys looks like a body or a message of this dialect. Later rows of
    /// the table are tried first, so that of Chat Completions, which others resemble, is the last.
    pub(crate) in_recording: fn(&ObjectPreview) -> bool,
}

/// The form of a dialect's errors.
#[derive(Debug)]
pub(crate) struct ErrorSyntax {
    /// Returns the usual error type for an HTTP status.
    pub(crate) kind: fn(u16) -> &'static str,
    /// Returns the body of an error with a type and a message.
    pub(crate) body: fn(&str, &str) -> String,
}

impl Dialect {
    /// Returns the usual error type for an HTTP status.
    pub fn error_kind(&self, status: u16) -> &'static str {
        (self.errors.kind)(status)
    }

    /// Returns the body of an error response in the form that clients of this dialect parse.
    pub fn error_body(&self, status: u16, message: &str) -> String {
        (self.errors.body)(self.error_kind(status), message)
    }

    /// Returns the path of a turn with a model, after the base URL and its version; without a version if it begins with a
    /// slash. The name of the model is one segment of it, percent-encoded: that of an inference profile has slashes.
    pub fn turn_path(&self, model: &str) -> String {
        self.compose.path.replace("{model}", &encode_path_segment(model))
    }
}
