//! The error that a server answers with, in all the shapes in which servers write it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::wire::scan::{self, Object, Value};

/// The longest text that is kept of an error.
const MAX_TEXT: usize = 8 << 10;

/// Types and codes of errors after which the same request may succeed.
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

/// What a provider says went wrong.
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
    /// Its `type` (or Google's `status`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its `code`; a number is spelled out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// What it says to people; the body as it is when it has no such text.
    pub message: String,
    /// The error of the server behind the server, where a router passes it on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<Box<ApiError>>,
    /// Tokens of the prompt and of the window, where a server tells them as fields (llama.cpp).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<PromptAndWindow>,
}

/// What llama.cpp tells beside its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptAndWindow {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens of the window of one slot.
    pub window: u64,
}

impl ApiError {
    /// Reads the body of a response whose status says that it is an error. Whatever the body is, it
    /// is the message if nothing better is found in it.
    pub fn parse(body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let found = scan::document(&text).ok().and_then(|it| Self::find(it).or_else(|| Self::bare(&it.object())));
        found.unwrap_or_else(|| ApiError { message: shortened(text.trim()), ..ApiError::default() })
    }

    /// Returns true if the same request may succeed a moment later: the server is overloaded, limits the rate or failed.
    /// Inside of a stream there is no HTTP status, and the error's name decides; one without a name may be temporary.
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

    /// The error in a JSON value that may as well be a response.
    pub(super) fn find(value: Value<'_>) -> Option<Self> {
        let object = match value.is_array() {
            true => value.elements().into_iter().next()?,
            false => value.object(),
        };
        if let Some(error) = object.set("error") {
            return Some(Self::read(error, &object));
        }
        let says_so = |key| object.string(key).as_deref() == Some("error");
        let answers = ["choices", "content", "output", "id", "usage"].iter().any(|key| object.set(key).is_some());
        if answers && !says_so("type") && !says_so("object") { None } else { Self::bare(&object) }
    }

    /// Reads an `error` value: an object, or a text whose type and code stand around it.
    pub(super) fn read(error: Value<'_>, around: &Object<'_>) -> Self {
        if !error.is_object() {
            return ApiError { message: text(error), ..Self::named(around) };
        }
        let fields = error.object();
        let behind = fields.object("metadata").and_then(|metadata| metadata.set("raw"));
        let tokens = match (fields.u64(&["n_prompt_tokens"]), fields.u64(&["n_ctx"])) {
            (Some(prompt), Some(window)) => Some(PromptAndWindow { prompt, window }),
            _ => None,
        };
        ApiError {
            message: text(fields.set("message").unwrap_or(error)),
            behind: behind.map(|raw| Box::new(ApiError { behind: None, ..Self::parse(text(raw).as_bytes()) })),
            tokens,
            ..Self::named(&fields)
        }
    }

    /// Reads an error whose fields stand at the top: `message` or FastAPI's `detail`.
    fn bare(fields: &Object<'_>) -> Option<Self> {
        let message = ["message", "detail", "Message"].iter().find_map(|key| fields.set(key));
        message.map(|message| ApiError { message: text(message), ..Self::named(fields) })
    }

    fn named(fields: &Object<'_>) -> Self {
        let kind =
            ["type", "status", "__type"].iter().find_map(|key| fields.string(key)).filter(|kind| kind != "error");
        ApiError { kind: kind.map(Cow::into_owned), code: fields.set("code").map(text), ..ApiError::default() }
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

/// A value as text: a string decoded, anything else as it is written.
fn text(value: Value<'_>) -> String {
    shortened(&value.string().unwrap_or(Cow::Borrowed(value.raw())))
}

fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str) -> (Option<String>, Option<String>, String) {
        let error = ApiError::parse(body.as_bytes());
        (error.kind, error.code, error.message)
    }

    fn said(kind: &str, code: &str, message: &str) -> (Option<String>, Option<String>, String) {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        (some(kind), some(code), message.to_owned())
    }

    #[test]
    fn every_shape_of_error_is_read() {
        for (body, expected) in [
            (r#"{"error":{"message":"m","type":"t","param":null,"code":"c"}}"#, said("t", "c", "m")),
            (r#"{"type":"error","error":{"type":"t","message":"m"},"request_id":"r"}"#, said("t", "", "m")),
            (r#"{"error":{"message":"m","type":"BadRequestError","code":400}}"#, said("BadRequestError", "400", "m")),
            (
                r#"{"object":"error","message":"m","type":"BadRequestError","code":400}"#,
                said("BadRequestError", "400", "m"),
            ),
            (r#"{"type":"error","code":"c","message":"m","param":null,"sequence_number":3}"#, said("", "c", "m")),
            (r#"{"error":"m"}"#, said("", "", "m")),
            (r#"{"error":"m","code":"c"}"#, said("", "c", "m")),
            (r#"{"message":"m"}"#, said("", "", "m")),
            (r#"{"__type":"ValidationException","message":"m"}"#, said("ValidationException", "", "m")),
            (r#"{"detail":"m"}"#, said("", "", "m")),
            (r#"{"detail":[{"msg":"m"}]}"#, said("", "", r#"[{"msg":"m"}]"#)),
            (
                r#"[{"error":{"code":400,"message":"m","status":"INVALID_ARGUMENT"}}]"#,
                said("INVALID_ARGUMENT", "400", "m"),
            ),
            (r#"{"error":{"message":{"text":"m"}}}"#, said("", "", r#"{"text":"m"}"#)),
            ("<html>Bad Gateway</html>\n", said("", "", "<html>Bad Gateway</html>")),
            ("", said("", "", "")),
            ("{}", said("", "", "{}")),
        ] {
            assert_eq!(parse(body), expected, "{body}");
        }
    }

    #[test]
    fn the_error_behind_a_router_is_found_in_its_json_string() {
        let error = ApiError::parse(
            br#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"error\":{\"message\":\"too long\",\"code\":\"x\"}}","provider_name":"P"}}}"#,
        );
        assert_eq!(error.message, "Provider returned error");
        let behind = error.behind.unwrap();
        assert_eq!((behind.message.as_str(), behind.code.as_deref()), ("too long", Some("x")));
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
        assert!(error.is_temporary(Some(529)) && !error.is_temporary(Some(400)), "the status counts more");
    }

    #[test]
    fn a_response_is_not_an_error() {
        for body in [
            r#"{"id":"x","choices":[],"error":null}"#,
            r#"{"type":"message","content":[],"message":"odd"}"#,
            r#"{"object":"response","output":[],"error":null}"#,
        ] {
            assert_eq!(ApiError::find(scan::document(body).unwrap()), None, "{body}");
        }
    }
}
