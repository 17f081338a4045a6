//! Messages written as Gemini contents.

use crate::conversation::{FilePart, ImagePart, MediaSource, Part, Role, ToolResult};
use crate::error::Error;
use crate::wire::format::Format;
use crate::wire::json::string::encode;
use crate::wire::messages::{
    BlockSyntax, MessageSyntax, WrittenCalls, image_media_type, inexpressible, object_arguments, optional_field,
    sniffed_media_type,
};
use crate::wire::request::{is_synthetic_id, synthetic_name};

pub(crate) const MESSAGES: MessageSyntax = MessageSyntax::Blocks(BlockSyntax {
    role_name,
    block: write_part,
    message: |role, blocks| format!(r#"{{"role":"{role}","parts":[{blocks}]}}"#),
});

fn role_name(role: Role) -> Result<&'static str, Error> {
    match role {
        Role::User | Role::Tool => Ok("user"),
        Role::Assistant => Ok("model"),
        Role::System | Role::Developer => {
            Err(inexpressible(Format::Gemini, "instructions between messages; send them as systemInstruction"))
        }
        Role::Other => Err(inexpressible(Format::Gemini, "a message of an unknown role")),
    }
}

fn write_part(part: &Part<'_>, calls: &WrittenCalls) -> Result<String, Error> {
    Ok(match part {
        Part::Text { text } => format!(r#"{{"text":{}}}"#, encode(text)),
        Part::Reasoning(reasoning) => {
            let signature = optional_field("thoughtSignature", reasoning.seal.as_deref());
            format!(r#"{{"text":{},"thought":true{signature}}}"#, encode(&reasoning.text))
        }
        Part::ToolCall(call) => {
            let (id, name) = (id_field(&call.id), encode(&call.name));
            let (args, signature) =
                (object_arguments(&call.arguments), optional_field("thoughtSignature", call.signature.as_deref()));
            format!(r#"{{"functionCall":{{{id}"name":{name},"args":{args}}}{signature}}}"#)
        }
        Part::ToolResult(result) => write_result(result, calls)?,
        Part::Image(image) => image_part(image)?,
        Part::File(file) => file_part(file)?,
        Part::Opaque(block) => block.raw.to_string(),
    })
}

/// Returns the field with the id of a call, unless the provider did not assign one.
fn id_field(id: &str) -> String {
    if is_synthetic_id(id) || id.is_empty() { String::new() } else { format!(r#""id":{},"#, encode(id)) }
}

/// Writes a result. Its texts are one string; its images and files follow as parts.
fn write_result(result: &ToolResult<'_>, calls: &WrittenCalls) -> Result<String, Error> {
    let name = calls.tool_name(&result.call_id).unwrap_or_else(|| synthetic_name(&result.call_id));
    let (id, name) = (id_field(&result.call_id), encode(name));
    let key = if result.is_error { "error" } else { "output" };
    let output = encode(&result.texts().collect::<Vec<_>>().join("\n"));
    let mut media = Vec::new();
    for part in &result.content {
        match part {
            Part::Text { .. } => {}
            Part::Image(image) => media.push(image_part(image)?),
            Part::File(file) => media.push(file_part(file)?),
            Part::Opaque(block) => media.push(block.raw.to_string()),
            _ => return Err(inexpressible(Format::Gemini, "a call or reasoning inside a result")),
        }
    }
    let parts = if media.is_empty() { String::new() } else { format!(r#","parts":[{}]"#, media.join(",")) };
    Ok(format!(r#"{{"functionResponse":{{{id}"name":{name},"response":{{"{key}":{output}}}{parts}}}}}"#))
}

fn image_part(image: &ImagePart<'_>) -> Result<String, Error> {
    media_part(&image.source, image_media_type(image), None)
        .ok_or_else(|| inexpressible(Format::Gemini, "an image by id or without a source"))
}

fn file_part(file: &FilePart<'_>) -> Result<String, Error> {
    if let MediaSource::Text(text) = &file.source {
        return Ok(format!(r#"{{"text":{}}}"#, encode(text)));
    }
    let sniffed = match &file.source {
        MediaSource::Base64(data) => sniffed_media_type(data),
        _ => None,
    };
    let media_type = file.media_type.as_deref().or(sniffed).unwrap_or("application/pdf");
    media_part(&file.source, media_type, file.name.as_deref())
        .ok_or_else(|| inexpressible(Format::Gemini, "a file by id or without a source"))
}

fn media_part(source: &MediaSource<'_>, media_type: &str, name: Option<&str>) -> Option<String> {
    let (media_type, name) = (encode(media_type), optional_field("displayName", name));
    match source {
        MediaSource::Base64(data) => {
            Some(format!(r#"{{"inlineData":{{"mimeType":{media_type},"data":{}{name}}}}}"#, encode(data)))
        }
        MediaSource::Url(url) => {
            Some(format!(r#"{{"fileData":{{"mimeType":{media_type},"fileUri":{}{name}}}}}"#, encode(url)))
        }
        _ => None,
    }
}
