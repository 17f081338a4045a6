//! Anthropic Messages requests.
//!
//! All content is blocks in a message; tool results are in user messages. Signed blocks (thinking) and blocks newer
//! than this version are kept unchanged.

use crate::conversation::text::LazyText;
use crate::conversation::{
    CallArguments, FilePart, ImagePart, MediaSource, Message, Part, ReasoningPart, Role, ToolCall, ToolResult,
};
use crate::wire::dialect::openai::OUTPUT_LIMIT_PATHS;
use crate::wire::json::layout::{
    BodyLayout, EditSlot, ListElement, ListName, MessageBuilder, PartLayout, opaque_part, parse_result_content,
};
use crate::wire::json::scan::{JsonObject, JsonValue};
use crate::wire::json::splice::EditSyntax;
use crate::wire::json::string::encode;
use crate::wire::request::{CallIds, RequestSyntax, StreamDefault, instruction_parts, parse_role, parse_tool_list};
use crate::wire::result::ResultSyntax;

/// Field of a request in a message thread.
const THREAD_FIELD: &str = "thread";

pub(crate) const REQUEST: RequestSyntax = RequestSyntax {
    list_key: "messages",
    envelope_keys: &[],
    nested_fields: NESTED_FIELDS,
    parse_message,
    parse_string_input: None,
    parse_instructions: |top_level| instruction_parts(top_level, "system", block_part),
    parse_tools: parse_tool_list,
    call_ids: CallIds::Always,
    output_limit_paths: OUTPUT_LIMIT_PATHS,
    stream_default: StreamDefault::Body,
    load_window: None,
    stored_history: |request| {
        let thread = request.top_level().object(THREAD_FIELD);
        thread.is_some_and(|thread| thread.string("type").as_deref() == Some("continue")).then_some(THREAD_FIELD)
    },
    thread_field: Some(THREAD_FIELD),
    previous_response_field: None,
    stores_response: |_| false,
};

pub(crate) const EDITS: EditSyntax = EditSyntax {
    text_block: |text| format!(r#"{{"type":"text","text":{}}}"#, encode(text)),
    text_message: |role, text| {
        let name = match role {
            Role::User => "user",
            Role::Assistant => "assistant",
            _ => return None,
        };
        Some(format!(r#"{{"role":"{name}","content":{}}}"#, encode(text)))
    },
    result_object: |_, text| encode(text),
};

pub(crate) const RESULTS: ResultSyntax = ResultSyntax {
    result_json: |call, text| {
        format!(r#"{{"type":"tool_result","tool_use_id":{},"content":{}}}"#, encode(call.id), encode(text))
    },
    message_of_blocks: Some(|blocks| format!(r#"{{"role":"user","content":[{blocks}]}}"#)),
    result_for_part: |_, _, call, text| (RESULTS.result_json)(call, text),
};

/// The nested fields of a message, level by level.
const NESTED_FIELDS: &[&[&str]] = &[&["content"], &["content", "source"], &["source"]];

pub(crate) fn parse_message<'a>(message: &JsonObject<'a>, layout: &mut BodyLayout) -> Message<'a> {
    let mut builder = MessageBuilder::new(parse_role(message.string("role").as_deref()), message, layout);
    let Some(content) = message.get("content") else { return builder.finish() };
    if let Some(text) = content.text() {
        builder.push(Part::text(text), PartLayout::new(EditSlot::Text(content.span.into()), None));
    } else if content.is_array() {
        let elements = message.elements("content");
        builder.push_list(ListName::Content, &elements, None);
        for (index, element) in elements.iter().enumerate() {
            let (part, place) = parse_block(element, builder.layout);
            builder.push(part, place.in_list(ListElement::new(ListName::Content, index)));
        }
    }
    builder.finish()
}

/// Parses a block of the top-level `system`.
pub(crate) fn block_part<'a>(block: &JsonObject<'a>) -> Part<'a> {
    parse_block(block, &mut BodyLayout::default()).0
}

fn parse_block<'a>(block: &JsonObject<'a>, layout: &mut BodyLayout) -> (Part<'a>, PartLayout) {
    let kind = block.string("type");
    match kind.as_deref() {
        Some("thinking") => {
            let text = block.text("thinking").unwrap_or_default();
            return fixed_part(Part::Reasoning(ReasoningPart {
                text,
                seal: block.string("signature"),
                redacted: false,
            }));
        }
        Some("redacted_thinking") => {
            return fixed_part(Part::Reasoning(ReasoningPart {
                text: LazyText::default(),
                seal: block.string("data"),
                redacted: true,
            }));
        }
        Some("tool_use") => {
            let (arguments, slot) = match block.get("input") {
                Some(input) => (CallArguments::Json(input.raw().into()), EditSlot::Json(input.span.into())),
                None => (CallArguments::Json("".into()), EditSlot::Fixed),
            };
            let (id, name) = (block.string("id").unwrap_or_default(), block.string("name").unwrap_or_default());
            return (Part::ToolCall(ToolCall { id, name, arguments, signature: None }), PartLayout::new(slot, None));
        }
        Some("tool_result") => {
            let (content, part_layout) = parse_result_content(layout, block, "content", parse_content_block);
            let result = ToolResult {
                call_id: block.string("tool_use_id").unwrap_or_default(),
                content,
                is_error: block.get("is_error").and_then(JsonValue::bool).unwrap_or(false),
            };
            return (Part::ToolResult(result), part_layout);
        }
        _ => {}
    }
    let (part, slot) = parse_content_block(block);
    (part, PartLayout::new(slot, None))
}

fn fixed_part(part: Part<'_>) -> (Part<'_>, PartLayout) {
    (part, PartLayout::new(EditSlot::Fixed, None))
}

/// Parses a block that may appear in a message and in a result's content.
fn parse_content_block<'a>(block: &JsonObject<'a>) -> (Part<'a>, EditSlot) {
    let kind = block.string("type");
    match kind.as_deref() {
        Some("text") => {
            if let Some(value) = block.get("text").filter(|value| value.is_string()) {
                return (Part::text(value.text().unwrap_or_default()), EditSlot::Text(value.span.into()));
            }
        }
        Some("image") => {
            let image = ImagePart { source: media_source(block), detail: None };
            return (Part::Image(image), EditSlot::Block(block.value.span.into()));
        }
        Some("document") => {
            let media_type = block.nested_object("source").and_then(|source| source.string("media_type"));
            let file = FilePart { name: block.string("title"), media_type, source: media_source(block) };
            return (Part::File(Box::new(file)), EditSlot::Block(block.value.span.into()));
        }
        _ => {}
    }
    // A server tool's call has an `id`, to which its result refers as `tool_use_id`.
    let pair = block.string("tool_use_id").or_else(|| block.string("id"));
    (opaque_part(kind, pair, block.value), EditSlot::Fixed)
}

fn media_source<'a>(block: &JsonObject<'a>) -> MediaSource<'a> {
    let Some(source) = block.nested_object("source") else { return MediaSource::Unknown };
    match source.string("type").as_deref() {
        Some("base64") => source.string("data").map(MediaSource::Base64),
        Some("text") => source.text("data").map(MediaSource::Text),
        Some("url") => source.string("url").map(MediaSource::Url),
        Some("file") => source.string("file_id").map(MediaSource::Id),
        _ => None,
    }
    .unwrap_or(MediaSource::Unknown)
}

#[cfg(test)]
mod tests {
    use crate::conversation::PartId;
    use crate::testing::shape;
    use crate::wire::dialect::tests::messages_shape;
    use crate::wire::{Format, Request, RequestEdit};

    fn read(messages: &str) -> Vec<String> {
        messages_shape(Format::Anthropic, messages)
    }

    /// A Claude Code round: thinking, text, two calls, both answered in one message with a reminder after them.
    #[test]
    fn round_with_thinking_and_parallel_calls_is_read() {
        let body = r#"{"model":"claude-opus-4-8","max_tokens":1,"system":[{"type":"text","text":"You are.","cache_control":{"type":"ephemeral"}}],"messages":[
            {"role":"user","content":"fix it"},
            {"role":"assistant","content":[
                {"type":"thinking","thinking":"hm","signature":"Eq=="},
                {"type":"redacted_thinking","data":"EmwK"},
                {"type":"text","text":"Looking."},
                {"type":"tool_use","id":"t1","name":"Read","input":{"path":"a"}},
                {"type":"tool_use","id":"t2","name":"Bash","input":{}}]},
            {"role":"user","content":[
                {"type":"tool_result","tool_use_id":"t1","content":"text of a","cache_control":{"type":"ephemeral"}},
                {"type":"tool_result","tool_use_id":"t2","is_error":true,"content":[{"type":"text","text":"boom"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]},
                {"type":"text","text":"<system-reminder>"}]}]}"#;
        let request = Request::parse(Format::Anthropic, body.as_bytes()).unwrap();
        assert_eq!(
            shape(request.conversation()),
            [
                r#"standing: "You are.""#,
                r#"user: "fix it""#,
                concat!(
                    r#"assistant: thought "hm" sealed Eq== | thought "" sealed EmwK | "Looking.""#,
                    r#" | call t1 Read({"path":"a"}) | call t2 Bash({})"#
                ),
                concat!(
                    r#"user: result t1 ["text of a"] | failed t2 ["boom" | image of 4 base64 characters]"#,
                    r#" | "<system-reminder>""#
                ),
            ]
        );
        let edits = [
            RequestEdit::Text { at: PartId::new(2, 0), text: "folded".into() },
            RequestEdit::Arguments { at: PartId::new(1, 3), arguments: r#"{"path": "b"}"#.into() },
            RequestEdit::DropPart(PartId::new(1, 0)),
        ];
        let expected = body
            .replace(
                r#"{"type":"thinking","thinking":"hm","signature":"Eq=="},
                "#,
                "",
            )
            .replace(r#""text of a""#, r#""folded""#)
            .replace(r#"{"path":"a"}"#, r#"{"path": "b"}"#);
        assert_eq!(String::from_utf8_lossy(&request.splice(&edits).unwrap()), expected);
    }

    /// Thinking is kept or dropped as a whole.
    #[test]
    fn thinking_cannot_be_edited() {
        let body = br#"[{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"E"},{"type":"text","text":"x"}]}]"#;
        let request = Request::parse(Format::Anthropic, body).unwrap();
        let edit = RequestEdit::Text { at: PartId::new(0, 0), text: "less".into() };
        assert_eq!(
            request.splice(&[edit]).unwrap_err().to_string(),
            "bad edit: part 0.0 has no text that can be replaced"
        );
    }

    /// Provider-run tools: the call and its result are matched by the pair.
    #[test]
    fn server_tools_and_unknown_blocks_are_kept() {
        assert_eq!(
            read(
                r#"{"role":"assistant","content":[
                    {"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{"query":"q"}},
                    {"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[{"type":"web_search_result","encrypted_content":"E"}]},
                    {"type":"mcp_tool_use","id":"mcptoolu_1","name":"roll","server_name":"s","input":{}},
                    {"type":"mcp_tool_result","tool_use_id":"mcptoolu_1","content":[{"type":"text","text":"4"}]},
                    {"type":"compaction","content":"so far"},
                    {"type":"of_tomorrow","x":1e400}]},
                {"role":"system","content":"by the way"},
                {"role":"critic","content":[{"type":"text","text":"hm"}]}"#
            ),
            [
                concat!(
                    "assistant: kept server_tool_use srvtoolu_1 | kept web_search_tool_result srvtoolu_1",
                    " | kept mcp_tool_use mcptoolu_1 | kept mcp_tool_result mcptoolu_1 | kept compaction | kept of_tomorrow"
                ),
                r#"system: "by the way""#,
                r#"other: "hm""#,
            ]
        );
    }

    #[test]
    fn documents_and_images_of_every_source_are_read() {
        assert_eq!(
            read(
                r#"{"role":"user","content":[
                    {"type":"document","title":"a","source":{"type":"text","media_type":"text/plain","data":"hi"}},
                    {"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"AAAA"}},
                    {"type":"document","source":{"type":"content","content":[]}},
                    {"type":"image","source":{"type":"url","url":"https://a"}},
                    {"type":"image","source":{"type":"file","file_id":"file_1"}},
                    {"type":"image"},
                    {"type":"tool_result","tool_use_id":"t1"}]}"#
            ),
            [concat!(
                r#"user: file "a" "hi" | file of 4 base64 characters | file somewhere | image at https://a"#,
                " | image id file_1 | image somewhere | result t1 []"
            )]
        );
    }

    #[test]
    fn continued_thread_is_a_continuation() {
        let continues = |body: &str| Request::parse(Format::Anthropic, body.as_bytes()).unwrap().is_continuation();
        assert!(continues(r#"{"messages":[],"thread":{"type":"continue","id":"t"}}"#));
        assert!(!continues(r#"{"messages":[],"thread":{"type":"new"}}"#));
        assert!(!continues(r#"{"messages":[]}"#));
    }
}
