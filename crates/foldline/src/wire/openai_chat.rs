//! OpenAI Chat Completions, as OpenAI and the many compatible servers speak it.
//!
//! An assistant's reasoning stands in a field that each server names differently; its text, then
//! its calls follow. A tool's result is a message of its own.

use std::borrow::Cow;

use super::layout::{Element, MessageLayout, PartLayout, Reading, Slot, opaque, result_content, source_of_url};
use super::role;
use super::scan::Object;
use crate::conversation::{Arguments, File, Image, Message, Part, Role, Source, ToolCall, ToolResult};

/// The names under which servers give readable reasoning.
const REASONING: [&str; 3] = ["reasoning_content", "reasoning", "reasoning_text"];
/// Fields of an assistant message that must come back untouched (signatures, audio).
const SEALED: [&str; 3] = ["reasoning_details", "extra_content", "audio"];

pub(super) fn message<'a>(it: &Object<'a>) -> (Message<'a>, MessageLayout) {
    let role = role(it.string("role").as_deref());
    let mut reading = Reading::new(role, it);
    for key in REASONING {
        if let Some(text) = it.string(key) {
            reading.push(Part::reasoning(text), PartLayout::new(Slot::Fixed, Reading::field(it, key)));
        }
    }
    for key in SEALED {
        if let Some(value) = it.get(key).filter(|value| !value.is_null()) {
            reading.push(opaque(Some(key.into()), None, value), PartLayout::new(Slot::Fixed, None));
        }
    }
    if role == Role::Tool {
        // The old `function` role answers by name, not by id.
        let call_id = it.string("tool_call_id").or_else(|| it.string("name")).unwrap_or_default();
        let (content, layout) = result_content(it.get("content"), block);
        reading.push(Part::ToolResult(ToolResult { call_id, content, is_error: false }), layout);
        return reading.done();
    }
    content(&mut reading, it);
    calls(&mut reading, it);
    reading.done()
}

fn content<'a>(reading: &mut Reading<'a>, it: &Object<'a>) {
    let Some(value) = it.get("content") else { return };
    let field = Reading::field(it, "content");
    if let Some(text) = value.string() {
        reading.push(Part::text(text), PartLayout::new(Slot::Text(value.span), field));
    } else if value.is_array() {
        let elements = it.elements("content");
        let list = reading.list(value, &elements, field);
        for (index, element) in elements.iter().enumerate() {
            let (part, slot) = block(element);
            reading.push(part, PartLayout::new(slot, Some(Element { list, index })));
        }
    }
}

fn calls<'a>(reading: &mut Reading<'a>, it: &Object<'a>) {
    if let Some(value) = it.get("tool_calls").filter(|value| value.is_array()) {
        let elements = it.elements("tool_calls");
        let list = reading.list(value, &elements, Reading::field(it, "tool_calls"));
        for (index, element) in elements.iter().enumerate() {
            let (part, slot) = call(element);
            reading.push(part, PartLayout::new(slot, Some(Element { list, index })));
        }
    }
    if let Some(function) = it.object("function_call") {
        let name = function.string("name").unwrap_or_default();
        let (arguments, slot) = arguments(&function);
        let call = ToolCall { id: name.clone(), name, arguments };
        reading.push(Part::ToolCall(call), PartLayout::new(slot, Reading::field(it, "function_call")));
    }
}

fn call<'a>(it: &Object<'a>) -> (Part<'a>, Slot) {
    let id = it.string("id").unwrap_or_default();
    if let Some(function) = it.object("function") {
        let name = function.string("name").unwrap_or_default();
        let (arguments, slot) = arguments(&function);
        return (Part::ToolCall(ToolCall { id, name, arguments }), slot);
    }
    if let Some(custom) = it.object("custom") {
        let name = custom.string("name").unwrap_or_default();
        let (text, slot) = match custom.get("input") {
            Some(input) if input.is_string() => (input.string().unwrap_or_default(), Slot::Text(input.span)),
            _ => (Cow::Borrowed(""), Slot::Fixed),
        };
        return (Part::ToolCall(ToolCall { id, name, arguments: Arguments::Text(text) }), slot);
    }
    (opaque(it.string("type"), Some(id), it.value), Slot::Fixed)
}

fn arguments<'a>(function: &Object<'a>) -> (Arguments<'a>, Slot) {
    match function.get("arguments") {
        Some(value) if value.is_string() => {
            (Arguments::Json(value.string().unwrap_or_default()), Slot::JsonInText(value.span))
        }
        // Some clients send the object itself; it is read, and left alone.
        Some(value) => (Arguments::Json(Cow::Borrowed(value.raw())), Slot::Json(value.span)),
        None => (Arguments::Json(Cow::Borrowed("")), Slot::Fixed),
    }
}

fn block<'a>(it: &Object<'a>) -> (Part<'a>, Slot) {
    let kind = it.string("type");
    match kind.as_deref() {
        Some("text") => {
            if let Some(value) = it.get("text").filter(|value| value.is_string()) {
                return (Part::text(value.string().unwrap_or_default()), Slot::Text(value.span));
            }
        }
        Some("image_url") => {
            let (url, detail) = match it.object("image_url") {
                Some(image) => (image.string("url"), image.string("detail")),
                None => (it.string("image_url"), None),
            };
            let source = url.map_or(Source::Unknown, source_of_url);
            return (Part::Image(Image { source, detail }), Slot::Block(it.value.span, "text"));
        }
        Some("file") => {
            if let Some(file) = it.object("file") {
                let source = match (file.string("file_data"), file.string("file_id")) {
                    (Some(data), _) => source_of_url(data),
                    (None, Some(id)) => Source::Id(id),
                    (None, None) => Source::Unknown,
                };
                let part = Part::File(File { name: file.string("filename"), media_type: None, source });
                return (part, Slot::Block(it.value.span, "text"));
            }
        }
        _ => {}
    }
    (opaque(kind, None, it.value), Slot::Fixed)
}
