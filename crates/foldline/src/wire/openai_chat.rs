//! OpenAI Chat Completions, as OpenAI and the many compatible servers speak it.
//!
//! An assistant's reasoning stands in a field that each server names differently; its text, then
//! its calls follow. A tool's result is a message of its own.

use super::layout::{Element, Layout, ListName, PartLayout, Reading, Slot, opaque, result_content, source_of_url};
use super::role;
use super::scan::{Object, Value};
use crate::conversation::{Arguments, File, Image, Message, Part, Role, Source, ToolCall, ToolResult};
use crate::text::Text;

/// The names under which servers give readable reasoning.
const REASONING: [&str; 3] = ["reasoning_content", "reasoning", "reasoning_text"];
/// Fields of an assistant message that come back untouched or not at all (signatures, audio).
const SEALED: [&str; 4] = ["reasoning_details", "extra_content", "audio", "refusal"];

/// The fields of a message that hold others, level by level.
pub(super) const ENTER: &[&[&str]] =
    &[&["content", "tool_calls", "function_call"], &["function", "custom", "image_url", "file"]];

pub(super) fn message<'a>(it: &Object<'a>, layout: &mut Layout) -> Message<'a> {
    let role = role(it.string("role").as_deref());
    let mut reading = Reading::new(role, it, layout);
    for key in REASONING {
        if let Some(text) = it.text(key) {
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
        let (content, place) = result_content(reading.layout, it, "content", block);
        reading.push(Part::ToolResult(ToolResult { call_id, content, is_error: false }), place);
        return reading.done();
    }
    content(&mut reading, it);
    calls(&mut reading, it);
    reading.done()
}

fn content<'a>(reading: &mut Reading<'a, '_>, it: &Object<'a>) {
    let Some(value) = it.get("content") else { return };
    let field = Reading::field(it, "content");
    if let Some(text) = value.text() {
        reading.push(Part::text(text), PartLayout::new(Slot::Text(value.span.into()), field));
    } else if value.is_array() {
        let elements = it.elements("content");
        reading.list(ListName::Content, &elements, field);
        for (index, element) in elements.iter().enumerate() {
            let (part, slot) = block(element);
            reading.push(part, PartLayout::new(slot, Some(Element::new(ListName::Content, index))));
        }
    }
}

fn calls<'a>(reading: &mut Reading<'a, '_>, it: &Object<'a>) {
    if it.get("tool_calls").is_some_and(Value::is_array) {
        let elements = it.elements("tool_calls");
        reading.list(ListName::Calls, &elements, Reading::field(it, "tool_calls"));
        for (index, element) in elements.iter().enumerate() {
            let (part, slot) = call(element);
            reading.push(part, PartLayout::new(slot, Some(Element::new(ListName::Calls, index))));
        }
    }
    if let Some(function) = it.inside("function_call") {
        let name = function.string("name").unwrap_or_default();
        let (arguments, slot) = arguments(&function);
        let call = ToolCall { id: name.clone(), name, arguments };
        reading.push(Part::ToolCall(call), PartLayout::new(slot, Reading::field(it, "function_call")));
    }
}

fn call<'a>(it: &Object<'a>) -> (Part<'a>, Slot) {
    let id = it.string("id").unwrap_or_default();
    if let Some(function) = it.inside("function") {
        let name = function.string("name").unwrap_or_default();
        let (arguments, slot) = arguments(&function);
        return (Part::ToolCall(ToolCall { id, name, arguments }), slot);
    }
    if let Some(custom) = it.inside("custom") {
        let name = custom.string("name").unwrap_or_default();
        let (text, slot) = match custom.get("input") {
            Some(input) if input.is_string() => {
                (input.text().unwrap_or_default(), Slot::FreeArguments(input.span.into()))
            }
            _ => (Text::default(), Slot::Fixed),
        };
        return (Part::ToolCall(ToolCall { id, name, arguments: Arguments::Text(text) }), slot);
    }
    (opaque(it.string("type"), Some(id), it.value), Slot::Fixed)
}

fn arguments<'a>(function: &Object<'a>) -> (Arguments<'a>, Slot) {
    match function.get("arguments") {
        Some(value) if value.is_string() => {
            (Arguments::Json(value.text().unwrap_or_default()), Slot::JsonInText(value.span.into()))
        }
        // Some clients send the object itself; it is read, and left alone.
        Some(value) => (Arguments::Json(value.raw().into()), Slot::Json(value.span.into())),
        None => (Arguments::Json("".into()), Slot::Fixed),
    }
}

fn block<'a>(it: &Object<'a>) -> (Part<'a>, Slot) {
    let kind = it.string("type");
    match kind.as_deref() {
        Some("text") => {
            if let Some(value) = it.get("text").filter(|value| value.is_string()) {
                return (Part::text(value.text().unwrap_or_default()), Slot::Text(value.span.into()));
            }
        }
        Some("image_url") => {
            let (url, detail) = match it.inside("image_url") {
                Some(image) => (image.string("url"), image.string("detail")),
                None => (it.string("image_url"), None),
            };
            let source = url.map_or(Source::Unknown, source_of_url);
            return (Part::Image(Image { source, detail }), Slot::Block(it.value.span.into()));
        }
        Some("file") => {
            if let Some(file) = it.inside("file") {
                let source = match (file.string("file_data"), file.string("file_id")) {
                    (Some(data), _) => source_of_url(data),
                    (None, Some(id)) => Source::Id(id),
                    (None, None) => Source::Unknown,
                };
                let file = File { name: file.string("filename"), media_type: None, source };
                return (Part::File(Box::new(file)), Slot::Block(it.value.span.into()));
            }
        }
        _ => {}
    }
    (opaque(kind, None, it.value), Slot::Fixed)
}

#[cfg(test)]
mod tests {
    use super::super::{Edit, Format, Request};
    use crate::conversation::PartId;
    use crate::testing::shape;

    fn read(messages: &str) -> Vec<String> {
        let body = format!("[{messages}]");
        let request = Request::parse(Format::OpenAiChat, body.as_bytes()).unwrap();
        assert_eq!(request.splice(&[]).unwrap(), body.as_bytes());
        shape(request.conversation())
    }

    /// The first round of a plain agent.
    #[test]
    fn a_round_with_parallel_calls() {
        assert_eq!(
            read(
                r#"{"role":"system","content":"Be brief."},
                {"role":"developer","content":[{"type":"text","text":"Really."}]},
                {"role":"user","content":"what is here?","name":"ann"},
                {"role":"assistant","content":null,"tool_calls":[
                    {"id":"c1","type":"function","function":{"name":"ls","arguments":"{\"path\":\".\"}"}},
                    {"id":"c2","type":"function","function":{"name":"pwd","arguments":""}}]},
                {"role":"tool","tool_call_id":"c1","content":"a.rs"},
                {"role":"tool","tool_call_id":"c2","content":[{"type":"text","text":"here"}]},
                {"role":"assistant","content":"a.rs"}"#
            ),
            [
                r#"system: "Be brief.""#,
                r#"developer: "Really.""#,
                r#"user: "what is here?""#,
                r#"assistant: call c1 ls({"path":"."}) | call c2 pwd()"#,
                r#"tool: result c1 ["a.rs"]"#,
                r#"tool: result c2 ["here"]"#,
                r#"assistant: "a.rs""#,
            ]
        );
    }

    /// Each server names the field of its reasoning differently; what it signs comes back as it is.
    #[test]
    fn reasoning_stands_in_a_field_of_many_names() {
        assert_eq!(
            read(
                r#"{"role":"assistant","reasoning_content":"deep","content":"a"},
                {"role":"assistant","content":"b","reasoning":"router","reasoning_details":[{"type":"reasoning.encrypted","data":"x"}]},
                {"role":"assistant","content":"c","reasoning_text":"copilot","extra_content":{"google":{"thought_signature":"s"}}},
                {"role":"assistant","content":"d","reasoning_content":null,"refusal":null}"#
            ),
            [
                r#"assistant: thought "deep" | "a""#,
                r#"assistant: thought "router" | kept reasoning_details | "b""#,
                r#"assistant: thought "copilot" | kept extra_content | "c""#,
                r#"assistant: "d""#,
            ]
        );
    }

    #[test]
    fn pictures_files_and_sounds() {
        assert_eq!(
            read(
                r#"{"role":"user","content":[
                    {"type":"image_url","image_url":{"url":"https://a/b.png","detail":"high"}},
                    {"type":"image_url","image_url":"data:image/png;base64,AAAA"},
                    {"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,AAAAAAAA"}},
                    {"type":"file","file":{"file_id":"file_1"}},
                    {"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}},
                    {"type":"of_tomorrow"}, "not even an object"]},
                {"role":"assistant","audio":{"id":"audio_1"},"content":null},
                {"role":"assistant","content":[{"type":"refusal","refusal":"no"}],"refusal":"no"}"#
            ),
            [
                concat!(
                    "user: image at https://a/b.png high | image of 4 base64 characters | file \"a.pdf\" of 8 base64 characters",
                    " | file id file_1 | kept input_audio | kept of_tomorrow | kept "
                ),
                "assistant: kept audio",
                "assistant: kept refusal | kept refusal",
            ]
        );
    }

    /// The first form of function calling, and roles of other servers.
    #[test]
    fn old_functions_and_unknown_roles() {
        assert_eq!(
            read(
                r#"{"role":"assistant","content":null,"function_call":{"name":"ls","arguments":"{}"}},
                {"role":"function","name":"ls","content":"a.rs"},
                {"role":"ipython","content":"1"},
                {"content":"nobody"}"#
            ),
            ["assistant: call ls ls({})", r#"tool: result ls ["a.rs"]"#, r#"other: "1""#, r#"other: "nobody""#]
        );
    }

    #[test]
    fn custom_tools_and_objects_as_arguments() {
        let body = r#"[{"role":"assistant","tool_calls":[{"id":"c1","type":"custom","custom":{"name":"patch","input":"*** x"}},{"id":"c2","type":"function","function":{"name":"f","arguments":{"a":1}}},{"id":"c3","type":"hosted"}]}]"#;
        let request = Request::parse(Format::OpenAiChat, body.as_bytes()).unwrap();
        assert_eq!(
            shape(request.conversation()),
            [r#"assistant: call c1 patch("*** x") | call c2 f({"a":1}) | kept hosted c3"#]
        );
        let arguments =
            |part, arguments: &str| Edit::Arguments { at: PartId::new(0, part), arguments: arguments.into() };
        let out = request.splice(&[arguments(0, "short"), arguments(1, "{}")]).unwrap();
        let expected = body.replace("\"*** x\"", "\"short\"").replace("{\"a\":1}", "{}");
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}
