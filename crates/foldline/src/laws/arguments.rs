//! What calls are made with: a JSON object, written as the format wants it.

use super::{Findings, Law};
use crate::conversation::{Arguments, Conversation, Part, PartId};
use crate::wire::{Format, Request, Value, document};

pub(super) fn check(conversation: &Conversation<'_>, findings: &mut Findings<'_>) {
    let objects = findings.has(Law::ArgumentsObject);
    let mut room = String::new();
    for (at, message) in conversation.messages.iter().enumerate() {
        for (part, it) in message.parts.iter().enumerate() {
            let Part::ToolCall(call) = it else { continue };
            match &call.arguments {
                Arguments::Json(json) if objects && !is_object(json.glance(&mut room)) => {
                    let detail = format_args!("the arguments of `{}` are no JSON object", call.name);
                    findings.broken_part(Law::ArgumentsObject, PartId::new(at, part), detail);
                }
                Arguments::Json(_) => {}
                Arguments::Text(_) => {
                    let detail = format_args!("`{}` takes free text", call.name);
                    findings.broken_part(Law::FunctionCallsOnly, PartId::new(at, part), detail);
                }
            }
        }
    }
}

/// Whether a text is a JSON object.
pub(super) fn is_object(json: &str) -> bool {
    json.trim_start().starts_with('{') && document(json).is_ok()
}

pub(super) fn check_wire(request: &Request<'_>, findings: &mut Findings<'_>) {
    let messages = &request.conversation().messages;
    match findings.format() {
        Format::Anthropic => {}
        Format::OpenAiChat => {
            for (at, message) in messages.iter().enumerate() {
                for (part, it) in message.parts.iter().enumerate() {
                    let place = PartId::new(at, part);
                    if matches!(it, Part::ToolCall(_)) && !request.has_text_arguments(place) {
                        findings.broken_part(Law::ArgumentsText, place, "the arguments are not a string");
                    }
                }
            }
        }
        Format::OpenAiResponses => {
            for (at, message) in messages.iter().enumerate() {
                let place = PartId::new(at, 0);
                if !matches!(message.parts.as_slice(), [Part::ToolCall(_)]) || request.has_text_arguments(place) {
                    continue;
                }
                let key = match request.message_field(at, "type").and_then(Value::string).as_deref() {
                    Some("function_call") => "arguments",
                    Some("custom_tool_call") => "input",
                    _ => continue,
                };
                if !request.message_field(at, key).is_some_and(Value::is_string) {
                    let detail = format_args!("`{key}` is not a string");
                    findings.broken_part(Law::ArgumentsText, place, detail);
                }
            }
        }
    }
}
