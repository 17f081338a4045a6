//! Errors of upstream servers, in all the JSON shapes that servers use.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::wire::json::scan;
use crate::wire::json::scan::{JsonObject, JsonValue};

/// Maximum length of the error text that is kept.
const MAX_MESSAGE_BYTES: usize = 8 << 10;

/// Error types and codes after which the same request may succeed.
const TEMPORARY: [&str; 9] = [
    "api_error",
    "overloaded_error",
    "rate_limit_error",
    "rate_limit_exceeded",
    "server_error",
    "server_is_overloaded",
    "service_unavailable",
    "slow_down",
    "timeout_error",
];

/// An error reported by a provider.
///
/// ```
/// use foldline::wire::ApiError;
///
/// let error = ApiError::parse(br#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#);
/// assert_eq!(error.kind.as_deref(), Some("overloaded_error"));
/// assert_eq!(error.message, "Overloaded");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ApiError {
    /// The `type` field (or Google's `status`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The `code` field; a number is kept as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The message; the whole body if it has no message.
    pub message: String,
    /// The error of the upstream provider, forwarded by a router.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<Box<ApiError>>,
    /// Tokens of the prompt and of the window, for servers that report them as fields (llama.cpp).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<PromptAndWindow>,
}

/// Token counts that llama.cpp adds to its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptAndWindow {
    /// The tokens of the prompt.
    pub prompt: u64,
    /// The tokens of one slot's window.
    pub window: u64,
}

impl ApiError {
    /// Parses the body of an error response. If no error shape matches, the body itself becomes the message.
    pub fn parse(body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let found = scan::parse_document(&text)
            .ok()
            .and_then(|value| Self::find(value).or_else(|| Self::from_top_level_fields(&value.object())));
        found.unwrap_or_else(|| ApiError { message: truncated(text.trim()), ..ApiError::default() })
    }

    /// Returns true if the same request may succeed soon after: the server is overloaded, limits the rate or failed.
    /// Inside a stream there is no HTTP status, so the error type decides; an error without a type may be temporary.
    pub fn is_temporary(&self, status: Option<u16>) -> bool {
        if let Some(status) = status {
            return matches!(status, 408 | 409 | 429 | 500 | 502 | 503 | 504 | 529);
        }
        let mut names = [&self.kind, &self.code].into_iter().flatten().peekable();
        names.peek().is_none()
            || names.any(|name| match name.parse() {
                Ok(status) => self.is_temporary(Some(status)),
                Err(_) => TEMPORARY.contains(&name.as_str()),
            })
    }

    /// Returns the error in a JSON value that may also be a response.
    pub(crate) fn find(value: JsonValue<'_>) -> Option<Self> {
        let object = match value.is_array() {
            true => value.elements().into_iter().next()?,
            false => value.object(),
        };
        if let Some(error) = object.get_non_null("error") {
            return Some(Self::from_error_value(error, &object));
        }
        let says_so = |key| object.string(key).as_deref() == Some("error");
        let answers = ["choices", "content", "output", "candidates", "id", "usage"]
            .iter()
            .any(|key| object.get_non_null(key).is_some());
        if answers && !says_so("type") && !says_so("object") { None } else { Self::from_top_level_fields(&object) }
    }

    /// Parses an `error` value: an object, or a text with its type and code in the enclosing object.
    pub(crate) fn from_error_value(error: JsonValue<'_>, around: &JsonObject<'_>) -> Self {
        if !error.is_object() {
            return ApiError { message: value_text(error), ..Self::from_type_and_code(around) };
        }
        let fields = error.object();
        let upstream = fields.object("metadata").and_then(|metadata| metadata.get_non_null("raw"));
        let tokens = match (fields.u64(&["n_prompt_tokens"]), fields.u64(&["n_ctx"])) {
            (Some(prompt), Some(window)) => Some(PromptAndWindow { prompt, window }),
            _ => None,
        };
        ApiError {
            message: value_text(fields.get_non_null("message").unwrap_or(error)),
            upstream: upstream
                .map(|raw| Box::new(ApiError { upstream: None, ..Self::parse(value_text(raw).as_bytes()) })),
            tokens,
            ..Self::from_type_and_code(&fields)
        }
    }

    /// Parses an error with top-level fields: `message`, or FastAPI's `detail`.
    fn from_top_level_fields(fields: &JsonObject<'_>) -> Option<Self> {
        let message = ["message", "detail", "Message"].iter().find_map(|key| fields.get_non_null(key));
        message.map(|message| ApiError { message: value_text(message), ..Self::from_type_and_code(fields) })
    }

    fn from_type_and_code(fields: &JsonObject<'_>) -> Self {
        let kind =
            ["type", "status", "__type"].iter().find_map(|key| fields.string(key)).filter(|kind| kind != "error");
        ApiError {
            kind: kind.map(Cow::into_owned),
            code: fields.get_non_null("code").map(value_text),
            ..ApiError::default()
        }
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.code.as_ref().or(self.kind.as_ref()) {
            Some(name) => write!(f, "{name}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// Returns a value as text: a string decoded, anything else as JSON.
fn value_text(value: JsonValue<'_>) -> String {
    truncated(&value.string().unwrap_or(Cow::Borrowed(value.raw())))
}

fn truncated(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_MESSAGE_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str) -> (Option<String>, Option<String>, String) {
        let error = ApiError::parse(body.as_bytes());
        (error.kind, error.code, error.message)
    }

    fn expected(kind: &str, code: &str, message: &str) -> (Option<String>, Option<String>, String) {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        (some(kind), some(code), message.to_owned())
    }

    #[test]
    fn every_error_shape_is_read() {
        for (body, expected) in [
            (r#"{"error":{"message":"m","type":"t","param":null,"code":"c"}}"#, expected("t", "c", "m")),
            (r#"{"type":"error","error":{"type":"t","message":"m"},"request_id":"r"}"#, expected("t", "", "m")),
            (
                r#"{"error":{"message":"m","type":"BadRequestError","code":400}}"#,
                expected("BadRequestError", "400", "m"),
            ),
            (
                r#"{"object":"error","message":"m","type":"BadRequestError","code":400}"#,
                expected("BadRequestError", "400", "m"),
            ),
            (r#"{"type":"error","code":"c","message":"m","param":null,"sequence_number":3}"#, expected("", "c", "m")),
            (r#"{"error":"m"}"#, expected("", "", "m")),
            (r#"{"error":"m","code":"c"}"#, expected("", "c", "m")),
            (r#"{"message":"m"}"#, expected("", "", "m")),
            (r#"{"__type":"ValidationException","message":"m"}"#, expected("ValidationException", "", "m")),
            (r#"{"detail":"m"}"#, expected("", "", "m")),
            (r#"{"detail":[{"msg":"m"}]}"#, expected("", "", r#"[{"msg":"m"}]"#)),
            (
                r#"[{"error":{"code":400,"message":"m","status":"INVALID_ARGUMENT"}}]"#,
                expected("INVALID_ARGUMENT", "400", "m"),
            ),
            (r#"{"error":{"message":{"text":"m"}}}"#, expected("", "", r#"{"text":"m"}"#)),
            ("<html>Bad Gateway</html>\n", expected("", "", "<html>Bad Gateway</html>")),
            ("", expected("", "", "")),
            ("{}", expected("", "", "{}")),
        ] {
            assert_eq!(parse(body), expected, "{body}");
        }
    }

    #[test]
    fn upstream_error_is_read_from_a_routers_json_string() {
        let error = ApiError::parse(
            br#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"error\":{\"message\":\"too long\",\"code\":\"x\"}}","provider_name":"P"}}}"#,
        );
        assert_eq!(error.message, "Provider returned error");
        let upstream = error.upstream.unwrap();
        assert_eq!((upstream.message.as_str(), upstream.code.as_deref()), ("too long", Some("x")));
    }

    #[test]
    fn overload_rate_limit_and_server_failure_are_temporary() {
        let temporary = |body: &str| ApiError::parse(body.as_bytes()).is_temporary(None);
        assert!(temporary(r#"{"type":"error","error":{"type":"overloaded_error","message":"m"}}"#));
        assert!(temporary(r#"{"error":{"type":"tokens","code":"rate_limit_exceeded","message":"m"}}"#));
        assert!(temporary(r#"{"error":{"code":503,"message":"m"}}"#));
        assert!(temporary(r#"{"error":"m"}"#));
        assert!(!temporary(r#"{"error":{"code":400,"message":"m"}}"#));
        assert!(!temporary(r#"{"error":{"type":"invalid_request_error","message":"m"}}"#));
        assert!(!temporary(r#"{"error":{"type":"insufficient_quota","code":"insufficient_quota","message":"m"}}"#));
        let error = ApiError::parse(br#"{"error":{"type":"api_error","message":"m"}}"#);
        assert!(error.is_temporary(Some(529)) && !error.is_temporary(Some(400)), "the status takes precedence");
    }

    #[test]
    fn a_response_is_not_an_error() {
        for body in [
            r#"{"id":"x","choices":[],"error":null}"#,
            r#"{"type":"message","content":[],"message":"odd"}"#,
            r#"{"object":"response","output":[],"error":null}"#,
        ] {
            assert_eq!(ApiError::find(scan::parse_document(body).unwrap()), None, "{body}");
        }
    }
}
