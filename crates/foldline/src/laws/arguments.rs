//! Arguments of calls: a JSON object, encoded as the format requires.

use super::{Law, ViolationCollector};
use crate::conversation::{CallArguments, Conversation, Part, PartId};
use crate::wire::{Format, JsonValue, Request, parse_document};

pub(crate) fn check(conversation: &Conversation<'_>, findings: &mut ViolationCollector<'_>) {
    let check_objects = findings.has(Law::ArgumentsObject);
    let mut buffer = String::new();
    for (at, message) in conversation.messages.iter().enumerate() {
        for (index, part) in message.parts.iter().enumerate() {
            let Part::ToolCall(call) = part else { continue };
            match &call.arguments {
                CallArguments::Json(json) if check_objects && !is_json_object(json.as_str_uncached(&mut buffer)) => {
                    let detail = format_args!("the arguments of `{}` are not a JSON object", call.name);
                    findings.report_part(Law::ArgumentsObject, PartId::new(at, index), detail);
                }
                CallArguments::Json(_) => {}
                CallArguments::Text(_) => {
                    let detail = format_args!("`{}` takes free text", call.name);
                    findings.report_part(Law::FunctionCallsOnly, PartId::new(at, index), detail);
                }
            }
        }
    }
}

/// Returns true if a text is a JSON object.
pub(crate) fn is_json_object(json: &str) -> bool {
    json.trim_start().starts_with('{') && parse_document(json).is_ok()
}

pub(crate) fn check_request(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    let messages = &request.conversation().messages;
    match findings.format() {
        Format::Anthropic => {}
        Format::OpenAiChat => {
            for (at, message) in messages.iter().enumerate() {
                for (index, part) in message.parts.iter().enumerate() {
                    let place = PartId::new(at, index);
                    if matches!(part, Part::ToolCall(_)) && !request.has_string_arguments(place) {
                        findings.report_part(Law::ArgumentsString, place, "the arguments are not a string");
                    }
                }
            }
        }
        Format::OpenAiResponses => {
            for (at, message) in messages.iter().enumerate() {
                let place = PartId::new(at, 0);
                if !matches!(message.parts.as_slice(), [Part::ToolCall(_)]) || request.has_string_arguments(place) {
                    continue;
                }
                let key = match request.message_field(at, "type").and_then(JsonValue::string).as_deref() {
                    Some("function_call") => "arguments",
                    Some("custom_tool_call") => "input",
                    _ => continue,
                };
                if !request.message_field(at, key).is_some_and(JsonValue::is_string) {
                    let detail = format_args!("`{key}` is not a string");
                    findings.report_part(Law::ArgumentsString, place, detail);
                }
            }
        }
    }
}
