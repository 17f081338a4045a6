//! The OpenAI Responses dialect.

mod compose;
mod intercept;
mod item_tracker;
pub(crate) mod request;
mod response;
mod rules;
mod usage;

use crate::wire::dialect::openai::{ERRORS, FAMILY};
use crate::wire::dialect::row::{Dialect, DialectMarks};
use crate::wire::endpoint::{ConversationEndpoint, EndpointPurpose, has_versioned_end};
use crate::wire::format::Format;

pub(crate) static DIALECT: Dialect = Dialect {
    format: Format::OpenAiResponses,
    name: "openai-responses",
    title: "Responses",
    family: &FAMILY,
    error_ends_stream: true,
    endpoint: |path| has_versioned_end(path, "/responses").then(|| ConversationEndpoint::new(EndpointPurpose::Turn)),
    marks: DialectMarks {
        in_body: |body| {
            let has = |key: &str| body.get(key).is_some();
            !has("messages") && (has("input") || has("instructions"))
        },
        in_message: |item| match item.string("type").as_deref() {
            Some("message") => true,
            Some(_) => item.string("role").is_none(),
            None => false,
        },
        block_types: &["input_text", "output_text", "input_image"],
        in_tool: |_| false,
    },
    request: request::REQUEST,
    edits: request::EDITS,
    results: request::RESULTS,
    response: response::RESPONSE,
    intercept: intercept::INTERCEPT,
    compose: compose::COMPOSE,
    errors: ERRORS,
    rules: rules::RULES,
};
