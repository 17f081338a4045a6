//! The Converse dialect of Amazon Bedrock: `converse`, `converse-stream` and `count-tokens`.

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
use crate::wire::json::scan::{JsonObject, JsonValue};
use crate::wire::json::write::quoted;

pub(crate) static DIALECT: Dialect = Dialect {
    format: Format::Converse,
    name: "converse",
    title: "Converse",
    family: &FAMILY,
    error_ends_stream: true,
    keeps_failed_items: false,
    endpoint,
    documented_paths: &[
        ("/model/MODEL/converse", EndpointPurpose::Turn),
        ("/model/MODEL/converse-stream", EndpointPurpose::Turn),
        ("/model/MODEL/count-tokens", EndpointPurpose::CountTokens),
    ],
    marks: DialectMarks {
        in_body: |body| {
            let keys = ["inferenceConfig", "toolConfig", "additionalModelRequestFields", "guardrailConfig"];
            keys.iter().any(|key| body.get(key).is_some()) && body.get("messages").is_some()
        },
        in_message: |message| message.elements("content").iter().any(is_marked_block),
        block_types: &[],
        in_tool: |tool| tool.get("toolSpec").is_some(),
        in_recording: |object| object.has("messages") && (object.has("inferenceConfig") || object.has("toolConfig")),
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

pub(crate) static FAMILY: ApiFamily = ApiFamily {
    name: "bedrock",
    title: "Amazon Bedrock",
    default_url: "https://bedrock-runtime.us-east-1.amazonaws.com",
    key_header: "authorization",
    key_prefix: "Bearer ",
    required_headers: &[],
    distinctive_headers: &["amz-sdk-invocation-id"],
    distinctive_paths: &["/model/", "/async-invoke", "/guardrail/"],
    key_variable: "AWS_BEARER_TOKEN_BEDROCK",
};

const ERRORS: ErrorSyntax = ErrorSyntax {
    kind: |status| match status {
        401 | 403 => "AccessDeniedException",
        404 => "ResourceNotFoundException",
        429 => "ThrottlingException",
        400..=499 => "ValidationException",
        503 => "ServiceUnavailableException",
        _ => "InternalServerException",
    },
    body: |kind, message| format!(r#"{{"__type":{},"message":{}}}"#, quoted(kind), quoted(message)),
};

/// Returns true for a block that only this dialect has: one key, and no type.
fn is_marked_block(block: &JsonObject<'_>) -> bool {
    let has_object = |key: &str| block.get(key).is_some_and(JsonValue::is_object);
    block.get("type").is_none()
        && ["toolUse", "toolResult", "reasoningContent", "cachePoint"].into_iter().any(has_object)
}

/// Returns the facts in `/model/MODEL/METHOD`: the path states the model, and whether the response is a stream. Tokens are
/// counted of requests in the form of Converse; those in the form of InvokeModel are not parsed.
fn endpoint(path: &str) -> Option<ConversationEndpoint<'_>> {
    let (model, method) = model_method(path)?;
    let (purpose, streaming) = match method {
        "converse" => (EndpointPurpose::Turn, Some(false)),
        "converse-stream" => (EndpointPurpose::Turn, Some(true)),
        "count-tokens" => (EndpointPurpose::CountTokens, Some(false)),
        _ => return None,
    };
    Some(ConversationEndpoint { model: Some(model), streaming, ..ConversationEndpoint::new(purpose) })
}

/// Returns the model and the method of a path. The model may be an ARN whose slashes are not encoded.
pub(crate) fn model_method(path: &str) -> Option<(&str, &str)> {
    let (before, method) = path.rsplit_once('/')?;
    let at = before.find("/model/")?;
    let model = &before[at + "/model/".len()..];
    (!model.is_empty()).then_some((model, method))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(path: &str) -> Option<(&str, bool)> {
        endpoint(path).map(|found| (found.model.unwrap(), found.streaming.unwrap()))
    }

    #[test]
    fn path_states_model_and_streaming() {
        let claude = "us.anthropic.claude-sonnet-4-5-20250929-v1%3A0";
        assert_eq!(facts(&format!("/model/{claude}/converse")), Some((claude, false)));
        assert_eq!(facts("/model/amazon.nova-pro-v1:0/converse-stream"), Some(("amazon.nova-pro-v1:0", true)));
        let arn = "arn:aws:bedrock:us-east-1:1:inference-profile/us.amazon.nova-lite-v1:0";
        assert_eq!(facts(&format!("/bedrock/model/{arn}/converse")), Some((arn, false)));
        let count = endpoint("/model/m/count-tokens").map(|found| (found.purpose, found.model));
        assert_eq!(count, Some((EndpointPurpose::CountTokens, Some("m"))));
        for path in ["/model/m/invoke", "/model//converse", "/converse"] {
            assert_eq!(facts(path), None, "{path}");
        }
    }
}
