//! Anthropic Messages.
//!
//! Everything is a block in a message's content; results of tools stand in user messages. Blocks
//! that are sealed (thinking) or newer than this version are kept as they are.

use std::borrow::Cow;

use super::layout::{Element, MessageLayout, PartLayout, Reading, Slot, opaque, result_content};
use super::role;
use super::scan::{Object, Value};
use crate::conversation::{Arguments, File, Image, Message, Part, Reasoning, Source, ToolCall, ToolResult};

pub(super) fn message<'a>(it: &Object<'a>) -> (Message<'a>, MessageLayout) {
    let mut reading = Reading::new(role(it.string("role").as_deref()), it);
    let Some(content) = it.get("content") else { return reading.done() };
    if let Some(text) = content.string() {
        reading.push(Part::text(text), PartLayout::new(Slot::Text(content.span), None));
    } else if content.is_array() {
        let elements = it.elements("content");
        let list = reading.list(content, &elements, None);
        for (index, element) in elements.iter().enumerate() {
            let (part, layout) = block(element);
            reading.push(part, PartLayout { element: Some(Element { list, index }), ..layout });
        }
    }
    reading.done()
}

/// A block of the top-level `system`.
pub(super) fn standing_part<'a>(it: &Object<'a>) -> Part<'a> {
    block(it).0
}

fn block<'a>(it: &Object<'a>) -> (Part<'a>, PartLayout) {
    let kind = it.string("type");
    match kind.as_deref() {
        Some("thinking") => {
            let text = it.string("thinking").unwrap_or_default();
            return fixed(Part::Reasoning(Reasoning { text, seal: it.string("signature") }));
        }
        Some("redacted_thinking") => {
            return fixed(Part::Reasoning(Reasoning { text: Cow::Borrowed(""), seal: it.string("data") }));
        }
        Some("tool_use") => {
            let (arguments, slot) = match it.get("input") {
                Some(input) => (Arguments::Json(Cow::Borrowed(input.raw())), Slot::Json(input.span)),
                None => (Arguments::Json(Cow::Borrowed("")), Slot::Fixed),
            };
            let (id, name) = (it.string("id").unwrap_or_default(), it.string("name").unwrap_or_default());
            return (Part::ToolCall(ToolCall { id, name, arguments }), PartLayout::new(slot, None));
        }
        Some("tool_result") => {
            let (content, layout) = result_content(it.get("content"), piece);
            let result = ToolResult {
                call_id: it.string("tool_use_id").unwrap_or_default(),
                content,
                is_error: it.get("is_error").and_then(Value::bool).unwrap_or(false),
            };
            return (Part::ToolResult(result), layout);
        }
        _ => {}
    }
    let (part, slot) = piece(it);
    (part, PartLayout::new(slot, None))
}

fn fixed(part: Part<'_>) -> (Part<'_>, PartLayout) {
    (part, PartLayout::new(Slot::Fixed, None))
}

/// What may stand both in a message and in a result's content.
fn piece<'a>(it: &Object<'a>) -> (Part<'a>, Slot) {
    let kind = it.string("type");
    match kind.as_deref() {
        Some("text") => {
            if let Some(value) = it.get("text").filter(|value| value.is_string()) {
                return (Part::text(value.string().unwrap_or_default()), Slot::Text(value.span));
            }
        }
        Some("image") => {
            let image = Image { source: source(it), detail: None };
            return (Part::Image(image), Slot::Block(it.value.span, "text"));
        }
        Some("document") => {
            let media_type = it.object("source").and_then(|source| source.string("media_type"));
            let file = File { name: it.string("title"), media_type, source: source(it) };
            return (Part::File(file), Slot::Block(it.value.span, "text"));
        }
        _ => {}
    }
    // A server tool's call has an `id`, its result names it as `tool_use_id`.
    let pair = it.string("tool_use_id").or_else(|| it.string("id"));
    (opaque(kind, pair, it.value), Slot::Fixed)
}

fn source<'a>(it: &Object<'a>) -> Source<'a> {
    let Some(source) = it.object("source") else { return Source::Unknown };
    match source.string("type").as_deref() {
        Some("base64") => source.string("data").map(Source::Base64),
        Some("text") => source.string("data").map(Source::Text),
        Some("url") => source.string("url").map(Source::Url),
        Some("file") => source.string("file_id").map(Source::Id),
        _ => None,
    }
    .unwrap_or(Source::Unknown)
}
