//! Converse requests: messages of blocks, each an object with one key. Results are blocks of user messages.
//!
//! A `cachePoint` is a mark between blocks, not content: it is copied like any other byte, and leaves with its message.

use std::borrow::Cow;

use crate::conversation::text::LazyText;
use crate::conversation::{
    CallArguments, FilePart, ImagePart, MediaSource, Message, Part, ReasoningPart, Role, ToolCall, ToolDefinition,
    ToolResult,
};
use crate::wire::json::layout::{
    BodyLayout, EditSlot, ListElement, ListName, MessageBuilder, PartLayout, ToolsLayout, opaque_part,
};
use crate::wire::json::lexer::ByteSpan;
use crate::wire::json::scan::{JsonObject, JsonValue};
use crate::wire::json::splice::EditSyntax;
use crate::wire::json::string::encode;
use crate::wire::request::{CallIds, DeclaredTools, RequestSyntax, StreamDefault};
use crate::wire::result::{AnsweredCall, ResultSyntax};

pub(crate) const REQUEST: RequestSyntax = RequestSyntax {
    list_key: "messages",
    // A request to count tokens: `{"input":{"converse":{..}}}`.
    envelope_keys: &["input", "converse"],
    nested_fields: NESTED_FIELDS,
    parse_message,
    parse_string_input: None,
    parse_instructions: |top_level| {
        let blocks = top_level.elements("system");
        blocks
            .iter()
            .filter(|block| !is_mark(block))
            .map(|block| parse_block(block, &mut BodyLayout::default()).0)
            .collect()
    },
    parse_tools,
    call_ids: CallIds::Always,
    output_limit_paths: &[&["inferenceConfig", "maxTokens"]],
    stream_default: StreamDefault::Body,
    load_window: None,
    stored_history: |_| None,
    thread_field: None,
    previous_response_field: None,
    stores_response: |_| false,
};

pub(crate) const EDITS: EditSyntax = EditSyntax {
    text_block,
    text_message: |role, text| {
        let name = match role {
            Role::User => "user",
            Role::Assistant => "assistant",
            _ => return None,
        };
        Some(format!(r#"{{"role":"{name}","content":[{}]}}"#, text_block(text)))
    },
    result_object: |result, _| result.value.raw().to_owned(),
};

pub(crate) const RESULTS: ResultSyntax = ResultSyntax {
    result_json: result_block,
    message_of_blocks: Some(|blocks| format!(r#"{{"role":"user","content":[{blocks}]}}"#)),
    result_for_part: |_, _, call, text| result_block(call, text),
};

/// The nested fields of a message, level by level.
const NESTED_FIELDS: &[&[&str]] = &[&["content"], &["toolUse", "toolResult", "reasoningContent"], &["content"]];

fn text_block(text: &str) -> String {
    format!(r#"{{"text":{}}}"#, encode(text))
}

fn result_block(call: AnsweredCall<'_>, text: &str) -> String {
    format!(r#"{{"toolResult":{{"toolUseId":{},"content":[{}]}}}}"#, encode(call.id), text_block(text))
}

/// Returns true for a mark between blocks.
fn is_mark(block: &JsonObject<'_>) -> bool {
    block.get("cachePoint").is_some()
}

pub(crate) fn parse_message<'a>(message: &JsonObject<'a>, layout: &mut BodyLayout) -> Message<'a> {
    let role = match message.string("role").as_deref() {
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("system") => Role::System,
        _ => Role::Other,
    };
    let mut builder = MessageBuilder::new(role, message, layout);
    if message.get("content").is_some_and(JsonValue::is_array) {
        let elements = message.elements("content");
        builder.push_list(ListName::Content, &elements, None);
        for (index, element) in elements.iter().enumerate().filter(|(_, element)| !is_mark(element)) {
            let (part, place) = parse_block(element, builder.layout);
            builder.push(part, place.in_list(ListElement::new(ListName::Content, index)));
        }
    }
    builder.finish()
}

/// Parses a block of a response.
pub(crate) fn response_block<'a>(block: &JsonObject<'a>) -> Part<'a> {
    parse_block(block, &mut BodyLayout::default()).0
}

fn parse_block<'a>(block: &JsonObject<'a>, layout: &mut BodyLayout) -> (Part<'a>, PartLayout) {
    if let Some(call) = block.nested_object("toolUse") {
        let input = call.get("input");
        let slot = input.map_or(EditSlot::Fixed, |value| EditSlot::Json(value.span.into()));
        let part = Part::ToolCall(ToolCall {
            id: call.string("toolUseId").unwrap_or_default(),
            name: call.string("name").unwrap_or_default(),
            arguments: CallArguments::Json(input.map_or("{}", JsonValue::raw).into()),
            signature: None,
        });
        return (part, PartLayout::new(slot, None));
    }
    if let Some(result) = block.nested_object("toolResult") {
        return parse_result(&result, layout);
    }
    let (part, slot) = match block.nested_object("reasoningContent") {
        Some(reasoning) => (parse_reasoning(&reasoning), EditSlot::Fixed),
        None => parse_content(block),
    };
    (part, PartLayout::new(slot, None))
}

/// Parses a block that may be in a message and in a result.
fn parse_content<'a>(block: &JsonObject<'a>) -> (Part<'a>, EditSlot) {
    let whole = EditSlot::Block(block.value.span.into());
    if let Some(value) = block.get("text").filter(|value| value.is_string()) {
        return (Part::text(value.text().unwrap_or_default()), EditSlot::Text(value.span.into()));
    }
    if let Some(json) = block.get("json") {
        // A text takes the place of the whole block.
        return (Part::text(LazyText::from(json.raw())), whole);
    }
    if let Some(image) = block.object("image") {
        return (Part::Image(ImagePart { source: media_source(&image), detail: None }), whole);
    }
    if let Some(document) = block.object("document") {
        let (name, source) = (document.string("name"), media_source(&document));
        return (Part::File(Box::new(FilePart { name, media_type: document.string("format"), source })), whole);
    }
    let kind = block.fields().first().map(|field| field.key.clone());
    (opaque_part(kind, None, block.value), EditSlot::Fixed)
}

fn media_source<'a>(media: &JsonObject<'a>) -> MediaSource<'a> {
    let Some(source) = media.object("source") else { return MediaSource::Unknown };
    if let Some(data) = source.string("bytes") {
        return MediaSource::Base64(data);
    }
    if let Some(text) = source.text("text") {
        return MediaSource::Text(text);
    }
    let location = source.object("s3Location").and_then(|location| location.string("uri"));
    location.map_or(MediaSource::Unknown, MediaSource::Url)
}

fn parse_reasoning<'a>(reasoning: &JsonObject<'a>) -> Part<'a> {
    match reasoning.object("reasoningText") {
        Some(text) => Part::Reasoning(ReasoningPart {
            text: text.text("text").unwrap_or_default(),
            seal: text.string("signature"),
            redacted: false,
        }),
        None => Part::Reasoning(ReasoningPart {
            text: LazyText::default(),
            seal: reasoning.string("redactedContent"),
            redacted: true,
        }),
    }
}

fn parse_result<'a>(result: &JsonObject<'a>, layout: &mut BodyLayout) -> (Part<'a>, PartLayout) {
    let items = result.elements("content");
    let mut content = Vec::with_capacity(items.len());
    let mut slots = Vec::with_capacity(items.len());
    for item in items.iter() {
        let (part, slot) = parse_content(item);
        content.push(part);
        slots.push(slot);
    }
    let part = Part::ToolResult(ToolResult {
        call_id: result.string("toolUseId").unwrap_or_default(),
        content,
        is_error: result.string("status").as_deref() == Some("error"),
    });
    (part, layout.part_with_inner(content_slot(result, &items), slots.into_iter()))
}

/// Returns the slot of the items of a result, without the brackets around them: one text takes their place.
fn content_slot(result: &JsonObject<'_>, items: &[JsonObject<'_>]) -> EditSlot {
    let Some(list) = result.get("content").filter(|value| value.is_array()) else { return EditSlot::Fixed };
    let start = items.first().map_or(list.span.start + 1, |first| first.value.span.start);
    let end = items.last().map_or(start, |last| last.value.span.end);
    EditSlot::Block(ByteSpan { start, end }.into())
}

/// Parses the declared tools; another one can be appended to them.
fn parse_tools<'a>(top_level: &JsonObject<'a>) -> DeclaredTools<'a> {
    let Some(config) = top_level.object("toolConfig") else {
        return DeclaredTools { definitions: Vec::new(), layout: None };
    };
    let tools = config.elements("tools");
    let layout = config.get("tools").filter(|value| value.is_array()).map(|value| ToolsLayout {
        list_start: value.span.start + 1,
        elements: tools.iter().map(|tool| tool.value.span).collect(),
    });
    let definition = |tool: &JsonObject<'a>| {
        let spec = ["toolSpec", "systemTool"].into_iter().find_map(|key| tool.object(key));
        let name = spec.as_ref().unwrap_or(tool).string("name");
        ToolDefinition { name: name.unwrap_or_default(), definition: Cow::Borrowed(tool.value.raw()) }
    };
    DeclaredTools { definitions: tools.iter().filter(|tool| !is_mark(tool)).map(definition).collect(), layout }
}

#[cfg(test)]
mod tests {
    use crate::conversation::PartId;
    use crate::testing::shape;
    use crate::wire::dialect::tests::messages_shape;
    use crate::wire::{Format, Request, RequestEdit};

    #[test]
    fn round_with_reasoning_and_cache_points_is_read() {
        let body = r#"{"system":[{"text":"Be brief."},{"cachePoint":{"type":"default"}}],"toolConfig":{"tools":[{"toolSpec":{"name":"ls","inputSchema":{"json":{}}}},{"cachePoint":{"type":"default"}}]},"messages":[
            {"role":"user","content":[{"text":"what is here?"},{"cachePoint":{"type":"default","ttl":"1h"}}]},
            {"role":"assistant","content":[
                {"reasoningContent":{"reasoningText":{"text":"hm","signature":"s"}}},
                {"reasoningContent":{"redactedContent":"AAAA"}},
                {"toolUse":{"toolUseId":"t1","name":"ls","input":{"path":"."}}}]},
            {"role":"user","content":[{"toolResult":{"toolUseId":"t1","content":[{"text":"a.rs"},{"json":{"more":[1]}}],"status":"error"}}]}]}"#;
        let request = Request::parse(Format::Converse, body.as_bytes()).unwrap();
        assert_eq!(request.splice(&[]).unwrap(), body.as_bytes());
        let lines = shape(request.conversation());
        assert_eq!(lines[0], r#"standing: "Be brief.""#);
        assert_eq!(lines[1], r#"user: "what is here?""#);
        assert!(lines[2].ends_with(r#"call t1 ls({"path":"."})"#), "{}", lines[2]);
        assert_eq!(lines[3], r#"user: failed t1 ["a.rs" | "{\"more\":[1]}"]"#);
        assert_eq!(request.conversation().tools.len(), 1);
    }

    #[test]
    fn request_to_count_tokens_is_read_inside_its_envelopes() {
        let inner = r#"{"messages":[{"role":"user","content":[{"text":"hi"}]}],"system":[{"text":"Be brief."}],"toolConfig":{"tools":[{"toolSpec":{"name":"ls","inputSchema":{"json":{}}}}]}}"#;
        let body = format!(r#"{{"input":{{"converse":{inner}}}}}"#);
        let request = Request::parse(Format::Converse, body.as_bytes()).unwrap();
        assert_eq!(shape(request.conversation()), [r#"standing: "Be brief.""#, r#"user: "hi""#]);
        assert_eq!(request.conversation().tools.len(), 1);
        let edit = RequestEdit::Text { at: PartId::new(0, 0), text: "[folded]".into() };
        let out = request.splice(&[edit]).unwrap();
        assert_eq!(String::from_utf8_lossy(&out), body.replace(r#""hi""#, r#""[folded]""#));
        for body in [r#"{"input":{"invokeModel":{"body":"e30="}}}"#, r#"{"input":{"converse":{}}}"#] {
            assert!(Request::parse(Format::Converse, body.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn media_and_unknown_blocks_are_read() {
        let lines = messages_shape(
            Format::Converse,
            r#"{"role":"user","content":[
                {"image":{"format":"png","source":{"bytes":"AAAA"}}},
                {"document":{"name":"a","format":"pdf","source":{"s3Location":{"uri":"s3://b/a"}}}},
                {"video":{"format":"mp4","source":{"bytes":"AAAA"}}},
                {"guardContent":{"text":{"text":"x"}}}]}"#,
        );
        assert!(
            lines[0].starts_with("user: image of 4 base64 characters | file \"a\" at s3://b/a | kept video"),
            "{lines:?}"
        );
    }

    #[test]
    fn results_and_media_are_replaced_and_marks_stay() {
        let body = r#"[{"role":"user","content":[{"toolResult":{"toolUseId":"t","content":[{"text":"long"}],"status":"success"}},{"toolResult":{"toolUseId":"u","content":[{"json":{"a":1}}]}},{"cachePoint":{"type":"default"}},{"image":{"format":"png","source":{"bytes":"AAAA"}}}]}]"#;
        let request = Request::parse(Format::Converse, body.as_bytes()).unwrap();
        let edit = |part| RequestEdit::Text { at: PartId::new(0, part), text: "[folded]".into() };
        let out = request.splice(&[edit(0), edit(1), edit(2)]).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&out),
            r#"[{"role":"user","content":[{"toolResult":{"toolUseId":"t","content":[{"text":"[folded]"}],"status":"success"}},{"toolResult":{"toolUseId":"u","content":[{"text":"[folded]"}]}},{"cachePoint":{"type":"default"}},{"text":"[folded]"}]}]"#
        );
    }
}
