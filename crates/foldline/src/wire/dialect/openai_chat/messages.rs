//! Messages written as Chat Completions messages. Every result is a message of its own.

use crate::conversation::{
    CallArguments, FilePart, ImagePart, MediaSource, Message, OpaqueBlock, Part, Role, ToolCall,
};
use crate::error::Error;
use crate::wire::dialect::openai_chat::request::{OPAQUE_FIELDS, REASONING_FIELDS};
use crate::wire::format::Format;
use crate::wire::json::string::encode;
use crate::wire::json::write::json_array;
use crate::wire::messages::{
    ElementSyntax, MessageSyntax, WrittenCalls, data_url, image_media_type, inexpressible, optional_field,
    result_content, sniffed_media_type,
};

pub(crate) const MESSAGES: MessageSyntax =
    MessageSyntax::Elements(ElementSyntax { elements: write_message, has_whole_turns: true });

fn write_message(message: &Message<'_>, _: &WrittenCalls) -> Result<Vec<String>, Error> {
    let mut elements = Vec::new();
    for result in message.results() {
        let (id, content) = (encode(&result.call_id), result_content(result, write_block)?);
        elements.push(format!(r#"{{"role":"tool","tool_call_id":{id},"content":{content}}}"#));
    }
    if elements.is_empty() || elements.len() < message.parts.len() {
        elements.push(write_rest(message)?);
    }
    Ok(elements)
}

/// Writes everything but the results of a message.
fn write_rest(message: &Message<'_>) -> Result<String, Error> {
    let mut fields = vec![format!(r#""role":"{}""#, role_name(message.role)?)];
    let (mut reasoning, mut content, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for part in &message.parts {
        match part {
            Part::ToolResult(_) => {}
            // The signatures of other dialects have no field here.
            Part::Reasoning(part) if part.seal.is_some() => {
                return Err(inexpressible(Format::OpenAiChat, "sealed reasoning; remove it first"));
            }
            Part::Reasoning(part) => reasoning.push(part.text.as_str()),
            Part::ToolCall(call) => calls.push(write_call(call)),
            Part::Opaque(block) if OPAQUE_FIELDS.contains(&&*block.kind) => {
                fields.push(format!(r#""{}":{}"#, block.kind, block.raw));
            }
            Part::Opaque(block) if is_call(block) => calls.push(block.raw.to_string()),
            part => content.push(part),
        }
    }
    // Servers have one field each; a turn of another dialect may have any number of texts.
    if reasoning.len() > REASONING_FIELDS.len() {
        fields.push(format!(r#""{}":{}"#, REASONING_FIELDS[0], encode(&reasoning.join("\n"))));
        reasoning.clear();
    }
    for (text, key) in reasoning.iter().zip(REASONING_FIELDS) {
        fields.push(format!(r#""{key}":{}"#, encode(text)));
    }
    let content = match content.as_slice() {
        [] if message.role == Role::Assistant => "null".to_owned(),
        [Part::Text { text }] => encode(text),
        parts => {
            let blocks = parts.iter().map(|part| write_block(part)).collect::<Result<Vec<_>, _>>()?;
            json_array(blocks.iter().map(String::as_str))
        }
    };
    fields.push(format!(r#""content":{content}"#));
    if !calls.is_empty() {
        fields.push(format!(r#""tool_calls":{}"#, json_array(calls.iter().map(String::as_str))));
    }
    Ok(format!("{{{}}}", fields.join(",")))
}

/// Returns true if an unknown block was in the list of calls, whose elements have ids.
fn is_call(block: &OpaqueBlock<'_>) -> bool {
    block.pair.is_some()
}

fn role_name(role: Role) -> Result<&'static str, Error> {
    match role {
        Role::System => Ok("system"),
        Role::Developer => Ok("developer"),
        Role::Assistant => Ok("assistant"),
        Role::User | Role::Tool => Ok("user"),
        Role::Other => Err(inexpressible(Format::OpenAiChat, "a message of an unknown role")),
    }
}

fn write_call(call: &ToolCall<'_>) -> String {
    let (id, name) = (encode(&call.id), encode(&call.name));
    let signature = call.signature.as_deref().map_or_else(String::new, |signature| {
        format!(r#","extra_content":{{"google":{{"thought_signature":{}}}}}"#, encode(signature))
    });
    match &call.arguments {
        CallArguments::Json(arguments) => {
            let arguments = encode(arguments);
            let function = format!(r#"{{"name":{name},"arguments":{arguments}}}"#);
            format!(r#"{{"id":{id},"type":"function","function":{function}{signature}}}"#)
        }
        CallArguments::Text(input) => {
            let custom = format!(r#"{{"name":{name},"input":{}}}"#, encode(input));
            format!(r#"{{"id":{id},"type":"custom","custom":{custom}}}"#)
        }
    }
}

fn write_block(part: &Part<'_>) -> Result<String, Error> {
    match part {
        Part::Text { text } => Ok(format!(r#"{{"type":"text","text":{}}}"#, encode(text))),
        Part::Image(image) => image_block(image),
        Part::File(file) => file_block(file),
        Part::Opaque(block) => Ok(block.raw.to_string()),
        _ => Err(inexpressible(Format::OpenAiChat, "a call or reasoning inside a result")),
    }
}

fn image_block(image: &ImagePart<'_>) -> Result<String, Error> {
    let url = match &image.source {
        MediaSource::Base64(data) => data_url(image_media_type(image), data),
        MediaSource::Url(url) => url.to_string(),
        _ => return Err(inexpressible(Format::OpenAiChat, "an image by id or without a source")),
    };
    let detail = optional_field("detail", image.detail.as_deref());
    Ok(format!(r#"{{"type":"image_url","image_url":{{"url":{}{detail}}}}}"#, encode(&url)))
}

fn file_block(file: &FilePart<'_>) -> Result<String, Error> {
    let (key, value) = match &file.source {
        MediaSource::Base64(data) => {
            let media_type = file.media_type.as_deref().or_else(|| sniffed_media_type(data));
            ("file_data", data_url(media_type.unwrap_or("application/pdf"), data))
        }
        // Bare base64 in `file_data` is read as a URL.
        MediaSource::Url(data) => ("file_data", data.to_string()),
        MediaSource::Id(id) => ("file_id", id.to_string()),
        MediaSource::Text(text) => return Ok(format!(r#"{{"type":"text","text":{}}}"#, encode(text))),
        MediaSource::Unknown => return Err(inexpressible(Format::OpenAiChat, "a file without a source")),
    };
    let name = optional_field("filename", file.name.as_deref());
    Ok(format!(r#"{{"type":"file","file":{{"{key}":{}{name}}}}}"#, encode(&value)))
}
