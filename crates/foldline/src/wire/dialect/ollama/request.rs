//! Ollama requests: messages with one text, images next to it, and calls whose arguments are objects.
//!
//! A tool result is a message of its own. It names its tool, its call, or neither; without an id results answer the
//! calls before them in order.

use crate::conversation::{ImagePart, MediaSource, Message, Part, Role, ToolCall, ToolResult};
use crate::wire::dialect::openai;
use crate::wire::dialect::openai_chat::request::parse_arguments;
use crate::wire::json::layout::{
    AddedField, BodyLayout, EditSlot, ListElement, ListName, MessageBuilder, PartLayout, opaque_part,
    parse_result_content,
};
use crate::wire::json::scan::{JsonObject, JsonValue};
use crate::wire::json::splice::EditSyntax;
use crate::wire::json::string::encode;
use crate::wire::request::{
    CallIds, LoadWindowSyntax, RequestSyntax, StreamDefault, is_synthetic_id, parse_role, parse_tool_list,
    unanswered_id,
};
use crate::wire::result::{AnsweredCall, ResultSyntax};

pub(crate) const REQUEST: RequestSyntax = RequestSyntax {
    list_key: "messages",
    envelope_keys: &[],
    nested_fields: &[&["tool_calls"], &["function"]],
    parse_message,
    parse_string_input: None,
    parse_instructions: |_| Vec::new(),
    parse_tools: parse_tool_list,
    call_ids: CallIds::MayBeMissing,
    output_limit_paths: &[&["options", "num_predict"]],
    stream_default: StreamDefault::Stream,
    load_window: Some(LoadWindowSyntax { path: &["options", "num_ctx"], missing_fields }),
    stored_history: |_| None,
    thread_field: None,
    previous_response_field: None,
    stores_response: |_| false,
};

pub(crate) const EDITS: EditSyntax = EditSyntax {
    text_block: |text| encode(text),
    text_message: |role, text| openai::text_message(role, text).filter(|_| role != Role::Developer),
    result_object: |_, text| encode(text),
};

pub(crate) const RESULTS: ResultSyntax = ResultSyntax {
    result_json: |call, text| result_message(call, &encode(text)),
    message_of_blocks: None,
    result_for_part: |_, _, call, text| result_message(call, &encode(text)),
};

/// Returns the fields that make the server load the model with a window and refuse prompts that do not fit. A field that
/// the client has set is the client's.
fn missing_fields(body: &JsonObject<'_>, window: u64) -> Vec<AddedField> {
    let mut fields = Vec::new();
    match body.get("options") {
        None => fields.push(AddedField::new(body, "options", &format!(r#"{{"num_ctx":{window}}}"#))),
        Some(options) if options.is_object() && options.object().get("num_ctx").is_none() => {
            fields.push(AddedField::new(&options.object(), "num_ctx", &window.to_string()));
        }
        Some(_) => {}
    }
    for key in ["truncate", "shift"] {
        if body.get(key).is_none() {
            fields.push(AddedField::new(body, key, "false"));
        }
    }
    fields
}

/// Returns the message of a result with this content, as JSON.
pub(crate) fn result_message(call: AnsweredCall<'_>, content: &str) -> String {
    let id = match call.id {
        id if id.is_empty() || is_synthetic_id(id) => String::new(),
        id => format!(r#""tool_call_id":{},"#, encode(id)),
    };
    format!(r#"{{"role":"tool","tool_name":{},{id}"content":{content}}}"#, encode(call.name))
}

pub(crate) fn parse_message<'a>(message: &JsonObject<'a>, layout: &mut BodyLayout) -> Message<'a> {
    let mut builder = MessageBuilder::new(role_of(message), message, layout);
    read_message(&mut builder, message);
    builder.finish()
}

/// Returns the role; the server ignores its case.
fn role_of(message: &JsonObject<'_>) -> Role {
    let name = message.string("role");
    match parse_role(name.as_deref()) {
        Role::Other => parse_role(name.map(|name| name.to_ascii_lowercase()).as_deref()),
        role => role,
    }
}

fn read_message<'a>(builder: &mut MessageBuilder<'a, '_>, message: &JsonObject<'a>) {
    let field = |key| MessageBuilder::field_element(message, key);
    if builder.role() == Role::Tool {
        return read_result(builder, message);
    }
    if let Some(text) = message.text("thinking") {
        builder.push(Part::reasoning(text), PartLayout::new(EditSlot::Fixed, field("thinking")));
    }
    if let Some(value) = message.get("content").filter(|value| value.is_string()) {
        let text = value.text().unwrap_or_default();
        builder.push(Part::text(text), PartLayout::new(EditSlot::Text(value.span.into()), field("content")));
    }
    read_images(builder, message);
    if message.get("tool_calls").is_some_and(JsonValue::is_array) {
        let calls = message.elements("tool_calls");
        builder.push_list(ListName::Calls, &calls, field("tool_calls"));
        for (index, call) in calls.iter().enumerate() {
            let (part, slot) = parse_call(call);
            builder.push(part, PartLayout::new(slot, Some(ListElement::new(ListName::Calls, index))));
        }
    }
}

fn read_result<'a>(builder: &mut MessageBuilder<'a, '_>, message: &JsonObject<'a>) {
    let id = message.string("tool_call_id").filter(|id| !id.is_empty());
    let name = || message.string("tool_name").or_else(|| message.string("name")).unwrap_or_default();
    let call_id = id.unwrap_or_else(|| unanswered_id(name()));
    let as_opaque = |block: &JsonObject<'a>| (opaque_part(None, None, block.value), EditSlot::Fixed);
    let (content, layout) = parse_result_content(builder.layout, message, "content", as_opaque);
    builder.push(Part::ToolResult(ToolResult { call_id, content, is_error: false }), layout);
    read_images(builder, message);
}

fn read_images<'a>(builder: &mut MessageBuilder<'a, '_>, message: &JsonObject<'a>) {
    if !message.get("images").is_some_and(JsonValue::is_array) {
        return;
    }
    let images = message.elements("images");
    builder.push_list(ListName::Content, &images, MessageBuilder::field_element(message, "images"));
    for (index, image) in images.iter().enumerate() {
        let element = ListElement::new(ListName::Content, index);
        builder.push(image_part(image), PartLayout::new(EditSlot::Fixed, Some(element)));
    }
}

fn image_part<'a>(image: &JsonObject<'a>) -> Part<'a> {
    let source = image.value.string().map_or(MediaSource::Unknown, MediaSource::Base64);
    Part::Image(ImagePart { source, detail: None })
}

/// Parses a call of a request or of a response.
pub(crate) fn parse_call<'a>(call: &JsonObject<'a>) -> (Part<'a>, EditSlot) {
    let Some(function) = call.nested_object("function") else {
        return (opaque_part(None, call.string("id"), call.value), EditSlot::Fixed);
    };
    let (arguments, slot) = parse_arguments(&function);
    let id = call.string("id").unwrap_or_default();
    let name = function.string("name").unwrap_or_default();
    (Part::ToolCall(ToolCall { id, name, arguments, signature: None }), slot)
}

#[cfg(test)]
mod tests {
    use crate::conversation::PartId;
    use crate::testing::shape;
    use crate::wire::dialect::tests::messages_shape;
    use crate::wire::{Format, Request, RequestEdit};

    fn read(messages: &str) -> Vec<String> {
        messages_shape(Format::Ollama, messages)
    }

    /// A round of ollama-python: calls without ids, results with the names of their tools.
    #[test]
    fn round_with_parallel_calls_is_read() {
        assert_eq!(
            read(
                r#"{"role":"system","content":"Be brief."},
                {"role":"User","content":"what is here?","images":["AAAA"]},
                {"role":"assistant","content":"","thinking":"hm","tool_calls":[
                    {"function":{"name":"ls","arguments":{"path":"."}}},
                    {"function":{"name":"ls","arguments":{"path":"a"}}},
                    {"function":{"name":"pwd","arguments":{}}}]},
                {"role":"tool","tool_name":"ls","content":"a.rs"},
                {"role":"tool","tool_name":"pwd","content":"here"},
                {"role":"tool","tool_name":"ls","content":"b.rs"}"#
            ),
            [
                r#"system: "Be brief.""#,
                r#"user: "what is here?" | image of 4 base64 characters"#,
                r##"assistant: thought "hm" | "" | call #ls.0 ls({"path":"."}) | call #ls.1 ls({"path":"a"}) | call #pwd.0 pwd({})"##,
                r##"tool: result #ls.0 ["a.rs"]"##,
                r##"tool: result #pwd.0 ["here"]"##,
                r##"tool: result #ls.1 ["b.rs"]"##,
            ]
        );
    }

    /// Results with neither a name nor an id answer the calls of their round in order; a call that the user interrupted
    /// stays without one.
    #[test]
    fn bare_results_answer_calls_in_order() {
        assert_eq!(
            read(
                r#"{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{}}}]},
                {"role":"user","content":"stop"},
                {"role":"assistant","tool_calls":[{"id":"call_1","function":{"name":"g","arguments":{}}},{"function":{"name":"f","arguments":{}}}]},
                {"role":"tool","content":"1"},
                {"role":"tool","content":"2"}"#
            )[2..],
            [
                r##"assistant: call call_1 g({}) | call #f.1 f({})"##,
                r##"tool: result call_1 ["1"]"##,
                r##"tool: result #f.1 ["2"]"##,
            ]
        );
    }

    /// Some clients drop the ids of calls and keep those of results.
    #[test]
    fn unknown_result_ids_answer_calls_in_order() {
        assert_eq!(
            read(
                r#"{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{}}},{"function":{"name":"g","arguments":{}}}]},
                {"role":"tool","tool_call_id":"x","content":"1"},
                {"role":"tool","tool_call_id":"y","content":"2"}"#
            )[1..],
            [r##"tool: result #f.0 ["1"]"##, r##"tool: result #g.0 ["2"]"##]
        );
    }

    #[test]
    fn texts_arguments_and_results_are_edited() {
        let body = r#"{"messages":[{"role":"assistant","content":"x","tool_calls":[{"function":{"index":0,"name":"f","arguments":{"a":1}}}]},{"role":"tool","tool_name":"f","content":"long"}],"options":{"num_ctx":8192}}"#;
        let request = Request::parse(Format::Ollama, body.as_bytes()).unwrap();
        let out = request
            .splice(&[
                RequestEdit::Arguments { at: PartId::new(0, 1), arguments: "{}".into() },
                RequestEdit::Text { at: PartId::new(1, 0), text: "[folded]".into() },
            ])
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&out),
            r#"{"messages":[{"role":"assistant","content":"x","tool_calls":[{"function":{"index":0,"name":"f","arguments":{}}}]},{"role":"tool","tool_name":"f","content":"[folded]"}],"options":{"num_ctx":8192}}"#
        );
    }

    #[test]
    fn image_is_dropped_and_never_replaced() {
        let body = r#"[{"role":"user","content":"x","images":["AAAA","BBBB"]},{"role":"tool","content":"t","images":["CCCC"]}]"#;
        let request = Request::parse(Format::Ollama, body.as_bytes()).unwrap();
        assert_eq!(
            shape(request.conversation()),
            [
                r#"user: "x" | image of 4 base64 characters | image of 4 base64 characters"#,
                r##"tool: result # ["t"] | image of 4 base64 characters"##
            ]
        );
        let out = request.splice(&[RequestEdit::DropPart(PartId::new(0, 1))]).unwrap();
        assert!(String::from_utf8_lossy(&out).contains(r#""images":["BBBB"]"#));
        for at in [PartId::new(0, 1), PartId::new(1, 1)] {
            assert!(request.splice(&[RequestEdit::Text { at, text: "[folded]".into() }]).is_err(), "{at}");
        }
    }

    /// The server reloads the model if these fields differ from those of the request before.
    #[test]
    fn load_fields_are_added_unless_the_client_sets_them() {
        let with_window = |body: &str| {
            let request = Request::parse(Format::Ollama, body.as_bytes()).unwrap().with_load_window(8_192);
            assert_eq!(request.load_window(), Some(if body.contains("num_ctx") { 4_096 } else { 8_192 }));
            String::from_utf8(request.splice(&[]).unwrap().into_owned()).unwrap()
        };
        assert_eq!(
            with_window(r#"{ "messages":[],"options":{"seed":1}}"#),
            r#"{"truncate":false,"shift":false, "messages":[],"options":{"num_ctx":8192,"seed":1}}"#
        );
        assert_eq!(
            with_window(r#"{"messages":[],"shift":true}"#),
            r#"{"options":{"num_ctx":8192},"truncate":false,"messages":[],"shift":true}"#
        );
        let own = r#"{"messages":[],"options":{"num_ctx":4096},"truncate":true,"shift":true}"#;
        assert_eq!(with_window(own), own);
        let chat = Request::parse(Format::OpenAiChat, br#"{"messages":[]}"#).unwrap().with_load_window(8_192);
        assert_eq!((chat.load_window(), &*chat.splice(&[]).unwrap()), (None, &br#"{"messages":[]}"#[..]));
    }

    #[test]
    fn stream_is_the_default() {
        let is_streaming = |body: &str| Request::parse(Format::Ollama, body.as_bytes()).unwrap().is_streaming();
        assert!(is_streaming(r#"{"messages":[]}"#) && is_streaming(r#"{"messages":[],"stream":true}"#));
        assert!(!is_streaming(r#"{"messages":[],"stream":false}"#));
    }
}
