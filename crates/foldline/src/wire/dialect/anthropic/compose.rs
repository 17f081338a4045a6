//! Anthropic Messages requests that foldline sends itself.

use serde_json::{Map, Value, json};

use crate::conversation::Message;
use crate::error::Error;
use crate::wire::compose::{ComposeSyntax, MessageContent, OutgoingRequest, ToolSpec, arguments_value};

pub(crate) const COMPOSE: ComposeSyntax = ComposeSyntax { path: "messages", body };

fn body(request: &OutgoingRequest<'_>) -> Result<Map<String, Value>, Error> {
    let mut messages = Vec::new();
    for message in request.messages {
        push_message(message, &mut messages)?;
    }
    let mut body = Map::new();
    body.insert("model".into(), request.model.into());
    body.insert("max_tokens".into(), request.max_output_tokens.into());
    if !request.system.is_empty() {
        body.insert("system".into(), request.system.into());
    }
    body.insert("messages".into(), messages.into());
    if !request.tools.is_empty() {
        body.insert("tools".into(), request.tool_declarations(declare_tool)?.into());
    }
    Ok(body)
}

fn declare_tool(tool: &ToolSpec<'_>, parameters: Value) -> Value {
    json!({ "name": tool.name, "description": tool.description, "input_schema": parameters })
}

fn push_message(message: &Message<'_>, out: &mut Vec<Value>) -> Result<(), Error> {
    let content = MessageContent::from_message(message)?;
    let mut blocks = Vec::new();
    for (result, text) in &content.results {
        blocks.push(json!({
            "type": "tool_result", "tool_use_id": result.call_id, "content": text, "is_error": result.is_error,
        }));
    }
    blocks.extend(content.texts.iter().map(|text| json!({ "type": "text", "text": text })));
    for call in &content.calls {
        let input = arguments_value(&call.arguments);
        blocks.push(json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input }));
    }
    if blocks.is_empty() {
        return Ok(());
    }
    let role = if message.is_assistant() { "assistant" } else { "user" };
    // Results of parallel calls belong in one message, and adjacent messages of one role are one turn.
    match out.last_mut().filter(|last| last["role"] == role) {
        Some(last) => last["content"].as_array_mut().expect("content was written as a list").extend(blocks),
        None => out.push(json!({ "role": role, "content": blocks })),
    }
    Ok(())
}
