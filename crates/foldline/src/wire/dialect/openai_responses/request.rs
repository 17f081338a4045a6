//! OpenAI Responses requests: a list of items, each parsed as one message.
//!
//! Items of the model (reasoning, text, calls) are the assistant's; outputs are the tool's. Hosted tools contain their
//! own result and are kept unchanged.

use std::borrow::Cow;

use crate::conversation::{
    CallArguments, FilePart, ImagePart, MediaSource, Message, OpaqueBlock, Part, PartId, ReasoningPart, Role, ToolCall,
    ToolResult,
};
use crate::wire::dialect::openai::{OUTPUT_LIMIT_PATHS, text_message};
use crate::wire::json::layout::{
    BodyLayout, EditSlot, ListElement, ListName, MessageBuilder, PartLayout, opaque_part, parse_result_content,
    source_from_url,
};
use crate::wire::json::scan::{JsonObject, JsonValue};
use crate::wire::json::splice::EditSyntax;
use crate::wire::json::string::encode;
use crate::wire::request::{
    CallIds, Request, RequestSyntax, StreamDefault, instruction_parts, is_set, parse_role, parse_tool_list,
};
use crate::wire::result::{AnsweredCall, ResultSyntax};

pub(crate) const REQUEST: RequestSyntax = RequestSyntax {
    list_key: "input",
    envelope_keys: &[],
    nested_fields: NESTED_FIELDS,
    parse_message,
    parse_string_input: Some(parse_string_input),
    parse_instructions: |top_level| instruction_parts(top_level, "instructions", block_part),
    parse_tools: parse_tool_list,
    call_ids: CallIds::Always,
    output_limit_paths: OUTPUT_LIMIT_PATHS,
    stream_default: StreamDefault::Body,
    load_window: None,
    stored_history,
    thread_field: None,
    previous_response_field: Some("previous_response_id"),
    stores_response: |top_level| top_level.get("store").and_then(JsonValue::bool) != Some(false),
};

pub(crate) const EDITS: EditSyntax = EditSyntax {
    text_block: |text| format!(r#"{{"type":"input_text","text":{}}}"#, encode(text)),
    text_message,
    result_object: |_, text| encode(text),
};

pub(crate) const RESULTS: ResultSyntax = ResultSyntax {
    result_json: |call, text| {
        format!(r#"{{"type":"function_call_output","call_id":{},"output":{}}}"#, encode(call.id), encode(text))
    },
    message_of_blocks: None,
    result_for_part,
};

fn stored_history(request: &Request<'_>) -> Option<&'static str> {
    ["previous_response_id", "conversation"].into_iter().find(|key| is_set(request.top_level(), key))
}

/// Returns a result in the form that the kind of its call requires.
fn result_for_part(request: &Request<'_>, at: PartId, call: AnsweredCall<'_>, text: &str) -> String {
    let kind = request.message_field(at.message, "type").and_then(JsonValue::string).unwrap_or_default();
    let (id, output) = (encode(call.id), encode(text));
    match &*kind {
        "custom_tool_call" => format!(r#"{{"type":"custom_tool_call_output","call_id":{id},"output":{output}}}"#),
        "apply_patch_call" => {
            format!(r#"{{"type":"apply_patch_call_output","call_id":{id},"status":"failed","output":{output}}}"#)
        }
        "shell_call" => format!(
            r#"{{"type":"shell_call_output","call_id":{id},"output":[{{"stdout":"","stderr":{output},"outcome":{{"type":"exit","exit_code":1}}}}]}}"#
        ),
        _ => (RESULTS.result_json)(call, text),
    }
}

/// The nested fields of an item, level by level.
const NESTED_FIELDS: &[&[&str]] = &[&["content", "summary", "output"]];

pub(crate) fn parse_message<'a>(item: &JsonObject<'a>, layout: &mut BodyLayout) -> Message<'a> {
    let kind = item.string("type");
    match kind.as_deref() {
        // A reference may omit its type; then it has only an id.
        None if item.get("role").is_none() && item.get("id").is_some() => reference_item(item, layout),
        Some("item_reference") => reference_item(item, layout),
        None | Some("message") => message_item(item, layout),
        Some("reasoning") => reasoning_item(item, layout),
        Some(kind @ ("function_call" | "custom_tool_call")) => call_item(item, layout, kind),
        Some("local_shell_call" | "shell_call" | "apply_patch_call" | "computer_call" | "tool_search_call") => {
            builtin_call_item(item, layout)
        }
        Some(kind) if kind.ends_with("_call_output") || kind == "tool_search_output" => output_item(item, layout),
        Some("mcp_approval_response") => opaque_item(item, layout, Role::User, item.string("approval_request_id")),
        // Hosted tools, compaction and types newer than this version come from the model.
        Some(_) => opaque_item(item, layout, Role::Assistant, item.string("id")),
    }
}

/// Parses `"input": "hello"`: one user message without a list.
fn parse_string_input<'a>(value: JsonValue<'a>, layout: &mut BodyLayout) -> Message<'a> {
    let mut builder = MessageBuilder::without_lists(Role::User, value.span, layout);
    builder
        .push(Part::text(value.text().unwrap_or_default()), PartLayout::new(EditSlot::Text(value.span.into()), None));
    builder.finish()
}

/// Parses a block of instructions given as a list.
pub(crate) fn block_part<'a>(block: &JsonObject<'a>) -> Part<'a> {
    match parse_message(block, &mut BodyLayout::default()).parts.into_iter().next() {
        Some(part) => part,
        None => opaque_part(block.string("type"), None, block.value),
    }
}

fn message_item<'a>(item: &JsonObject<'a>, layout: &mut BodyLayout) -> Message<'a> {
    let mut builder = MessageBuilder::new(parse_role(item.string("role").as_deref()), item, layout);
    let Some(content) = item.get("content") else { return builder.finish() };
    if let Some(text) = content.text() {
        builder.push(Part::text(text), PartLayout::new(EditSlot::Text(content.span.into()), None));
    } else if content.is_array() {
        let elements = item.elements("content");
        builder.push_list(ListName::Content, &elements, None);
        for (index, element) in elements.iter().enumerate() {
            let (part, slot) = parse_content_block(element);
            builder.push(part, PartLayout::new(slot, Some(ListElement::new(ListName::Content, index))));
        }
    }
    builder.finish()
}

fn reasoning_item<'a>(item: &JsonObject<'a>, layout: &mut BodyLayout) -> Message<'a> {
    let texts: Vec<_> = item
        .elements("content")
        .iter()
        .chain(item.elements("summary").iter())
        .filter_map(|piece| piece.text("text"))
        .collect();
    let text = match <[_; 1]>::try_from(texts) {
        Ok([text]) => text,
        Err(texts) => texts.join("\n").into(),
    };
    let mut builder = MessageBuilder::new(Role::Assistant, item, layout);
    let part = Part::Reasoning(ReasoningPart { text, seal: item.string("encrypted_content"), redacted: false });
    builder.push(part, PartLayout::new(EditSlot::Fixed, None));
    builder.finish()
}

fn call_item<'a>(item: &JsonObject<'a>, layout: &mut BodyLayout, kind: &str) -> Message<'a> {
    let key = if kind == "function_call" { "arguments" } else { "input" };
    let written = item.get(key).filter(|value| value.is_string());
    let text = written.and_then(JsonValue::text).unwrap_or_default();
    let (arguments, slot) = match (kind, written) {
        ("function_call", Some(value)) => (CallArguments::Json(text), EditSlot::JsonInString(value.span.into())),
        ("function_call", None) => (CallArguments::Json(text), EditSlot::Fixed),
        (_, Some(value)) => (CallArguments::Text(text), EditSlot::TextArguments(value.span.into())),
        (_, None) => (CallArguments::Text(text), EditSlot::Fixed),
    };
    let name = item.string("name").unwrap_or_default();
    call_message(item, layout, name, arguments, slot)
}

/// Parses a call of a built-in tool; its action is an object that is kept unchanged.
fn builtin_call_item<'a>(item: &JsonObject<'a>, layout: &mut BodyLayout) -> Message<'a> {
    let kind = item.string("type").unwrap_or_default();
    let action = ["action", "actions", "operation", "arguments"].iter().find_map(|key| item.get(key));
    let arguments = CallArguments::Json(action.map_or("", JsonValue::raw).into());
    let name = Cow::Owned(kind.trim_end_matches("_call").to_owned());
    call_message(item, layout, name, arguments, EditSlot::Fixed)
}

fn call_message<'a>(
    item: &JsonObject<'a>,
    layout: &mut BodyLayout,
    name: Cow<'a, str>,
    arguments: CallArguments<'a>,
    slot: EditSlot,
) -> Message<'a> {
    let id = item.string("call_id").or_else(|| item.string("id")).unwrap_or_default();
    let mut builder = MessageBuilder::new(Role::Assistant, item, layout);
    builder.push(Part::ToolCall(ToolCall { id, name, arguments, signature: None }), PartLayout::new(slot, None));
    builder.finish()
}

fn output_item<'a>(item: &JsonObject<'a>, layout: &mut BodyLayout) -> Message<'a> {
    let mut builder = MessageBuilder::new(Role::Tool, item, layout);
    // The output of a local shell refers to its call as `id`.
    let call_id = item.string("call_id").or_else(|| item.string("id")).unwrap_or_default();
    let is_error = matches!(item.string("status").as_deref(), Some("failed"));
    let (content, part_layout) = match item.string("type").as_deref() {
        Some("shell_call_output") => shell_output_parts(item, builder.layout),
        Some("computer_call_output") => {
            let screen = item.object("output").map(|screen| Part::Image(parse_image(&screen)));
            (screen.into_iter().collect(), PartLayout::new(EditSlot::Fixed, None))
        }
        Some("tool_search_output") => {
            let found = item.get("tools").map(|value| opaque_part(Some("tools".into()), None, value));
            (found.into_iter().collect(), PartLayout::new(EditSlot::Fixed, None))
        }
        _ => parse_result_content(builder.layout, item, "output", parse_content_block),
    };
    builder.push(Part::ToolResult(ToolResult { call_id, content, is_error }), part_layout);
    builder.finish()
}

/// Parses a list of `{stdout, stderr, outcome}`: each stream becomes a text.
fn shell_output_parts<'a>(item: &JsonObject<'a>, layout: &mut BodyLayout) -> (Vec<Part<'a>>, PartLayout) {
    let chunks = item.elements("output");
    let streams = chunks.iter().flat_map(|chunk| ["stdout", "stderr"].map(|key| chunk.get(key))).flatten();
    let texts: Vec<JsonValue<'a>> = streams.filter(|value| value.is_string()).collect();
    let part_layout =
        layout.part_with_inner(EditSlot::Fixed, texts.iter().map(|value| EditSlot::Text(value.span.into())));
    (texts.iter().map(|value| Part::text(value.text().unwrap_or_default())).collect(), part_layout)
}

fn opaque_item<'a>(
    item: &JsonObject<'a>,
    layout: &mut BodyLayout,
    role: Role,
    pair: Option<Cow<'a, str>>,
) -> Message<'a> {
    let mut builder = MessageBuilder::new(role, item, layout);
    builder.push(opaque_part(item.string("type"), pair, item.value), PartLayout::new(EditSlot::Fixed, None));
    builder.finish()
}

fn reference_item<'a>(item: &JsonObject<'a>, layout: &mut BodyLayout) -> Message<'a> {
    let mut builder = MessageBuilder::new(Role::Assistant, item, layout);
    let part = opaque_part(Some(OpaqueBlock::REFERENCE_KIND.into()), item.string("id"), item.value);
    builder.push(part, PartLayout::new(EditSlot::Fixed, None));
    builder.finish()
}

fn parse_image<'a>(block: &JsonObject<'a>) -> ImagePart<'a> {
    let source = match (block.string("image_url"), block.string("file_id")) {
        (Some(url), _) => source_from_url(url),
        (None, Some(id)) => MediaSource::Id(id),
        (None, None) => MediaSource::Unknown,
    };
    ImagePart { source, detail: block.string("detail") }
}

fn parse_content_block<'a>(block: &JsonObject<'a>) -> (Part<'a>, EditSlot) {
    let kind = block.string("type");
    match kind.as_deref() {
        Some("input_text" | "output_text" | "text") => {
            if let Some(value) = block.get("text").filter(|value| value.is_string()) {
                return (Part::text(value.text().unwrap_or_default()), EditSlot::Text(value.span.into()));
            }
        }
        Some("input_image") => {
            return (Part::Image(parse_image(block)), EditSlot::Block(block.value.span.into()));
        }
        Some("input_file") => {
            let source = match (block.string("file_data"), block.string("file_url"), block.string("file_id")) {
                (Some(data), ..) => source_from_url(data),
                (_, Some(url), _) => MediaSource::Url(url),
                (.., Some(id)) => MediaSource::Id(id),
                _ => MediaSource::Unknown,
            };
            let file = FilePart { name: block.string("filename"), media_type: None, source };
            return (Part::File(Box::new(file)), EditSlot::Block(block.value.span.into()));
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

    fn read(items: &str) -> Vec<String> {
        messages_shape(Format::OpenAiResponses, items)
    }

    /// Codex's first request: separate instructions, and a developer message in the list.
    #[test]
    fn instructions_and_messages_are_read() {
        let body = r#"{"model":"gpt-5.5","instructions":"Be brief.","input":[
            {"type":"message","role":"developer","content":[{"type":"input_text","text":"<permissions>"}]},
            {"role":"user","content":"hello"},
            {"type":"message","role":"user","content":[{"type":"input_text","text":"see"},{"type":"input_image","image_url":"data:image/png;base64,AAAA","detail":"low"},{"type":"input_file","filename":"a.pdf","file_id":"file_1"}]},
            {"type":"message","role":"assistant","id":"msg_1","content":[{"type":"output_text","text":"hi","annotations":[]},{"type":"refusal","refusal":"no"}]}]}"#;
        let request = Request::parse(Format::OpenAiResponses, body.as_bytes()).unwrap();
        assert_eq!(
            shape(request.conversation()),
            [
                r#"standing: "Be brief.""#,
                r#"developer: "<permissions>""#,
                r#"user: "hello""#,
                r#"user: "see" | image of 4 base64 characters low | file "a.pdf" id file_1"#,
                r#"assistant: "hi" | kept refusal"#,
            ]
        );
    }

    #[test]
    fn input_may_be_a_plain_string() {
        let request = Request::parse(Format::OpenAiResponses, br#"{"input":"hello"}"#).unwrap();
        assert_eq!(shape(request.conversation()), [r#"user: "hello""#]);
        assert_eq!(request.raw_message(0), Some(r#""hello""#));
    }

    /// Reasoning with its visible summary, and with its encrypted content only.
    #[test]
    fn reasoning_items_are_read_with_encrypted_content() {
        assert_eq!(
            read(
                r#"{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"First"},{"type":"summary_text","text":"then"}],"encrypted_content":"gAAA"},
                {"type":"reasoning","id":"rs_2","summary":[],"encrypted_content":"gBBB"},
                {"type":"reasoning","id":"rs_3","summary":[],"content":[{"type":"reasoning_text","text":"open"}],"encrypted_content":null}"#
            ),
            [
                r#"assistant: thought "First\nthen" sealed gAAA"#,
                r#"assistant: thought "" sealed gBBB"#,
                r#"assistant: thought "open""#,
            ]
        );
    }

    #[test]
    fn function_outputs_are_text_or_content_blocks() {
        assert_eq!(
            read(
                r#"{"type":"function_call","id":"fc_1","call_id":"c1","name":"sh","arguments":"{\"cmd\":\"ls\"}"},
                {"type":"function_call_output","call_id":"c1","output":"a.rs"},
                {"type":"function_call","call_id":"c2","name":"view","arguments":"{}"},
                {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"it"},{"type":"input_image","file_id":"f"},{"type":"new_kind"}]}"#
            ),
            [
                r#"assistant: call c1 sh({"cmd":"ls"})"#,
                r#"tool: result c1 ["a.rs"]"#,
                r#"assistant: call c2 view({})"#,
                r#"tool: result c2 ["it" | image id f | kept new_kind]"#,
            ]
        );
    }

    /// `apply_patch` as a custom tool: its input is a patch, not JSON.
    #[test]
    fn custom_tools_take_free_text() {
        let items = r#"{"type":"custom_tool_call","call_id":"c1","name":"apply_patch","input":"*** Begin Patch\n"},
            {"type":"custom_tool_call_output","call_id":"c1","output":"Success"}"#;
        assert_eq!(
            read(items),
            [r#"assistant: call c1 apply_patch("*** Begin Patch\n")"#, r#"tool: result c1 ["Success"]"#]
        );
        let body = format!("[{items}]");
        let request = Request::parse(Format::OpenAiResponses, body.as_bytes()).unwrap();
        let edit = RequestEdit::Arguments { at: PartId::new(0, 0), arguments: "no \"JSON\"".into() };
        let out = String::from_utf8(request.splice(&[edit]).unwrap().into_owned()).unwrap();
        assert_eq!(out, body.replace(r#""*** Begin Patch\n""#, r#""no \"JSON\"""#));
    }

    #[test]
    fn builtin_tool_calls_are_read_from_their_action() {
        assert_eq!(
            read(
                r#"{"type":"local_shell_call","id":"ls_1","call_id":"c1","action":{"type":"exec","command":["ls"]},"status":"completed"},
                {"type":"local_shell_call_output","id":"c1","output":"{\"output\":\"a\"}"},
                {"type":"shell_call","call_id":"c2","action":{"commands":["make"]}},
                {"type":"shell_call_output","call_id":"c2","output":[{"stdout":"ok","stderr":"","outcome":{"type":"exit","exit_code":0}}]},
                {"type":"apply_patch_call","call_id":"c3","operation":{"type":"update_file","path":"a","diff":"@@"}},
                {"type":"apply_patch_call_output","call_id":"c3","status":"failed","output":"no such file"},
                {"type":"computer_call","call_id":"c4","action":{"type":"screenshot"},"pending_safety_checks":[]},
                {"type":"computer_call_output","call_id":"c4","output":{"type":"computer_screenshot","image_url":"data:image/png;base64,AAAA"}},
                {"type":"tool_search_call","call_id":"c5","arguments":{"query":"git"}},
                {"type":"tool_search_output","call_id":"c5","tools":[{"type":"function","name":"git"}]}"#
            ),
            [
                r#"assistant: call c1 local_shell({"type":"exec","command":["ls"]})"#,
                r#"tool: result c1 ["{\"output\":\"a\"}"]"#,
                r#"assistant: call c2 shell({"commands":["make"]})"#,
                r#"tool: result c2 ["ok" | ""]"#,
                r#"assistant: call c3 apply_patch({"type":"update_file","path":"a","diff":"@@"})"#,
                r#"tool: failed c3 ["no such file"]"#,
                r#"assistant: call c4 computer({"type":"screenshot"})"#,
                r#"tool: result c4 [image of 4 base64 characters]"#,
                r#"assistant: call c5 tool_search({"query":"git"})"#,
                r#"tool: result c5 [kept tools]"#,
            ]
        );
    }

    /// Provider-run tools contain their own result and cannot be edited.
    #[test]
    fn hosted_tools_and_unknown_items_are_kept() {
        let items = r#"{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"q"}},
            {"type":"mcp_list_tools","id":"mcpl_1","server_label":"s","tools":[]},
            {"type":"mcp_call","id":"mcp_1","name":"roll","arguments":"{}","output":"4","server_label":"s"},
            {"type":"mcp_approval_request","id":"mcpr_1","name":"roll","arguments":"{}"},
            {"type":"mcp_approval_response","approval_request_id":"mcpr_1","approve":true},
            {"type":"compaction","id":"cmp_1","encrypted_content":"gAAA"},
            {"type":"item_reference","id":"msg_7"},
            {"id":"msg_8"},
            {"type":"of_tomorrow","x":[1,2]},
            {"role":"critic","content":"hm"}"#;
        assert_eq!(
            read(items),
            [
                "assistant: kept web_search_call ws_1",
                "assistant: kept mcp_list_tools mcpl_1",
                "assistant: kept mcp_call mcp_1",
                "assistant: kept mcp_approval_request mcpr_1",
                "user: kept mcp_approval_response mcpr_1",
                "assistant: kept compaction cmp_1",
                "assistant: kept item_reference msg_7",
                "assistant: kept item_reference msg_8",
                "assistant: kept of_tomorrow",
                "other: \"hm\"",
            ]
        );
        let body = format!("[{items}]");
        let request = Request::parse(Format::OpenAiResponses, body.as_bytes()).unwrap();
        for at in 0..9 {
            let edit = RequestEdit::Text { at: PartId::new(at, 0), text: "x".into() };
            assert!(request.splice(&[edit]).is_err(), "item {at} was edited");
        }
    }

    /// Of a request with references, the rest is in the body and can be folded.
    #[test]
    fn request_with_references_is_partial() {
        let is_partial = |body: &str| Request::parse(Format::OpenAiResponses, body.as_bytes()).unwrap().is_partial();
        assert!(is_partial(r#"{"input":[{"id":"msg_8"},{"role":"user","content":"go on"}]}"#));
        assert!(is_partial(r#"{"input":"go on","previous_response_id":"resp_1"}"#));
        assert!(!is_partial(r#"{"input":[{"role":"user","content":"go on"}]}"#));
    }

    #[test]
    fn provider_held_history_is_a_continuation() {
        let continues =
            |body: &str| Request::parse(Format::OpenAiResponses, body.as_bytes()).unwrap().is_continuation();
        assert!(continues(r#"{"input":"go on","previous_response_id":"resp_1"}"#));
        assert!(continues(r#"{"input":"go on","conversation":"conv_1"}"#));
        assert!(!continues(r#"{"input":[{"id":"msg_8"},{"role":"user","content":"go on"}]}"#));
        assert!(!continues(r#"{"input":"hello","previous_response_id":null}"#));
    }
}
