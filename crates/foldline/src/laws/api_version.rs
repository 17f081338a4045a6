//! Fields and blocks that a version of the API rejects.

use memchr::memmem;

use crate::conversation::{Part, PartId, Role};
use crate::laws::law::Law;
use crate::laws::violation::{RequestLocation, ViolationCollector};
use crate::wire::{JsonValue, Request};

/// Fields that control sampling.
const SAMPLING_FIELDS: [&str; 3] = ["temperature", "top_p", "top_k"];

pub(crate) fn check(request: &Request<'_>, findings: &mut ViolationCollector<'_>) {
    if findings.has(Law::NoSamplingFields) {
        for key in SAMPLING_FIELDS {
            if request.top_level().get(key).is_some_and(|value| !value.is_null()) {
                findings.report(Law::NoSamplingFields, RequestLocation::Field(key), "the version does not accept it");
            }
        }
    }
    if findings.has(Law::NoAssistantDocument) {
        for (place, _) in parts_of(request, Role::Assistant).filter(|(_, part)| matches!(part, Part::File(_))) {
            findings.report_part(Law::NoAssistantDocument, place, "a document in an assistant message");
        }
    }
    let mentions_citations = || memmem::find(request.body().as_bytes(), b"\"citations\"").is_some();
    if findings.has(Law::NoUserCitations) && mentions_citations() {
        for (place, _) in parts_of(request, Role::User).filter(|(_, part)| matches!(part, Part::Text { .. })) {
            let block = request.block(place).map(JsonValue::object);
            if block.is_some_and(|block| !block.elements("citations").is_empty()) {
                findings.report_part(Law::NoUserCitations, place, "a text of a user message has citations");
            }
        }
    }
}

fn parts_of<'r, 'a>(request: &'r Request<'a>, role: Role) -> impl Iterator<Item = (PartId, &'r Part<'a>)> {
    let messages = request.conversation().messages.iter().enumerate();
    messages.filter(move |(_, message)| message.role == role).flat_map(|(at, message)| {
        message.parts.iter().enumerate().map(move |(index, part)| (PartId::new(at, index), part))
    })
}
