//! Chat Completions requests that foldline sends itself.

use serde_json::{Map, Value, json};

use crate::conversation::{Message, ToolCall};
use crate::error::Error;
use crate::models::ModelTable;
use crate::wire::compose::{ComposeSyntax, MessageContent, OutgoingRequest, ToolSpec, arguments_object, role_name};

pub(crate) const COMPOSE: ComposeSyntax = ComposeSyntax { path: "chat/completions", body };

fn body(request: &OutgoingRequest<'_>) -> Result<Map<String, Value>, Error> {
    let mut messages = Vec::new();
    if !request.system.is_empty() {
        messages.push(json!({ "role": "system", "content": request.system }));
    }
    for message in request.messages {
        push_messages(message, &mut messages)?;
    }
    let mut body = Map::new();
    body.insert("model".into(), request.model.into());
    body.insert(limit_field(request.model).into(), request.max_output_tokens.into());
    body.insert("messages".into(), messages.into());
    if !request.tools.is_empty() {
        body.insert("tools".into(), request.tool_declarations(declare_tool)?.into());
    }
    Ok(body)
}

/// Returns the field name of the output limit. OpenAI's newer models reject the old name; other servers do not support
/// the new one.
fn limit_field(model: &str) -> &'static str {
    let row = ModelTable::builtin().find(Some(model));
    if row.provider == "openai" { "max_completion_tokens" } else { "max_tokens" }
}

fn declare_tool(tool: &ToolSpec<'_>, parameters: Value) -> Value {
    json!({
        "type": "function",
        "function": { "name": tool.name, "description": tool.description, "parameters": parameters },
    })
}

fn push_messages(message: &Message<'_>, out: &mut Vec<Value>) -> Result<(), Error> {
    let content = MessageContent::from_message(message)?;
    for (result, text) in &content.results {
        out.push(json!({ "role": "tool", "tool_call_id": result.call_id, "content": text }));
    }
    if content.texts.is_empty() && content.calls.is_empty() {
        return Ok(());
    }
    let text = if content.texts.is_empty() { Value::Null } else { content.texts.join("\n\n").into() };
    let mut json = json!({ "role": role_name(message), "content": text });
    if !content.calls.is_empty() {
        let call = |call: &&ToolCall<'_>| {
            json!({
                "id": call.id,
                "type": "function",
                "function": { "name": call.name, "arguments": arguments_object(&call.arguments) },
            })
        };
        json["tool_calls"] = content.calls.iter().map(call).collect();
    }
    out.push(json);
    Ok(())
}
