//! Messages written as Converse messages.

use crate::conversation::{FilePart, ImagePart, MediaSource, Part, Role};
use crate::error::Error;
use crate::wire::format::Format;
use crate::wire::json::string::encode;
use crate::wire::json::write::json_array;
use crate::wire::messages::{
    BlockSyntax, MessageSyntax, WrittenCalls, image_media_type, inexpressible, object_arguments, optional_field,
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
        Role::Other => Err(inexpressible(Format::Converse, "a message of an unknown role")),
    }
}

fn write_block(part: &Part<'_>, _: &WrittenCalls) -> Result<String, Error> {
    Ok(match part {
        Part::Reasoning(reasoning) if reasoning.redacted => {
            let data = encode(reasoning.seal.as_deref().unwrap_or_default());
            format!(r#"{{"reasoningContent":{{"redactedContent":{data}}}}}"#)
        }
        Part::Reasoning(reasoning) => {
            let (text, signature) = (encode(&reasoning.text), optional_field("signature", reasoning.seal.as_deref()));
            format!(r#"{{"reasoningContent":{{"reasoningText":{{"text":{text}{signature}}}}}}}"#)
        }
        Part::ToolCall(call) => {
            let (id, name, input) = (encode(&call.id), encode(&call.name), object_arguments(&call.arguments));
            format!(r#"{{"toolUse":{{"toolUseId":{id},"name":{name},"input":{input}}}}}"#)
        }
        Part::ToolResult(result) => {
            let items = result.content.iter().map(write_content).collect::<Result<Vec<_>, _>>()?;
            let content = json_array(items.iter().map(String::as_str));
            let status = if result.is_error { r#","status":"error""# } else { "" };
            format!(r#"{{"toolResult":{{"toolUseId":{},"content":{content}{status}}}}}"#, encode(&result.call_id))
        }
        part => write_content(part)?,
    })
}

/// Writes a part that may be in a message and in a result.
fn write_content(part: &Part<'_>) -> Result<String, Error> {
    Ok(match part {
        Part::Text { text } => format!(r#"{{"text":{}}}"#, encode(text)),
        Part::Image(image) => image_block(image)?,
        Part::File(file) => document_block(file)?,
        Part::Opaque(block) => block.raw.to_string(),
        _ => return Err(inexpressible(Format::Converse, "a call or reasoning inside a result")),
    })
}

fn image_block(image: &ImagePart<'_>) -> Result<String, Error> {
    let format = image_media_type(image).trim_start_matches("image/");
    let source = source_json(&image.source);
    let source = source.ok_or_else(|| inexpressible(Format::Converse, "an image that is not in the request"))?;
    Ok(format!(r#"{{"image":{{"format":"{format}","source":{source}}}}}"#))
}

fn document_block(file: &FilePart<'_>) -> Result<String, Error> {
    let format = encode(file.media_type.as_deref().map_or("pdf", |kind| kind.rsplit('/').next().unwrap_or(kind)));
    let name = encode(file.name.as_deref().unwrap_or("document"));
    let source = source_json(&file.source);
    let source = source.ok_or_else(|| inexpressible(Format::Converse, "a file that is not in the request"))?;
    Ok(format!(r#"{{"document":{{"name":{name},"format":{format},"source":{source}}}}}"#))
}

fn source_json(source: &MediaSource<'_>) -> Option<String> {
    match source {
        MediaSource::Base64(data) => Some(format!(r#"{{"bytes":{}}}"#, encode(data))),
        MediaSource::Text(text) => Some(format!(r#"{{"text":{}}}"#, encode(text))),
        MediaSource::Url(url) if url.starts_with("s3://") => {
            Some(format!(r#"{{"s3Location":{{"uri":{}}}}}"#, encode(url)))
        }
        _ => None,
    }
}
