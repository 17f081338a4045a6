//! OpenAI Responses: a list of items, each of which is read as one message.
//!
//! Items of the model (reasoning, text, calls) are the assistant's; outputs are the tool's. Hosted
//! tools carry their own result and are kept as they are.

use std::borrow::Cow;

use super::layout::{Element, MessageLayout, PartLayout, Reading, Slot, opaque, result_content, source_of_url};
use super::role;
use super::scan::{Object, Value};
use crate::conversation::{Arguments, File, Image, Message, Part, Reasoning, Role, Source, ToolCall, ToolResult};

pub(super) fn message<'a>(it: &Object<'a>) -> (Message<'a>, MessageLayout) {
    let kind = it.string("type");
    match kind.as_deref() {
        None | Some("message") => said(it),
        Some("reasoning") => reasoning(it),
        Some(kind @ ("function_call" | "custom_tool_call")) => call(it, kind),
        Some("local_shell_call" | "shell_call" | "apply_patch_call" | "computer_call" | "tool_search_call") => {
            action(it)
        }
        Some(kind) if kind.ends_with("_call_output") || kind == "tool_search_output" => output(it),
        Some("mcp_approval_response") => kept(it, Role::User, it.string("approval_request_id")),
        // Hosted tools, compaction and what is newer than this version come from the model.
        Some(_) => kept(it, Role::Assistant, it.string("id")),
    }
}

/// `"input": "hello"`: one user message without a list around it.
pub(super) fn lone_text(value: Value<'_>) -> (Message<'_>, MessageLayout) {
    let text = value.string().unwrap_or_default();
    let part = PartLayout::new(Slot::Text(value.span), None);
    (Message::text(Role::User, text), MessageLayout { span: value.span, lists: Vec::new(), parts: vec![part] })
}

/// A block of instructions given as a list.
pub(super) fn standing_part<'a>(it: &Object<'a>) -> Part<'a> {
    match message(it).0.parts.into_iter().next() {
        Some(part) => part,
        None => opaque(it.string("type"), None, it.value),
    }
}

fn said<'a>(it: &Object<'a>) -> (Message<'a>, MessageLayout) {
    let mut reading = Reading::new(role(it.string("role").as_deref()), it);
    let Some(content) = it.get("content") else { return reading.done() };
    if let Some(text) = content.string() {
        reading.push(Part::text(text), PartLayout::new(Slot::Text(content.span), None));
    } else if content.is_array() {
        let elements = it.elements("content");
        let list = reading.list(content, &elements, None);
        for (index, element) in elements.iter().enumerate() {
            let (part, slot) = piece(element);
            reading.push(part, PartLayout::new(slot, Some(Element { list, index })));
        }
    }
    reading.done()
}

fn reasoning<'a>(it: &Object<'a>) -> (Message<'a>, MessageLayout) {
    let texts: Vec<_> = it
        .elements("content")
        .iter()
        .chain(it.elements("summary").iter())
        .filter_map(|piece| piece.string("text"))
        .collect();
    let text = match <[_; 1]>::try_from(texts) {
        Ok([text]) => text,
        Err(texts) => Cow::Owned(texts.join("\n")),
    };
    let mut reading = Reading::new(Role::Assistant, it);
    let part = Part::Reasoning(Reasoning { text, seal: it.string("encrypted_content") });
    reading.push(part, PartLayout::new(Slot::Fixed, None));
    reading.done()
}

fn call<'a>(it: &Object<'a>, kind: &str) -> (Message<'a>, MessageLayout) {
    let key = if kind == "function_call" { "arguments" } else { "input" };
    let written = it.get(key).filter(|value| value.is_string());
    let text = written.and_then(Value::string).unwrap_or_default();
    let (arguments, slot) = match (kind, written) {
        ("function_call", Some(value)) => (Arguments::Json(text), Slot::JsonInText(value.span)),
        ("function_call", None) => (Arguments::Json(text), Slot::Fixed),
        (_, Some(value)) => (Arguments::Text(text), Slot::Text(value.span)),
        (_, None) => (Arguments::Text(text), Slot::Fixed),
    };
    let name = it.string("name").unwrap_or_default();
    called(it, name, arguments, slot)
}

/// A call of a built-in tool: what it does is an object that is left alone.
fn action<'a>(it: &Object<'a>) -> (Message<'a>, MessageLayout) {
    let kind = it.string("type").unwrap_or_default();
    let what = it.get("action").or_else(|| it.get("operation")).or_else(|| it.get("arguments"));
    let arguments = Arguments::Json(Cow::Borrowed(what.map_or("", Value::raw)));
    let name = Cow::Owned(kind.trim_end_matches("_call").to_owned());
    called(it, name, arguments, Slot::Fixed)
}

fn called<'a>(
    it: &Object<'a>,
    name: Cow<'a, str>,
    arguments: Arguments<'a>,
    slot: Slot,
) -> (Message<'a>, MessageLayout) {
    let id = it.string("call_id").or_else(|| it.string("id")).unwrap_or_default();
    let mut reading = Reading::new(Role::Assistant, it);
    reading.push(Part::ToolCall(ToolCall { id, name, arguments }), PartLayout::new(slot, None));
    reading.done()
}

fn output<'a>(it: &Object<'a>) -> (Message<'a>, MessageLayout) {
    let mut reading = Reading::new(Role::Tool, it);
    let call_id = it.string("call_id").unwrap_or_default();
    let is_error = matches!(it.string("status").as_deref(), Some("failed"));
    let (content, layout) = match it.string("type").as_deref() {
        Some("shell_call_output") => shell_output(it),
        Some("computer_call_output" | "tool_search_output") => {
            let part = it.get("output").map(|value| opaque(it.string("type"), None, value));
            (part.into_iter().collect(), PartLayout::new(Slot::Fixed, None))
        }
        _ => result_content(it.get("output"), piece),
    };
    reading.push(Part::ToolResult(ToolResult { call_id, content, is_error }), layout);
    reading.done()
}

/// A list of `{stdout, stderr, outcome}`: each stream is a text of its own.
fn shell_output<'a>(it: &Object<'a>) -> (Vec<Part<'a>>, PartLayout) {
    let mut layout = PartLayout::new(Slot::Fixed, None);
    let mut parts = Vec::new();
    for chunk in it.elements("output").iter() {
        for key in ["stdout", "stderr"] {
            let Some(value) = chunk.get(key).filter(|value| value.is_string()) else { continue };
            parts.push(Part::text(value.string().unwrap_or_default()));
            layout.inner.push(PartLayout::new(Slot::Text(value.span), None));
        }
    }
    (parts, layout)
}

fn kept<'a>(it: &Object<'a>, role: Role, pair: Option<Cow<'a, str>>) -> (Message<'a>, MessageLayout) {
    let mut reading = Reading::new(role, it);
    reading.push(opaque(it.string("type"), pair, it.value), PartLayout::new(Slot::Fixed, None));
    reading.done()
}

fn piece<'a>(it: &Object<'a>) -> (Part<'a>, Slot) {
    let kind = it.string("type");
    match kind.as_deref() {
        Some("input_text" | "output_text" | "text") => {
            if let Some(value) = it.get("text").filter(|value| value.is_string()) {
                return (Part::text(value.string().unwrap_or_default()), Slot::Text(value.span));
            }
        }
        Some("input_image") => {
            let source = match (it.string("image_url"), it.string("file_id")) {
                (Some(url), _) => source_of_url(url),
                (None, Some(id)) => Source::Id(id),
                (None, None) => Source::Unknown,
            };
            let image = Image { source, detail: it.string("detail") };
            return (Part::Image(image), Slot::Block(it.value.span, "input_text"));
        }
        Some("input_file") => {
            let source = match (it.string("file_data"), it.string("file_url"), it.string("file_id")) {
                (Some(data), ..) => source_of_url(data),
                (_, Some(url), _) => Source::Url(url),
                (.., Some(id)) => Source::Id(id),
                _ => Source::Unknown,
            };
            let file = File { name: it.string("filename"), media_type: None, source };
            return (Part::File(file), Slot::Block(it.value.span, "input_text"));
        }
        _ => {}
    }
    (opaque(kind, None, it.value), Slot::Fixed)
}
