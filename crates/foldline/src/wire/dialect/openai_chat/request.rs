//! OpenAI Chat Completions requests, of OpenAI and the many compatible servers.
//!
//! An assistant's reasoning is in a field whose name depends on the server; text and calls follow. A tool result is a
//! separate message.

use crate::conversation::text::LazyText;
use crate::conversation::{
    CallArguments, FilePart, ImagePart, MediaSource, Message, Part, PartId, Role, ToolCall, ToolResult,
};
use crate::wire::dialect::openai::{OUTPUT_LIMIT_PATHS, text_message};
use crate::wire::json::layout::{
    BodyLayout, EditSlot, ListElement, ListName, MessageBuilder, PartLayout, opaque_part, parse_result_content,
    source_from_url,
};
use crate::wire::json::scan::{JsonObject, JsonValue};
use crate::wire::json::splice::EditSyntax;
use crate::wire::json::string::encode;
use crate::wire::request::{CallIds, Request, RequestSyntax, StreamDefault, parse_role, parse_tool_list};
use crate::wire::result::{AnsweredCall, ResultSyntax};

/// Field names of readable reasoning on different servers.
pub(crate) const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "reasoning", "reasoning_text"];
/// Fields of an assistant message that are sent back unchanged or not at all (signatures, audio).
pub(crate) const OPAQUE_FIELDS: [&str; 4] = ["reasoning_details", "extra_content", "audio", "refusal"];

pub(crate) const REQUEST: RequestSyntax = RequestSyntax {
    list_key: "messages",
    envelope_keys: &[],
    nested_fields: NESTED_FIELDS,
    parse_message,
    parse_string_input: None,
    parse_instructions: |_| Vec::new(),
    parse_tools: parse_tool_list,
    call_ids: CallIds::Always,
    output_limit_paths: OUTPUT_LIMIT_PATHS,
    stream_default: StreamDefault::Body,
    load_window: None,
    stored_history: |_| None,
    thread_field: None,
    previous_response_field: None,
    stores_response: |_| false,
};

pub(crate) const EDITS: EditSyntax = EditSyntax {
    text_block: |text| format!(r#"{{"type":"text","text":{}}}"#, encode(text)),
    text_message,
    result_object: |_, text| encode(text),
};

pub(crate) const RESULTS: ResultSyntax = ResultSyntax {
    result_json: |call, text| {
        format!(r#"{{"role":"tool","tool_call_id":{},"content":{}}}"#, encode(call.id), encode(text))
    },
    message_of_blocks: None,
    result_for_part,
};

/// Returns a result; that of the older `function_call`, which is paired by name and is in no list of calls, is different.
fn result_for_part(request: &Request<'_>, at: PartId, call: AnsweredCall<'_>, text: &str) -> String {
    match request.block(at) {
        Some(_) => (RESULTS.result_json)(call, text),
        None => format!(r#"{{"role":"function","name":{},"content":{}}}"#, encode(call.id), encode(text)),
    }
}

/// The nested fields of a message, level by level.
const NESTED_FIELDS: &[&[&str]] =
    &[&["content", "tool_calls", "function_call"], &["function", "custom", "image_url", "file"]];

pub(crate) fn parse_message<'a>(message: &JsonObject<'a>, layout: &mut BodyLayout) -> Message<'a> {
    let role = parse_role(message.string("role").as_deref());
    let mut builder = MessageBuilder::new(role, message, layout);
    for key in REASONING_FIELDS {
        if let Some(text) = message.text(key) {
            builder.push(
                Part::reasoning(text),
                PartLayout::new(EditSlot::Fixed, MessageBuilder::field_element(message, key)),
            );
        }
    }
    for key in OPAQUE_FIELDS {
        if let Some(value) = message.get(key).filter(|value| !value.is_null()) {
            builder.push(opaque_part(Some(key.into()), None, value), PartLayout::new(EditSlot::Fixed, None));
        }
    }
    if role == Role::Tool {
        // The legacy `function` role refers to a call by name, not by id.
        let call_id = message.string("tool_call_id").or_else(|| message.string("name")).unwrap_or_default();
        let (content, part_layout) = parse_result_content(builder.layout, message, "content", parse_content_block);
        builder.push(Part::ToolResult(ToolResult { call_id, content, is_error: false }), part_layout);
        return builder.finish();
    }
    read_content(&mut builder, message);
    read_calls(&mut builder, message);
    builder.finish()
}

fn read_content<'a>(builder: &mut MessageBuilder<'a, '_>, message: &JsonObject<'a>) {
    let Some(value) = message.get("content") else { return };
    let field = MessageBuilder::field_element(message, "content");
    if let Some(text) = value.text() {
        builder.push(Part::text(text), PartLayout::new(EditSlot::Text(value.span.into()), field));
    } else if value.is_array() {
        let elements = message.elements("content");
        builder.push_list(ListName::Content, &elements, field);
        for (index, element) in elements.iter().enumerate() {
            let (part, slot) = parse_content_block(element);
            builder.push(part, PartLayout::new(slot, Some(ListElement::new(ListName::Content, index))));
        }
    }
}

fn read_calls<'a>(builder: &mut MessageBuilder<'a, '_>, message: &JsonObject<'a>) {
    if message.get("tool_calls").is_some_and(JsonValue::is_array) {
        let elements = message.elements("tool_calls");
        builder.push_list(ListName::Calls, &elements, MessageBuilder::field_element(message, "tool_calls"));
        for (index, element) in elements.iter().enumerate() {
            let (part, slot) = parse_call(element);
            builder.push(part, PartLayout::new(slot, Some(ListElement::new(ListName::Calls, index))));
        }
    }
    if let Some(function) = message.nested_object("function_call") {
        let name = function.string("name").unwrap_or_default();
        let (arguments, slot) = parse_arguments(&function);
        let call = ToolCall { id: name.clone(), name, arguments, signature: None };
        builder
            .push(Part::ToolCall(call), PartLayout::new(slot, MessageBuilder::field_element(message, "function_call")));
    }
}

fn parse_call<'a>(call: &JsonObject<'a>) -> (Part<'a>, EditSlot) {
    let id = call.string("id").unwrap_or_default();
    if let Some(function) = call.nested_object("function") {
        let name = function.string("name").unwrap_or_default();
        let (arguments, slot) = parse_arguments(&function);
        return (Part::ToolCall(ToolCall { id, name, arguments, signature: thought_signature(call) }), slot);
    }
    if let Some(custom) = call.nested_object("custom") {
        let name = custom.string("name").unwrap_or_default();
        let (text, slot) = match custom.get("input") {
            Some(input) if input.is_string() => {
                (input.text().unwrap_or_default(), EditSlot::TextArguments(input.span.into()))
            }
            _ => (LazyText::default(), EditSlot::Fixed),
        };
        return (Part::ToolCall(ToolCall { id, name, arguments: CallArguments::Text(text), signature: None }), slot);
    }
    (opaque_part(call.string("type"), Some(id), call.value), EditSlot::Fixed)
}

/// Returns the signature that Gemini's compatible server attaches to a call.
fn thought_signature(call: &JsonObject<'_>) -> Option<Box<str>> {
    #[derive(serde::Deserialize)]
    struct ExtraContent<'a> {
        #[serde(borrow)]
        google: GoogleContent<'a>,
    }
    #[derive(serde::Deserialize)]
    struct GoogleContent<'a> {
        #[serde(borrow)]
        thought_signature: std::borrow::Cow<'a, str>,
    }
    let extra: ExtraContent<'_> = serde_json::from_str(call.get("extra_content")?.raw()).ok()?;
    Some(extra.google.thought_signature.into())
}

/// Parses the arguments of a function: a string that contains JSON, or the object itself.
pub(crate) fn parse_arguments<'a>(function: &JsonObject<'a>) -> (CallArguments<'a>, EditSlot) {
    match function.get("arguments") {
        Some(value) if value.is_string() => {
            (CallArguments::Json(value.text().unwrap_or_default()), EditSlot::JsonInString(value.span.into()))
        }
        // Some clients send the object itself; it is parsed and left unchanged.
        Some(value) => (CallArguments::Json(value.raw().into()), EditSlot::Json(value.span.into())),
        None => (CallArguments::Json("".into()), EditSlot::Fixed),
    }
}

fn parse_content_block<'a>(block: &JsonObject<'a>) -> (Part<'a>, EditSlot) {
    let kind = block.string("type");
    match kind.as_deref() {
        Some("text") => {
            if let Some(value) = block.get("text").filter(|value| value.is_string()) {
                return (Part::text(value.text().unwrap_or_default()), EditSlot::Text(value.span.into()));
            }
        }
        Some("image_url") => {
            let (url, detail) = match block.nested_object("image_url") {
                Some(image) => (image.string("url"), image.string("detail")),
                None => (block.string("image_url"), None),
            };
            let source = url.map_or(MediaSource::Unknown, source_from_url);
            return (Part::Image(ImagePart { source, detail }), EditSlot::Block(block.value.span.into()));
        }
        Some("file") => {
            if let Some(file) = block.nested_object("file") {
                let source = match (file.string("file_data"), file.string("file_id")) {
                    (Some(data), _) => source_from_url(data),
                    (None, Some(id)) => MediaSource::Id(id),
                    (None, None) => MediaSource::Unknown,
                };
                let file = FilePart { name: file.string("filename"), media_type: None, source };
                return (Part::File(Box::new(file)), EditSlot::Block(block.value.span.into()));
            }
        }
        _ => {}
    }
    (opaque_part(kind, None, block.value), EditSlot::Fixed)
}

#[cfg(test)]
mod tests {
    use crate::conversation::PartId;
    use crate::testing::shape;
    use crate::wire::dialect::tests::messages_shape;
    use crate::wire::{Format, Request, RequestEdit};

    fn read(messages: &str) -> Vec<String> {
        messages_shape(Format::OpenAiChat, messages)
    }

    /// The first round of a plain agent.
    #[test]
    fn round_with_parallel_calls_is_read() {
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

    /// Servers name the reasoning field differently; signed data is kept unchanged.
    #[test]
    fn reasoning_is_read_from_every_known_field() {
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
    fn thought_signature_of_a_call_is_read() {
        let body = br#"[{"role":"assistant","tool_calls":[{"id":"c1","type":"function","extra_content":{"google":{"thought_signature":"s"}},"function":{"name":"ls","arguments":"{}"}}]}]"#;
        let request = Request::parse(Format::OpenAiChat, body).unwrap();
        let call = request.conversation().messages[0].calls().next().unwrap();
        assert_eq!(call.signature.as_deref(), Some("s"));
    }

    #[test]
    fn images_files_and_audio_are_read() {
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

    /// Legacy function calling, and roles of other servers.
    #[test]
    fn legacy_functions_and_unknown_roles_are_read() {
        assert_eq!(
            read(
                r#"{"role":"assistant","content":null,"function_call":{"name":"ls","arguments":"{}"}},
                {"role":"function","name":"ls","content":"a.rs"},
                {"role":"ipython","content":"1"},
                {"content":"no role"}"#
            ),
            ["assistant: call ls ls({})", r#"tool: result ls ["a.rs"]"#, r#"other: "1""#, r#"other: "no role""#]
        );
    }

    #[test]
    fn custom_tools_and_object_arguments_are_edited() {
        let body = r#"[{"role":"assistant","tool_calls":[{"id":"c1","type":"custom","custom":{"name":"patch","input":"*** x"}},{"id":"c2","type":"function","function":{"name":"f","arguments":{"a":1}}},{"id":"c3","type":"hosted"}]}]"#;
        let request = Request::parse(Format::OpenAiChat, body.as_bytes()).unwrap();
        assert_eq!(
            shape(request.conversation()),
            [r#"assistant: call c1 patch("*** x") | call c2 f({"a":1}) | kept hosted c3"#]
        );
        let arguments =
            |part, arguments: &str| RequestEdit::Arguments { at: PartId::new(0, part), arguments: arguments.into() };
        let out = request.splice(&[arguments(0, "short"), arguments(1, "{}")]).unwrap();
        let expected = body.replace("\"*** x\"", "\"short\"").replace("{\"a\":1}", "{}");
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}
