//! Converse requests that foldline sends itself.

use serde_json::{Map, Value, json};

use crate::conversation::Message;
use crate::error::Error;
use crate::wire::compose::{ComposeSyntax, MessageContent, OutgoingRequest, ToolSpec, arguments_value};

pub(crate) const COMPOSE: ComposeSyntax = ComposeSyntax { path: "/model/{model}/converse", body };

fn body(request: &OutgoingRequest<'_>) -> Result<Map<String, Value>, Error> {
    let mut messages = Vec::new();
    for message in request.messages {
        push_message(message, &mut messages)?;
    }
    let mut body = Map::new();
    if !request.system.is_empty() {
        body.insert("system".into(), json!([{ "text": request.system }]));
    }
    body.insert("messages".into(), messages.into());
    body.insert("inferenceConfig".into(), json!({ "maxTokens": request.max_output_tokens }));
    if !request.tools.is_empty() {
        body.insert("toolConfig".into(), json!({ "tools": request.tool_declarations(declare_tool)? }));
    }
    Ok(body)
}

fn declare_tool(tool: &ToolSpec<'_>, parameters: Value) -> Value {
    json!({
        "toolSpec": { "name": tool.name, "description": tool.description, "inputSchema": { "json": parameters } },
    })
}

fn push_message(message: &Message<'_>, out: &mut Vec<Value>) -> Result<(), Error> {
    let content = MessageContent::from_message(message)?;
    let mut blocks = Vec::new();
    for (result, text) in &content.results {
        blocks.push(json!({ "toolResult": { "toolUseId": result.call_id, "content": [{ "text": text }] } }));
    }
    blocks.extend(content.texts.iter().map(|text| json!({ "text": text })));
    for call in &content.calls {
        let input = arguments_value(&call.arguments);
        blocks.push(json!({ "toolUse": { "toolUseId": call.id, "name": call.name, "input": input } }));
    }
    if blocks.is_empty() {
        return Ok(());
    }
    let role = if message.is_assistant() { "assistant" } else { "user" };
    // Roles alternate.
    match out.last_mut().filter(|last| last["role"] == role) {
        Some(last) => last["content"].as_array_mut().expect("content was written as a list").extend(blocks),
        None => out.push(json!({ "role": role, "content": blocks })),
    }
    Ok(())
}
