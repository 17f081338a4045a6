//! Gemini requests that foldline sends itself.

use serde_json::{Map, Value, json};

use crate::conversation::Message;
use crate::error::Error;
use crate::wire::compose::{ComposeSyntax, MessageContent, OutgoingRequest, ToolSpec, arguments_value};

pub(crate) const COMPOSE: ComposeSyntax = ComposeSyntax { path: "models/{model}:generateContent", body };

fn body(request: &OutgoingRequest<'_>) -> Result<Map<String, Value>, Error> {
    let mut names = Map::new();
    let mut contents = Vec::new();
    for message in request.messages {
        push_content(message, &mut names, &mut contents)?;
    }
    let mut body = Map::new();
    if !request.system.is_empty() {
        body.insert("systemInstruction".into(), json!({ "parts": [{ "text": request.system }] }));
    }
    body.insert("contents".into(), contents.into());
    body.insert("generationConfig".into(), json!({ "maxOutputTokens": request.max_output_tokens }));
    if !request.tools.is_empty() {
        let declarations = request.tool_declarations(declare_tool)?;
        body.insert("tools".into(), json!([{ "functionDeclarations": declarations }]));
    }
    Ok(body)
}

fn declare_tool(tool: &ToolSpec<'_>, parameters: Value) -> Value {
    json!({ "name": tool.name, "description": tool.description, "parametersJsonSchema": parameters })
}

/// Appends a message; `names` has the tool names of the calls so far, by id, which results repeat.
fn push_content(message: &Message<'_>, names: &mut Map<String, Value>, out: &mut Vec<Value>) -> Result<(), Error> {
    let content = MessageContent::from_message(message)?;
    let mut parts = Vec::new();
    for (result, text) in &content.results {
        let name = names.get(&*result.call_id).cloned().unwrap_or_default();
        parts.push(json!({
            "functionResponse": { "id": result.call_id, "name": name, "response": { "output": text } },
        }));
    }
    parts.extend(content.texts.iter().map(|text| json!({ "text": text })));
    for call in &content.calls {
        names.insert(call.id.to_string(), call.name.as_ref().into());
        let args = arguments_value(&call.arguments);
        parts.push(json!({ "functionCall": { "id": call.id, "name": call.name, "args": args } }));
    }
    if parts.is_empty() {
        return Ok(());
    }
    let role = if message.is_assistant() { "model" } else { "user" };
    // Results of parallel calls belong in one content, and roles alternate.
    match out.last_mut().filter(|last| last["role"] == role) {
        Some(last) => last["parts"].as_array_mut().expect("parts were written as a list").extend(parts),
        None => out.push(json!({ "role": role, "parts": parts })),
    }
    Ok(())
}
