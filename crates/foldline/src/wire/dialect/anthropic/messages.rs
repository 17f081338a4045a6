//! Messages written as Anthropic messages.

use crate::conversation::{FilePart, ImagePart, MediaSource, Part, Role};
use crate::error::Error;
use crate::wire::format::Format;
use crate::wire::json::string::encode;
use crate::wire::messages::{
    BlockSyntax, MessageSyntax, WrittenCalls, image_media_type, inexpressible, object_arguments, optional_field,
    result_content, sniffed_media_type,
};

pub(crate) const MESSAGES: MessageSyntax = MessageSyntax::Blocks(BlockSyntax {
    role_name,
    block: write_block,
    message: |role, blocks| format!(r#"{{"role":"{role}","content":[{blocks}]}}"#),
});

fn role_name(role: Role) -> Result<&'static str, Error> {
    match role {
        Role::User | Role::Tool => Ok("user"),
        Role::Assistant => Ok("assistant"),
        Role::System | Role::Developer => Ok("system"),
        Role::Other => Err(inexpressible(Format::Anthropic, "a message of an unknown role")),
    }
}

fn write_block(part: &Part<'_>, _: &WrittenCalls) -> Result<String, Error> {
    Ok(match part {
        Part::Reasoning(reasoning) => {
            let seal = reasoning.seal.as_deref();
            if reasoning.redacted {
                return Ok(format!(r#"{{"type":"redacted_thinking"{}}}"#, optional_field("data", seal)));
            }
            let (text, signature) = (encode(&reasoning.text), optional_field("signature", seal));
            format!(r#"{{"type":"thinking","thinking":{text}{signature}}}"#)
        }
        Part::ToolCall(call) => {
            let (id, name, input) = (encode(&call.id), encode(&call.name), object_arguments(&call.arguments));
            format!(r#"{{"type":"tool_use","id":{id},"name":{name},"input":{input}}}"#)
        }
        Part::ToolResult(result) => {
            let (id, content) = (encode(&result.call_id), result_content(result, write_content)?);
            let is_error = if result.is_error { r#","is_error":true"# } else { "" };
            format!(r#"{{"type":"tool_result","tool_use_id":{id},"content":{content}{is_error}}}"#)
        }
        part => write_content(part)?,
    })
}

/// Writes a part that may be in a message and in a result.
fn write_content(part: &Part<'_>) -> Result<String, Error> {
    Ok(match part {
        Part::Text { text } => format!(r#"{{"type":"text","text":{}}}"#, encode(text)),
        Part::Image(image) => format!(r#"{{"type":"image","source":{}}}"#, image_source(image)?),
        Part::File(file) => {
            let title = optional_field("title", file.name.as_deref());
            format!(r#"{{"type":"document","source":{}{title}}}"#, file_source(file)?)
        }
        Part::Opaque(block) => block.raw.to_string(),
        _ => return Err(inexpressible(Format::Anthropic, "a call or reasoning inside a result")),
    })
}

fn image_source(image: &ImagePart<'_>) -> Result<String, Error> {
    match &image.source {
        MediaSource::Base64(data) => Ok(base64_source(image_media_type(image), data)),
        source => source_by_name(source).ok_or_else(|| inexpressible(Format::Anthropic, "an image without a source")),
    }
}

fn file_source(file: &FilePart<'_>) -> Result<String, Error> {
    match &file.source {
        MediaSource::Base64(data) => {
            let media_type = file.media_type.as_deref().or_else(|| sniffed_media_type(data));
            Ok(base64_source(media_type.unwrap_or("application/pdf"), data))
        }
        MediaSource::Text(text) => {
            let media_type = encode(file.media_type.as_deref().unwrap_or("text/plain"));
            Ok(format!(r#"{{"type":"text","media_type":{media_type},"data":{}}}"#, encode(text)))
        }
        source => source_by_name(source).ok_or_else(|| inexpressible(Format::Anthropic, "a file without a source")),
    }
}

fn base64_source(media_type: &str, data: &str) -> String {
    format!(r#"{{"type":"base64","media_type":{},"data":{}}}"#, encode(media_type), encode(data))
}

fn source_by_name(source: &MediaSource<'_>) -> Option<String> {
    match source {
        MediaSource::Url(url) => Some(format!(r#"{{"type":"url","url":{}}}"#, encode(url))),
        MediaSource::Id(id) => Some(format!(r#"{{"type":"file","file_id":{}}}"#, encode(id))),
        _ => None,
    }
}
