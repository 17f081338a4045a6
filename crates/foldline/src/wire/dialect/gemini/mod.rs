//! The Gemini dialect: `generateContent` and `streamGenerateContent` of the Gemini API, of Vertex and of Code Assist.

mod compose;
mod intercept;
mod messages;
pub(crate) mod request;
mod response;
mod rules;
mod usage;

use crate::wire::dialect::row::{Dialect, DialectMarks, ErrorSyntax};
use crate::wire::endpoint::{ApiFamily, ConversationEndpoint, EndpointPurpose};
use crate::wire::format::Format;
use crate::wire::json::scan::JsonObject;
use crate::wire::json::write::quoted;

pub(crate) static DIALECT: Dialect = Dialect {
    format: Format::Gemini,
    name: "gemini",
    title: "Gemini",
    family: &FAMILY,
    // A stream has no end mark: one that ends after an error looks complete.
    error_ends_stream: false,
    keeps_failed_items: false,
    endpoint,
    documented_paths: &[
        ("/v1beta/models/MODEL:generateContent", EndpointPurpose::Turn),
        ("/v1beta/models/MODEL:streamGenerateContent", EndpointPurpose::Turn),
        ("/v1/.../publishers/google/models/MODEL:generateContent", EndpointPurpose::Turn),
        ("/v1/.../publishers/google/models/MODEL:streamGenerateContent", EndpointPurpose::Turn),
        ("/v1internal:generateContent", EndpointPurpose::Turn),
        ("/v1internal:streamGenerateContent", EndpointPurpose::Turn),
        ("/v1beta/models/MODEL:countTokens", EndpointPurpose::CountTokens),
    ],
    marks: DialectMarks {
        in_body: |body| {
            let has_contents = |body: &JsonObject<'_>| body.get("contents").is_some_and(|value| value.is_array());
            let mut envelopes = request::REQUEST.envelope_keys.iter().filter_map(|key| body.object(key));
            has_contents(body) || envelopes.any(|body| has_contents(&body))
        },
        in_message: |message| message.get("parts").is_some_and(|value| value.is_array()),
        block_types: &[],
        in_tool: |tool| tool.get("functionDeclarations").or_else(|| tool.get("function_declarations")).is_some(),
        in_recording: |object| object.has("contents") || object.has("role") && object.has("parts"),
    },
    request: request::REQUEST,
    edits: request::EDITS,
    results: request::RESULTS,
    response: response::RESPONSE,
    intercept: intercept::INTERCEPT,
    compose: compose::COMPOSE,
    messages: messages::MESSAGES,
    errors: ERRORS,
    rules: rules::RULES,
    diagnostics: None,
};

static FAMILY: ApiFamily = ApiFamily {
    name: "gemini",
    title: "the Gemini API",
    default_url: "https://generativelanguage.googleapis.com",
    key_header: "x-goog-api-key",
    key_prefix: "",
    required_headers: &[],
    distinctive_headers: &["x-goog-api-key", "x-goog-api-client"],
    distinctive_paths: &["/v1beta/", "/v1alpha/", "/v1internal:", "/upload/v1beta/"],
    key_variable: "GEMINI_API_KEY",
};

const ERRORS: ErrorSyntax = ErrorSyntax {
    kind: |status| match status {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        429 => "RESOURCE_EXHAUSTED",
        400..=499 => "INVALID_ARGUMENT",
        503 => "UNAVAILABLE",
        504 => "DEADLINE_EXCEEDED",
        _ => "INTERNAL",
    },
    body: |kind, message| {
        let code = match kind {
            "UNAUTHENTICATED" => 401,
            "PERMISSION_DENIED" => 403,
            "NOT_FOUND" => 404,
            "RESOURCE_EXHAUSTED" => 429,
            "INVALID_ARGUMENT" => 400,
            "UNAVAILABLE" => 503,
            "DEADLINE_EXCEEDED" => 504,
            _ => 500,
        };
        let (kind, message) = (quoted(kind), quoted(message));
        format!(r#"{{"error":{{"code":{code},"message":{message},"status":{kind}}}}}"#)
    },
};

/// Returns the facts in `..models/MODEL:METHOD`: the path states the model, and whether the response is a stream. Code
/// Assist has paths without a model.
fn endpoint(path: &str) -> Option<ConversationEndpoint<'_>> {
    let (before, method) = path.rsplit_once(':')?;
    let (purpose, streaming) = match method {
        "generateContent" => (EndpointPurpose::Turn, Some(false)),
        "streamGenerateContent" => (EndpointPurpose::Turn, Some(true)),
        "countTokens" => (EndpointPurpose::CountTokens, Some(false)),
        _ => return None,
    };
    let named = ["/models/", "/tunedModels/", "/endpoints/"].into_iter().find_map(|list| before.rsplit_once(list));
    let model = named.map(|(_, model)| model).filter(|model| !model.contains('/'));
    let is_known = model.is_some() || before.ends_with("/v1internal");
    is_known.then(|| ConversationEndpoint { model, streaming, ..ConversationEndpoint::new(purpose) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_states_model_and_streaming() {
        let cases = [
            ("/v1beta/models/gemini-3-pro:generateContent", Some((EndpointPurpose::Turn, Some("gemini-3-pro"), false))),
            (
                "/v1beta/models/gemini-3-pro:streamGenerateContent",
                Some((EndpointPurpose::Turn, Some("gemini-3-pro"), true)),
            ),
            ("/v1beta/models/m:countTokens", Some((EndpointPurpose::CountTokens, Some("m"), false))),
            (
                "/v1/projects/p/locations/global/publishers/google/models/m:generateContent",
                Some((EndpointPurpose::Turn, Some("m"), false)),
            ),
            ("/v1beta1/publishers/google/models/m:countTokens", Some((EndpointPurpose::CountTokens, Some("m"), false))),
            ("/v1beta/tunedModels/t:generateContent", Some((EndpointPurpose::Turn, Some("t"), false))),
            ("/v1internal:generateContent", Some((EndpointPurpose::Turn, None, false))),
            ("/v1internal:streamGenerateContent", Some((EndpointPurpose::Turn, None, true))),
            ("/v1internal:countTokens", Some((EndpointPurpose::CountTokens, None, false))),
            ("/v1internal:loadCodeAssist", None),
            ("/v1beta/models/m:embedContent", None),
            ("/v1beta/models/m", None),
        ];
        for (path, expected) in cases {
            let found = endpoint(path).map(|found| (found.purpose, found.model, found.streaming.unwrap()));
            assert_eq!(found, expected, "{path}");
        }
    }
}
