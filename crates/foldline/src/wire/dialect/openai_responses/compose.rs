//! Responses requests that foldline sends itself.

use serde_json::{Map, Value, json};

use crate::conversation::Message;
use crate::error::Error;
use crate::wire::compose::{ComposeSyntax, MessageContent, OutgoingRequest, ToolSpec, arguments_object, role_name};

pub(crate) const COMPOSE: ComposeSyntax = ComposeSyntax { path: "responses", body };

fn body(request: &OutgoingRequest<'_>) -> Result<Map<String, Value>, Error> {
    let mut items = Vec::new();
    for message in request.messages {
        push_items(message, &mut items)?;
    }
    let mut body = Map::new();
    body.insert("model".into(), request.model.into());
    body.insert("max_output_tokens".into(), request.max_output_tokens.into());
    if !request.system.is_empty() {
        body.insert("instructions".into(), request.system.into());
    }
    body.insert("input".into(), items.into());
    // The provider must not store foldline's own requests.
    body.insert("store".into(), false.into());
    if !request.tools.is_empty() {
        body.insert("tools".into(), request.tool_declarations(declare_tool)?.into());
    }
    Ok(body)
}

fn declare_tool(tool: &ToolSpec<'_>, parameters: Value) -> Value {
    json!({ "type": "function", "name": tool.name, "description": tool.description, "parameters": parameters })
}

fn push_items(message: &Message<'_>, out: &mut Vec<Value>) -> Result<(), Error> {
    let content = MessageContent::from_message(message)?;
    for (result, text) in &content.results {
        out.push(json!({ "type": "function_call_output", "call_id": result.call_id, "output": text }));
    }
    if !content.texts.is_empty() {
        let text = content.texts.join("\n\n");
        out.push(json!({ "type": "message", "role": role_name(message), "content": text }));
    }
    for call in &content.calls {
        let arguments = arguments_object(&call.arguments);
        out.push(json!({ "type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments }));
    }
    Ok(())
}
