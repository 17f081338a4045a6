//! Arguments of calls: a JSON object, encoded as the format requires.

use crate::conversation::{CallArguments, Conversation, Part, PartId};
use crate::laws::law::Law;
use crate::laws::violation::ViolationCollector;
use crate::wire::{Request, parse_document};

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
    if !findings.has(Law::ArgumentsString) {
        return;
    }
    let fault = findings.rules().arguments_fault;
    for (at, message) in request.conversation().messages.iter().enumerate() {
        for (index, _) in message.parts.iter().enumerate().filter(|(_, part)| matches!(part, Part::ToolCall(_))) {
            let place = PartId::new(at, index);
            if let Some(detail) = fault(request, place) {
                findings.report_part(Law::ArgumentsString, place, detail);
            }
        }
    }
}
