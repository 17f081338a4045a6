//! What the two dialects of OpenAI share: the API, its errors and its texts.

use crate::conversation::Role;
use crate::wire::dialect::row::ErrorSyntax;
use crate::wire::endpoint::ApiFamily;
use crate::wire::json::string::encode;
use crate::wire::json::write::quoted;

pub(crate) static FAMILY: ApiFamily = ApiFamily {
    name: "openai",
    title: "Chat Completions and Responses",
    default_url: "https://api.openai.com",
    key_header: "authorization",
    key_prefix: "Bearer ",
    required_headers: &[],
    distinctive_headers: &[],
    distinctive_paths: &[],
    key_variable: "OPENAI_API_KEY",
};

pub(crate) const ERRORS: ErrorSyntax = ErrorSyntax {
    kind: |status| match status {
        429 => "rate_limit_exceeded",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    },
    body: |kind, message| {
        let (kind, message) = (quoted(kind), quoted(message));
        format!(r#"{{"error":{{"message":{message},"type":{kind},"param":null,"code":null}}}}"#)
    },
};

/// Paths of the output limit. Servers with these APIs accept all of them.
pub(crate) const OUTPUT_LIMIT_PATHS: &[&[&str]] =
    &[&["max_completion_tokens"], &["max_output_tokens"], &["max_tokens"]];

/// Largest body, in bytes.
pub(crate) const MAX_BODY_BYTES: usize = 512 * 1024 * 1024;

/// Maximum number of images in a request.
pub(crate) const MAX_IMAGES: usize = 1_500;

/// Returns a message of one text.
pub(crate) fn text_message(role: Role, text: &str) -> Option<String> {
    let name = match role {
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::System => "system",
        Role::Developer => "developer",
        Role::Tool | Role::Other => return None,
    };
    Some(format!(r#"{{"role":"{name}","content":{}}}"#, encode(text)))
}
