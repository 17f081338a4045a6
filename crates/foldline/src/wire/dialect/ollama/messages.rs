//! Messages written as Ollama messages. Every result is a message of its own; a message has one text.

use crate::conversation::{ImagePart, MediaSource, Message, Part, Role, ToolCall, ToolResult};
use crate::error::Error;
use crate::wire::dialect::ollama::request::result_message;
use crate::wire::format::Format;
use crate::wire::json::string::encode;
use crate::wire::json::write::json_array;
use crate::wire::messages::{ElementSyntax, MessageSyntax, WrittenCalls, inexpressible, object_arguments};
use crate::wire::request::{is_synthetic_id, synthetic_name};
use crate::wire::result::AnsweredCall;

pub(crate) const MESSAGES: MessageSyntax =
    MessageSyntax::Elements(ElementSyntax { elements: write_message, has_whole_turns: true });

fn write_message(message: &Message<'_>, calls: &WrittenCalls) -> Result<Vec<String>, Error> {
    // The images of a tool message are next to its result.
    let is_tool_message = message.role == Role::Tool && message.results().count() == 1;
    let own_images = message.parts.iter().filter(|part| is_tool_message && matches!(part, Part::Image(_)));
    let own_images: Vec<&Part<'_>> = own_images.collect();
    let results = message.results().map(|result| write_result(result, &own_images, calls));
    let mut elements = results.collect::<Result<Vec<_>, _>>()?;
    if elements.is_empty() || elements.len() + own_images.len() < message.parts.len() {
        elements.push(write_rest(message)?);
    }
    Ok(elements)
}

fn write_result(result: &ToolResult<'_>, images: &[&Part<'_>], calls: &WrittenCalls) -> Result<String, Error> {
    let name = calls.tool_name(&result.call_id).unwrap_or_else(|| synthetic_name(&result.call_id));
    let texts = encode(&result.texts().collect::<Vec<_>>().join("\n"));
    let own_images = result.content.iter().filter(|part| part.as_text().is_none());
    let images = own_images.chain(images.iter().copied()).map(image_json).collect::<Result<Vec<_>, _>>()?;
    let content = match images.as_slice() {
        [] => texts,
        images => format!(r#"{texts},"images":{}"#, json_array(images.iter().map(String::as_str))),
    };
    Ok(result_message(AnsweredCall { id: &result.call_id, name }, &content))
}

/// Writes everything but the results of a message.
fn write_rest(message: &Message<'_>) -> Result<String, Error> {
    let (mut reasoning, mut texts, mut images, mut calls) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for part in &message.parts {
        match part {
            Part::ToolResult(_) => {}
            Part::Reasoning(part) if part.seal.is_some() => {
                return Err(inexpressible(Format::Ollama, "sealed reasoning; remove it first"));
            }
            Part::Reasoning(part) => reasoning.push(part.text.as_str()),
            Part::Text { text } => texts.push(text.as_str()),
            Part::ToolCall(call) => calls.push(write_call(call)),
            part => images.push(image_json(part)?),
        }
    }
    let mut fields = vec![format!(r#""role":"{}""#, role_name(message.role)?)];
    if !reasoning.is_empty() {
        fields.push(format!(r#""thinking":{}"#, encode(&reasoning.join("\n"))));
    }
    if !texts.is_empty() || calls.is_empty() && images.is_empty() {
        fields.push(format!(r#""content":{}"#, encode(&texts.join("\n\n"))));
    }
    for (key, list) in [("images", images), ("tool_calls", calls)] {
        if !list.is_empty() {
            fields.push(format!(r#""{key}":{}"#, json_array(list.iter().map(String::as_str))));
        }
    }
    Ok(format!("{{{}}}", fields.join(",")))
}

fn role_name(role: Role) -> Result<&'static str, Error> {
    match role {
        Role::System | Role::Developer => Ok("system"),
        Role::Assistant => Ok("assistant"),
        Role::User | Role::Tool => Ok("user"),
        Role::Other => Err(inexpressible(Format::Ollama, "a message of an unknown role")),
    }
}

fn write_call(call: &ToolCall<'_>) -> String {
    let id = match &*call.id {
        id if id.is_empty() || is_synthetic_id(id) => String::new(),
        id => format!(r#""id":{},"#, encode(id)),
    };
    let (name, arguments) = (encode(&call.name), object_arguments(&call.arguments));
    format!(r#"{{{id}"function":{{"name":{name},"arguments":{arguments}}}}}"#)
}

fn image_json(part: &Part<'_>) -> Result<String, Error> {
    match part {
        Part::Image(ImagePart { source: MediaSource::Base64(data), .. }) => Ok(encode(data)),
        Part::Image(_) => Err(inexpressible(Format::Ollama, "an image that is not in the request")),
        _ => Err(inexpressible(Format::Ollama, "a file or an unknown block")),
    }
}
