//! Messages written as Responses items: texts and media of a message are one item, everything else is an item of its own.

use crate::conversation::{
    CallArguments, FilePart, ImagePart, MediaSource, Message, Part, ReasoningPart, Role, ToolCall,
};
use crate::error::Error;
use crate::wire::format::Format;
use crate::wire::json::string::encode;
use crate::wire::json::write::json_array;
use crate::wire::messages::{
    ElementSyntax, MessageSyntax, WrittenCalls, data_url, image_media_type, inexpressible, optional_field,
    result_content, sniffed_media_type,
};

pub(crate) const MESSAGES: MessageSyntax =
    MessageSyntax::Elements(ElementSyntax { elements: write_items, has_whole_turns: false });

/// Unknown blocks that are content of a message; all others are items.
const CONTENT_BLOCKS: [&str; 3] = ["refusal", "input_audio", "output_audio"];

fn write_items(message: &Message<'_>, calls: &WrittenCalls) -> Result<Vec<String>, Error> {
    let role = role_name(message.role)?;
    let mut items = Vec::new();
    let mut content: Vec<&Part<'_>> = Vec::new();
    for part in &message.parts {
        let item = match part {
            Part::Reasoning(reasoning) => reasoning_item(reasoning),
            Part::ToolCall(call) => call_item(call),
            Part::ToolResult(result) => {
                let is_custom = calls.has_text_arguments(&result.call_id);
                let kind = if is_custom { "custom_tool_call_output" } else { "function_call_output" };
                let (id, output) =
                    (encode(&result.call_id), result_content(result, |part| write_block(part, "input"))?);
                format!(r#"{{"type":"{kind}","call_id":{id},"output":{output}}}"#)
            }
            Part::Opaque(block) if message.parts.len() == 1 && !CONTENT_BLOCKS.contains(&&*block.kind) => {
                block.raw.to_string()
            }
            content_part => {
                content.push(content_part);
                continue;
            }
        };
        items.extend(message_item(role, &mut content)?);
        items.push(item);
    }
    let is_empty = items.is_empty() && content.is_empty();
    items.extend(message_item(role, &mut content)?);
    if is_empty {
        items.push(format!(r#"{{"type":"message","role":"{role}","content":[]}}"#));
    }
    Ok(items)
}

fn role_name(role: Role) -> Result<&'static str, Error> {
    match role {
        Role::System => Ok("system"),
        Role::Developer => Ok("developer"),
        Role::Assistant => Ok("assistant"),
        Role::User | Role::Tool => Ok("user"),
        Role::Other => Err(inexpressible(Format::OpenAiResponses, "a message of an unknown role")),
    }
}

/// Writes the collected content as an item, if there is any.
fn message_item(role: &str, content: &mut Vec<&Part<'_>>) -> Result<Option<String>, Error> {
    let side = if role == "assistant" { "output" } else { "input" };
    let written = match std::mem::take(content).as_slice() {
        [] => return Ok(None),
        [Part::Text { text }] => encode(text),
        parts => {
            let blocks = parts.iter().map(|part| write_block(part, side)).collect::<Result<Vec<_>, _>>()?;
            json_array(blocks.iter().map(String::as_str))
        }
    };
    Ok(Some(format!(r#"{{"type":"message","role":"{role}","content":{written}}}"#)))
}

fn reasoning_item(reasoning: &ReasoningPart<'_>) -> String {
    let summary = match &*reasoning.text {
        "" => String::new(),
        text => format!(r#"{{"type":"summary_text","text":{}}}"#, encode(text)),
    };
    let seal = optional_field("encrypted_content", reasoning.seal.as_deref());
    format!(r#"{{"type":"reasoning","summary":[{summary}]{seal}}}"#)
}

fn call_item(call: &ToolCall<'_>) -> String {
    let (kind, key, arguments) = match &call.arguments {
        CallArguments::Json(arguments) => ("function_call", "arguments", arguments),
        CallArguments::Text(input) => ("custom_tool_call", "input", input),
    };
    let (id, name, arguments) = (encode(&call.id), encode(&call.name), encode(arguments));
    format!(r#"{{"type":"{kind}","call_id":{id},"name":{name},"{key}":{arguments}}}"#)
}

/// Writes a block of content; `side` is `input` or `output`.
fn write_block(part: &Part<'_>, side: &str) -> Result<String, Error> {
    match part {
        Part::Text { text } => Ok(format!(r#"{{"type":"{side}_text","text":{}}}"#, encode(text))),
        Part::Image(image) => image_block(image),
        Part::File(file) => file_block(file),
        Part::Opaque(block) => Ok(block.raw.to_string()),
        _ => Err(inexpressible(Format::OpenAiResponses, "a call or reasoning inside a result")),
    }
}

fn image_block(image: &ImagePart<'_>) -> Result<String, Error> {
    let (key, value) = match &image.source {
        MediaSource::Base64(data) => ("image_url", data_url(image_media_type(image), data)),
        MediaSource::Url(url) => ("image_url", url.to_string()),
        MediaSource::Id(id) => ("file_id", id.to_string()),
        _ => return Err(inexpressible(Format::OpenAiResponses, "an image without a source")),
    };
    let detail = optional_field("detail", image.detail.as_deref());
    Ok(format!(r#"{{"type":"input_image","{key}":{}{detail}}}"#, encode(&value)))
}

fn file_block(file: &FilePart<'_>) -> Result<String, Error> {
    let (key, value) = match &file.source {
        MediaSource::Base64(data) => {
            let media_type = file.media_type.as_deref().or_else(|| sniffed_media_type(data));
            ("file_data", data_url(media_type.unwrap_or("application/pdf"), data))
        }
        MediaSource::Url(url) => ("file_url", url.to_string()),
        MediaSource::Id(id) => ("file_id", id.to_string()),
        MediaSource::Text(text) => return Ok(format!(r#"{{"type":"input_text","text":{}}}"#, encode(text))),
        MediaSource::Unknown => return Err(inexpressible(Format::OpenAiResponses, "a file without a source")),
    };
    let name = optional_field("filename", file.name.as_deref());
    Ok(format!(r#"{{"type":"input_file","{key}":{}{name}}}"#, encode(&value)))
}
