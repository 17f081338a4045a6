//! Ollama requests that foldline sends itself.
//!
//! They set no option that the server loads the model with (`num_ctx`), because another value would reload it.

use serde_json::{Map, Value, json};

use crate::conversation::Message;
use crate::error::Error;
use crate::wire::compose::{ComposeSyntax, MessageContent, OutgoingRequest, ToolSpec, arguments_value, role_name};

pub(crate) const COMPOSE: ComposeSyntax = ComposeSyntax { path: "/api/chat", body };

fn body(request: &OutgoingRequest<'_>) -> Result<Map<String, Value>, Error> {
    let mut messages = Vec::new();
    if !request.system.is_empty() {
        messages.push(json!({ "role": "system", "content": request.system }));
    }
    let mut names = Map::new();
    for message in request.messages {
        push_messages(message, &mut names, &mut messages)?;
    }
    let mut body = Map::new();
    body.insert("model".into(), request.model.into());
    body.insert("stream".into(), false.into());
    body.insert("options".into(), json!({ "num_predict": request.max_output_tokens }));
    body.insert("messages".into(), messages.into());
    if !request.tools.is_empty() {
        body.insert("tools".into(), request.tool_declarations(declare_tool)?.into());
    }
    Ok(body)
}

fn declare_tool(tool: &ToolSpec<'_>, parameters: Value) -> Value {
    json!({
        "type": "function",
        "function": { "name": tool.name, "description": tool.description, "parameters": parameters },
    })
}

/// Appends a message; `names` has the tool names of the calls so far, by id, which results repeat.
fn push_messages(message: &Message<'_>, names: &mut Map<String, Value>, out: &mut Vec<Value>) -> Result<(), Error> {
    let content = MessageContent::from_message(message)?;
    for (result, text) in &content.results {
        let name = names.get(&*result.call_id).cloned().unwrap_or_default();
        out.push(json!({ "role": "tool", "tool_name": name, "tool_call_id": result.call_id, "content": text }));
    }
    if content.texts.is_empty() && content.calls.is_empty() {
        return Ok(());
    }
    let mut json = json!({ "role": role_name(message), "content": content.texts.join("\n\n") });
    if !content.calls.is_empty() {
        let mut calls = Vec::new();
        for call in &content.calls {
            names.insert(call.id.to_string(), call.name.as_ref().into());
            let arguments = arguments_value(&call.arguments);
            calls.push(json!({ "id": call.id, "function": { "name": call.name, "arguments": arguments } }));
        }
        json["tool_calls"] = calls.into();
    }
    out.push(json);
    Ok(())
}
