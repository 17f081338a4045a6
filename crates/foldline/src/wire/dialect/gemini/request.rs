//! Gemini requests: contents of parts. The assistant's role is `model`; results are parts of user contents.
//!
//! Field names are read in both spellings, `functionCall` and `function_call`. A part with a thought signature is kept
//! unchanged, because the provider compares the two; arguments are never edited, for the same reason. Calls may have no
//! id: results then answer the calls of the same name in order.

use std::borrow::Cow;

use crate::conversation::text::LazyText;
use crate::conversation::{
    CallArguments, FilePart, ImagePart, MediaSource, Message, Part, ReasoningPart, Role, ToolCall, ToolDefinition,
    ToolResult,
};
use crate::wire::json::layout::{
    BodyLayout, EditSlot, ListElement, ListName, MessageBuilder, PartLayout, ToolsLayout, opaque_part,
};
use crate::wire::json::scan::{JsonObject, JsonValue};
use crate::wire::json::splice::EditSyntax;
use crate::wire::json::string::encode;
use crate::wire::json::write::{FieldChange, with_changed_fields};
use crate::wire::request::{
    CallIds, DeclaredTools, RequestSyntax, StreamDefault, is_set, is_synthetic_id, unanswered_id,
};
use crate::wire::result::{AnsweredCall, ResultSyntax};

pub(crate) const REQUEST: RequestSyntax = RequestSyntax {
    list_key: "contents",
    envelope_keys: &["request", "generateContentRequest"],
    nested_fields: NESTED_FIELDS,
    parse_message,
    parse_string_input: None,
    parse_instructions,
    parse_tools,
    call_ids: CallIds::MayBeMissing,
    output_limit_paths: &[&["generationConfig", "maxOutputTokens"], &["generation_config", "max_output_tokens"]],
    stream_default: StreamDefault::Body,
    load_window: None,
    stored_history: |request| {
        is_set(request.top_level(), "previous_interaction_id").then_some("previous_interaction_id")
    },
    thread_field: None,
    previous_response_field: None,
    stores_response: |_| false,
};

pub(crate) const EDITS: EditSyntax = EditSyntax {
    text_block: |text| format!(r#"{{"text":{}}}"#, encode(text)),
    text_message: |role, text| {
        let name = match role {
            Role::User => "user",
            Role::Assistant => "model",
            _ => return None,
        };
        Some(format!(r#"{{"role":"{name}","parts":[{{"text":{}}}]}}"#, encode(text)))
    },
    result_object: |response, text| {
        let output = format!(r#"{{"output":{}}}"#, encode(text));
        with_changed_fields(response, &[("response", FieldChange::Set(output)), ("parts", FieldChange::Remove)])
    },
};

pub(crate) const RESULTS: ResultSyntax = ResultSyntax {
    result_json: result_part,
    message_of_blocks: Some(|blocks| format!(r#"{{"role":"user","parts":[{blocks}]}}"#)),
    result_for_part: |_, _, call, text| result_part(call, text),
};

/// The nested fields of a content, level by level.
const NESTED_FIELDS: &[&[&str]] =
    &[&["parts"], &["functionCall", "functionResponse", "inlineData", "fileData"], &["response", "parts"]];

/// Fields of a part that do not determine its kind.
const COMMON_FIELDS: [&str; 8] = [
    "thought",
    "thoughtSignature",
    "thought_signature",
    "videoMetadata",
    "video_metadata",
    "mediaResolution",
    "partMetadata",
    "part_metadata",
];

fn result_part(call: AnsweredCall<'_>, text: &str) -> String {
    let id = if is_synthetic_id(call.id) { String::new() } else { format!(r#""id":{},"#, encode(call.id)) };
    let (name, text) = (encode(call.name), encode(text));
    format!(r#"{{"functionResponse":{{{id}"name":{name},"response":{{"output":{text}}}}}}}"#)
}

pub(crate) fn parse_message<'a>(content: &JsonObject<'a>, layout: &mut BodyLayout) -> Message<'a> {
    let role = match content.string("role") {
        Some(role) if role.eq_ignore_ascii_case("model") => Role::Assistant,
        Some(role) if role.eq_ignore_ascii_case("user") || role.eq_ignore_ascii_case("function") => Role::User,
        Some(_) => Role::Other,
        None => Role::User,
    };
    let mut builder = MessageBuilder::new(role, content, layout);
    if content.get("parts").is_some_and(JsonValue::is_array) {
        let elements = content.elements("parts");
        builder.push_list(ListName::Content, &elements, None);
        for (index, element) in elements.iter().enumerate() {
            let (part, place) = parse_part(element, builder.layout);
            builder.push(part, place.in_list(ListElement::new(ListName::Content, index)));
        }
    }
    builder.finish()
}

/// Returns a field in either spelling.
fn either<'o, 'a>(object: &'o JsonObject<'a>, camel: &str, snake: &str) -> Option<Cow<'o, JsonObject<'a>>> {
    object.nested_object(camel).or_else(|| object.nested_object(snake))
}

/// Returns the thought signature of a part.
pub(crate) fn signature<'a>(part: &JsonObject<'a>) -> Option<Cow<'a, str>> {
    part.string("thoughtSignature").or_else(|| part.string("thought_signature"))
}

/// Returns true if a part is reasoning.
pub(crate) fn is_thought(part: &JsonObject<'_>) -> bool {
    part.get("thought").and_then(JsonValue::bool) == Some(true)
}

/// Parses a part of a response, whose text counts as text even if it is signed.
pub(crate) fn response_part<'a>(part: &JsonObject<'a>) -> Part<'a> {
    match part.text("text") {
        Some(text) if !is_thought(part) => Part::text(text),
        _ => parse_part(part, &mut BodyLayout::default()).0,
    }
}

fn parse_part<'a>(part: &JsonObject<'a>, layout: &mut BodyLayout) -> (Part<'a>, PartLayout) {
    let fixed = |part| (part, PartLayout::new(EditSlot::Fixed, None));
    let seal = signature(part);
    if let Some(call) = either(part, "functionCall", "function_call") {
        let arguments = call.get("args").map_or("{}", JsonValue::raw);
        return fixed(Part::ToolCall(ToolCall {
            id: call.string("id").unwrap_or_default(),
            name: call.string("name").unwrap_or_default(),
            arguments: CallArguments::Json(arguments.into()),
            signature: seal.as_deref().map(Into::into),
        }));
    }
    if let Some(response) = either(part, "functionResponse", "function_response") {
        return parse_result(&response, layout);
    }
    if let Some(value) = part.get("text").filter(|value| value.is_string()) {
        let text = value.text().unwrap_or_default();
        return match seal {
            _ if is_thought(part) => fixed(Part::Reasoning(ReasoningPart { text, seal, redacted: false })),
            // Text and signature are checked together.
            Some(_) => fixed(opaque_part(Some("signed_text".into()), None, part.value)),
            None => (Part::text(text), PartLayout::new(EditSlot::Text(value.span.into()), None)),
        };
    }
    if let Some(media) = parse_media(part).filter(|_| seal.is_none()) {
        return (media, PartLayout::new(EditSlot::Block(part.value.span.into()), None));
    }
    let own = part.fields().iter().find(|field| !COMMON_FIELDS.contains(&&*field.key));
    let pair = own.and_then(|field| field.value.is_object().then(|| field.value.object().string("id")).flatten());
    fixed(opaque_part(own.map(|field| field.key.clone()), pair, part.value))
}

fn parse_media<'a>(part: &JsonObject<'a>) -> Option<Part<'a>> {
    let inline = either(part, "inlineData", "inline_data");
    let (media, source) = match inline {
        Some(inline) => {
            let data = inline.string("data").map_or(MediaSource::Unknown, MediaSource::Base64);
            (inline, data)
        }
        None => {
            let file = either(part, "fileData", "file_data")?;
            let uri = file.string("fileUri").or_else(|| file.string("file_uri"));
            (file, uri.map_or(MediaSource::Unknown, MediaSource::Url))
        }
    };
    let media_type = media.string("mimeType").or_else(|| media.string("mime_type"));
    Some(match media_type {
        Some(kind) if kind.starts_with("image/") => Part::Image(ImagePart { source, detail: None }),
        media_type => {
            let name = media.string("displayName").or_else(|| media.string("display_name"));
            Part::File(Box::new(FilePart { name, media_type, source }))
        }
    })
}

/// Parses a result. Its text is the string `output` or `error` of the response, or else the response itself.
fn parse_result<'a>(response: &JsonObject<'a>, layout: &mut BodyLayout) -> (Part<'a>, PartLayout) {
    let object = EditSlot::ResultObject(response.value.span.into());
    let body = response.nested_object("response");
    let only_field = body.as_deref().and_then(|body| match body.fields() {
        [field] if field.value.is_string() && matches!(&*field.key, "output" | "error" | "result" | "content") => {
            Some(field)
        }
        _ => None,
    });
    let mut content: Vec<Part<'a>> = Vec::new();
    let mut slots = Vec::new();
    match (only_field, response.get("response")) {
        (Some(field), _) => {
            content.push(Part::text(field.value.text().unwrap_or_default()));
            slots.push(EditSlot::Text(field.value.span.into()));
        }
        (None, Some(value)) => {
            content.push(Part::text(LazyText::from(value.raw())));
            slots.push(object);
        }
        (None, None) => {}
    }
    for media in response.elements("parts").iter() {
        content.push(parse_media(media).unwrap_or_else(|| opaque_part(None, None, media.value)));
        slots.push(EditSlot::Fixed);
    }
    let result = ToolResult {
        call_id: response.string("id").or_else(|| response.string("name").map(unanswered_id)).unwrap_or_default(),
        content,
        is_error: body.is_some_and(|body| body.get("error").is_some() && body.get("output").is_none()),
    };
    (Part::ToolResult(result), layout.part_with_inner(object, slots.into_iter()))
}

fn parse_instructions<'a>(top_level: &JsonObject<'a>) -> Vec<Part<'a>> {
    let Some(content) = either(top_level, "systemInstruction", "system_instruction") else { return Vec::new() };
    content.elements("parts").iter().map(|part| parse_part(part, &mut BodyLayout::default()).0).collect()
}

/// Parses the declared functions of all tools, and the tools of the provider. Another function can be appended to the
/// last list of functions.
fn parse_tools<'a>(top_level: &JsonObject<'a>) -> DeclaredTools<'a> {
    let mut definitions = Vec::new();
    let mut layout = None;
    for tool in top_level.elements("tools").iter() {
        let key = ["functionDeclarations", "function_declarations"].into_iter().find(|key| tool.get(key).is_some());
        let Some((key, list)) = key.and_then(|key| Some((key, tool.get(key).filter(|list| list.is_array())?))) else {
            let name = Cow::Borrowed("");
            definitions.push(ToolDefinition { name, definition: Cow::Borrowed(tool.value.raw()) });
            continue;
        };
        let functions = tool.elements(key);
        let elements = functions.iter().map(|function| function.value.span).collect();
        layout = Some(ToolsLayout { list_start: list.span.start + 1, elements });
        definitions.extend(functions.iter().map(|function| ToolDefinition {
            name: function.string("name").unwrap_or_default(),
            definition: Cow::Borrowed(function.value.raw()),
        }));
    }
    DeclaredTools { definitions, layout }
}

#[cfg(test)]
mod tests {
    use crate::conversation::PartId;
    use crate::testing::shape;
    use crate::wire::dialect::tests::messages_shape;
    use crate::wire::{Format, Request, RequestEdit};

    fn read(contents: &str) -> Vec<String> {
        messages_shape(Format::Gemini, contents)
    }

    /// A round of gemini-cli: a thought, two calls without ids of which the first is signed, and both results.
    #[test]
    fn round_with_signed_parallel_calls_is_read() {
        let body = r#"{"systemInstruction":{"parts":[{"text":"Be brief."}]},"tools":[{"functionDeclarations":[{"name":"ls"},{"name":"cat"}]},{"googleSearch":{}}],"contents":[
            {"parts":[{"text":"what is here?"}]},
            {"role":"model","parts":[
                {"text":"hm","thought":true},
                {"functionCall":{"name":"ls","args":{"path":"."}},"thoughtSignature":"c2ln"},
                {"functionCall":{"name":"ls","args":{"path":"a"}}}]},
            {"role":"user","parts":[
                {"functionResponse":{"name":"ls","response":{"output":"a.rs"}}},
                {"functionResponse":{"name":"ls","response":{"files":["b"],"more":false}}}]},
            {"role":"model","parts":[{"text":"done","thoughtSignature":"c2ln"}]}]}"#;
        let request = Request::parse(Format::Gemini, body.as_bytes()).unwrap();
        assert_eq!(
            shape(request.conversation()),
            [
                r#"standing: "Be brief.""#,
                r#"user: "what is here?""#,
                r##"assistant: thought "hm" | call #ls.0 ls({"path":"."}) | call #ls.1 ls({"path":"a"})"##,
                r##"user: result #ls.0 ["a.rs"] | result #ls.1 ["{\"files\":[\"b\"],\"more\":false}"]"##,
                "assistant: kept signed_text",
            ]
        );
        let names: Vec<&str> = request.conversation().tools.iter().map(|tool| &*tool.name).collect();
        assert_eq!(names, ["ls", "cat", ""]);
    }

    #[test]
    fn media_server_tools_and_snake_case_are_read() {
        assert_eq!(
            read(
                r#"{"role":"USER","parts":[
                    {"inline_data":{"mime_type":"image/png","data":"AAAA"}},
                    {"fileData":{"mimeType":"application/pdf","fileUri":"gs://a"}}]},
                {"role":"MODEL","parts":[
                    {"executableCode":{"id":"e1","code":"1"}},
                    {"codeExecutionResult":{"id":"e1","output":"1"}},
                    {"text":"","thoughtSignature":"c2ln"},
                    {"function_call":{"id":"c1","name":"f","args":{}}}]},
                {"role":"function","parts":[{"function_response":{"id":"c1","name":"f","response":{"error":"no"}}}]}"#
            ),
            [
                "user: image of 4 base64 characters | file at gs://a",
                "assistant: kept executableCode e1 | kept codeExecutionResult e1 | kept signed_text | call c1 f({})",
                r#"user: failed c1 ["no"]"#,
            ]
        );
    }

    #[test]
    fn result_is_replaced_and_loses_its_media() {
        let body = r#"[{"role":"user","parts":[{"functionResponse":{"id":"c","name":"f","response":{"output":"long"}}},{"functionResponse":{"name":"g","x":1,"response":{"a":1},"parts":[{"inlineData":{"mimeType":"image/png","data":"AAAA"}}]}}]}]"#;
        let request = Request::parse(Format::Gemini, body.as_bytes()).unwrap();
        let edit = |part| RequestEdit::Text { at: PartId::new(0, part), text: "[folded]".into() };
        let out = request.splice(&[edit(0), edit(1)]).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&out),
            r#"[{"role":"user","parts":[{"functionResponse":{"id":"c","name":"f","response":{"output":"[folded]"}}},{"functionResponse":{"name":"g","x":1,"response":{"output":"[folded]"}}}]}]"#
        );
    }

    #[test]
    fn arguments_and_signed_parts_are_never_edited() {
        let body = r#"[{"role":"model","parts":[{"functionCall":{"name":"f","args":{"a":1}}},{"text":"x","thoughtSignature":"s"}]}]"#;
        let request = Request::parse(Format::Gemini, body.as_bytes()).unwrap();
        let arguments = RequestEdit::Arguments { at: PartId::new(0, 0), arguments: "{}".into() };
        assert!(request.splice(&[arguments]).is_err());
        assert!(request.splice(&[RequestEdit::Text { at: PartId::new(0, 1), text: "y".into() }]).is_err());
    }
}
